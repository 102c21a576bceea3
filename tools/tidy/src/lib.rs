//! House rules that a compiler does not know. Pure checks: text in, complaints out.
//!
//! Each check takes a path and a text and returns one line per complaint, worded so that the reader
//! knows what to do next. Only [`tree`] touches the disk. `tests/tidy.rs` runs every check on the
//! real tree; the unit tests beside each check show that it bites.
//!
//! [`mutants`] is no check but a tool: it judges the tests of engines, and runs for hours.

pub mod arrows;
pub mod dialect;
pub mod docs;
pub mod features;
pub mod links;
pub mod manifest;
pub mod mutants;
pub mod promises;
pub mod rooms;
pub mod size;
pub mod source;
pub mod temporary;
pub mod tree;
pub mod types;
pub mod words;

/// Whether a path holds nothing but tests: below a `tests` directory, or named `tests.rs` or
/// `tests_*.rs`.
#[must_use]
pub fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let in_tests = path.split('/').rev().skip(1).any(|part| part == "tests");
    let stem = name.strip_suffix(".rs");
    in_tests || stem.is_some_and(|stem| stem == "tests" || stem.starts_with("tests_"))
}

#[cfg(test)]
mod tests {
    use super::is_test_file;

    #[test]
    fn test_files_are_known_by_their_place_or_name() {
        assert!(is_test_file("crates/tenure/tests/mutex.rs"));
        assert!(is_test_file("crates/tenure/src/session/tests/loss.rs"));
        assert!(is_test_file("crates/tenure/src/session/tests.rs"));
        assert!(is_test_file("crates/tenure/src/session/tests_loss.rs"));
        assert!(!is_test_file("crates/tenure/src/session/testsuite.rs"));
        assert!(!is_test_file("crates/tenure/src/contests/mod.rs"));
    }
}

//! Whether a file fits the eye: its lines, its columns, its functions, its first line.

use crate::is_test_file;
use crate::source::{code_only, functions, line_of};

/// Lines a file may have.
pub const FILE_LINES: usize = 500;
/// Lines a file of tests may have: scenarios stand side by side and are read one at a time.
pub const TEST_FILE_LINES: usize = 700;
/// Lines a function may have, from `fn` to its closing brace.
pub const FUNCTION_LINES: usize = 70;
/// Characters a line may have.
pub const COLUMNS: usize = 100;
/// Characters a line of prose may have in a page.
pub const PROSE_COLUMNS: usize = 120;

/// Complains about files with too many lines.
#[must_use]
pub fn file_lines(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let limit = if is_test_file(path) { TEST_FILE_LINES } else { FILE_LINES };
    if lines <= limit {
        return Vec::new();
    }
    vec![format!("{path}: {lines} lines; what is the second room?")]
}

/// Complains about long lines, except those that carry an address, which cannot be broken.
#[must_use]
pub fn columns(path: &str, text: &str) -> Vec<String> {
    let too_long = text.lines().enumerate().filter_map(|(index, line)| {
        let columns = line.chars().count();
        let is_address = line.contains("http://") || line.contains("https://");
        (columns > COLUMNS && !is_address).then(|| {
            format!("{path}:{}: {columns} columns; where does the eye take a breath?", index + 1)
        })
    });
    too_long.collect()
}

/// Complains about long lines of prose in a page. Tables, code and headings may be long.
#[must_use]
pub fn prose_columns(path: &str, text: &str) -> Vec<String> {
    let (mut code, mut complaints) = (false, Vec::new());
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        code ^= start.starts_with("```");
        let prose = !code && !start.starts_with(['|', '#', '<', '[']);
        let columns = line.chars().count();
        if prose && columns > PROSE_COLUMNS && start.contains(' ') {
            complaints.push(format!(
                "{path}:{}: {columns} columns; where does the eye take a breath?",
                index + 1
            ));
        }
    }
    complaints
}

/// Complains about long functions.
#[must_use]
pub fn function_lines(path: &str, text: &str) -> Vec<String> {
    let code = code_only(text);
    let too_long = functions(&code).into_iter().filter_map(|function| {
        let first = line_of(&code, function.at);
        let lines = line_of(&code, function.end) - first + 1;
        let name = function.name;
        (lines > FUNCTION_LINES).then(|| {
            format!("{path}:{first}: `{name}` has {lines} lines; which step deserves a name?")
        })
    });
    too_long.collect()
}

/// Complains about a file that does not begin by saying what it knows.
#[must_use]
pub fn first_line(path: &str, text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    if first.strip_prefix("//!").is_some_and(|said| !said.trim().is_empty()) {
        return Vec::new();
    }
    vec![format!("{path}: begins without a `//!` line; what does this file know, and what not?")]
}

#[cfg(test)]
mod tests {
    use super::{columns, file_lines, first_line, function_lines, prose_columns};

    #[test]
    fn a_long_file_is_asked_for_its_second_room() {
        let path = "crates/tenure/src/session/mod.rs";
        assert!(file_lines(path, &"x\n".repeat(500)).is_empty());
        assert_eq!(
            file_lines(path, &"x\n".repeat(512)),
            ["crates/tenure/src/session/mod.rs: 512 lines; what is the second room?"]
        );
    }

    #[test]
    fn a_file_of_tests_may_be_longer_but_not_endless() {
        assert!(file_lines("crates/tenure/tests/a.rs", &"x\n".repeat(700)).is_empty());
        assert_eq!(file_lines("crates/tenure/tests/a.rs", &"x\n".repeat(701)).len(), 1);
    }

    #[test]
    fn columns_are_characters_and_addresses_are_spared() {
        assert!(columns("a.rs", &"é".repeat(100)).is_empty());
        let found = columns("a.rs", &format!("fine\n{}", "x".repeat(101)));
        assert_eq!(found, ["a.rs:2: 101 columns; where does the eye take a breath?"]);
        let address = format!("// https://example.org/{}", "x".repeat(101));
        assert!(columns("a.rs", &address).is_empty());
    }

    #[test]
    fn prose_is_narrow_and_tables_and_code_may_be_wide() {
        let wide = "a ".repeat(61);
        let spared = format!("| {wide}|\n```\n{wide}\n```\n# {wide}\n{}", "x".repeat(130));
        assert_eq!(prose_columns("a.md", &spared), Vec::<String>::new());
        let found = prose_columns("a.md", &format!("{spared}\n{wide}"));
        assert_eq!(found, ["a.md:7: 122 columns; where does the eye take a breath?"]);
    }

    #[test]
    fn a_long_function_is_found_behind_a_brace_in_a_string() {
        let long =
            |lines: usize| format!("\nfn f() {{\n{}}}\n", "    g(\"}\");\n".repeat(lines - 2));
        assert!(function_lines("a.rs", &long(70)).is_empty());
        let found = function_lines("a.rs", &long(71));
        assert_eq!(found, ["a.rs:2: `f` has 71 lines; which step deserves a name?"]);
    }

    #[test]
    fn a_file_must_introduce_itself() {
        assert!(first_line("a.rs", "//! Knows names.\n").is_empty());
        for bad in ["", "//!\n", "use a;\n//! Late.\n", "// Not for readers of the docs.\n"] {
            assert_eq!(first_line("a.rs", bad).len(), 1, "{bad:?}");
        }
    }
}

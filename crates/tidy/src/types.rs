//! One type name has one meaning in each crate: a second type of the same name is a second meaning.

use std::collections::BTreeMap;

use crate::is_test_file;
use crate::source::{code_only, line_of, without_tests, words};

/// Names that several types of a crate share, with the reason why that is one meaning.
const SHARED: &[(&str, &str)] = &[];

/// Complains about every name that two types of one crate have.
///
/// `files` are paths and texts of Rust. Types of tests are left out: a test names what it plays.
#[must_use]
pub fn doubles<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut found: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for (path, text) in files {
        let Some(of) = crate_of(path) else { continue };
        let code = without_tests(&code_only(text));
        for (at, name) in defined(&code) {
            let place = format!("{path}:{}", line_of(text, at));
            found.entry((of, name.to_owned())).or_default().push(place);
        }
    }
    found.retain(|(_, name), places| {
        places.len() > 1 && !SHARED.iter().any(|(shared, _)| shared == name)
    });
    let complaint = |((of, name), places): ((&str, String), Vec<String>)| {
        format!(
            "`{name}` is {} types of {of}: {}; what does each do that the other does not?",
            places.len(),
            places.join(", ")
        )
    };
    found.into_iter().map(complaint).collect()
}

/// The crate whose source a file is.
fn crate_of(path: &str) -> Option<&str> {
    let (of, _) = path.strip_prefix("crates/")?.split_once("/src/")?;
    (!is_test_file(path)).then_some(of)
}

/// The types that a piece of code defines, with their places: structs, enums, unions, traits, and
/// aliases outside of traits and implementations.
fn defined(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = "";
    for (at, word) in words(code) {
        let item = match before {
            "struct" | "enum" | "trait" => true,
            // An alias at the left edge; an associated type is indented.
            "type" => code[..at].rsplit('\n').next().is_some_and(|line| !line.starts_with(' ')),
            _ => false,
        };
        if item {
            found.push((at, word));
        }
        before = word;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_two_types_is_found_within_a_crate_and_outside_of_tests() {
        let one = ("crates/a/src/x.rs", "pub struct Same;\nimpl T for Same { type Other = u8; }");
        let two = ("crates/a/src/y.rs", "enum Same {}\n// struct Other\ntype Alias = u8;");
        let elsewhere = ("crates/b/src/x.rs", "struct Same;");
        let test = ("crates/a/src/z.rs", "#[cfg(test)]\nmod tests { struct Alias; }");
        let found = doubles([one, two, elsewhere, test]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("`Same` is 2 types of a: crates/a/src/x.rs:1"), "{found:?}");
        assert!(doubles([one, elsewhere, test]).is_empty());
    }
}

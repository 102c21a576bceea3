//! One type name has one meaning in each crate: a second type of the same name is a second meaning.
//!
//! What counts are types that other files can name. A type that is private to its file is read
//! there alone, as a local variable is.

use std::collections::BTreeMap;

use crate::is_test_file;
use crate::source::{code_only, line_of, without_tests, words};

/// Names that several types of a crate share, with the reason why that is one meaning.
const SHARED: &[(&str, &str)] = &[
    ("Builder", "servers: how a server is started, one for each kind"),
    ("ByHand", "tenure-bench: a lock with a bare client, one for each store"),
    ("Claims", "the claims that an engine has with its store, one for each engine"),
    ("Event", "a watch of etcd has events; that is its protocol's word"),
    ("Hold", "a grant: as the rules keep it, and as a session tracks it"),
    ("Location", "what a URL names, one for each engine"),
    ("Place", "servers: the directory of a server, one for each kind"),
    ("Request", "an operation inside a transaction of etcd; that is its protocol's word"),
    ("WeakEngine", "an engine that the suite does not keep alive, one for each engine"),
];

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
    let below = path.strip_prefix("crates/").or_else(|| path.strip_prefix("tools/"))?;
    let (of, _) = below.split_once("/src/")?;
    (!is_test_file(path)).then_some(of)
}

/// The types of a piece of code that other files can name, with their places.
fn defined(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut before = "";
    for (at, word) in words(code) {
        let line = code[..at].rsplit('\n').next().unwrap_or_default();
        let item = matches!(before, "struct" | "enum" | "trait" | "type");
        // At the left edge: what is indented belongs to a function, a macro or an implementation.
        if item && line.starts_with("pub") {
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
        let one = ("crates/a/src/x.rs", "pub struct Same;\nstruct Private;");
        let two = ("crates/a/src/y.rs", "pub(super) enum Same {}\n// struct Same\nstruct Private;");
        let elsewhere = ("crates/b/src/x.rs", "pub struct Same;");
        let test = ("crates/a/src/z.rs", "#[cfg(test)]\npub mod tests {\npub struct Same; }");
        let found = doubles([one, two, elsewhere, test]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("`Same` is 2 types of a: crates/a/src/x.rs:1"), "{found:?}");
        assert!(doubles([one, elsewhere, test]).is_empty());
    }
}

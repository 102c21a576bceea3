//! Whether the feature of an engine enables the parts of tokio that the engine uses.
//!
//! Cargo unites features: an engine that forgets `tokio/net` builds as long as another dependency
//! enables it, and breaks when that dependency changes. The compiler cannot see this.

use crate::is_test_file;
use crate::source::{code_only, paths, without_tests};

/// Where the engines are.
const ENGINES: &str = "crates/tenure/src/engine/";

/// What is used of tokio, by the second segment of a path, and the feature that has it.
const PARTS: &[(&str, &str)] = &[
    ("join", "macros"),
    ("net", "net"),
    ("runtime", "rt"),
    ("select", "macros"),
    ("spawn", "rt"),
    ("sync", "sync"),
    ("task", "rt"),
    ("time", "time"),
    ("try_join", "macros"),
];

/// Complains about parts of tokio that an engine uses and its feature does not enable.
///
/// `manifest` is that of the library, `files` are paths and texts of Rust.
#[must_use]
pub fn tokio<'a>(
    manifest: &str,
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in files {
        let engine = path.strip_prefix(ENGINES).and_then(|below| below.split_once('/'));
        let Some((engine, _)) = engine.filter(|_| !is_test_file(path)) else { continue };
        // Without a feature of its own a folder is built into all engines.
        let Some(enabled) = enabled(manifest, engine) else { continue };
        for (line, used) in paths(&without_tests(&code_only(text))) {
            let part = used.strip_prefix("tokio::").and_then(|rest| rest.split("::").next());
            let feature = PARTS.iter().find(|(name, _)| Some(*name) == part).map(|(_, of)| of);
            if let Some(feature) = feature.filter(|of| !enabled.iter().any(|has| has == *of)) {
                complaints.push(format!(
                    "{path}:{line}: `{used}` needs `tokio/{feature}` in the feature `{engine}`; \
                     which dependency enables it today?"
                ));
            }
        }
    }
    complaints
}

/// The features of tokio that a feature enables: its own, those of features that it names, and
/// those of the dependency itself. None if there is no such feature.
fn enabled(manifest: &str, feature: &str) -> Option<Vec<String>> {
    let mut found = quoted(list_after(manifest, "\ntokio = ")?);
    let mut left = vec![feature.to_owned()];
    let mut first = true;
    while let Some(name) = left.pop() {
        let list = list_after(manifest, &format!("\n{name} = ["));
        if first && list.is_none() {
            return None;
        }
        first = false;
        for one in quoted(list.unwrap_or_default()) {
            match one.split_once('/') {
                Some(("tokio", of)) => found.push(of.to_owned()),
                Some(_) => {}
                None if one.starts_with("dep:") => {}
                None => left.push(one),
            }
        }
    }
    Some(found)
}

/// The text from `start` to the end of the list that follows.
fn list_after<'a>(manifest: &'a str, start: &str) -> Option<&'a str> {
    let rest = &manifest[manifest.find(start)? + start.len()..];
    rest.split(']').next()
}

fn quoted(list: &str) -> Vec<String> {
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[features]\nabc = [\n    \"dep:x\",\n    \"tokio/net\",\n]\n\
                            def = [\"abc\"]\n\n[dependencies]\n\
                            tokio = { version = \"1\", features = [\"rt\"] } # why\n";

    fn complaints(engine: &str, text: &str) -> Vec<String> {
        tokio(MANIFEST, [(&*format!("{ENGINES}{engine}/mod.rs"), text)])
    }

    #[test]
    fn a_part_that_only_another_dependency_enables_is_found() {
        for (bad, feature) in [
            ("use tokio::time::sleep;", "time"),
            ("fn f() { tokio::select! {} }", "macros"),
            ("use tokio::{net::TcpStream, sync::Notify};", "sync"),
        ] {
            for engine in ["abc", "def"] {
                let found = complaints(engine, bad);
                assert_eq!(found.len(), 1, "{bad}: {found:?}");
                assert!(found[0].contains(&format!("needs `tokio/{feature}`")), "{found:?}");
            }
        }
    }

    #[test]
    fn what_the_feature_enables_and_what_tests_use_is_fine() {
        let good = "use tokio::net::TcpStream;\nfn f() { tokio::spawn(g()); }\n\
                    #[cfg(test)]\nmod tests { use tokio::time::sleep; }";
        for engine in ["abc", "def"] {
            assert!(complaints(engine, good).is_empty(), "{:?}", complaints(engine, good));
        }
        assert!(complaints("common", "use tokio::time::sleep;").is_empty(), "has no feature");
        assert!(tokio(MANIFEST, [("crates/x/src/lib.rs", "use tokio::time::sleep;")]).is_empty());
    }
}

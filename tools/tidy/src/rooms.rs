//! Every engine has the same files, so that who knows one engine finds the way in all.

/// Where the engines are.
const ENGINES: &str = "crates/tenure/src/engine/";

/// What each engine has, one file for each concern: a file, or a folder with a `mod.rs`.
const FILES: &[&str] = &[
    "mod",
    "url",
    "connect",
    "claim",
    "renew",
    "release",
    "inspect",
    "evict",
    "cells",
    "signals",
    "cell_watches",
    "deadlock",
    "rates",
    "doctor",
    "errors",
    "testing",
];

/// Folders beside the engines, and what an engine lacks, each with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("common", "*", "what several engines need; no engine"),
    ("memory", "*", "the ledger behind one mutex: each verb is one call of the rules, in mod.rs"),
    ("embedded", "doctor", "no server to examine: a damaged file is found when it is opened"),
    ("etcd", "rates", "etcd has no clock that a transaction could read"),
    ("redis", "url", "redlock names the same servers: common/redis/url.rs"),
    ("redlock", "cells", "a quorum keeps no values"),
    ("redlock", "cell_watches", "a quorum keeps no values"),
    ("redlock", "deadlock", "nodes keep no queue, so no wait can be seen"),
    ("redlock", "rates", "majorities admit more than the limit"),
];

/// Complains about engines that lack a file of the list, and about exceptions that are none.
///
/// `paths` are those of all files in the tree.
#[must_use]
pub fn engine_files<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let below: Vec<&str> =
        paths.into_iter().filter_map(|path| path.strip_prefix(ENGINES)).collect();
    let mut engines: Vec<&str> =
        below.iter().filter_map(|path| path.split_once('/')).map(|(engine, _)| engine).collect();
    engines.sort_unstable();
    engines.dedup();
    let has = |engine: &str, file: &str| {
        let (plain, room) = (format!("{engine}/{file}.rs"), format!("{engine}/{file}/mod.rs"));
        below.iter().any(|path| *path == plain || *path == room)
    };
    let excepted = |engine: &str, file: &str| {
        EXCEPTIONS.iter().any(|(e, f, _)| *e == engine && (*f == "*" || *f == file))
    };
    let mut complaints = Vec::new();
    for engine in &engines {
        for file in FILES.iter().filter(|file| !has(engine, file) && !excepted(engine, file)) {
            complaints.push(format!(
                "{ENGINES}{engine}/{file}.rs is missing; where is that concern? Every engine has \
                 it, or a line with the reason in tools/tidy/src/rooms.rs"
            ));
        }
    }
    for (engine, file, _) in EXCEPTIONS {
        let stale = if *file == "*" { !engines.contains(engine) } else { has(engine, file) };
        if stale {
            complaints.push(format!("the exception for {engine}/{file} is needless; remove it"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(leave_out: &str) -> Vec<String> {
        let mut paths: Vec<String> =
            ["common/url.rs", "memory/mod.rs"].map(|path| format!("{ENGINES}{path}")).to_vec();
        for engine in ["embedded", "redlock", "new"] {
            let files = FILES
                .iter()
                .filter(|file| !EXCEPTIONS.iter().any(|(e, f, _)| *e == engine && *f == **file));
            paths.extend(files.map(|file| format!("{ENGINES}{engine}/{file}.rs")));
        }
        paths.retain(|path| path != &format!("{ENGINES}{leave_out}"));
        paths
    }

    fn complaints(paths: &[String]) -> Vec<String> {
        engine_files(paths.iter().map(String::as_str))
    }

    #[test]
    fn an_engine_that_lacks_a_file_is_named() {
        assert_eq!(complaints(&tree("")), Vec::<String>::new());
        let found = complaints(&tree("new/evict.rs"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("new/evict.rs is missing"), "{found:?}");
    }

    #[test]
    fn a_folder_counts_as_a_file_and_a_needless_exception_does_not_stay() {
        let mut paths = tree("new/doctor.rs");
        paths.push(format!("{ENGINES}new/doctor/mod.rs"));
        assert_eq!(complaints(&paths), Vec::<String>::new());
        paths.push(format!("{ENGINES}redlock/cells.rs"));
        assert!(complaints(&paths)[0].contains("redlock/cells is needless"));
    }
}

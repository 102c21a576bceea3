//! Who may import whom inside the library, and what the rules and the clock keep to themselves.

use crate::is_test_file;
use crate::source::{code_only, paths, without_tests};

/// Where the rooms are.
const LIBRARY: &str = "crates/tenure/src/";

/// Each room (a file or a directory directly below `src`) and the rooms it may import. The picture
/// of these arrows is in ARCHITECTURE.md.
const ROOMS: &[(&str, &[&str])] = &[
    ("limits", &[]),
    ("seeded", &[]),
    ("process", &[]),
    ("sync", &["process"]),
    ("time", &["sync", "limits"]),
    ("contract", &["time", "sync", "limits"]),
    ("ledger", &["contract", "time", "limits", "seeded"]),
    ("engine", &["contract", "ledger", "time", "sync", "process", "limits"]),
    ("session", &["contract", "time", "sync", "process", "limits", "seeded"]),
    ("primitives", &["session", "contract", "engine", "time", "limits"]),
    (
        "conformance",
        &["primitives", "session", "engine", "ledger", "contract", "time", "limits", "seeded"],
    ),
];

/// What would give the rules a clock, a file or a connection of their own.
const IMPURE: &[&str] = &["async", "std::time::Instant", "SystemTime", "std::net", "std::fs"];

/// What reads the clock; only `time` does.
const CLOCK: &[&str] = &["Instant::now", "SystemTime::now", "clock_gettime"];

/// Complains about imports against the arrows. Tests may import what they like.
#[must_use]
pub fn imports(path: &str, text: &str) -> Vec<String> {
    let Some(room) = room_of(path) else { return Vec::new() };
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{path}: `{room}` is a new room; who may import it, and whom may it import? \
             Add it to the table in crates/tidy/src/arrows.rs and to ARCHITECTURE.md"
        )];
    };
    let is_room = |name: &str| ROOMS.iter().any(|(known, _)| *known == name);
    let mut complaints = Vec::new();
    for (line, used) in live_paths(text) {
        let Some(below) = used.strip_prefix("crate::") else { continue };
        let target = below.split("::").next().unwrap_or(below);
        if target == room || allowed.contains(&target) {
            continue;
        }
        complaints.push(if is_room(target) {
            format!(
                "{path}:{line}: `{room}` imports `{target}`; can the arrow point the other way?"
            )
        } else {
            // The root re-exports from every room; an import through it would hide its arrow.
            format!("{path}:{line}: `{used}` goes through the root; in which room does it live?")
        });
    }
    complaints.dedup();
    complaints
}

/// Complains about rules that read a clock, wait or do I/O, and about clocks read outside `time`.
#[must_use]
pub fn purity(path: &str, text: &str) -> Vec<String> {
    let Some(room) = room_of(path).or_else(|| path.strip_prefix(LIBRARY)) else {
        return Vec::new();
    };
    let mut complaints = Vec::new();
    for (line, used) in live_paths(text) {
        if room == "ledger" && IMPURE.iter().any(|needle| holds(&used, needle)) {
            complaints
                .push(format!("{path}:{line}: `{used}` in the rules; can the caller hand it in?"));
        }
        if room != "time" && CLOCK.iter().any(|needle| holds(&used, needle)) {
            complaints.push(format!(
                "{path}:{line}: `{used}` reads the clock outside `time`; can `now` be handed in?"
            ));
        }
    }
    complaints
}

/// The room of a file of the library; none for the root, for tests and for other crates.
fn room_of(path: &str) -> Option<&str> {
    let below = path.strip_prefix(LIBRARY)?;
    let room = below.split('/').next().unwrap_or(below).trim_end_matches(".rs");
    (below != "lib.rs" && !is_test_file(path)).then_some(room)
}

fn live_paths(text: &str) -> Vec<(usize, String)> {
    paths(&without_tests(&code_only(text)))
}

/// Whether a path contains another, whole words at a time.
fn holds(path: &str, needle: &str) -> bool {
    let (path, needle): (Vec<_>, Vec<_>) =
        (path.split("::").collect(), needle.split("::").collect());
    path.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::{ROOMS, imports, purity};

    fn library(below: &str) -> String {
        format!("crates/tenure/src/{below}")
    }

    #[test]
    fn arrows_never_point_in_a_circle() {
        let mut left: Vec<_> = ROOMS.to_vec();
        while !left.is_empty() {
            let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, allowed)| allowed.iter().any(|name| names.contains(name)));
            assert!(left.len() < before, "a circle among {names:?}");
        }
    }

    #[test]
    fn a_session_that_imports_the_ledger_is_asked_about() {
        let path = library("session/mod.rs");
        for bad in [
            "use crate::ledger::Slot;",
            "use crate::{\n    contract::Claim,\n    ledger::{self, Slot},\n};",
            "fn f() { crate::ledger::apply(); }",
            "fn f() -> crate :: ledger :: Slot { g() }",
            "macro_rules! m { () => { $crate::ledger::apply() } }",
        ] {
            let found = imports(&path, bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].contains("`session` imports `ledger`"), "{found:?}");
        }
        assert_eq!(
            imports(&path, "\nuse crate::engine::Memory;"),
            ["crates/tenure/src/session/mod.rs:2: `session` imports `engine`; \
              can the arrow point the other way?"]
        );
    }

    #[test]
    fn every_room_is_held_to_its_row() {
        for (room, allowed) in ROOMS {
            for (other, _) in ROOMS {
                let found =
                    imports(&library(&format!("{room}.rs")), &format!("use crate::{other}::X;"));
                let may = room == other || allowed.contains(other);
                assert_eq!(found.is_empty(), may, "{room} -> {other}: {found:?}");
            }
        }
    }

    #[test]
    fn tests_and_the_root_import_what_they_like() {
        let import = "use crate::engine::Memory;";
        let inline = format!("#[cfg(test)]\nmod tests {{ {import} }}");
        assert!(imports(&library("session/mod.rs"), &inline).is_empty());
        assert!(imports(&library("session/tests_loss.rs"), import).is_empty());
        assert!(imports(&library("lib.rs"), import).is_empty());
        assert!(imports("crates/tenure-cli/src/main.rs", import).is_empty());
        assert!(
            imports(&library("session/mod.rs"), "/// See `crate::engine`.\nfn f() {}").is_empty()
        );
    }

    #[test]
    fn a_detour_through_the_root_is_no_way_around() {
        let found = imports(&library("session/mod.rs"), "use crate::{Memory, time::Clock};");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`crate::Memory` goes through the root"), "{found:?}");
        assert_eq!(imports(&library("session/mod.rs"), "use crate::*;").len(), 1);
    }

    #[test]
    fn an_unknown_room_must_be_added_to_the_table() {
        for path in ["attic/mod.rs", "attic.rs"] {
            let found = imports(&library(path), "");
            assert!(found[0].contains("`attic` is a new room"), "{found:?}");
        }
    }

    #[test]
    fn the_rules_have_no_clock_no_files_and_no_waiting() {
        for bad in [
            "async fn f() {}",
            "use std::time::{Duration, Instant};",
            "fn f(now: std::time::SystemTime) {}",
            "use std::{fs, collections::BTreeMap};",
            "use std::net::TcpStream;",
        ] {
            assert_eq!(purity(&library("ledger/mod.rs"), bad).len(), 1, "{bad}");
            assert!(purity(&library("engine/mod.rs"), bad).is_empty(), "{bad}");
        }
        assert!(purity(&library("ledger/mod.rs"), "use crate::time::Instant;").is_empty());
    }

    #[test]
    fn one_room_reads_the_clock() {
        for bad in
            ["Instant::now()", "std::time::SystemTime::now()", "rustix::time::clock_gettime(c)"]
        {
            let text = format!("fn f() {{ {bad}; }}");
            assert_eq!(purity(&library("session/keeper.rs"), &text).len(), 1, "{bad}");
            assert_eq!(purity(&library("lib.rs"), &text).len(), 1, "{bad}");
            assert!(purity(&library("time/boot.rs"), &text).is_empty(), "{bad}");
            assert!(purity(&library("time.rs"), &text).is_empty(), "{bad}");
        }
        assert!(purity(&library("session/mod.rs"), "fn f() { clock.now() }").is_empty());
    }
}

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
    ("deadlock", &["contract", "limits"]),
    ("engine", &["contract", "ledger", "time", "sync", "process", "limits"]),
    ("session", &["contract", "deadlock", "time", "sync", "process", "limits", "seeded"]),
    ("order", &["contract", "time", "sync", "process", "limits"]),
    ("primitives", &["session", "contract", "deadlock", "order", "engine", "time", "limits"]),
    (
        "conformance",
        &[
            "primitives",
            "session",
            "engine",
            "ledger",
            "deadlock",
            "order",
            "contract",
            "time",
            "limits",
            "seeded",
        ],
    ),
];

/// Clients of a store inside an engine. A client knows nothing of locks, so that it can be read and
/// tested alone and used by several engines: it imports nothing of its engine and of the contract,
/// except what stands here with the reason.
const CLIENTS: &[Client] = &[
    Client {
        folder: "engine/redis/client/",
        allowed: &[
            ("crate::contract::Effect", "whether a failed request may have had an effect"),
            ("crate::contract::Error", "the error type of the whole library"),
            ("crate::contract::ErrorKind", "the error type of the whole library"),
            ("crate::engine::common", "URLs, TLS, the choice of a runtime: no locks"),
            ("crate::limits", "the timeout of a request"),
            ("crate::sync", "mutexes"),
            ("crate::time", "clocks"),
        ],
    },
    Client {
        folder: "engine/etcd/client/",
        allowed: &[
            ("crate::contract::Effect", "whether a failed request may have had an effect"),
            ("crate::contract::Error", "the error type of the whole library"),
            ("crate::contract::ErrorKind", "the error type of the whole library"),
            ("crate::limits", "the timeout of a request"),
            ("crate::sync", "mutexes"),
            ("crate::time", "clocks"),
        ],
    },
];

/// A folder with a client, and the paths outside of it that it may use, each with the reason.
struct Client {
    folder: &'static str,
    allowed: &'static [(&'static str, &'static str)],
}

/// Engines, and the paths inside other engines that each may use, with the reason. What two engines
/// need is in `common/`; no engine needs to be read to understand another.
const BETWEEN_ENGINES: &[(&str, &str, &str)] = &[
    ("redlock", "redis::client", "the connections to its nodes; the client knows nothing of locks"),
    ("common", "redis::client", "replies of scripts that both engines over Redis call"),
];

/// Paths that are the scope of a `pub(in ..)`, not an import.
const SCOPES: &[&str] = &["crate", "crate::engine"];

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
             Add it to the table in tools/tidy/src/arrows.rs and to ARCHITECTURE.md"
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
    let of_client = client_imports(path, text);
    // A client is held to less than its engine: one complaint about one line.
    complaints.extend(if of_client.is_empty() { engine_imports(path, text) } else { of_client });
    complaints
}

/// Complains about an engine that imports another one.
fn engine_imports(path: &str, text: &str) -> Vec<String> {
    let below = path.strip_prefix(LIBRARY).unwrap_or(path);
    let Some((engine, _)) = below.strip_prefix("engine/").and_then(|rest| rest.split_once('/'))
    else {
        return Vec::new();
    };
    let mut complaints = Vec::new();
    for (line, used) in live_paths(text) {
        let Some(used) = absolute(&module_of(below), &used) else { continue };
        // Types of `engine/mod.rs` begin with a capital; they are for every engine.
        let Some(inside) = used.strip_prefix("crate::engine::") else { continue };
        let target = inside.split("::").next().unwrap_or(inside);
        let is_module = target.starts_with(|first: char| first.is_ascii_lowercase());
        let within = |place: &str| {
            inside.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let allowed =
            BETWEEN_ENGINES.iter().any(|(from, place, _)| *from == engine && within(place));
        if is_module && target != engine && target != "common" && !allowed {
            complaints.push(format!(
                "{path}:{line}: the engine `{engine}` imports `{used}`; does it belong in \
                 engine/common/? What an engine may use of another is listed in \
                 tools/tidy/src/arrows.rs"
            ));
        }
    }
    complaints.dedup();
    complaints
}

/// Complains about a client that imports locks, or anything else of its engine.
fn client_imports(path: &str, text: &str) -> Vec<String> {
    let below = path.strip_prefix(LIBRARY).unwrap_or(path);
    let Some(client) = CLIENTS.iter().find(|client| below.starts_with(client.folder)) else {
        return Vec::new();
    };
    let home = client.folder.trim_end_matches('/').replace('/', "::");
    let mut complaints = Vec::new();
    for (line, used) in live_paths(text) {
        let Some(used) = absolute(&module_of(below), &used) else { continue };
        let within = |place: &str| {
            used.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let is_scope = SCOPES.contains(&&*used);
        let allowed = client.allowed.iter().any(|(place, _)| within(place));
        if !is_scope && !within(&format!("crate::{home}")) && !allowed {
            complaints.push(format!(
                "{path}:{line}: a client imports `{used}`; can the engine pass it in? What a \
                 client needs from outside is listed in tools/tidy/src/arrows.rs"
            ));
        }
    }
    complaints.dedup();
    complaints
}

/// The module of a file, as segments below the crate: `engine/x/mod.rs` is `engine`, `x`.
fn module_of(below: &str) -> Vec<&str> {
    let mut module: Vec<&str> = below.trim_end_matches(".rs").split('/').collect();
    if module.last() == Some(&"mod") {
        module.pop();
    }
    module
}

/// A path that leads through `crate` or `super`, from the root; none for all others, and for the
/// `super` of a `pub(super)`.
fn absolute(module: &[&str], used: &str) -> Option<String> {
    if used.split("::").all(|segment| segment == "super") {
        return None;
    }
    let mut segments = used.split("::").peekable();
    let mut place: Vec<&str> = match *segments.peek()? {
        "crate" => Vec::new(),
        "super" => module.to_vec(),
        _ => return None,
    };
    for segment in segments {
        match segment {
            "crate" => {}
            "super" => drop(place.pop()),
            segment => place.push(segment),
        }
    }
    Some(std::iter::once("crate").chain(place).collect::<Vec<_>>().join("::"))
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
    use super::{BETWEEN_ENGINES, CLIENTS, ROOMS, imports, purity};

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
    fn a_client_imports_neither_locks_nor_its_engine() {
        let redis = |file: &str| library(&format!("engine/redis/client/{file}"));
        for bad in [
            "use crate::contract::Claim;",
            "use crate::contract::{Error, Verdict};",
            "use crate::engine::redis::keys::Keys;",
            "use crate::engine::redis;",
            "use super::super::keys::Keys;",
            "fn f() { super::super::scripts::load(); }",
            "use crate::engine::etcd::client::Client;",
        ] {
            let found = imports(&redis("pending.rs"), bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].contains("a client imports `crate::"), "{found:?}");
        }
        assert_eq!(imports(&redis("mod.rs"), "use super::keys::Keys;").len(), 1);
        assert_eq!(imports(&redis("sentinel/vote.rs"), "use super::super::super::x::Y;").len(), 1);
        let etcd = library("engine/etcd/client/mod.rs");
        for bad in ["use crate::contract::Claim;", "use super::keys::Keys;"] {
            assert_eq!(imports(&etcd, bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_client_may_import_itself_and_what_is_listed() {
        let path = library("engine/redis/client/sentinel/vote.rs");
        for good in [
            "use crate::contract::{Effect, Error, ErrorKind};",
            "use crate::engine::common::redis::url::Location;",
            "use crate::engine::redis::client::pack;",
            "use super::super::commands::pack;",
            "use super::status::PrimaryStatus;",
            "use std::time::Duration;",
            "pub(in crate::engine) fn f() {}",
            "pub(super) fn f() {}",
            "pub(crate) fn f() {}",
        ] {
            assert!(imports(&path, good).is_empty(), "{good}: {:?}", imports(&path, good));
        }
        assert!(imports(&library("engine/redis/keys.rs"), "use crate::contract::Name;").is_empty());
    }

    #[test]
    fn an_engine_imports_no_other_engine() {
        let redlock = library("engine/redlock/keys.rs");
        for bad in [
            "use crate::engine::redis::keys::RedisKeys;",
            "use crate::engine::redis::{client::pack, codec::push_about};",
            "use super::super::redis::terms::TermsReply;",
            "fn f() { crate::engine::redis::errors::script_error(); }",
            "use crate::engine::redis;",
            "use crate::engine::memory::MemoryEngine;",
        ] {
            let found = imports(&redlock, bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(
                found[0].contains("the engine `redlock` imports `crate::engine::"),
                "{found:?}"
            );
        }
        for good in [
            "use crate::engine::redis::client::{RequestError, pack};",
            "use crate::engine::common::redis::keys::NamespaceKeys;",
            "use crate::engine::Terms;",
            "use super::protocol::quorum;",
            "#[cfg(test)]\nmod tests { use crate::engine::redis::keys::RedisKeys; }",
        ] {
            assert!(imports(&redlock, good).is_empty(), "{good}: {:?}", imports(&redlock, good));
        }
        let common = library("engine/common/redis/terms.rs");
        assert!(imports(&common, "use crate::engine::redis::client::text;").is_empty());
        assert_eq!(imports(&common, "use crate::engine::redis::keys::RedisKeys;").len(), 1);
        let redis = library("engine/redis/connect.rs");
        assert_eq!(imports(&redis, "use crate::engine::redlock::record::NodeRecord;").len(), 1);
        assert!(imports(&library("engine/mod.rs"), "use self::redis::connect;").is_empty());
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(BETWEEN_ENGINES.iter().all(|(_, _, reason)| !reason.is_empty()));
        for client in CLIENTS {
            for (place, reason) in client.allowed {
                assert!(place.starts_with("crate::") && !reason.is_empty(), "{place}");
            }
        }
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

//! The paths of engines that the differential programs have to take: shortcuts beside the rules,
//! and what becomes of them when time has passed. Each is counted where it is taken
//! (`engine/common/paths.rs`), so that a run can fail by the name of a path that no program took.
//!
//! The list of an engine and the marks in its code have to agree: a path that is counted and not
//! listed is an error as well.

use std::collections::BTreeMap;

use super::harness::Harness;

/// The paths of the scripts in Redis.
const REDIS: &[&str] = &[
    "redis claim: one free slot",
    "redis claim: one slot, taken",
    "redis claim: one slot, the top is ahead of the clock",
    "redis claim: a free set",
    "redis claim: by the rules",
    "redis renew: a lone holder",
    "redis renew: a lone holder, expired",
    "redis renew: a set of lone holders",
    "redis renew: by the rules",
    "redis release: a lone holder",
    "redis release: a lone holder, expired",
    "redis release: a set of lone holders",
    "redis release: by the rules",
    "redis evict: a lone holder",
    "redis expiry: a lone holder",
    "redis expiry: holders",
    "redis expiry: waiters",
    "redis slot: a lone holder gets company",
];

/// The paths of the functions in PostgreSQL.
const POSTGRES: &[&str] = &[
    "postgres claim: one free slot",
    "postgres claim: one free slot, withdrawn before",
    "postgres claim: one slot, by the rules",
    "postgres renew: a lone holder",
    "postgres renew: a lone holder, expired",
    "postgres renew: a lone holder, for a shorter time",
    "postgres renew: by the rules",
    "postgres release: a lone holder",
    "postgres release: a lone holder, expired",
    "postgres release: handed off",
    "postgres release: more slots",
    "postgres release: one slot, by the rules",
];

/// The paths of the etcd engine.
const ETCD: &[&str] = &[
    "etcd claim: free slots",
    "etcd claim: behind a local waiter",
    "etcd claim: by the ledger",
    "etcd release: of a hold that was created",
    "etcd release: of a hold that had waited",
    "etcd release: in one transaction, refused",
    "etcd release: of the keys of one claim",
    "etcd release: by the ledger",
    "etcd renew: a hold alone",
    "etcd renew: waiters of one name",
    "etcd renew: by the ledger",
];

/// The paths of the embedded store.
const EMBEDDED: &[&str] = &[
    "embedded queue: push, short",
    "embedded queue: push, long",
    "embedded queue: remove, short",
    "embedded queue: remove, long",
    "embedded queue: renew, short",
    "embedded queue: renew, long",
    "embedded queue: dead, short",
    "embedded queue: dead, long",
    "embedded queue: becomes long",
    "embedded queue: becomes short",
    "embedded holders: insert, few",
    "embedded holders: insert, many",
    "embedded holders: remove, few",
    "embedded holders: remove, many",
    "embedded holders: renew, few",
    "embedded holders: renew, many",
    "embedded holders: dead, few",
    "embedded holders: dead, many",
    "embedded holders: become many",
    "embedded holders: become few",
];

/// The paths of an engine by its name; none where none are counted.
#[must_use]
pub fn of(engine: &str) -> &'static [&'static str] {
    match engine {
        "redis" => REDIS,
        "postgres" => POSTGRES,
        "etcd" => ETCD,
        "embedded" => EMBEDDED,
        _ => &[],
    }
}

/// What the code of an engine has counted in this process.
pub(super) fn counted_in_process(engine: &str) -> Vec<(String, u64)> {
    let all = crate::engine::paths_taken().into_iter();
    let of_engine = all.filter(|(path, _)| path.split(' ').next() == Some(engine));
    of_engine.map(|(path, count)| (path.to_owned(), count)).collect()
}

/// Checks that every path of the engine was taken in this process. Returns how often each was.
///
/// # Errors
/// Names the paths that were not taken, and those that no list has.
pub fn check(harness: &dyn Harness) -> Result<BTreeMap<String, u64>, String> {
    let counted: BTreeMap<String, u64> =
        harness.paths().map_err(|absent| absent.to_string())?.into_iter().collect();
    let listed = of(harness.promises().engine);
    let missed = listed.iter().filter(|path| counted.get(**path).is_none_or(|count| *count == 0));
    let unknown = counted.keys().filter(|path| !listed.contains(&path.as_str()));
    let mut complaints: Vec<String> = missed.map(|path| format!("not taken: {path}")).collect();
    complaints.extend(unknown.map(|path| format!("counted, but listed nowhere: {path}")));
    if complaints.is_empty() { Ok(counted) } else { Err(complaints.join("\n")) }
}

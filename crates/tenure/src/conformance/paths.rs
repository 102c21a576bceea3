//! The paths of engines that the differential programs have to take: shortcuts beside the rules,
//! and what becomes of them when time has passed. Each is counted where it is taken
//! (`engine/common/paths.rs`), so that a run can fail by the name of a path that no program took.
//!
//! Claims are driven by the kept programs, cells by programs of cells, rates and verdicts on
//! deadlocks by their scenarios. The memory and the embedded engine have no paths for the last
//! three: they call the rules of the ledger as they stand.
//!
//! The lists of an engine and the marks in its code have to agree: a path that is counted and not
//! listed is an error as well.

use std::collections::BTreeMap;

use super::harness::Harness;

/// What paths belong to, and so which tests drive them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathGroup {
    /// Claims: claim, renew, release, evict.
    Claims,
    /// Cells.
    Cells,
    /// Rates.
    Rates,
    /// Verdicts on deadlocks.
    Deadlocks,
}

impl PathGroup {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Claims, Self::Cells, Self::Rates, Self::Deadlocks];
}

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

const REDIS_CELLS: &[&str] = &[
    "redis write: looked up",
    "redis write: a repeat",
    "redis write: refused",
    "redis write: recorded",
    "redis write: a value that expires",
    "redis write: a value that stays",
    "redis write: over a value that stays",
    "redis write: checks alone",
    "redis remove: the fence stays",
    "redis remove: nothing stays",
];

const REDIS_RATES: &[&str] = &[
    "redis take: short, the first entry",
    "redis take: short, of a rate that is past",
    "redis take: short, entries that are past",
    "redis take: short, merged into the newest entry",
    "redis take: short, behind an entry of one permit",
    "redis take: short, behind an entry of several permits",
    "redis take: short, refused",
    "redis take: other windows",
    "redis take: an even flow",
    "redis take: of a rate that is past",
    "redis take: a reserved instant",
    "redis take: entries that are past",
    "redis take: the first entry",
    "redis take: at the instant of the newest entry",
    "redis take: merged into the newest entry",
    "redis take: behind an entry of one permit",
    "redis take: behind an entry of several permits",
    "redis settle: an even flow",
    "redis settle: the newest entry",
    "redis settle: an entry of one permit",
    "redis settle: an entry of several permits",
];

const REDIS_VERDICTS: &[&str] = &[
    "redis verdict: a hold is gone",
    "redis verdict: a wait is gone",
    "redis verdict: a marker is held",
    "redis verdict: another wait",
    "redis verdict: refused",
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

const POSTGRES_CELLS: &[&str] = &[
    "postgres write: a repeat",
    "postgres write: refused",
    "postgres write: recorded",
    "postgres write: locks one cell",
    "postgres write: locks in order",
    "postgres remove: without an id",
];

const POSTGRES_RATES: &[&str] = &[
    "postgres take: short, refused",
    "postgres take: short, merged into the newest entry",
    "postgres take: short, a new entry",
    "postgres take: fresh entries go into the ring",
    "postgres take: other windows",
    "postgres take: an even flow",
    "postgres take: of a rate that is past",
    "postgres take: entries that are past",
    "postgres take: the first entry",
    "postgres take: at the instant of the newest entry",
    "postgres take: merged into the newest entry",
    "postgres take: into the ring",
    "postgres take: a ring that grows",
    "postgres take: a ring that has turned grows",
    "postgres settle: an even flow",
    "postgres settle: the newest entry",
    "postgres settle: an entry of the ring",
];

const POSTGRES_VERDICTS: &[&str] = &[
    "postgres verdict: a hold is gone",
    "postgres verdict: a wait is gone",
    "postgres verdict: a marker is held",
    "postgres verdict: refused",
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

const ETCD_CELLS: &[&str] = &[
    "etcd write: without a read",
    "etcd write: after a read",
    "etcd write: a repeat",
    "etcd write: refused",
    "etcd write: a version is drawn",
];

const ETCD_VERDICTS: &[&str] = &["etcd verdict: refused", "etcd verdict: a fact does not stand"];

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

/// The paths of a group of an engine, by its name; none where none are counted.
#[must_use]
pub fn of(engine: &str, group: PathGroup) -> &'static [&'static str] {
    match (engine, group) {
        ("redis", PathGroup::Claims) => REDIS,
        ("redis", PathGroup::Cells) => REDIS_CELLS,
        ("redis", PathGroup::Rates) => REDIS_RATES,
        ("redis", PathGroup::Deadlocks) => REDIS_VERDICTS,
        ("postgres", PathGroup::Claims) => POSTGRES,
        ("postgres", PathGroup::Cells) => POSTGRES_CELLS,
        ("postgres", PathGroup::Rates) => POSTGRES_RATES,
        ("postgres", PathGroup::Deadlocks) => POSTGRES_VERDICTS,
        ("etcd", PathGroup::Claims) => ETCD,
        ("etcd", PathGroup::Cells) => ETCD_CELLS,
        ("etcd", PathGroup::Deadlocks) => ETCD_VERDICTS,
        ("embedded", PathGroup::Claims) => EMBEDDED,
        _ => &[],
    }
}

/// What the code of an engine has counted in this process.
pub(super) fn counted_in_process(engine: &str) -> Vec<(String, u64)> {
    let all = crate::engine::paths_taken().into_iter();
    let of_engine = all.filter(|(path, _)| path.split(' ').next() == Some(engine));
    of_engine.map(|(path, count)| (path.to_owned(), count)).collect()
}

/// Checks that every path of a group was taken in this process. Returns how often each was.
///
/// # Errors
/// Names the paths that were not taken, and those that no list has.
pub fn check(harness: &dyn Harness, group: PathGroup) -> Result<BTreeMap<String, u64>, String> {
    let mut counted: BTreeMap<String, u64> =
        harness.paths().map_err(|absent| absent.to_string())?.into_iter().collect();
    let engine = harness.promises().engine;
    let listed = of(engine, group);
    let missed = listed.iter().filter(|path| counted.get(**path).is_none_or(|count| *count == 0));
    let known: Vec<&str> =
        PathGroup::ALL.iter().flat_map(|group| of(engine, *group)).copied().collect();
    let unknown = counted.keys().filter(|path| !known.contains(&path.as_str()));
    let mut complaints: Vec<String> = missed.map(|path| format!("not taken: {path}")).collect();
    complaints.extend(unknown.map(|path| format!("counted, but listed nowhere: {path}")));
    if complaints.is_empty() {
        counted.retain(|path, _| listed.contains(&path.as_str()));
        return Ok(counted);
    }
    Err(complaints.join("\n"))
}

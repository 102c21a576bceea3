//! Lists of names: of locks, of slots with waiters, of cells, of queues. By the order of names, a
//! part at a time.
//!
//! Cells, contended slots and queues have an index in the store, a sorted set whose members are
//! names and whose scores are all 0: the store returns them in the order of their bytes, from any
//! name on. Locks have none, because every claim would have to update it: their keys are scanned. A
//! cluster has no index at all, because a script can only write keys of one hash slot.
//!
//! A scan visits every key of the store, so that there is one for each look and not one for each
//! page of it. The names of a scan are kept until the next page is asked for, which begins after
//! the last name of the page before ([`ScanCache`]). Locks that are claimed meanwhile are in the
//! next look. A page that begins anywhere else, or comes too late, scans again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::client::{MultiplexedConnection, RequestError, bytes, list, pack};
use super::inspect::StoreAccess;
use crate::contract::{Error, Name};
use crate::time::Tick;

/// How many names are read from an index at a time.
const INDEX_PAGE: usize = 256;
/// How many looks are kept between two pages, and how many names of them all.
const MAX_LOOKS: usize = 4;
const MAX_NAMES: usize = 1 << 20;
/// For how long a look is kept.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Which names are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NameSet {
    /// Slots with holders, waiters or a lock delay.
    Locks,
    /// Slots with waiters.
    Contended,
    /// Cells with a value.
    Cells,
    /// Queues of jobs.
    Queues,
}

/// Some names in order.
#[derive(Debug)]
pub(super) struct NameList {
    names: Arc<[Name]>,
    /// No name of the set follows.
    pub(super) is_last: bool,
    /// They are from a scan: worth keeping for the next page.
    is_scanned: bool,
}

impl NameList {
    /// Returns the names after this one.
    pub(super) fn after(&self, after: Option<&Name>) -> &[Name] {
        let from = after.map_or(0, |after| self.names.partition_point(|name| name <= after));
        &self.names[from..]
    }

    /// Returns the last name.
    pub(super) fn last(&self) -> Option<&Name> {
        self.names.last()
    }

    /// The look goes on after this name, at another time.
    pub(super) fn keep(self, store: &impl StoreAccess, set: NameSet, prefix: &str, after: &Name) {
        if self.is_scanned {
            let (after, prefix) = (after.clone(), prefix.to_owned());
            let look = ScannedLook { set, prefix, after, names: self.names, made: store.now() };
            store.scans().insert(look);
        }
    }
}

/// The names of scans, between two pages of a look.
#[derive(Debug, Default)]
pub(super) struct ScanCache {
    /// The oldest first.
    looks: Mutex<Vec<ScannedLook>>,
}

#[derive(Debug)]
struct ScannedLook {
    set: NameSet,
    prefix: String,
    /// Where the next page begins.
    after: Name,
    names: Arc<[Name]>,
    made: Tick,
}

impl ScanCache {
    fn insert(&self, look: ScannedLook) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.push(look);
        while looks.len() > MAX_LOOKS
            || looks.iter().map(|look| look.names.len()).sum::<usize>() > MAX_NAMES
        {
            looks.remove(0);
        }
    }

    fn take(&self, set: NameSet, prefix: &str, after: &Name, now: Tick) -> Option<Arc<[Name]>> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|look| now < look.made + MAX_AGE);
        let wanted =
            |look: &ScannedLook| look.set == set && look.prefix == prefix && look.after == *after;
        let at = looks.iter().position(wanted)?;
        Some(looks.remove(at).names)
    }
}

/// Returns all names of a set that begin with `prefix`, from the scan of the page that ended with
/// `after` or from a new one.
pub(super) async fn scanned(
    store: &impl StoreAccess,
    set: NameSet,
    prefix: &str,
    after: Option<&Name>,
) -> Result<NameList, Error> {
    let kept = after.and_then(|after| store.scans().take(set, prefix, after, store.now()));
    let names = if let Some(names) = kept {
        names
    } else {
        let keys = store.scan(&store.keys().scan_pattern(set, prefix)).await?;
        let names = keys.iter().filter_map(|key| store.keys().scanned_name(set, key));
        let mut names: Vec<Name> = names.collect();
        names.sort_unstable();
        // A scan may return a key twice.
        names.dedup();
        names.into()
    };
    Ok(NameList { names, is_last: true, is_scanned: true })
}

/// Returns the next names of an index that begin with `prefix`, after a name.
pub(super) async fn indexed(
    connection: &MultiplexedConnection,
    index: &str,
    prefix: &str,
    after: Option<&Name>,
) -> Result<NameList, RequestError> {
    let after = after.map(Name::as_str).filter(|after| *after >= prefix);
    let from = after.map_or_else(|| format!("[{prefix}"), |after| format!("({after}"));
    // No byte of UTF-8 is as large as the one that ends the range.
    let to =
        if prefix.is_empty() { b"+".to_vec() } else { [b"(", prefix.as_bytes(), b"\xff"].concat() };
    let most = INDEX_PAGE.to_string();
    let from = if from == "[" { "-" } else { &from };
    let words: [&[u8]; 7] =
        [b"ZRANGEBYLEX", index.as_bytes(), from.as_bytes(), &to, b"LIMIT", b"0", most.as_bytes()];
    let value = connection.call(&pack(&words)).await?;
    let members = list(&value).ok_or_else(|| RequestError::strange(&value))?;
    let name = |member| Name::from_store(std::str::from_utf8(bytes(member)?).ok()?).ok();
    let names: Arc<[Name]> = members.iter().filter_map(name).collect();
    let is_last = members.len() < INDEX_PAGE || names.is_empty();
    Ok(NameList { names, is_last, is_scanned: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn look(prefix: &str, after: &str, names: usize) -> ScannedLook {
        let names = (0..names).map(|at| name(&at.to_string())).collect();
        let (set, made) = (NameSet::Locks, Tick::ZERO);
        ScannedLook { set, prefix: prefix.to_owned(), after: name(after), names, made }
    }

    #[test]
    fn a_scan_serves_the_next_page_of_its_look_once_and_not_for_long() {
        let cache = ScanCache::default();
        let take = |set, prefix, after, now| {
            cache.take(set, prefix, &name(after), now).map(|names| names.len())
        };
        cache.insert(look("p", "a", 3));
        assert_eq!(take(NameSet::Locks, "p", "b", Tick::ZERO), None);
        assert_eq!(take(NameSet::Locks, "", "a", Tick::ZERO), None);
        assert_eq!(take(NameSet::Cells, "p", "a", Tick::ZERO), None);
        assert_eq!(take(NameSet::Locks, "p", "a", Tick::ZERO), Some(3));
        assert_eq!(take(NameSet::Locks, "p", "a", Tick::ZERO), None, "it was taken");
        cache.insert(look("p", "a", 3));
        assert_eq!(take(NameSet::Locks, "p", "a", Tick::ZERO + MAX_AGE), None, "it is too old");
        assert_eq!(take(NameSet::Locks, "p", "a", Tick::ZERO), None, "and was dropped");
    }

    #[test]
    fn a_few_looks_are_kept_and_the_oldest_goes_first() {
        let cache = ScanCache::default();
        for at in 0..=MAX_LOOKS {
            cache.insert(look("", &at.to_string(), 1));
        }
        assert!(cache.take(NameSet::Locks, "", &name("0"), Tick::ZERO).is_none());
        assert!(cache.take(NameSet::Locks, "", &name("1"), Tick::ZERO).is_some());
    }

    #[test]
    fn names_after_a_name_begin_behind_it() {
        let names: Arc<[Name]> = ["a", "c"].map(name).into();
        let list = NameList { names, is_last: true, is_scanned: true };
        let after = |after: Option<&str>| list.after(after.map(name).as_ref()).len();
        assert_eq!(
            [after(None), after(Some("a")), after(Some("b")), after(Some("c"))],
            [2, 1, 1, 0]
        );
        assert_eq!(list.last(), Some(&name("c")));
    }
}

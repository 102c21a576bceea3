//! A watch of cells: a stream of changes that never misses the last state.
//!
//! The engine signals that a cell may have changed, or that signals may have been missed (a *gap*).
//! The watch reads what it was pointed at and compares versions with what it returned last. So a
//! lost, late or repeated signal makes no wrong change, and a change between two reads is covered
//! by the signal that follows it. Changes in quick succession may be merged into the last one.
//!
//! Every name that is still to be read, and a reload that is still to be made, is kept in the watch
//! until its result is queued: a future that is dropped half-way loses nothing.
//!
//! A value that expires sends no signal. The watch knows when that is, and reads it again then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::park::{self, sleep_until};
use super::{Core, Session, closed_error};
use crate::contract::{
    Cell, CellQuery, CellRange, CellWatcher, Cells, Delivery, Error, ErrorKind, Name, Pattern,
    Verb, Version,
};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Tick;

/// How many cells are read in one call when everything is read again.
const PAGE: usize = 64;
/// How many changed names are kept one by one. Beyond that, everything is read again.
const MOST_NAMES: usize = 1_024;
/// How many times as long as a read of a polled range took, the next one waits at least.
const POLL_PAUSE: u32 = 50;
/// A value that has expired by our clock may live a little longer by the store's.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// A change that a [`CellWatch`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellChange {
    /// The cell has this value now.
    Put(Name, Cell),
    /// The cell has no value now: it was removed, or it has expired.
    Removed(Name),
    /// Changes may have been missed, because the connection was lost or the store restarted. What
    /// differs from what was returned before follows.
    Gap,
}

/// A stream of changes of one cell or of all cells with a prefix. Made by
/// [`CellStore::watch`](crate::CellStore::watch).
///
/// It begins with the present state. Changes in quick succession may be merged into the last one,
/// which is never missed. While the store is away it goes on trying.
pub struct CellWatch {
    session: Session,
    range: CellRange,
    inbox: Arc<Inbox>,
    delivery: Delivery,
    /// What was returned last, of every cell that has a value.
    known: BTreeMap<Name, KnownCell>,
    /// Cells that have to be read.
    unread: BTreeSet<Name>,
    /// Everything has to be read.
    reload: bool,
    /// Nothing was returned yet.
    is_first: bool,
    /// A gap was queued, and everything has to be read because of it.
    gap_told: bool,
    next_poll: Tick,
    failures: u32,
    ready: VecDeque<CellChange>,
}

/// The version that was returned, and when the value expires.
struct KnownCell {
    version: Version,
    expires: Tick,
}

/// The signals that were not looked at yet.
#[derive(Default)]
struct Inbox {
    signals: Mutex<CellSignals>,
}

#[derive(Default)]
struct CellSignals {
    changed: BTreeSet<Name>,
    overflow: bool,
    gap: bool,
    waker: Option<Waker>,
}

impl CellWatch {
    /// Begins to watch.
    pub(crate) async fn begin(session: Session, range: CellRange) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox::default());
        let watcher: Arc<dyn CellWatcher> = Arc::clone(&inbox) as _;
        let delivery = session.core().watch(&range, Arc::downgrade(&watcher)).await?;
        Ok(Self {
            session,
            range,
            inbox,
            delivery,
            known: BTreeMap::new(),
            unread: BTreeSet::new(),
            reload: true,
            is_first: true,
            gap_told: false,
            next_poll: Tick::NEVER,
            failures: 0,
            ready: VecDeque::new(),
        })
    }

    /// Returns the next change. Waits until there is one.
    ///
    /// # Errors
    /// `Closed` after [`Tenure::close`](crate::Tenure::close); `Corrupt` if a cell cannot be read.
    /// A store that is away is no error: the watch goes on when it is back.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change: the next call returns it.
    pub async fn next(&mut self) -> Result<CellChange, Error> {
        loop {
            self.take_signals();
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            let core = Arc::clone(self.session.core());
            let read = if self.reload {
                self.read_all(&core).await
            } else if let Some(name) = self.unread.first().cloned() {
                self.read_one(&core, name).await
            } else {
                self.wait(&core).await
            };
            match read {
                Ok(()) => self.failures = 0,
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.failures = self.failures.saturating_add(1);
                    let pause = core.pause(self.failures);
                    sleep_until(&core, core.clock.now() + pause).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The blocking form of [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn blocking_next(&mut self) -> Result<CellChange, Error> {
        super::block_on(self.next())
    }

    /// Returns the next change, or `None` if there is none in this time.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    ///
    /// # Cancel safety
    /// Dropping the future loses no change: the next call returns it.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<CellChange>, Error> {
        let core = Arc::clone(self.session.core());
        let until = core.clock.now() + limit;
        park::within(&core, until, self.next()).await.transpose()
    }

    /// The blocking form of [`next_within`](Self::next_within).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn blocking_next_within(&mut self, limit: Duration) -> Result<Option<CellChange>, Error> {
        super::block_on(self.next_within(limit))
    }

    /// Which cells are watched.
    #[must_use]
    pub fn range(&self) -> &CellRange {
        &self.range
    }

    fn take_signals(&mut self) {
        let mut signals = self.inbox.lock();
        if std::mem::take(&mut signals.gap) {
            // The first load returns everything, and one gap stands before what a reload finds. A
            // reload for another reason, an overflow or a poll, is no reason to hide the gap.
            if !self.is_first && !self.gap_told {
                self.ready.push_back(CellChange::Gap);
                self.gap_told = true;
            }
            self.reload = true;
        }
        self.reload |= std::mem::take(&mut signals.overflow);
        self.unread.append(&mut signals.changed);
    }

    /// Reads every cell in the range, and queues what differs.
    async fn read_all(&mut self, core: &Core) -> Result<(), Error> {
        // Signals that arrived before are covered by the reads that follow. If these fail, `reload`
        // stays set.
        self.unread.clear();
        let began = core.clock.now();
        let found = read_range(core, &self.range).await?;
        let now = core.clock.now();
        let gone: Vec<Name> =
            self.known.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        for name in gone {
            self.apply(name, None, now);
        }
        for (name, cell) in found {
            self.apply(name, Some(cell), now);
        }
        if let CellRange::One(name) = &self.range
            && self.is_first
            && self.ready.is_empty()
        {
            self.ready.push_back(CellChange::Removed(name.clone()));
        }
        self.is_first = false;
        self.reload = false;
        self.gap_told = false;
        self.next_poll = match self.delivery {
            Delivery::Pushed => Tick::NEVER,
            Delivery::Polled(interval) => now + poll_pause(interval, now.since(began)),
        };
        Ok(())
    }

    async fn read_one(&mut self, core: &Core, name: Name) -> Result<(), Error> {
        let cell = core.get(&name).await?;
        self.unread.remove(&name);
        self.apply(name, cell, core.clock.now());
        Ok(())
    }

    /// Compares what was read with what was returned last.
    fn apply(&mut self, name: Name, cell: Option<Cell>, now: Tick) {
        let Some(cell) = cell else {
            if self.known.remove(&name).is_some() {
                self.ready.push_back(CellChange::Removed(name));
            }
            return;
        };
        let expires = cell.expires_in.map_or(Tick::NEVER, |left| now + left + EXPIRY_SLACK);
        let known = KnownCell { version: cell.version, expires };
        let before = self.known.insert(name.clone(), known);
        if before.is_none_or(|before| before.version != cell.version) {
            self.ready.push_back(CellChange::Put(name, cell));
        }
    }

    /// Waits for a signal, for the next expiry, or for the next poll.
    async fn wait(&mut self, core: &Core) -> Result<(), Error> {
        let expiry = self.known.values().map(|known| known.expires).min();
        let until = expiry.unwrap_or(Tick::NEVER).min(self.next_poll);
        let signalled = park::within(core, until, self.inbox.signalled(core)).await;
        if core.lock().closed {
            return Err(closed_error(Verb::Cell));
        }
        core.check_process(Verb::Cell)?;
        let now = core.clock.now();
        if signalled.is_none() {
            self.reload |= now >= self.next_poll;
            let expired = self.known.iter().filter(|(_, known)| now >= known.expires);
            self.unread.extend(expired.map(|(name, _)| name.clone()));
        }
        Ok(())
    }
}

/// How long to wait before a range is read again after a read that took so long. An engine without
/// signals for it has to scan, and spends at most 2 % of its time on one watch.
fn poll_pause(interval: Duration, took: Duration) -> Duration {
    interval.max(took * POLL_PAUSE)
}

/// Reads all cells in a range.
async fn read_range(core: &Core, range: &CellRange) -> Result<BTreeMap<Name, Cell>, Error> {
    let prefix = match range {
        CellRange::One(name) => {
            let cell = core.get(name).await?;
            return Ok(cell.map(|cell| (name.clone(), cell)).into_iter().collect());
        }
        CellRange::Prefix(prefix) => Pattern::prefix(prefix),
    };
    let mut found = BTreeMap::new();
    // Reserved names come first, and are in no range.
    let begin = Name::after_reserved();
    loop {
        let last = found.last_key_value().map(|(name, _): (&Name, &Cell)| name.clone());
        let after = Some(last.as_ref().unwrap_or(&begin));
        let query = CellQuery { pattern: &prefix, after, limit: PAGE };
        let page = core.list(query).await?;
        let is_last = page.len() < PAGE;
        found.extend(page);
        if is_last {
            return Ok(found);
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, CellSignals> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when there is a signal, or when the session was closed.
    async fn signalled(&self, core: &Core) {
        poll_fn(|cx| {
            if core.lock().closed {
                return Poll::Ready(());
            }
            let mut signals = self.lock();
            if signals.gap || signals.overflow || !signals.changed.is_empty() {
                return Poll::Ready(());
            }
            signals.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn signal(&self, change: impl FnOnce(&mut CellSignals)) {
        let mut signals = self.lock();
        change(&mut signals);
        let waker = signals.waker.take();
        drop(signals);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl CellWatcher for Inbox {
    fn on_change(&self, name: &Name) {
        self.signal(|signals| {
            signals.changed.insert(name.clone());
            if signals.changed.len() > MOST_NAMES {
                signals.changed.clear();
                signals.overflow = true;
            }
        });
    }

    fn on_gap(&self) {
        self.signal(|signals| signals.gap = true);
    }
}

impl fmt::Debug for CellWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellWatch").field("range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_polled_less_often() {
        let interval = Duration::from_secs(5);
        for (took, pause) in [(0, 5_000), (100, 5_000), (200, 10_000), (2_000, 100_000)] {
            let (took, pause) = (Duration::from_millis(took), Duration::from_millis(pause));
            assert_eq!(poll_pause(interval, took), pause, "{took:?}");
        }
    }

    #[test]
    fn a_gap_is_told_though_a_reload_is_already_due() {
        let tenure = crate::Tenure::blocking_connect("memory:").unwrap();
        let range = CellRange::prefix("k").unwrap();
        let mut watch = tenure.cells().blocking_watch(range).unwrap();
        let gaps = |watch: &mut CellWatch| {
            watch.take_signals();
            let gaps = watch.ready.iter().filter(|change| **change == CellChange::Gap).count();
            watch.ready.clear();
            gaps
        };
        // Before the first load there is nothing that could have been missed.
        watch.inbox.on_gap();
        assert_eq!((gaps(&mut watch), watch.reload), (0, true));
        let none = Duration::ZERO;
        assert!(crate::block_on(watch.next_within(none)).unwrap().is_none());
        assert!(!watch.reload, "loaded");
        // An overflow, a poll that is due, and a re-read that failed all leave `reload` set.
        watch.inbox.signal(|signals| signals.overflow = true);
        assert_eq!((gaps(&mut watch), watch.reload), (0, true));
        watch.inbox.on_gap();
        assert_eq!(gaps(&mut watch), 1, "the gap is told all the same");
        watch.inbox.on_gap();
        assert_eq!(gaps(&mut watch), 0, "once for each reload");
        let core = Arc::clone(watch.session.core());
        crate::block_on(watch.read_all(&core)).unwrap();
        watch.inbox.on_gap();
        assert_eq!((gaps(&mut watch), watch.reload), (1, true), "and again after it");
    }
}

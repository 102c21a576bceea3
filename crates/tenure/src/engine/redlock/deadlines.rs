//! How long nodes may take. Knows instants and whom to tell, not what is waited for.
//!
//! Callers may run on any runtime or on none, so the time is kept on the engine's own thread. It is
//! woken when the first of many rounds begins, not for each: nearly all end long before their time.

use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use super::round::Event;
use crate::time::{Clock, SystemClock, Tick};

/// Tells rounds when their time is up.
#[derive(Debug)]
pub(super) struct Deadlines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    rounds: Mutex<BinaryHeap<Entry>>,
    bell: Notify,
}

impl Deadlines {
    /// Keeps the time on this runtime, for as long as the runtime lives.
    pub(super) fn start(home: &Handle) -> Self {
        let shared = Arc::<Shared>::default();
        home.spawn(keep(Arc::clone(&shared)));
        Self(shared)
    }

    /// Tells this round when so much time has passed.
    pub(super) fn limit(&self, after: Duration, round: UnboundedSender<Event>) {
        let until = SystemClock.now() + after;
        let mut rounds = self.0.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let first = rounds.peek().is_none_or(|first| until < first.until);
        rounds.push(Entry { until, round });
        drop(rounds);
        if first {
            self.0.bell.notify_one();
        }
    }
}

impl Shared {
    /// Tells those whose time is up, and says when the next one's will be.
    fn sweep(&self, now: Tick) -> Option<Tick> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = rounds.peek() {
            if first.until > now && !first.round.is_closed() {
                return Some(first.until);
            }
            if let Some(entry) = rounds.pop() {
                // Whoever has ended does not want to know.
                let _ = entry.round.send(Event::TimeIsUp);
            }
        }
        None
    }
}

async fn keep(shared: Arc<Shared>) {
    loop {
        let rung = shared.bell.notified();
        // Nodes are real, and so is their time, also where a suite owns that of leases.
        let now = SystemClock.now();
        match shared.sweep(now) {
            None => rung.await,
            // Rung earlier means that somebody has less time.
            Some(next) => drop(timeout(next.since(now), rung).await),
        }
    }
}

#[derive(Debug)]
struct Entry {
    until: Tick,
    round: UnboundedSender<Event>,
}

// The earliest is the greatest, because a heap has its greatest on top.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn rounds_are_told_in_the_order_of_their_limits() {
        let deadlines = Deadlines::start(&Handle::current());
        let (late, mut hears_late) = unbounded_channel();
        let (early, mut hears_early) = unbounded_channel();
        deadlines.limit(Duration::from_millis(40), late);
        deadlines.limit(Duration::from_millis(1), early);
        assert!(matches!(hears_early.recv().await, Some(Event::TimeIsUp)));
        assert!(matches!(hears_late.recv().await, Some(Event::TimeIsUp)));
        assert!(deadlines.0.rounds.lock().unwrap().is_empty());
    }
}

//! The deadlines of rounds: ends a round when its time is over.
//!
//! Callers may run on any runtime or on none, so timers live on the engine's own thread. One task
//! sleeps until the earliest deadline of a heap. It is woken when a new deadline is earlier than
//! all others, not for each round: nearly all rounds end long before their deadline, and the
//! deadline of a round that has ended is dropped when it comes to the top.

use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use super::round::RoundEvent;
use crate::time::{Clock, SystemClock, Tick};

/// Ends rounds at their deadline.
#[derive(Debug)]
pub(super) struct Deadlines(Arc<DeadlineHeap>);

#[derive(Debug, Default)]
struct DeadlineHeap {
    rounds: Mutex<BinaryHeap<Deadline>>,
    earlier: Notify,
}

impl Deadlines {
    /// Spawns the task on this runtime, where it lives as long as the runtime.
    pub(super) fn start(home: &Handle) -> Self {
        let shared = Arc::<DeadlineHeap>::default();
        home.spawn(run(Arc::clone(&shared)));
        Self(shared)
    }

    /// Sends `TimedOut` to this round after this time.
    pub(super) fn limit(&self, after: Duration, round: UnboundedSender<RoundEvent>) {
        let until = SystemClock.now() + after;
        let mut rounds = self.0.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let first = rounds.peek().is_none_or(|first| until < first.until);
        rounds.push(Deadline { until, round });
        drop(rounds);
        if first {
            self.0.earlier.notify_one();
        }
    }
}

impl DeadlineHeap {
    /// Ends the rounds whose deadline has passed. Returns the next deadline.
    fn expire(&self, now: Tick) -> Option<Tick> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = rounds.peek() {
            if first.until > now && !first.round.is_closed() {
                return Some(first.until);
            }
            if let Some(entry) = rounds.pop() {
                // Fails if the round has ended.
                let _ = entry.round.send(RoundEvent::TimedOut);
            }
        }
        None
    }
}

async fn run(shared: Arc<DeadlineHeap>) {
    loop {
        let woken = shared.earlier.notified();
        // The system's clock also where the suite has a virtual one: nodes are real servers.
        let now = SystemClock.now();
        match shared.expire(now) {
            None => woken.await,
            // Woken earlier: a round has an earlier deadline.
            Some(next) => drop(timeout(next.since(now), woken).await),
        }
    }
}

#[derive(Debug)]
struct Deadline {
    until: Tick,
    round: UnboundedSender<RoundEvent>,
}

// Reversed: a `BinaryHeap` has its greatest element on top.
impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Deadline {}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn rounds_time_out_in_the_order_of_their_limits() {
        let deadlines = Deadlines::start(&Handle::current());
        let (late, mut late_events) = unbounded_channel();
        let (early, mut early_events) = unbounded_channel();
        deadlines.limit(Duration::from_millis(40), late);
        deadlines.limit(Duration::from_millis(1), early);
        assert!(matches!(early_events.recv().await, Some(RoundEvent::TimedOut)));
        assert!(matches!(late_events.recv().await, Some(RoundEvent::TimedOut)));
        assert!(deadlines.0.rounds.lock().unwrap().is_empty());
    }
}

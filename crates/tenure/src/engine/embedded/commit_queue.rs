//! The queue of one process for `commit.rs`: writes of its tasks that wait for a commit.
//!
//! The first write that finds no job scheduled schedules one on the disk worker, which drains the
//! queue; so there is one such job at most. A write whose caller has dropped its future meanwhile
//! is skipped.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(any(test, feature = "test-util"))]
use std::time::Duration;

use tokio::sync::oneshot;

use super::cell_codec::{self, MOST_REQUESTS};
use super::cell_rows::{SweepCursor, WriteRequest};
use super::codec::Writer;
use super::handover::REQUEST;
#[cfg(any(test, feature = "test-util"))]
use super::sessions::Sessions;
use crate::contract::{BatchVerdict, CellAction, CellPart, Error};
use crate::time::{Clock, Tick};

/// The most writes and the most bytes of this process in one commit.
const MAX_WRITES: usize = 1_024;
const MAX_BYTES: usize = 4 << 20;

/// The writes of this process that wait.
#[derive(Default)]
pub(super) struct CommitQueue {
    waiting: Mutex<WaitingWrites>,
    pub(super) sweep: Mutex<SweepCursor>,
    /// How many writes the last commit of this process had, those of other processes included.
    pub(super) last_group: AtomicUsize,
    #[cfg(any(test, feature = "test-util"))]
    pub(super) hook: Mutex<Option<CommitHook>>,
}

#[derive(Default)]
pub(super) struct WaitingWrites {
    writes: VecDeque<PendingWrite>,
    /// The disk worker drains the queue, or will.
    pub(super) scheduled: bool,
}

/// A write whose caller waits for the reply.
pub(super) struct PendingWrite {
    pub(super) request: WriteRequest,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reply: oneshot::Sender<Result<BatchVerdict, Error>>,
    pub(super) arrived: Tick,
    /// It must not be handed over.
    pub(super) alone: bool,
}

/// A death on purpose, for tests.
#[cfg(any(test, feature = "test-util"))]
#[derive(Clone, Copy, Debug)]
pub(super) enum CommitHook {
    /// Waits until so many requests were handed over, and kills the process when it has taken them.
    DieBeforeCommit(usize),
    /// The same, when it has committed them.
    DieAfterCommit(usize),
}

impl CommitQueue {
    /// Adds a write. Returns whether the queue has to be drained by a new job.
    pub(super) fn push(&self, write: PendingWrite) -> bool {
        let mut waiting = self.lock();
        waiting.writes.push_back(write);
        !std::mem::replace(&mut waiting.scheduled, true)
    }

    /// Returns whether no write waits; then the next one has to start a new job.
    pub(super) fn is_drained(&self) -> bool {
        let mut waiting = self.lock();
        waiting.scheduled = !waiting.writes.is_empty();
        !waiting.scheduled
    }

    pub(super) fn len(&self) -> usize {
        self.lock().writes.len()
    }

    /// Returns when the write arrived that waits longest.
    pub(super) fn oldest(&self) -> Option<Tick> {
        self.lock().writes.iter().map(|write| write.arrived).min()
    }

    /// Takes the writes of one commit. Those whose callers have left are dropped.
    pub(super) fn take(&self) -> Vec<PendingWrite> {
        let mut waiting = self.lock();
        let (mut writes, mut bytes) = (Vec::new(), 0);
        while let Some(write) = waiting.writes.pop_front() {
            if write.reply.is_closed() {
                continue;
            }
            bytes += write.bytes();
            writes.push(write);
            if writes.len() == MAX_WRITES || bytes >= MAX_BYTES {
                break;
            }
        }
        writes
    }

    /// Encodes as many writes as have space in a slot, and takes them out of the queue.
    pub(super) fn encode(&self) -> (Writer, Vec<PendingWrite>) {
        let mut waiting = self.lock();
        let (mut encoded, mut writes) = (Writer::default(), Vec::new());
        while let Some(write) = waiting.writes.front() {
            if write.reply.is_closed() {
                waiting.writes.pop_front();
                continue;
            }
            let mut one = Writer::default();
            if !write.alone && write.bytes() <= REQUEST {
                cell_codec::write_request(&mut one, &write.request);
            }
            let len = encoded.bytes().len() + one.bytes().len();
            if one.bytes().is_empty() || len > REQUEST || writes.len() == MOST_REQUESTS {
                break;
            }
            encoded.append(one.bytes());
            writes.extend(waiting.writes.pop_front());
        }
        (encoded, writes)
    }

    /// Puts writes back to the front of the queue.
    pub(super) fn put_back(&self, writes: Vec<PendingWrite>) {
        let mut waiting = self.lock();
        for write in writes.into_iter().rev() {
            waiting.writes.push_front(write);
        }
    }

    /// Fails the writes that arrived before an instant.
    pub(super) fn fail_waiting(&self, before: Tick, error: &Error) {
        let mut waiting = self.lock();
        let (failed, left) = waiting.writes.drain(..).partition(|one| one.arrived <= before);
        waiting.writes = left;
        drop(waiting);
        let failed: VecDeque<PendingWrite> = failed;
        for write in failed {
            let _ = write.reply.send(Err(error.clone()));
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WaitingWrites> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWrite {
    /// Returns about how long it is.
    fn bytes(&self) -> usize {
        let part = |part: &CellPart| match &part.action {
            CellAction::Put { value, .. } => part.name.as_str().len() + value.len(),
            CellAction::Check | CellAction::Remove => part.name.as_str().len(),
        };
        self.request.batch.parts.iter().map(part).sum()
    }
}

/// Lets the next write start a new job after a panic. What waits then gets an error.
pub(super) struct ScheduledGuard<'a>(pub(super) &'a CommitQueue);

impl Drop for ScheduledGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut waiting = self.0.lock();
            waiting.scheduled = false;
            waiting.writes.clear();
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Sessions {
    /// Waits, inside the gate, until as much was handed over as the hook says.
    pub(super) fn await_handover(&self) {
        let hook = *self.commits().hook.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(CommitHook::DieBeforeCommit(wanted) | CommitHook::DieAfterCommit(wanted)) = hook
        else {
            return;
        };
        while self.store().handover().pending_writes() < wanted {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(CommitHook::DieBeforeCommit(_)) = hook {
            self.store().handover().take();
            die();
        }
    }

    pub(super) fn die_after_commit(&self) {
        let hook = *self.commits().hook.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(CommitHook::DieAfterCommit(_)) = hook {
            die();
        }
    }
}

/// Ends this process as `kill -9` does.
#[cfg(any(test, feature = "test-util"))]
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

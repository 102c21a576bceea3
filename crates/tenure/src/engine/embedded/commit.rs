//! Group commit: writes of cells from many tasks and many processes share one synced transaction.
//!
//! A sync takes milliseconds, whatever is in the transaction. So a process that is about to commit
//! takes along all writes that wait at that moment.
//!
//! ```text
//! task ─┐                       the durable mutex is free
//! task ─┼─> queue of the ──────────────────────────────────> lead(): commit the queue and
//! task ─┘   process, drained        │ it is locked                   all that was handed over
//!           by its disk worker      ▼                                      │
//!                              post() to a slot of `handover.rs` <── reply ┘
//!                              and sleep until the round has ended
//! ```
//!
//! One thread of each process, the disk worker, drains the queue. If the durable mutex is free, the
//! thread is the *committer*: one transaction judges each write in order, every write seeing those
//! before it; after the sync all get their replies. If another process is the committer, the thread
//! posts what waits to a slot of shared memory. The next committer takes it along, and the thread
//! that posted sleeps until the round has ended: then it has its reply, or commits itself.
//! A committer whose last group was larger than one write waits up to [`GATHER`] for the next group
//! to be as large. An uncontended write is one transaction without any of this.
//!
//! # Why not without a sync
//!
//! LMDB can commit without a sync and sync later, once for several processes. But it writes pages
//! of the transaction before in place of pages that are free since: after a power loss between two
//! such commits, the file may be damaged, unless the file system keeps the order of all writes. So
//! every transaction is synced by LMDB itself before the page that makes it valid is written.
//!
//! # Why a write is made once, and not lost
//!
//! 1. A reply is sent after the commit has returned, which is after the sync.
//! 2. In the transaction of a commit that writes for other processes, the row `G` is written: the
//!    ids of their requests and the versions that were written. A request stays in its slot until
//!    its reply stands there. So if the committer is killed after the commit, the next one takes
//!    the same requests, finds them in `G`, and replies without writing again. If it is killed
//!    before, `G` does not have them, and they are written then.
//! 3. `G` is replaced by the next commit that writes for others. By then all requests that it has
//!    were replied to or are in that group again, and the new row repeats their versions.
//! 4. A committer that is killed leaves a robust mutex, which the next thread that tries gets.
//!    Threads that sleep try again every [`NAP`], so no death is missed.
//! 5. A request that waited too long is withdrawn and has no effect, or was taken already and has
//!    an unknown one. The same goes for requests whose process dies: no reply, any effect.
//!
//! If there is no space for a group, each of its writes is tried alone, so that a large one does
//! not fail the others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::cell_codec::{
    CommittedRequest, HandoverReply, read_committed, read_replies, read_requests, write_committed,
    write_replies,
};
use super::cell_rows::{self, CellTime, Judged, SweepCursor, WriteOutcome, WriteRequest};
use super::cell_watches::CellSignals;
use super::commit_queue::{PendingWrite, ScheduledGuard};
use super::durable::{CommitFailure, Durable, DurableGuard};
use super::errors::stuck;
use super::handover::{Posted, Withdrawal};
use super::sessions::Sessions;
use super::store::WAIT;
use super::txn::Txn;
use crate::contract::{BatchVerdict, Effect, Error, ErrorKind, Name, Namespace, Version};
use crate::sync::random_bytes;
use crate::time::{Clock, SystemClock, Tick};

/// How long a thread sleeps at most before it looks whether the committer has died.
const NAP: Duration = Duration::from_millis(20);
/// How long a committer waits for more writes at most: a fraction of a sync.
const GATHER: Duration = Duration::from_micros(500);
/// What other processes have handed over, from one slot.
struct HandedOver {
    slot: usize,
    id: u64,
    /// Empty if they cannot be decoded.
    requests: Vec<WriteRequest>,
}

/// The result of a commit, in the order of the group.
struct GroupOutcome {
    own: Vec<Judged>,
    handed: Vec<Vec<Judged>>,
}

impl Sessions {
    /// Writes a batch, together with all that wait meanwhile. Returns when it is on disk.
    pub(super) async fn commit(
        self: &Arc<Self>,
        request: WriteRequest,
        clock: Arc<dyn Clock>,
    ) -> Result<BatchVerdict, Error> {
        // A forked child has the queue of its parent, and no thread that drains it.
        self.store().usable()?;
        let (reply, result) = oneshot::channel();
        let arrived = SystemClock.now();
        let write = PendingWrite { request, clock, reply, arrived, alone: false };
        if self.commits().push(write) {
            let sessions = Arc::clone(self);
            if let Err(error) = self.disk_worker().try_spawn(move || sessions.drain()) {
                self.commits().fail_waiting(Tick::NEVER, &error);
                self.commits().lock().scheduled = false;
            }
        }
        result.await.unwrap_or_else(|_| Err(super::worker::ended()))
    }

    /// Commits until no write waits. On the disk worker.
    fn drain(&self) {
        let _scheduled = ScheduledGuard(self.commits());
        while !self.commits().is_drained() {
            let began = SystemClock.now();
            if let Err(error) = self.commit_round() {
                self.commits().fail_waiting(began, &error);
            }
        }
    }

    /// Commits what waits, or hands it over. An error is that of all writes that wait.
    fn commit_round(&self) -> Result<(), Error> {
        let durable = self.store().durable()?;
        let gate = self.store().gate();
        if let Some(inside) = DurableGuard::enter_now(gate) {
            self.lead(inside, durable);
        } else if let Some((posted, writes)) = self.post() {
            self.await_reply(posted, writes, durable);
        } else {
            let left = time_left(self.commits().oldest());
            self.lead(DurableGuard::enter(gate, left)?, durable);
        }
        Ok(())
    }

    /// Sends what a dead committer has not signalled: for a process that only watches.
    pub(super) fn repair_signals(&self) -> Result<(), Error> {
        let durable = self.store().durable()?;
        self.lead(DurableGuard::enter(self.store().gate(), WAIT)?, durable);
        Ok(())
    }

    /// Commits what waits in this process and in the slots, as one group.
    fn lead(&self, inside: DurableGuard<'_>, durable: &Durable) {
        let board = self.store().gate().board();
        let gap = self.cell_signals().repair(board);
        #[cfg(any(test, feature = "test-util"))]
        self.await_handover();
        self.gather();
        let mut own = self.commits().take();
        let handed = self.take_handed_over();
        let handed_writes: usize = handed.iter().map(|slot| slot.requests.len()).sum();
        self.commits().last_group.store(own.len() + handed_writes, Ordering::Relaxed);
        let mut changed = Vec::new();
        let mut results: Vec<Result<BatchVerdict, Error>> = Vec::new();
        if !own.is_empty() || !handed.is_empty() {
            CellSignals::begin(board);
            let committed = self.commit_group(&inside, durable, &own, &handed);
            #[cfg(any(test, feature = "test-util"))]
            self.die_after_commit();
            let replies;
            (results, replies) = match committed {
                Ok(outcome) => settle(outcome, &own, &handed, &mut changed),
                Err(CommitFailure { full: true, error }) if own.len() + handed.len() > 1 => {
                    drop(error);
                    let one = |write| self.commit_one(&inside, durable, write, &mut changed);
                    (own.iter().map(one).collect(), alone(&handed))
                }
                Err(CommitFailure { error, .. }) => fail(&error, &own, &handed, &mut changed),
            };
            self.cell_signals().send(board, &changed);
            for (slot, replies) in handed.iter().zip(&replies) {
                self.store().handover().reply(slot.slot, write_replies(replies).bytes());
            }
        }
        drop(inside);
        for (write, result) in own.drain(..).zip(results) {
            let _ = write.reply.send(result);
        }
        self.cell_signals().notify(&changed, gap);
    }

    /// Waits for a moment if the last group was larger than what waits now. Tasks and processes
    /// that write again and again come back just after a commit; without this, the first of them
    /// would be committed alone, and the others wait for that. A write without company does not
    /// wait.
    fn gather(&self) {
        let last = self.commits().last_group.load(Ordering::Relaxed);
        let until = SystemClock.now() + GATHER;
        while last > 1
            && self.commits().len() + self.store().handover().pending_writes() < last
            && SystemClock.now() < until
        {
            std::thread::sleep(GATHER / 10);
        }
    }

    fn take_handed_over(&self) -> Vec<HandedOver> {
        let taken = self.store().handover().take().into_iter();
        taken
            .map(|taken| {
                let requests = read_requests(&taken.bytes).unwrap_or_default();
                HandedOver { slot: taken.slot, id: taken.id, requests }
            })
            .collect()
    }

    /// Judges and writes a group in one transaction.
    fn commit_group(
        &self,
        inside: &DurableGuard<'_>,
        durable: &Durable,
        own: &[PendingWrite],
        handed: &[HandedOver],
    ) -> Result<GroupOutcome, CommitFailure> {
        let mut sweep = self.commits().sweep.lock().unwrap_or_else(PoisonError::into_inner);
        let boot = self.boot();
        durable.commit(inside, |txn| {
            let own_judged: Vec<Judged> = own
                .iter()
                .map(|write| {
                    let now = CellTime::of(&*write.clock, boot);
                    cell_rows::write(txn, &write.request, now, &mut sweep)
                })
                .collect();
            let handed_judged = write_handed_over(txn, handed, boot, &mut sweep);
            let wrote = |judged: &Judged| judged.wrote;
            let changed = own_judged.iter().any(wrote) || handed_judged.iter().flatten().any(wrote);
            (GroupOutcome { own: own_judged, handed: handed_judged }, changed)
        })
    }

    /// Commits one write of this process alone.
    fn commit_one(
        &self,
        inside: &DurableGuard<'_>,
        durable: &Durable,
        write: &PendingWrite,
        changed: &mut Vec<(Namespace, Name)>,
    ) -> Result<BatchVerdict, Error> {
        match self.commit_group(inside, durable, std::slice::from_ref(write), &[]) {
            Ok(outcome) => {
                let judged = outcome.own.into_iter().next();
                note_changed(changed, &write.request, judged.as_ref().is_none_or(|one| one.wrote));
                judged.map_or_else(|| Err(super::worker::ended()), |one| one.outcome.into_result())
            }
            Err(CommitFailure { error, .. }) => {
                note_changed(changed, &write.request, true);
                Err(error)
            }
        }
    }

    /// Posts as many of the waiting writes as have space in a slot.
    fn post(&self) -> Option<(Posted<'_>, Vec<PendingWrite>)> {
        let (bytes, writes) = self.commits().encode();
        if writes.is_empty() {
            return None;
        }
        let id = random_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if let Some(posted) = self.store().handover().post(id, bytes.bytes(), writes.len()) {
            return Some((posted, writes));
        }
        self.commits().put_back(writes);
        None
    }

    /// Waits for the reply to what was posted. Commits itself when the gate is free first.
    fn await_reply(&self, posted: Posted<'_>, writes: Vec<PendingWrite>, durable: &Durable) {
        let gate = self.store().gate();
        let until = SystemClock.now() + time_left(writes.iter().map(|write| write.arrived).min());
        loop {
            // Read before the reply is looked for: a round that ends after that is not slept over.
            let round = gate.board().round();
            if let Some(reply) = posted.reply() {
                drop(posted);
                return self.deliver_replies(&reply, writes);
            }
            if let Some(inside) = DurableGuard::enter_now(gate) {
                // Its own slot is among those that it takes.
                self.lead(inside, durable);
                continue;
            }
            if SystemClock.now() >= until {
                break;
            }
            gate.board().wait_for_round(round, NAP);
        }
        let busy = stuck(gate.durable_holder());
        let error = match posted.withdraw() {
            Withdrawal::Unseen => busy,
            Withdrawal::Taken => busy.effect_unknown(),
        };
        for write in writes {
            let _ = write.reply.send(Err(error.clone()));
        }
    }

    fn deliver_replies(&self, reply: &[u8], writes: Vec<PendingWrite>) {
        let mut replies = read_replies(reply).unwrap_or_default().into_iter();
        let mut left = Vec::new();
        for mut write in writes {
            match replies.next() {
                Some(HandoverReply::Outcome(outcome)) => {
                    let _ = write.reply.send(outcome.into_result());
                }
                Some(HandoverReply::Unknown) => {
                    let _ = write.reply.send(Err(committer_failed()));
                }
                // Without a reply the committer could not decode it, so it has not written it.
                Some(HandoverReply::Alone) | None => {
                    write.alone = true;
                    left.push(write);
                }
            }
        }
        self.commits().put_back(left);
    }
}

/// Returns how long writes may still wait for the gate; the oldest of them arrived at this instant.
/// The time in the queue counts: behind a stuck gate all writes time out together.
fn time_left(oldest: Option<Tick>) -> Duration {
    let waited = oldest.map_or(Duration::ZERO, |oldest| SystemClock.now().since(oldest));
    WAIT.saturating_sub(waited).max(WAIT / 4)
}

/// Writes what was handed over, except what a committer that died has written already, and notes in
/// the row `G` what is written.
fn write_handed_over(
    txn: &Txn<'_>,
    handed: &[HandedOver],
    boot: u64,
    sweep: &mut SweepCursor,
) -> Vec<Vec<Judged>> {
    if handed.is_empty() {
        return Vec::new();
    }
    let before = txn.get(b"G", "writes for other processes", read_committed).unwrap_or_default();
    let mut committed = Vec::new();
    let mut all = Vec::new();
    for slot in handed {
        let known = before.iter().find(|request| request.id == slot.id);
        let mut judged = Vec::new();
        let mut versions = Vec::new();
        for (at, request) in slot.requests.iter().enumerate() {
            let written = known.and_then(|known| known.versions.get(at)).copied().unwrap_or(0);
            if written == 0 {
                let now = CellTime::of(&SystemClock, boot);
                let one = cell_rows::write(txn, request, now, sweep);
                versions.push(match &one.outcome {
                    WriteOutcome::Done(version) if one.wrote => version.0,
                    _ => 0,
                });
                judged.push(one);
            } else {
                let outcome = WriteOutcome::Done(Version(written));
                versions.push(written);
                judged.push(Judged { outcome, wrote: false });
            }
        }
        committed.push(CommittedRequest { id: slot.id, versions });
        all.push(judged);
    }
    if all.iter().flatten().any(|judged| judged.wrote) {
        txn.put(b"G", write_committed(&committed).bytes());
    }
    all
}

type GroupReplies = (Vec<Result<BatchVerdict, Error>>, Vec<Vec<HandoverReply>>);

/// Returns the replies of a group that was committed, and notes which cells have changed.
fn settle(
    outcome: GroupOutcome,
    own: &[PendingWrite],
    handed: &[HandedOver],
    changed: &mut Vec<(Namespace, Name)>,
) -> GroupReplies {
    for (write, judged) in own.iter().zip(&outcome.own) {
        note_changed(changed, &write.request, judged.wrote);
    }
    let requests = handed.iter().flat_map(|slot| &slot.requests);
    for (request, judged) in requests.zip(outcome.handed.iter().flatten()) {
        note_changed(changed, request, judged.wrote);
    }
    let reply = |judged: Judged| HandoverReply::Outcome(judged.outcome);
    let handed = outcome.handed.into_iter().map(|slot| slot.into_iter().map(reply).collect());
    let own = outcome.own.into_iter().map(|judged| judged.outcome.into_result());
    (own.collect(), handed.collect())
}

/// Returns the replies of a group that failed.
fn fail(
    error: &Error,
    own: &[PendingWrite],
    handed: &[HandedOver],
    changed: &mut Vec<(Namespace, Name)>,
) -> GroupReplies {
    let results = own.iter().map(|_| Err(error.clone())).collect();
    if error.effect() == Effect::None {
        return (results, alone(handed));
    }
    let requests = handed.iter().flat_map(|slot| &slot.requests);
    for request in own.iter().map(|write| &write.request).chain(requests) {
        note_changed(changed, request, true);
    }
    let unknown =
        |slot: &HandedOver| slot.requests.iter().map(|_| HandoverReply::Unknown).collect();
    (results, handed.iter().map(unknown).collect())
}

/// Makes the owners commit what they have handed over.
fn alone(handed: &[HandedOver]) -> Vec<Vec<HandoverReply>> {
    let alone = |slot: &HandedOver| slot.requests.iter().map(|_| HandoverReply::Alone).collect();
    handed.iter().map(alone).collect()
}

fn note_changed(changed: &mut Vec<(Namespace, Name)>, request: &WriteRequest, wrote: bool) {
    let parts = request.batch.parts.iter().filter(|part| wrote && part.writes());
    changed.extend(parts.map(|part| (request.namespace.clone(), part.name.clone())));
}

fn committer_failed() -> Error {
    let what = "the process that committed this write together with its own ran into an error";
    Error::new(ErrorKind::Unavailable, what)
        .effect_unknown()
        .with_help("see whether the disk is failing; read the cell before it is written again")
}

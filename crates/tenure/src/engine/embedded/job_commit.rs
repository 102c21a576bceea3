//! Group commit of jobs: pushes of many tasks, and records that are behind, share one synced
//! transaction.
//!
//! A thread of the process, the disk worker, runs rounds while anything waits. A round takes all
//! pushes that wait and reads which records are behind; writes both in one synced transaction; then
//! takes the new jobs in, in one step of the lock environment for each queue, and replies.
//!
//! 1. A reply is sent after the sync and after the jobs were taken in.
//! 2. A process that is killed after the sync leaves jobs that the next step of any process takes
//!    in (`jobs.rs`). Killed before, it leaves nothing.
//! 3. Records that are behind stay marked until they are synced, so that any process finishes what
//!    another one has left. `job_rows.rs` says why several may write at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::cell_rows::number_of;
use super::job_rows::{self, BehindRecord, PER_STEP};
use super::jobs::{JobStore, LockLedger, QueueRules};
use super::store::{StepKind, WAIT};
use crate::contract::{Error, JobId, Name, NewJob, Pushed};
use crate::ledger::Now;

/// Most pushes in one commit.
const MAX_PUSHES: usize = 1_024;

/// What waits for a commit.
#[derive(Default)]
pub(super) struct JobCommits(Mutex<WaitingJobs>);

#[derive(Default)]
struct WaitingJobs {
    pushes: Vec<PendingPush>,
    /// Records are behind.
    behind: bool,
    /// Callers that wait until the records that are behind now are synced.
    flushed: Vec<oneshot::Sender<Result<(), Error>>>,
    /// The disk worker runs rounds, or will.
    scheduled: bool,
}

struct PendingPush {
    queue: Name,
    jobs: Vec<NewJob>,
    reply: oneshot::Sender<Result<Vec<Pushed>, Error>>,
}

/// The replies to the pushes of a round, and what became of the records that were behind.
type RoundReplies = (Vec<Result<Vec<Pushed>, Error>>, Result<(), Error>);

impl JobCommits {
    fn lock(&self) -> MutexGuard<'_, WaitingJobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobStore {
    /// Pushes jobs. Returns when they are synced and taken in.
    pub(super) async fn push(
        self: &Arc<Self>,
        queue: &Name,
        jobs: &[NewJob],
    ) -> Result<Vec<Pushed>, Error> {
        let (reply, pushed) = oneshot::channel();
        let push = PendingPush { queue: queue.clone(), jobs: jobs.to_vec(), reply };
        self.schedule(|waiting| waiting.pushes.push(push))?;
        pushed.await.unwrap_or_else(|_| Err(super::worker::ended()))
    }

    /// Writes records that are behind. Returns when they are synced.
    pub(super) async fn write_behind(self: &Arc<Self>) -> Result<(), Error> {
        let (reply, flushed) = oneshot::channel();
        self.schedule(|waiting| {
            waiting.behind = true;
            waiting.flushed.push(reply);
        })?;
        flushed.await.unwrap_or_else(|_| Err(super::worker::ended()))
    }

    /// Writes records that are behind, without waiting for it.
    pub(super) fn write_behind_later(self: &Arc<Self>) {
        if let Err(error) = self.schedule(|waiting| waiting.behind = true) {
            tracing::warn!(%error, "cannot write records of jobs");
        }
    }

    fn schedule(self: &Arc<Self>, add: impl FnOnce(&mut WaitingJobs)) -> Result<(), Error> {
        // A forked child has the queue of its parent, and no thread that drains it.
        self.sessions.store().usable()?;
        let mut waiting = self.commits.lock();
        add(&mut waiting);
        if !std::mem::replace(&mut waiting.scheduled, true) {
            drop(waiting);
            let store = Arc::clone(self);
            if let Err(error) = self.sessions.disk_worker().try_spawn(move || store.drain()) {
                *self.commits.lock() = WaitingJobs::default();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs rounds until nothing waits. On the disk worker.
    fn drain(self: &Arc<Self>) {
        let _reset = ResetOnPanic(&self.commits);
        loop {
            let mut waiting = self.commits.lock();
            if waiting.pushes.is_empty() && !waiting.behind {
                waiting.scheduled = false;
                return;
            }
            let take = waiting.pushes.len().min(MAX_PUSHES);
            let pushes: Vec<PendingPush> = waiting.pushes.drain(..take).collect();
            let behind = std::mem::take(&mut waiting.behind);
            let flushed = std::mem::take(&mut waiting.flushed);
            drop(waiting);
            // A push whose caller has left is made all the same: it may have been made as well.
            let round = self.round(&pushes, behind);
            match round {
                Ok((replies, written)) => {
                    for (push, reply) in pushes.into_iter().zip(replies) {
                        let _ = push.reply.send(reply);
                    }
                    for one in flushed {
                        let _ = one.send(written.clone());
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a commit of jobs failed");
                    for push in pushes {
                        let _ = push.reply.send(Err(error.clone()));
                    }
                    for one in flushed {
                        let _ = one.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    /// Commits pushes and records that are behind, and takes the new jobs in. Returns the replies
    /// to the pushes, and whether all records that were behind are written.
    fn round(&self, pushes: &[PendingPush], behind: bool) -> Result<RoundReplies, Error> {
        let mut records = if behind { self.read_behind()? } else { Vec::new() };
        let ids = self.commit(pushes, &records)?;
        let replies = self.take_in(pushes, &ids);
        // The pushes are made, whatever becomes of the records: those stay marked until they are
        // written.
        while !records.is_empty() {
            let next = self.clear_behind(&records).and_then(|()| {
                let next = if records.len() == PER_STEP { self.read_behind()? } else { Vec::new() };
                self.commit(&[], &next).map(|_| next)
            });
            match next {
                Ok(next) => records = next,
                Err(error) => {
                    tracing::warn!(%error, "records of jobs are behind");
                    return Ok((replies, Err(error)));
                }
            }
        }
        Ok((replies, Ok(())))
    }

    fn clear_behind(&self, records: &[BehindRecord]) -> Result<(), Error> {
        self.lock_step(StepKind::FreesSpace, |ledger, _| {
            job_rows::clear_behind(ledger.shelf().txn(), self.scope.namespace, records);
        })
    }

    fn read_behind(&self) -> Result<Vec<BehindRecord>, Error> {
        self.lock_step(StepKind::FreesSpace, |ledger, _| {
            job_rows::read_behind(ledger.shelf().txn(), self.scope.namespace)
        })
    }

    /// One synced transaction. Returns the numbers of the new jobs, for each push.
    fn commit(
        &self,
        pushes: &[PendingPush],
        records: &[BehindRecord],
    ) -> Result<Vec<Vec<JobId>>, Error> {
        if pushes.is_empty() && records.is_empty() {
            return Ok(Vec::new());
        }
        let store = self.sessions.store();
        store.durable()?.write(store.gate(), |txn| {
            let number = number_of(txn, &self.namespace);
            job_rows::write_behind(txn, number, records);
            let now = self.scope.clock.wall_micros();
            let write =
                |push: &PendingPush| job_rows::write_new(txn, number, &push.queue, &push.jobs, now);
            pushes.iter().map(write).collect()
        })
    }

    /// Takes new jobs in. Their records are synced, so an error is one of unknown effect.
    fn take_in(
        &self,
        pushes: &[PendingPush],
        ids: &[Vec<JobId>],
    ) -> Vec<Result<Vec<Pushed>, Error>> {
        let mut taken: BTreeMap<&Name, Result<BTreeMap<u64, Pushed>, Error>> = BTreeMap::new();
        for (push, ids) in pushes.iter().zip(ids) {
            let of_queue = taken.entry(&push.queue).or_insert_with(|| Ok(BTreeMap::new()));
            for id in ids {
                if let Ok(of_queue) = of_queue {
                    of_queue.insert(id.0, Pushed::New(*id));
                }
            }
        }
        for (queue, wanted) in &mut taken {
            if let Ok(ids) = wanted {
                let ids = std::mem::take(ids);
                *wanted = self.take_in_queue(queue, ids).map_err(Error::effect_unknown);
            }
        }
        let reply = |(push, ids): (&PendingPush, &Vec<JobId>)| match &taken[&push.queue] {
            Ok(taken) => Ok(ids
                .iter()
                .map(|id| taken.get(&id.0).copied().unwrap_or(Pushed::New(*id)))
                .collect()),
            Err(error) => Err(error.clone()),
        };
        pushes.iter().zip(ids).map(reply).collect()
    }

    /// Takes in what a queue has above its last number, and fills in the replies for `ids`.
    fn take_in_queue(
        &self,
        queue: &Name,
        mut ids: BTreeMap<u64, Pushed>,
    ) -> Result<BTreeMap<u64, Pushed>, Error> {
        let Some(last) = ids.keys().next_back().copied() else { return Ok(ids) };
        loop {
            let step = |ledger: &mut LockLedger<'_, '_>, now: Now| {
                let verb =
                    |rules: &mut QueueRules<'_, '_, '_>, _: &mut LockLedger<'_, '_>, _: Now| {
                        self.take_in_records(rules, queue, &ids)
                    };
                self.run_rules(ledger, now, queue, verb)
            };
            let done = self.lock_step(StepKind::MayGrow, step)?;
            let (replies, reached) = done.reply?;
            ids.extend(replies);
            self.signal(queue, done.notes.wake);
            if !done.notes.changed.is_empty() {
                self.commits.lock().behind = true;
            }
            if reached >= last {
                return Ok(ids);
            }
        }
    }

    /// Takes in the next records of a queue. Returns the replies for `wanted`, and the last number.
    fn take_in_records(
        &self,
        rules: &mut QueueRules<'_, '_, '_>,
        queue: &Name,
        wanted: &BTreeMap<u64, Pushed>,
    ) -> Result<(Vec<(u64, Pushed)>, u64), Error> {
        let mut replies = Vec::new();
        let before = rules.last_number();
        for (id, _) in wanted.range(..=before) {
            if let Some(pushed) = rules.rows_mut().take_reply(JobId(*id)) {
                replies.push((*id, pushed));
            }
        }
        let records = self.records(queue);
        let found = records.after(before)?;
        if found.is_empty() {
            rules.skip_to(records.last_number()?);
        }
        for row in found {
            let (id, keyed) = (row.id, row.key.is_some());
            let pushed = rules.take_in(row, false);
            if wanted.contains_key(&id.0) {
                replies.push((id.0, pushed));
            } else if keyed {
                rules.rows_mut().keep_reply(id, pushed);
            }
        }
        let reached = rules.last_number();
        rules.rows_mut().sweep_replies(reached.saturating_sub(100_000));
        Ok((replies, reached))
    }

    fn lock_step<T>(
        &self,
        kind: StepKind,
        step: impl Fn(&mut LockLedger<'_, '_>, Now) -> T,
    ) -> Result<T, Error> {
        let (store, scope) = (self.sessions.store(), &self.scope);
        let done = store.step(scope.namespace, &*scope.clock, kind, WAIT, step);
        let (reply, signals) = done?;
        self.sessions.deliver(signals, scope);
        Ok(reply)
    }
}

/// Lets the next caller start a new job of the disk worker after a panic.
struct ResetOnPanic<'a>(&'a JobCommits);

impl Drop for ResetOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.lock() = WaitingJobs::default();
        }
    }
}

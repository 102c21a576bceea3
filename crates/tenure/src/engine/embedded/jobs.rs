//! Queues of jobs. What must outlive a reboot is in the synced environment, what a reboot ends
//! anyway (the order, which worker runs what, who sleeps) in the lock environment, beside the
//! workers' claims.
//!
//! ```text
//! push ──> record, synced (`job_commit.rs`) ──> taken in: one step of the rules ──> signals
//! turn ──> one step of the rules: report, rescue, promote, claim ──> payloads from the records
//!                └──> "this record is behind" ──> written and synced later, in batches
//! ```
//!
//! - **A push** returns when its records are synced and taken in. A process that dies in between
//!   leaves records with numbers above the last one that was taken in: the next step that looks
//!   takes them in.
//! - **A claim and a completion** are steps without a sync. The record of a job that is done is
//!   removed behind; any process finishes that. After a loss of power a job may be run once more,
//!   unless the turn is durable: that is answered when the record is removed and synced.
//! - **A failure** is answered when its record is synced.
//! - **After a reboot** the lock environment is empty. The first step takes in all records, and
//!   nothing runs.
//! - **A worker that dies** is noticed by its liveness lock: every process with a worker that
//!   sleeps watches the sessions of the others. Its claim ends, and the next turn gives its jobs to
//!   others, since it sees in the same step that the claim does not live.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::StepScope;
use super::job_commit::JobCommits;
use super::job_rows::{QueueRecords, QueueRows, mark_behind, queue_names};
use super::sessions::Sessions;
use super::slots::SlotRows;
use super::store::{StepKind, WAIT};
use crate::contract::{
    Error, JobChange, JobChanged, JobFilter, JobId, JobOutcome, JobView, Jobs, Name, Namespace,
    NewJob, Pending, Pushed, QueueCounts, SessionId, Signal, Turn, TurnReply, Verb, worker_slot,
};
use crate::engine::common::job_limits;
use crate::ledger::jobs::{JobRules, StepNotes};
use crate::ledger::{Ledger, Now};
use crate::time::{Clock, SystemClock};

/// The rules over the rows of one transaction.
pub(super) type QueueRules<'r, 't, 'e> = JobRules<'r, QueueRows<'t, 'e>>;
/// The locks of the same transaction.
pub(super) type LockLedger<'t, 'e> = Ledger<SlotRows<'t, 'e>>;

/// The queues of one namespace.
pub(super) struct EmbeddedJobs(Arc<JobStore>);

/// What the threads for the gate and for the disk share with the callers.
pub(super) struct JobStore {
    pub(super) sessions: Arc<Sessions>,
    pub(super) scope: StepScope,
    pub(super) namespace: Namespace,
    pub(super) commits: JobCommits,
    /// The queues that are restored after the last reboot.
    restored: Mutex<HashSet<Name>>,
}

/// What a step of a queue leaves to do.
pub(super) struct JobStep<T> {
    pub(super) reply: T,
    pub(super) notes: StepNotes,
}

impl EmbeddedJobs {
    pub(super) fn new(sessions: Arc<Sessions>, scope: StepScope, namespace: Namespace) -> Self {
        let commits = JobCommits::default();
        let restored = Mutex::default();
        Self(Arc::new(JobStore { sessions, scope, namespace, commits, restored }))
    }

    /// Takes in what a reboot has left, once for each queue.
    async fn restore(&self, queue: &Name) -> Result<(), Error> {
        if self.0.restored().contains(queue) {
            return Ok(());
        }
        loop {
            let (store, name) = (Arc::clone(&self.0), queue.clone());
            let step = move |ledger: &mut LockLedger<'_, '_>, now: Now| {
                store.restore_some(ledger, now, &name)
            };
            if self.step(StepKind::MayGrow, step).await?? {
                self.0.restored().insert(queue.clone());
                // What a process that has died has decided, and not written down.
                self.0.write_behind_later();
                return Ok(());
            }
        }
    }

    /// Runs one step, on this thread if the gate is free, otherwise on the worker thread.
    async fn step<T: Send + 'static>(
        &self,
        kind: StepKind,
        step: impl Fn(&mut LockLedger<'_, '_>, Now) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (store, scope) = (self.0.sessions.store(), &self.0.scope);
        let done = store.try_step(scope.namespace, &*scope.clock, kind, &step)?;
        let (reply, signals) = if let Some(done) = done {
            done
        } else {
            let (jobs, queued_at) = (Arc::clone(&self.0), SystemClock.now());
            let on_worker = move || {
                let left = WAIT.saturating_sub(SystemClock.now().since(queued_at));
                let scope = &jobs.scope;
                let store = jobs.sessions.store();
                store.step(scope.namespace, &*scope.clock, kind, left, &step)
            };
            self.0.sessions.worker().run(on_worker).await?
        };
        self.0.sessions.deliver(signals, scope);
        if store.wants_reserve() {
            let sessions = Arc::clone(&self.0.sessions);
            self.0.sessions.disk_worker().spawn(move || {
                if let Err(error) = sessions.store().reserve_ahead() {
                    tracing::warn!(%error, "cannot reserve fences ahead");
                }
            });
        }
        Ok(reply)
    }

    /// Runs one step of the rules. Signals are sent, and records that are behind are queued.
    async fn queue_step<T, V>(&self, kind: StepKind, queue: &Name, verb: V) -> Result<T, Error>
    where
        T: Send + 'static,
        V: Fn(&mut QueueRules<'_, '_, '_>, &mut LockLedger<'_, '_>, Now) -> T + Send + 'static,
    {
        self.restore(queue).await?;
        let (store, name) = (Arc::clone(&self.0), queue.clone());
        let done = self.step(kind, move |ledger, now| store.run_rules(ledger, now, &name, &verb));
        let JobStep { reply, notes } = done.await?;
        self.0.signal(queue, notes.wake);
        if !notes.changed.is_empty() || notes.settings {
            self.0.write_behind_later();
        }
        Ok(reply)
    }

    async fn run_turn(&self, queue: &Name, turn: &Turn) -> Result<TurnReply, Error> {
        let slot = worker_slot(queue)?;
        let (given, store, name) = (turn.clone(), Arc::clone(&self.0), queue.clone());
        let verb =
            move |rules: &mut QueueRules<'_, '_, '_>, ledger: &mut LockLedger<'_, '_>, now: Now| {
                let want = u64::try_from(given.want).unwrap_or(u64::MAX);
                let short = rules.counts().ready < want;
                let look = given.look || short || rules.wants_look();
                let missing = if look { store.take_in_missing(rules, &name) } else { Ok(()) };
                let living = look.then(|| ledger.living_workers(&slot, now));
                let mint = &mut |last: &mut u64| ledger.job_fence(last, now);
                let reply = rules.turn(&given, living.as_ref(), mint);
                let others: Vec<SessionId> = living
                    .into_iter()
                    .flat_map(std::collections::HashMap::into_values)
                    .flatten()
                    .collect();
                missing.map(|()| (reply, others))
            };
        let (mut reply, others) = self.queue_step(StepKind::FreesSpace, queue, verb).await??;
        self.0.sessions.watch(&others, &self.0.scope);
        let records = self.0.records(queue);
        let mut jobs = Vec::with_capacity(reply.jobs.len());
        for mut job in std::mem::take(&mut reply.jobs) {
            // Without a record the job is done already: this worker was lost meanwhile.
            if let Some(payload) = records.payload(job.attempt.job)? {
                job.payload = payload;
                jobs.push(job);
            }
        }
        reply.jobs = jobs;
        let must_be_synced = |report: &crate::contract::AttemptReport| match report.outcome {
            JobOutcome::Fail { .. } => true,
            JobOutcome::Progress(_) => false,
            JobOutcome::Complete | JobOutcome::Later(_) | JobOutcome::GiveBack => turn.durable,
        };
        if turn.reports.iter().any(must_be_synced) {
            self.0.write_behind().await?;
        }
        Ok(reply)
    }
}

impl JobStore {
    pub(super) fn records<'a>(&'a self, queue: &'a Name) -> QueueRecords<'a> {
        QueueRecords { store: self.sessions.store(), namespace: &self.namespace, queue }
    }

    /// Runs the rules over the rows of a queue, and marks the records that are behind.
    pub(super) fn run_rules<T>(
        &self,
        ledger: &mut LockLedger<'_, '_>,
        now: Now,
        queue: &Name,
        verb: impl FnOnce(&mut QueueRules<'_, '_, '_>, &mut LockLedger<'_, '_>, Now) -> T,
    ) -> JobStep<T> {
        let txn = ledger.shelf().txn();
        let mut rows = QueueRows::new(txn, self.scope.namespace, queue);
        let mut rules = JobRules::new(&mut rows, now.wall_micros);
        let reply = verb(&mut rules, ledger, now);
        let notes = rules.finish();
        mark_behind(txn, self.scope.namespace, queue, &notes.changed);
        if notes.settings {
            mark_behind(txn, self.scope.namespace, queue, &[0]);
        }
        JobStep { reply, notes }
    }

    /// Takes in some of what was there before a reboot. Returns whether that was all.
    fn restore_some(
        &self,
        ledger: &mut LockLedger<'_, '_>,
        now: Now,
        queue: &Name,
    ) -> Result<bool, Error> {
        let records = self.records(queue);
        let mut rows = QueueRows::new(ledger.shelf().txn(), self.scope.namespace, queue);
        let until = if let Some(until) = rows.restored_until() {
            until
        } else {
            let until = records.last_number()?;
            rows.set_restored_until(until);
            if let Some(settings) = records.settings()? {
                let mut rules = JobRules::new(&mut rows, now.wall_micros);
                rules.restore_settings(&settings);
                rules.finish();
            }
            until
        };
        let mut rules = JobRules::new(&mut rows, now.wall_micros);
        if rules.last_number() >= until {
            return Ok(true);
        }
        let found = records.after(rules.last_number())?;
        let all = found.last().is_none_or(|last| last.id.0 >= until);
        for row in found.into_iter().filter(|row| row.id.0 <= until) {
            rules.take_in(row, true);
        }
        if all {
            rules.skip_to(until);
        }
        rules.finish();
        Ok(all)
    }

    /// Takes in jobs whose pushing process has died after their records were synced.
    fn take_in_missing(
        &self,
        rules: &mut QueueRules<'_, '_, '_>,
        queue: &Name,
    ) -> Result<(), Error> {
        let records = self.records(queue);
        if records.last_number()? <= rules.last_number() {
            return Ok(());
        }
        let found = records.after(rules.last_number())?;
        if found.is_empty() {
            rules.skip_to(records.last_number()?);
        }
        for row in found {
            let (id, keyed) = (row.id, row.key.is_some());
            let pushed = rules.take_in(row, false);
            if keyed {
                rules.rows_mut().keep_reply(id, pushed);
            }
        }
        Ok(())
    }

    /// Signals that there may be work.
    pub(super) fn signal(&self, queue: &Name, wake: Vec<SessionId>) {
        let signal = |session| (session, Signal::Jobs { queue: queue.clone() });
        self.sessions.deliver(wake.into_iter().map(signal).collect(), &self.scope);
    }

    fn restored(&self) -> std::sync::MutexGuard<'_, HashSet<Name>> {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs for EmbeddedJobs {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        Box::pin(async move {
            job_limits::check_push(jobs)?;
            let push = async {
                // Before the records are written: what is pushed from now on is not restored.
                self.restore(queue).await?;
                self.0.push(queue, jobs).await
            };
            push.await.map_err(|error| error.during(Verb::Job))
        })
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        Box::pin(async move {
            job_limits::check_turn(turn)?;
            self.run_turn(queue, turn).await.map_err(|error| error.during(Verb::Job))
        })
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        Box::pin(async move {
            job_limits::check_change(change)?;
            let given = *change;
            let changed = self.queue_step(StepKind::FreesSpace, queue, move |rules, _, _| {
                rules.change_by_operator(&given)
            });
            let changed = changed.await?;
            self.0.write_behind().await?;
            Ok(changed)
        })
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        Box::pin(async move {
            let seen =
                self.queue_step(StepKind::FreesSpace, queue, move |rules, _, _| rules.view(id));
            let Some(view) = seen.await? else { return Ok(None) };
            let payload = self.0.records(queue).payload(id)?.unwrap_or_default();
            Ok(Some(JobView { payload, ..view }))
        })
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        let filter = *filter;
        Box::pin(async move {
            let look = move |rules: &mut QueueRules<'_, '_, '_>,
                             _: &mut LockLedger<'_, '_>,
                             _: Now| rules.list(&filter);
            self.queue_step(StepKind::FreesSpace, queue, look).await
        })
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        Box::pin(async move {
            self.queue_step(StepKind::FreesSpace, queue, |rules, _, _| rules.counts()).await
        })
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        Box::pin(async move {
            let names = queue_names(self.0.sessions.store(), &self.0.namespace);
            names.map_err(|error| error.during(Verb::Job))
        })
    }
}

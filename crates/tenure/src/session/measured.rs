//! An engine whose calls are reported to witnesses, with verb, time and outcome. A session without
//! a witness uses its engine directly, so that nothing is measured and nothing is paid.
//!
//! A call that is dropped before its reply is reported too: the report is made by a drop guard.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::witness::{CallOutcome, StoreCall, Witness};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellPart, CellQuery, CellRange, Cells, Claim, ClaimRef, Confirmed,
    DeadlockCase, Deadlocks, Delivery, Engine, Error, Evicted, Eviction, Fence, FenceFloor, Grant,
    Immediate, JobChange, JobChanged, JobFilter, JobId, JobView, Jobs, Name, NewJob, Pending,
    Promises, Pushed, Query, QueueCounts, Raised, Rates, Release, Released, Renewed, Replication,
    SessionId, Settle, Settled, SignalListener, Snapshot, SqlPlace, Take, TakeVerdict, Turn,
    TurnReply, Verb, Verdict, VictimVerdict, WeakWatcher, optional_objects,
};
use crate::time::{Clock, Tick};

/// An engine behind a stopwatch.
pub(super) struct MeasuredEngine {
    inner: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    witnesses: Vec<Arc<dyn Witness>>,
}

impl MeasuredEngine {
    /// Puts a stopwatch before the engine if there is a witness to report to.
    pub(super) fn wrap(
        inner: Arc<dyn Engine>,
        clock: &Arc<dyn Clock>,
        witnesses: &[Arc<dyn Witness>],
    ) -> Arc<dyn Engine> {
        if witnesses.is_empty() {
            return inner;
        }
        Arc::new(Self { inner, clock: Arc::clone(clock), witnesses: witnesses.to_vec() })
    }

    fn measure<'a, T: Send + 'a>(
        &'a self,
        verb: Verb,
        items: usize,
        call: Pending<'a, T>,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            let mut report = CallReport {
                engine: self,
                verb,
                items,
                began: self.clock.now(),
                outcome: CallOutcome::Abandoned,
            };
            let reply = call.await;
            report.outcome = outcome(&reply);
            reply
        })
    }

    /// Reports a call about one claim that began then and has a reply.
    fn report_reply(&self, verb: Verb, began: Tick) {
        let outcome = CallOutcome::Replied;
        drop(CallReport { engine: self, verb, items: 1, began, outcome });
    }

    fn cells(&self) -> &dyn Cells {
        self.inner.cells().expect("offered only if the engine has cells")
    }

    fn job_queues(&self) -> &dyn Jobs {
        self.inner.jobs().expect("offered only if the engine has jobs")
    }

    fn rates(&self) -> &dyn Rates {
        self.inner.rates().expect("offered only if the engine has rates")
    }
}

fn outcome<T>(reply: &Result<T, Error>) -> CallOutcome {
    match reply {
        Ok(_) => CallOutcome::Replied,
        Err(error) => CallOutcome::Failed(error.kind()),
    }
}

/// Reports a call when it ends or is dropped.
struct CallReport<'a> {
    engine: &'a MeasuredEngine,
    verb: Verb,
    items: usize,
    began: Tick,
    outcome: CallOutcome,
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        let took = self.engine.clock.now().since(self.began);
        let Self { verb, items, outcome, .. } = *self;
        let call = StoreCall { verb, items, took, outcome };
        self.engine.witnesses.iter().for_each(|witness| witness.on_call(&call));
    }
}

impl Engine for MeasuredEngine {
    fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        self.measure(Verb::Claim, 1, self.inner.claim(claim))
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        self.measure(Verb::Renew, batch.len(), self.inner.renew(batch))
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        self.measure(Verb::Release, batch.len(), self.inner.release(batch))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        self.measure(Verb::Inspect, 1, self.inner.inspect(query))
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.measure(Verb::Evict, 1, self.inner.evict(eviction))
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.inner.listen(session, listener);
    }

    optional_objects! { self:
        immediate => self.inner.immediate().map(|_| self as &dyn Immediate),
        cells => self.inner.cells().map(|_| self as &dyn Cells),
        jobs => self.inner.jobs().map(|_| self as &dyn Jobs),
        rates => self.inner.rates().map(|_| self as &dyn Rates),
        fence_floor => self.inner.fence_floor().map(|_| self as &dyn FenceFloor),
        replication => self.inner.replication().map(|_| self as &dyn Replication),
        partitions => self.inner.partitions(),
        diagnostics => self.inner.diagnostics(),
        ownership_proof => self.inner.ownership_proof(),
        deadlocks => self.inner.deadlocks().map(|_| self as &dyn Deadlocks),
        local => self.inner.local(),
    }
}

/// An answer that was declined is no call: the ordinary call follows and is reported.
impl Immediate for MeasuredEngine {
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant> {
        let began = self.clock.now();
        let grant = self.inner.immediate()?.claim_free(claim)?;
        self.report_reply(Verb::Claim, began);
        Some(grant)
    }

    fn release_lone(&self, claim: &Claim) -> bool {
        let began = self.clock.now();
        let released = self.inner.immediate().is_some_and(|engine| engine.release_lone(claim));
        if released {
            self.report_reply(Verb::Release, began);
        }
        released
    }
}

impl Cells for MeasuredEngine {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        self.measure(Verb::Cell, 1, MeasuredEngine::cells(self).get(name))
    }

    fn write<'a>(&'a self, batch: &'a Batch) -> Pending<'a, BatchVerdict> {
        // The marks of updates, which every write checks, are not what the caller counts.
        let is_counted = |part: &&CellPart| part.writes() || !part.name.is_reserved();
        let items = batch.parts.iter().filter(is_counted).count();
        self.measure(Verb::Cell, items, MeasuredEngine::cells(self).write(batch))
    }

    fn list<'a>(&'a self, query: CellQuery<'a>) -> Pending<'a, Vec<(Name, Cell)>> {
        self.measure(Verb::Cell, 1, MeasuredEngine::cells(self).list(query))
    }

    fn watch<'a>(&'a self, range: &'a CellRange, watcher: WeakWatcher) -> Pending<'a, Delivery> {
        self.measure(Verb::Cell, 1, MeasuredEngine::cells(self).watch(range, watcher))
    }
}

impl Jobs for MeasuredEngine {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        self.measure(Verb::Job, jobs.len(), self.job_queues().push(queue, jobs))
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        let items = turn.reports.len() + turn.want;
        self.measure(Verb::Job, items, self.job_queues().turn(queue, turn))
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        self.measure(Verb::Job, 1, self.job_queues().change_job(queue, change))
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        self.measure(Verb::Job, 1, self.job_queues().job(queue, id))
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        self.measure(Verb::Job, 1, self.job_queues().list(queue, filter))
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        self.measure(Verb::Job, 1, self.job_queues().counts(queue))
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        self.measure(Verb::Job, 1, self.job_queues().queues())
    }

    fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        self.job_queues().sql_place()
    }
}

impl FenceFloor for MeasuredEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        let inner = self.inner.fence_floor().expect("offered only if the engine has a floor");
        self.measure(Verb::RaiseFences, 1, inner.raise_fences(to))
    }
}

impl Replication for MeasuredEngine {
    fn confirm<'a>(
        &'a self,
        claim: &'a ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Pending<'a, Confirmed> {
        let inner = self.inner.replication().expect("offered only if the engine has replicas");
        // A confirmation renews the claim.
        self.measure(Verb::Renew, 1, inner.confirm(claim, replicas, within))
    }
}

impl Deadlocks for MeasuredEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        let inner = self.inner.deadlocks().expect("offered only if the engine gives verdicts");
        self.measure(Verb::RefuseVictim, 1, inner.refuse_victim(case))
    }
}

impl Rates for MeasuredEngine {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        self.measure(Verb::Rate, 1, MeasuredEngine::rates(self).take(take))
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        self.measure(Verb::Rate, 1, MeasuredEngine::rates(self).settle(settle))
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        self.measure(Verb::Rate, 1, MeasuredEngine::rates(self).reset(name))
    }
}

impl fmt::Debug for MeasuredEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

//! Queues of jobs in memory: the rules of `ledger::jobs` behind the mutex of the ledger, so that
//! the workers' claims and their jobs change in one step. Jobs end with the process.

use std::collections::{BTreeMap, HashMap};

use super::{Inner, MemoryEngine};
use crate::contract::{
    JobChange, JobChanged, JobFilter, JobId, JobView, Jobs, Name, NewJob, Pending, Pushed,
    QueueCounts, Signal, Turn, TurnReply, worker_slot,
};
use crate::engine::common::job_limits;
use crate::ledger::jobs::{JobHeap, JobRow, JobRules, StepNotes};
use crate::ledger::{Ledger, Now};

/// The queues of one store.
#[derive(Default)]
pub(super) struct MemoryQueues(BTreeMap<Name, MemoryQueue>);

/// Payloads by the numbers of their jobs.
type Payloads = HashMap<u64, Vec<u8>>;

#[derive(Default)]
struct MemoryQueue {
    rows: JobHeap,
    payloads: Payloads,
}

impl Inner {
    /// Runs one verb of a queue. Its signals are sent after the step.
    fn job_step<T>(
        &self,
        queue: &Name,
        verb: impl FnOnce(&mut JobRules<'_, JobHeap>, &mut Payloads, &mut Ledger, Now) -> T,
    ) -> T {
        let (reply, notes) = self.step(|ledger, now| {
            let mut queues = self.queues();
            let MemoryQueue { rows, payloads } = queues.0.entry(queue.clone()).or_default();
            let mut rules = JobRules::new(rows, now.wall_micros);
            let reply = verb(&mut rules, payloads, ledger, now);
            let notes: StepNotes = rules.finish();
            for id in &notes.changed {
                if JobRules::new(rows, now.wall_micros).view(JobId(*id)).is_none() {
                    payloads.remove(id);
                }
            }
            (reply, notes)
        });
        let signal = |session| (session, Signal::Jobs { queue: queue.clone() });
        self.tell(notes.wake.into_iter().map(signal).collect());
        reply
    }
}

impl Jobs for MemoryEngine {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        Box::pin(async move {
            job_limits::check_push(jobs)?;
            Ok(self.inner.job_step(queue, |rules, payloads, _, now| {
                let push = |job: &NewJob| {
                    let id = JobId(rules.last_number() + 1);
                    payloads.insert(id.0, job.payload.clone());
                    rules.take_in(JobRow::of_new(id, job, now.wall_micros), false)
                };
                jobs.iter().map(push).collect()
            }))
        })
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        Box::pin(async move {
            job_limits::check_turn(turn)?;
            let slot = worker_slot(queue)?;
            Ok(self.inner.job_step(queue, |rules, payloads, ledger, now| {
                let living = ledger.living_workers(&slot, now);
                let mint = &mut |last: &mut u64| ledger.job_fence(last, now);
                let mut reply = rules.turn(turn, Some(&living), mint);
                for job in &mut reply.jobs {
                    job.payload = payloads.get(&job.attempt.job.0).cloned().unwrap_or_default();
                }
                reply
            }))
        })
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        Box::pin(async move {
            job_limits::check_change(change)?;
            Ok(self.inner.job_step(queue, |rules, _, _, _| rules.change_by_operator(change)))
        })
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        Box::pin(async move {
            Ok(self.inner.look_at_queue(queue, |rules, payloads| {
                let payload = payloads.get(&id.0).cloned().unwrap_or_default();
                rules.view(id).map(|view| JobView { payload, ..view })
            }))
        })
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        Box::pin(async move { Ok(self.inner.look_at_queue(queue, |rules, _| rules.list(filter))) })
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        Box::pin(async move { Ok(self.inner.look_at_queue(queue, |rules, _| rules.counts())) })
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        Box::pin(async move { Ok(self.inner.queues().0.keys().cloned().collect()) })
    }
}

impl Inner {
    /// Looks at a queue without changing it.
    fn look_at_queue<T: Default>(
        &self,
        queue: &Name,
        look: impl FnOnce(&JobRules<'_, JobHeap>, &Payloads) -> T,
    ) -> T {
        let mut queues = self.queues();
        let now = self.now();
        let Some(MemoryQueue { rows, payloads }) = queues.0.get_mut(queue) else {
            return T::default();
        };
        look(&JobRules::new(rows, now.wall_micros), payloads)
    }
}

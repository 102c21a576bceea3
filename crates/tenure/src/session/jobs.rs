//! The queues of jobs of a session: calls to the engine with the session's timeout, and the alarms
//! by which a sleeping worker learns that there may be work.
//!
//! A worker has one [`JobAlarm`]. A signal of the engine for its queue rings it; so does a resync,
//! because another worker may have died. Rings are counted as one until the worker looks: the state
//! is in the store, and the worker asks for it. A ring that is lost costs the pause until the
//! worker looks by itself.
#![allow(dead_code, reason = "for a feature that a build may leave out")]

use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use super::Core;
use crate::contract::{
    Error, JobChange, JobChanged, JobFilter, JobId, JobView, Jobs, Name, NewJob, Pending, Pushed,
    QueueCounts, SqlPlace, Turn, TurnReply, Verb,
};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The alarms of the workers of a session.
#[derive(Default)]
pub(crate) struct JobAlarms(Mutex<Vec<(Name, Weak<JobAlarm>)>>);

/// Wakes one worker.
#[derive(Default)]
pub(crate) struct JobAlarm(Mutex<AlarmState>);

#[derive(Default)]
struct AlarmState {
    rung: bool,
    /// Look for jobs of workers that are gone, too.
    look: bool,
    waker: Option<Waker>,
}

impl JobAlarms {
    /// Adds the alarm of a worker. It is forgotten when it is dropped.
    pub(crate) fn add(&self, queue: &Name) -> Arc<JobAlarm> {
        let alarm = Arc::new(JobAlarm::default());
        let mut alarms = self.lock();
        alarms.retain(|(_, alarm)| alarm.strong_count() > 0);
        alarms.push((queue.clone(), Arc::downgrade(&alarm)));
        alarm
    }

    /// Rings the alarms of a queue, or all of them.
    pub(super) fn ring(&self, queue: Option<&Name>) {
        let wanted = |(name, alarm): &(Name, Weak<JobAlarm>)| {
            queue.is_none_or(|queue| queue == name).then(|| alarm.upgrade()).flatten()
        };
        let alarms: Vec<Arc<JobAlarm>> = self.lock().iter().filter_map(wanted).collect();
        for alarm in alarms {
            alarm.ring(queue.is_none());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Name, Weak<JobAlarm>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobAlarm {
    fn ring(&self, look: bool) {
        let mut state = self.lock();
        state.rung = true;
        state.look |= look;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Resolves when the alarm was rung. Returns whether to look for jobs of lost workers.
    pub(crate) fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if state.rung {
            state.rung = false;
            return Poll::Ready(std::mem::take(&mut state.look));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    pub(crate) fn job_alarms(&self) -> &JobAlarms {
        &self.job_alarms
    }

    /// A random number from 0 to 65,535.
    pub(crate) fn wide_jitter(&self) -> u16 {
        u16::from_le_bytes([self.jitter(), self.jitter()])
    }

    /// Returns the error if the engine has no queues of jobs.
    pub(crate) fn check_jobs(&self) -> Result<(), Error> {
        match self.engine.jobs() {
            Some(_) => Ok(()),
            None => Err(self.engine.promises().lacks_jobs()),
        }
    }

    fn job_call<'a, T: Send + 'a>(
        &'a self,
        queue: Option<&'a Name>,
        call: impl FnOnce(&'a dyn Jobs) -> Pending<'a, T> + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            let made = self.limited(Verb::Job, move || match self.engine.jobs() {
                Some(jobs) => call(jobs),
                None => Box::pin(std::future::ready(Err(self.engine.promises().lacks_jobs()))),
            });
            made.await.map_err(|error| match queue {
                Some(queue) => error.on(queue),
                None => error,
            })
        })
    }
}

impl Jobs for Core {
    fn push<'a>(&'a self, queue: &'a Name, jobs: &'a [NewJob]) -> Pending<'a, Vec<Pushed>> {
        self.job_call(Some(queue), move |engine| engine.push(queue, jobs))
    }

    fn turn<'a>(&'a self, queue: &'a Name, turn: &'a Turn) -> Pending<'a, TurnReply> {
        self.job_call(Some(queue), move |engine| engine.turn(queue, turn))
    }

    fn change_job<'a>(&'a self, queue: &'a Name, change: &'a JobChange) -> Pending<'a, JobChanged> {
        self.job_call(Some(queue), move |engine| engine.change_job(queue, change))
    }

    fn job<'a>(&'a self, queue: &'a Name, id: JobId) -> Pending<'a, Option<JobView>> {
        self.job_call(Some(queue), move |engine| engine.job(queue, id))
    }

    fn list<'a>(&'a self, queue: &'a Name, filter: &'a JobFilter) -> Pending<'a, Vec<JobView>> {
        self.job_call(Some(queue), move |engine| engine.list(queue, filter))
    }

    fn counts<'a>(&'a self, queue: &'a Name) -> Pending<'a, QueueCounts> {
        self.job_call(Some(queue), move |engine| engine.counts(queue))
    }

    fn queues(&self) -> Pending<'_, Vec<Name>> {
        self.job_call(None, Jobs::queues)
    }

    fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        self.engine.jobs()?.sql_place()
    }
}

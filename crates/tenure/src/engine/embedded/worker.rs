//! A thread for steps that block: on the gate, or on the disk.
//!
//! An engine has two such threads, one for each kind of wait, so that a slow `fsync` does not delay
//! a claim. A worker runs its jobs in order, one at a time; a job that panics ends only itself, and
//! its caller gets an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::errors::forked;
use crate::contract::{Error, ErrorKind};
use crate::process::Birth;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on a thread that starts with the first job and ends when this value is dropped.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// The queue of the thread, and the process that the thread is in.
    jobs: Mutex<Option<(Sender<Job>, Birth)>>,
}

impl Worker {
    /// Runs the job and returns its result. The job is skipped if the future was dropped before the
    /// thread came to it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, result) = oneshot::channel();
        self.push(Box::new(move || {
            if !sender.is_closed() {
                let _ = sender.send(job());
            }
        }))?;
        result.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Queues a job without waiting for it. Best effort: without a thread the job is dropped.
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let _ = self.try_spawn(job);
    }

    /// Queues a job without waiting for it.
    pub(super) fn try_spawn(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        self.push(Box::new(job))
    }

    /// Waits until all jobs that were queued before are done: for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn settle(&self) {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return;
        }
        let (sender, done) = channel();
        self.spawn(move || {
            let _ = sender.send(());
        });
        let _ = done.recv();
    }

    fn push(&self, job: Job) -> Result<(), Error> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, birth) = match &*jobs {
            Some(started) => started,
            None => jobs.insert((start()?, Birth::here())),
        };
        if birth.is_inherited() {
            // The thread stayed with the parent.
            return Err(forked());
        }
        sender.send(job).map_err(|_| ended())
    }
}

fn start() -> Result<Sender<Job>, Error> {
    let (sender, jobs) = channel::<Job>();
    let work = move || {
        for job in jobs {
            // The result's sender is dropped with the job, so the caller gets an error.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    };
    let started = thread::Builder::new().name("tenure-worker".to_owned()).spawn(work);
    started.map(|_| sender).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "cannot start a thread for the embedded store")
            .with_help("raise the limit on threads")
            .caused_by(error)
    })
}

/// The thread ended before the job was done.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the embedded store's worker thread has ended")
        .effect_unknown()
        .with_help("connect again")
}

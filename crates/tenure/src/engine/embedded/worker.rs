//! A thread for steps that would have to wait: for the gate, or for the disk. Knows jobs, not what
//! they do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::errors::forked;
use crate::contract::{Error, ErrorKind};
use crate::process::Birth;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs one after the other on a thread of its own, which starts with the first job and ends
/// with this value.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// With the process that the thread is in.
    jobs: Mutex<Option<(Sender<Job>, Birth)>>,
}

impl Worker {
    /// Runs the job, unless its caller has stopped waiting by then.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        self.give(Box::new(move || {
            if !tell.is_closed() {
                let _ = tell.send(job());
            }
        }))?;
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Runs the job some time soon; nobody waits for it.
    pub(super) fn later(&self, job: impl FnOnce() + Send + 'static) {
        // Without a thread it is left undone, which every such job allows.
        let _ = self.give(Box::new(job));
    }

    /// Waits until everything that was given before is done: for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn settle(&self) {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return;
        }
        let (tell, told) = channel();
        self.later(move || {
            let _ = tell.send(());
        });
        let _ = told.recv();
    }

    fn give(&self, job: Job) -> Result<(), Error> {
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
            // One that fails must not take the others with it; its caller hears that it ended.
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

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the embedded store's worker thread has ended")
        .effect_unknown()
        .with_help("connect again")
}

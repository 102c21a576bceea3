//! One run: how much is measured, and the runtime it is measured on. Knows no benchmark.

use std::future::Future;
use std::io;
use std::panic::resume_unwind;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tenure::{Error, ErrorKind};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::figure::Figure;
use crate::progress::Progress;

/// What one run shares among its benchmarks.
pub(crate) struct Run {
    quick: bool,
    runtime: Runtime,
    pub(crate) progress: Progress,
}

/// Where the store is. A runtime that watches sockets sleeps and wakes differently, so it does only
/// where there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Local,
    Remote,
}

/// One benchmark, which may give several figures that only make sense together.
pub(crate) struct Bench {
    pub(crate) names: &'static [&'static str],
    pub(crate) measure: Measure,
}

type Measure = Box<dyn FnOnce(&Run) -> Result<Vec<Figure>, Error>>;

impl Bench {
    pub(crate) fn new(
        names: &'static [&'static str],
        measure: impl FnOnce(&Run) -> Result<Vec<Figure>, Error> + 'static,
    ) -> Self {
        Self { names, measure: Box::new(measure) }
    }
}

impl Run {
    pub(crate) fn new(quick: bool, benches: usize, store: Store) -> io::Result<Self> {
        // Two workers, as on the smallest machine on which tasks run side by side.
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2);
        if store == Store::Remote {
            builder.enable_all();
        }
        let runtime = builder.build()?;
        Ok(Self { quick, runtime, progress: Progress::new(benches) })
    }

    /// The same run on a runtime that watches sockets.
    pub(crate) fn remote(&self) -> io::Result<Self> {
        let mut remote = Self::new(self.quick, 0, Store::Remote)?;
        remote.progress = self.progress.clone();
        Ok(remote)
    }

    /// Measures on one core: a thread that is pinned to the last one, with a runtime of its own and
    /// everything that it starts. Where a task runs decides times, and here nothing is left to
    /// decide.
    pub(crate) fn pinned<T: Send>(
        &self,
        measure: impl FnOnce(&Self) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let (quick, progress) = (self.quick, self.progress.clone());
        let pinned = move || {
            let cannot = |error: io::Error| {
                Error::new(ErrorKind::Unavailable, "cannot pin a thread to one core")
                    .caused_by(error)
            };
            let allowed = sched_getaffinity(None).map_err(|error| cannot(error.into()))?;
            let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core));
            let mut one = CpuSet::new();
            one.set(last.unwrap_or(0));
            sched_setaffinity(None, &one).map_err(|error| cannot(error.into()))?;
            let mut run = Self::new(quick, 0, Store::Remote).map_err(cannot)?;
            run.progress = progress;
            measure(&run)
        };
        let ended = std::thread::scope(|scope| scope.spawn(pinned).join());
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// A count: the first for a quick run, the second for a real one.
    pub(crate) fn count(&self, quick: u32, full: u32) -> u32 {
        if self.quick { quick } else { full }
    }

    /// Runs work as a task of its own on a worker, where users' tasks run.
    pub(crate) fn in_task<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let joined = self.runtime.block_on(self.runtime.spawn(work));
        joined.unwrap_or_else(|error| resume_unwind(error.into_panic()))
    }

    /// Starts work as a task of its own.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Runs work on this thread, where blocking is allowed.
    pub(crate) fn here<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

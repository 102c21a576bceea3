//! Work that goes on whoever waits for it, counted: on the engine's own thread, or on the callers'
//! runtime where nobody else depends on it. Knows threads, not what the work is.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::RecvError};

use crate::contract::{Error, ErrorKind};
use crate::engine::runtime::{Callers, Own};

/// The callers' runtime, if it has threads of its own, timers and sockets. A call that is made
/// there saves two changes of threads.
#[derive(Clone, Debug, Default)]
pub(super) struct CallerRuntime(Option<Callers>);

impl CallerRuntime {
    /// The runtime that this is called from, if it will do.
    pub(super) async fn find(own: &Own) -> Self {
        Self(Callers::find(own).await.filter(Callers::has_threads))
    }

    /// It, if whoever asks runs there.
    fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().filter(|callers| callers.are_here()).map(Callers::handle)
    }

    /// Whether whoever asks runs there.
    pub(super) fn is_current(&self) -> bool {
        self.0.as_ref().is_some_and(Callers::are_here)
    }
}

/// Where work is done, and how much of it is under way.
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    handle: Handle,
    caller_runtime: CallerRuntime,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    busy: AtomicUsize,
    begun: AtomicU64,
}

/// Counts one piece of work for as long as it lives.
#[derive(Debug)]
pub(super) struct TaskGuard(Arc<Counts>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tasks {
    pub(super) fn new(handle: Handle, caller_runtime: CallerRuntime) -> Self {
        Self { handle, caller_runtime, counts: Arc::default() }
    }

    /// Says that something is under way, until it is dropped.
    pub(super) fn guard(&self) -> TaskGuard {
        self.counts.busy.fetch_add(1, Ordering::SeqCst);
        self.counts.begun.fetch_add(1, Ordering::SeqCst);
        TaskGuard(Arc::clone(&self.counts))
    }

    /// Does work that nobody waits for.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let guard = self.guard();
        self.handle.spawn(async move {
            work.await;
            drop(guard);
        });
    }

    /// Does work that lasts as long as the engine and is not counted.
    pub(super) fn spawn_uncounted(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Does work to its end, also if the one who waits for it goes away: half of a verb would be
    /// worse than all of it.
    pub(super) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let receiver = self.spawn_counted(&self.handle, work);
        async { receiver.await.map_err(engine_ended)? }
    }

    /// The same on the callers' runtime, if that is where the one who waits runs. What others
    /// depend on, as they do on the renewal of a lease, must be done [`apart`](Self::apart).
    pub(super) fn run_on_caller<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let here = self.caller_runtime.handle();
        let receiver = self.spawn_counted(here.unwrap_or(&self.handle), work);
        async { receiver.await.map_err(engine_ended)? }
    }

    /// Does a piece of work on the engine's own thread, which goes on whatever callers do.
    pub(super) async fn run_on_engine<T: Send + 'static>(
        &self,
        work: Pin<Box<dyn Future<Output = T> + Send>>,
    ) -> Result<T, Error> {
        if self.caller_runtime.is_current() {
            self.spawn_counted(&self.handle, work).await.map_err(engine_ended)
        } else {
            Ok(work.await)
        }
    }

    fn spawn_counted<T: Send + 'static>(
        &self,
        handle: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let guard = self.guard();
        handle.spawn(async move {
            let answer = work.await;
            // Counted until the answer is there: then it is the caller's turn.
            let _ = sender.send(answer);
            drop(guard);
        });
        receiver
    }

    /// How much is under way, and how much was ever begun.
    #[cfg(feature = "conformance")]
    pub(super) fn counts(&self) -> (usize, u64) {
        let busy = self.counts.busy.load(Ordering::SeqCst);
        (busy, self.counts.begun.load(Ordering::SeqCst))
    }

    /// Where work is done.
    #[cfg(feature = "conformance")]
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

fn engine_ended(_: RecvError) -> Error {
    Error::new(ErrorKind::Closed, "the engine's thread has ended")
        .effect_unknown()
        .with_help("connect again")
}

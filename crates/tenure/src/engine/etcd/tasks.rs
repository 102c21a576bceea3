//! Where the work of verbs runs: on the engine's own thread, or on the callers' runtime.
//!
//! A verb runs as a task, so it is completed even if its future is dropped: half of a verb would be
//! worse than all of it. Claims and releases run on the callers' runtime if that has threads of its
//! own, timers and sockets, which saves two thread switches per call. Work that other claims depend
//! on, such as granting a shared lease or moving keys, runs on the engine's thread
//! ([`Tasks::run_on_engine`]), because a callers' runtime may shut down at any time.
//!
//! Tasks are counted from spawn until their result is sent: the conformance suite waits for zero.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::RecvError};

use crate::contract::{Error, ErrorKind};
use crate::engine::common::runtime::{Callers, EngineThread};

/// The callers' runtime, if it has threads of its own, timers and sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct CallerRuntime(Option<Callers>);

impl CallerRuntime {
    /// Finds the runtime that this is called from, if it is suitable.
    pub(super) async fn find(own: &EngineThread) -> Self {
        Self(Callers::find(own).await.filter(Callers::has_threads))
    }

    /// Its handle, if the current task runs there.
    fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().filter(|callers| callers.are_here()).map(Callers::handle)
    }

    /// Whether the current task runs there.
    pub(super) fn is_current(&self) -> bool {
        self.0.as_ref().is_some_and(Callers::are_here)
    }
}

/// Spawns and counts tasks.
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

/// Counts one task for as long as it lives.
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

    /// Counts a task until the guard is dropped.
    pub(super) fn guard(&self) -> TaskGuard {
        self.counts.busy.fetch_add(1, Ordering::SeqCst);
        self.counts.begun.fetch_add(1, Ordering::SeqCst);
        TaskGuard(Arc::clone(&self.counts))
    }

    /// Spawns a task on the engine's thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let guard = self.guard();
        self.handle.spawn(async move {
            work.await;
            drop(guard);
        });
    }

    /// Spawns a task that lasts as long as the engine. It is not counted.
    pub(super) fn spawn_uncounted(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Runs work on the engine's thread. It is completed even if the returned future is dropped.
    pub(super) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let receiver = self.spawn_counted(&self.handle, move || work);
        async { receiver.await.map_err(engine_ended)? }
    }

    /// Runs work on the callers' runtime if the current task is there, else on the engine's thread.
    /// Parts that other claims depend on must be passed to [`run_on_engine`](Self::run_on_engine).
    ///
    /// The work is made inside its task. A future that is moved into a task takes its place twice,
    /// as what the task was given and as what it awaits, and those of claims are large.
    pub(super) fn run_on_caller<T, W, M>(
        &self,
        make: M,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W, M>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
        M: FnOnce() -> W + Send + 'static,
    {
        let here = self.caller_runtime.handle();
        let receiver = self.spawn_counted(here.unwrap_or(&self.handle), make);
        async { receiver.await.map_err(engine_ended)? }
    }

    /// Runs a part of a verb on the engine's thread, which outlives any caller's runtime.
    pub(super) async fn run_on_engine<T: Send + 'static>(
        &self,
        work: Pin<Box<dyn Future<Output = T> + Send>>,
    ) -> Result<T, Error> {
        if self.caller_runtime.is_current() {
            self.spawn_counted(&self.handle, || work).await.map_err(engine_ended)
        } else {
            Ok(work.await)
        }
    }

    fn spawn_counted<T: Send + 'static, W: Future<Output = T> + Send + 'static>(
        &self,
        handle: &Handle,
        make: impl FnOnce() -> W + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let guard = self.guard();
        handle.spawn(async move {
            let result = make().await;
            // Counted until the result is sent: from then on the caller is responsible.
            let _ = sender.send(result);
            drop(guard);
        });
        receiver
    }

    /// How many tasks are running, and how many were ever begun.
    #[cfg(feature = "conformance")]
    pub(super) fn counts(&self) -> (usize, u64) {
        let busy = self.counts.busy.load(Ordering::SeqCst);
        (busy, self.counts.begun.load(Ordering::SeqCst))
    }

    /// The runtime of the engine's thread.
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

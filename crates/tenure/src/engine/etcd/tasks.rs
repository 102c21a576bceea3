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
pub(super) struct Front(Option<Callers>);

impl Front {
    /// The runtime that this is called from, if it will do.
    pub(super) async fn find(own: &Own) -> Self {
        Self(Callers::find(own).await.filter(Callers::has_threads))
    }

    /// It, if whoever asks runs there.
    fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().filter(|callers| callers.are_here()).map(Callers::handle)
    }

    /// Whether whoever asks runs there.
    pub(super) fn is_here(&self) -> bool {
        self.0.as_ref().is_some_and(Callers::are_here)
    }
}

/// Where work is done, and how much of it is under way.
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    handle: Handle,
    front: Front,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    busy: AtomicUsize,
    begun: AtomicU64,
}

/// Counts one piece of work for as long as it lives.
#[derive(Debug)]
pub(super) struct Busy(Arc<Counts>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tasks {
    pub(super) fn new(handle: Handle, front: Front) -> Self {
        Self { handle, front, counts: Arc::default() }
    }

    /// Says that something is under way, until it is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.counts.busy.fetch_add(1, Ordering::SeqCst);
        self.counts.begun.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(&self.counts))
    }

    /// Does work that nobody waits for.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let busy = self.busy();
        self.handle.spawn(async move {
            work.await;
            drop(busy);
        });
    }

    /// Does work that lasts as long as the engine and is not counted.
    pub(super) fn spawn_lasting(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Does work to its end, also if the one who waits for it goes away: half of a verb would be
    /// worse than all of it.
    pub(super) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let told = self.begin(&self.handle, work);
        async { told.await.map_err(over)? }
    }

    /// The same on the callers' runtime, if that is where the one who waits runs. What others
    /// depend on, as they do on the renewal of a lease, must be done [`apart`](Self::apart).
    pub(super) fn run_here<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let here = self.front.handle();
        let told = self.begin(here.unwrap_or(&self.handle), work);
        async { told.await.map_err(over)? }
    }

    /// Does a piece of work on the engine's own thread, which goes on whatever callers do.
    pub(super) async fn apart<T: Send + 'static>(
        &self,
        work: Pin<Box<dyn Future<Output = T> + Send>>,
    ) -> Result<T, Error> {
        if self.front.is_here() {
            self.begin(&self.handle, work).await.map_err(over)
        } else {
            Ok(work.await)
        }
    }

    fn begin<T: Send + 'static>(
        &self,
        handle: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (tell, told) = oneshot::channel();
        let busy = self.busy();
        handle.spawn(async move {
            let answer = work.await;
            // Counted until the answer is there: then it is the caller's turn.
            let _ = tell.send(answer);
            drop(busy);
        });
        told
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

fn over(_: RecvError) -> Error {
    Error::new(ErrorKind::Closed, "the engine's thread has ended")
        .effect_unknown()
        .with_help("connect again")
}

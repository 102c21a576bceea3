//! Work that goes on whoever waits for it: on the engine's own thread, counted. Knows threads, not
//! what the work is.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::contract::{Error, ErrorKind};

/// Where work is done, and how much of it is under way.
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    handle: Handle,
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
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, counts: Arc::default() }
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
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        let busy = self.busy();
        self.handle.spawn(async move {
            let answer = work.await;
            // Counted until the answer is there: then it is the caller's turn.
            let _ = tell.send(answer);
            drop(busy);
        });
        match told.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Closed, "the engine's thread has ended")
                .effect_unknown()
                .next("connect again")),
        }
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

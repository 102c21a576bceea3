//! A future that a scenario polls by hand, so that "still waits" and "is served now" can be told
//! apart without a runtime. Knows one future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::harness::Stage;

/// A future under a scenario's hand.
pub struct Waiting<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    woken: Arc<Flag>,
    output: Option<T>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often a scenario looks again before it says that something did not happen.
const LOOKS: usize = 200;

impl<T> Waiting<T> {
    /// Takes a future, and polls it once so that it begins.
    pub fn start(future: impl Future<Output = T> + Send + 'static) -> Self {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let mut waiting = Self { future: Box::pin(future), woken, output: None };
        waiting.poll();
        waiting
    }

    fn poll_all(all: &mut [Self]) {
        for one in all {
            one.poll();
        }
    }

    /// Polls it if it was woken, and says whether it is done. Waits for nothing.
    pub(super) fn poll(&mut self) -> bool {
        while self.output.is_none() && self.woken.0.swap(false, Ordering::SeqCst) {
            let waker = Waker::from(Arc::clone(&self.woken));
            let polled = self.future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(output) = polled {
                self.output = Some(output);
            }
        }
        self.is_served()
    }

    /// Whether it is done, after what is under way has arrived.
    pub fn is_done(&mut self, stage: &dyn Stage) -> bool {
        Self::look(std::slice::from_mut(self), stage);
        self.is_served()
    }

    /// Polls them all while what is under way arrives: what settles one settles every other.
    pub fn look(all: &mut [Self], stage: &dyn Stage) {
        for _ in 0..3 {
            Self::poll_all(all);
            if all.iter().all(Self::is_served) {
                return;
            }
            stage.settle();
        }
        Self::poll_all(all);
    }

    /// Whether it was done when it was last looked at.
    pub fn is_served(&self) -> bool {
        self.output.is_some()
    }

    /// What it came to. Fails if it does not come to anything without time passing.
    #[track_caller]
    pub fn done(mut self, stage: &dyn Stage) -> T {
        for _ in 0..LOOKS {
            if self.is_done(stage) {
                break;
            }
        }
        self.output.expect("should be served by now, but still waits")
    }
}

impl<T> fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("done", &self.output.is_some()).finish_non_exhaustive()
    }
}

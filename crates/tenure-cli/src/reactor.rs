//! Waits for a future, for signals, for a socket and for a time, on one thread. Knows readiness,
//! not what is awaited.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::signals::{Caught, Signals};

/// Waits on one thread, without a runtime.
#[derive(Debug)]
pub(crate) struct Reactor {
    bell: Arc<Bell>,
    waker: Waker,
    signals: Signals,
}

/// What ended a wait.
#[derive(Debug)]
pub(crate) enum Woken<T> {
    /// The future is done. It must not be waited for again.
    Done(T),
    /// A signal came.
    Signal(Caught),
    /// There is something to read.
    Readable,
    /// The time has passed.
    Late,
}

impl Reactor {
    pub(crate) fn new(signals: Signals) -> io::Result<Self> {
        let bell = Arc::new(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        Ok(Self { waker: Waker::from(Arc::clone(&bell)), bell, signals })
    }

    /// Sleeps until the future is done, a signal comes, `fd` can be read, or `until` has passed.
    pub(crate) fn next<T>(
        &self,
        mut future: Pin<&mut dyn Future<Output = T>>,
        fd: Option<BorrowedFd<'_>>,
        until: Option<Instant>,
    ) -> io::Result<Woken<T>> {
        loop {
            self.bell.hush();
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&self.waker))
            {
                return Ok(Woken::Done(value));
            }
            if let Some(caught) = self.signals.next()? {
                return Ok(Woken::Signal(caught));
            }
            let mut fds = vec![
                PollFd::new(&self.bell.0, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let ready = match poll(&mut fds, timeout(until).as_ref()) {
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            if fds.get(2).is_some_and(|fd| !fd.revents().is_empty()) {
                return Ok(Woken::Readable);
            }
            if ready == 0 && until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Woken::Late);
            }
        }
    }
}

/// The time left, as the system wants it.
fn timeout(until: Option<Instant>) -> Option<Timespec> {
    let left = until?.saturating_duration_since(Instant::now());
    // A time too long to be said is no limit.
    Timespec::try_from(left).ok()
}

/// Rings when a future should be polled again, from whatever thread.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn hush(&self) {
        // Not rung is as good as hushed.
        let _ = rustix::io::read(self.0.as_fd(), &mut [0_u8; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A full counter has rung already.
        let _ = rustix::io::write(self.0.as_fd(), &1_u64.to_ne_bytes());
    }
}

//! Connecting with retries while the store is unreachable. The same for all engines.
//!
//! There is no session yet whose keeper could wake us, and perhaps no runtime with timers. So a
//! thread is the timer: until the connection is made, it waits for deadlines and wakes the future.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Terms, connect};
use crate::contract::{Engine, Error, ErrorKind, Verb, short};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, PoisonError, random_bytes, thread};
use crate::time::{Alarm, Clock, Tick, back_off};

/// Opens the store a URL names. While the store is away, tries again with exponential back-off and
/// jitter, until `limit` has passed.
///
/// # Errors
/// As [`connect`]. What would be the same the next time (a bad URL, a wrong password, terms that
/// differ) is returned at once; `Unavailable` when the limit has passed, with the last cause.
///
/// # Cancel safety
/// Dropping the future opens nothing.
pub async fn connect_within(
    url: &str,
    terms: Terms,
    limit: Duration,
) -> Result<Arc<dyn Engine>, Error> {
    let clock = Arc::clone(&terms.clock);
    let began = clock.now();
    let deadline = began + limit;
    let timer = Timer::start(&clock)?;
    let (mut tries, mut last) = (0, None);
    loop {
        tries += 1;
        let error = match timer.limited(deadline, connect(url, terms.clone())).await {
            Some(Ok(engine)) => return Ok(engine),
            Some(Err(error)) if error.kind() != ErrorKind::Unavailable => return Err(error),
            Some(Err(error)) => error,
            // The limit cut this attempt short. One before it that failed by itself knows more of
            // what is wrong.
            None => last.take().unwrap_or_else(|| no_answer(limit)).effect_unknown(),
        };
        let again = clock.now() + back_off(tries, random_bytes()[0]);
        timer.limited(again.min(deadline), std::future::pending::<()>()).await;
        if clock.now() >= deadline {
            return Err(error.during(Verb::Connect).tried(tries, clock.now().since(began)));
        }
        last = Some(error);
    }
}

/// The error of an only attempt that the limit cut short.
fn no_answer(limit: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {}", short(limit)))
        .with_help("check that the store is up and reachable")
}

/// A thread that wakes one future when an instant has come.
struct Timer {
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
}

struct Shared {
    alarm: Arc<dyn Alarm>,
    waker: Mutex<Option<Waker>>,
    over: AtomicBool,
}

impl Timer {
    fn start(clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let (waker, over) = (Mutex::new(None), AtomicBool::new(false));
        let shared = Arc::new(Shared { alarm: clock.alarm(), waker, over });
        let rings = Arc::clone(&shared);
        let work = move || {
            while !rings.over.load(Ordering::SeqCst) {
                rings.alarm.wait();
                let waker = rings.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
                waker.into_iter().for_each(Waker::wake);
            }
        };
        let thread = thread::Builder::new().name("tenure-connect".to_owned());
        thread.spawn(work).map_err(|error| {
            Error::new(ErrorKind::Limit, format!("the system gives no thread: {error}"))
                .during(Verb::Connect)
                .with_help("raise the limit on threads")
                .caused_by(error)
        })?;
        Ok(Self { clock: Arc::clone(clock), shared })
    }

    /// What a future comes to; `None` if `until` has come first.
    async fn limited<T>(&self, until: Tick, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_until(until, cx).map(|()| None),
        })
        .await
    }

    fn poll_until(&self, until: Tick, cx: &mut Context<'_>) -> Poll<()> {
        // Stored before the alarm is set: an alarm that rings at once finds the waker.
        *self.shared.waker.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(cx.waker().clone());
        if self.clock.now() >= until {
            return Poll::Ready(());
        }
        self.shared.alarm.set(until);
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.alarm.ring();
    }
}

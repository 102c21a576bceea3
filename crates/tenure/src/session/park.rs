//! The futures a caller sleeps in, and a way to run one without a runtime. Knows wakers and
//! deadlines, not what is waited for.
//!
//! The keeper's one queue of deadlines wakes everybody, so that no lock needs a timer of its own.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::entry::{Entry, Phase};
use super::{Core, Over};
use crate::contract::ClaimId;
use crate::session::Hold;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread};
use crate::time::Tick;

/// Runs a call with a time limit: `None` if the limit passed first.
pub(super) async fn within<F: Future>(core: &Core, limit: Tick, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut nap = Nap { core, until: limit, key: None };
    poll_fn(move |cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        Pin::new(&mut nap).poll(cx).map(|()| None)
    })
    .await
}

/// Sleeps until an instant.
pub(super) async fn nap(core: &Core, until: Tick) {
    Nap { core, until, key: None }.await;
}

/// Resolves at an instant. The keeper wakes it.
struct Nap<'a> {
    core: &'a Core,
    until: Tick,
    key: Option<(Tick, u64)>,
}

impl Future for Nap<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.clock.now() >= self.until {
            return Poll::Ready(());
        }
        let mut table = self.core.lock();
        if let Some(old) = self.key.take() {
            table.awake(old);
        }
        let key = table.sleep(self.until, cx.waker().clone());
        drop(table);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.lock().awake(key);
        }
    }
}

/// What a waiting caller wakes to.
#[derive(Debug)]
pub(super) enum Woken {
    /// The grant, now in the caller's hands.
    Granted(Arc<Hold>),
    /// The wait ended without one.
    Over(Over),
    /// The deadline passed; the claim still waits, at this place.
    Deadline(usize),
}

/// Waits until the claim is granted, its wait is over, or the deadline passes.
pub(super) async fn granted(core: &Core, id: ClaimId, deadline: Tick) -> Woken {
    poll_fn(|cx| {
        let now = core.clock.now();
        let look = |entry: &mut Entry| look(entry, now, deadline, cx);
        // An entry that is gone was given back by somebody: claim anew.
        core.lock().update(id, look).unwrap_or(Poll::Ready(Woken::Over(Over::Lapsed)))
    })
    .await
}

fn look(entry: &mut Entry, now: Tick, deadline: Tick, cx: &mut Context<'_>) -> Poll<Woken> {
    let place = match &entry.phase {
        Phase::Over(over) => return Poll::Ready(Woken::Over(over.clone())),
        Phase::Granted { hold, .. } if hold.loss_at(now).is_none() => {
            let hold = Arc::clone(hold);
            entry.waker = None;
            entry.phase = Phase::Held { hold: Arc::clone(&hold), guards: 1 };
            return Poll::Ready(Woken::Granted(hold));
        }
        Phase::Granted { .. } => {
            // Granted, but what we know of it is too old to be trusted: renew first.
            entry.renew_at = now;
            0
        }
        Phase::Waiting { place } => *place,
        Phase::Sent | Phase::Held { .. } => 0,
    };
    if now >= deadline {
        return Poll::Ready(Woken::Deadline(place));
    }
    entry.waker = Some(cx.waker().clone());
    entry.wake_at = deadline;
    Poll::Pending
}

thread_local! {
    static BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a future by blocking on it.
pub(super) fn on_blocking_thread() -> bool {
    BLOCKING.get()
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    // The flag, because work inside the future may park this thread too and use up its token.
    struct Unpark(Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BLOCKING.set(self.0);
        }
    }
    let _restore = Restore(BLOCKING.replace(true));
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = Pin::as_mut(&mut future).poll(&mut cx) {
            return output;
        }
        while !unpark.1.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

//! The futures in which callers wait, and `block_on`, which runs one without a runtime.
//!
//! A waiting future leaves its waker and its deadline in the table. The keeper's thread wakes it
//! when the deadline has come, so that no lock needs a timer of its own and the futures work in
//! every runtime, also in one without timers.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::coop::unconstrained;

use super::Core;
use super::entry::{EndReason, Entry, Phase};
use super::inherited::forked_error;
use crate::contract::{ClaimId, Engine, InlineWait, SessionId, Verb};
use crate::process::{blocking, is_blocked};
use crate::session::Hold;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Tick;

/// Runs a call with a timeout. Returns `None` if the timeout expired first, or if the process was
/// forked after the call had begun.
pub(crate) async fn within<F: Future>(core: &Core, limit: Tick, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut sleep = Sleep { core, until: limit, key: None };
    poll_fn(move |cx| {
        if core.is_inherited() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| None)
    })
    .await
}

/// Sleeps until an instant.
pub(crate) async fn sleep_until(core: &Core, until: Tick) {
    Sleep { core, until, key: None }.await;
}

/// Resolves at an instant. The keeper wakes it.
struct Sleep<'a> {
    core: &'a Core,
    until: Tick,
    key: Option<(Tick, u64)>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.is_inherited() || self.core.clock.now() >= self.until {
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

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take().filter(|_| !self.core.is_inherited()) {
            self.core.lock().awake(key);
        }
    }
}

/// How a wait for a grant ended.
#[derive(Debug)]
pub(super) enum WaitOutcome {
    /// The claim was granted, and the grant was handed to the caller.
    Granted(Arc<Hold>),
    /// The wait ended without a grant.
    Ended(EndReason),
    /// The deadline has passed; the claim is still queued, at this place.
    TimedOut(usize),
}

/// Waits until the claim is granted, its wait ends without a grant, or the deadline passes.
pub(super) async fn wait_for_grant(core: &Core, id: ClaimId, deadline: Tick) -> WaitOutcome {
    poll_fn(|cx| {
        if core.is_inherited() {
            let error = forked_error(Verb::Claim);
            return Poll::Ready(WaitOutcome::Ended(EndReason::Unreachable(error)));
        }
        let now = core.clock.now();
        let check = |entry: &mut Entry| poll_entry(entry, now, deadline, cx);
        // An entry that is gone was released while the caller waited: claim again.
        let outcome = core.lock().update(id, check);
        if let Some(Poll::Pending) = &outcome {
            await_signal(core);
        }
        outcome.unwrap_or(Poll::Ready(WaitOutcome::Ended(EndReason::TicketExpired)))
    })
    .await
}

/// Hands a grant over to its caller, or registers the caller's waker.
fn poll_entry(
    entry: &mut Entry,
    now: Tick,
    deadline: Tick,
    cx: &mut Context<'_>,
) -> Poll<WaitOutcome> {
    let place = match &entry.phase {
        Phase::Ended(over) => return Poll::Ready(WaitOutcome::Ended(over.clone())),
        Phase::Granted { hold, .. } if hold.loss_at(now).is_none() => {
            let hold = Arc::clone(hold);
            entry.waker = None;
            entry.phase = Phase::Held { hold: Arc::clone(&hold), guards: 1 };
            return Poll::Ready(WaitOutcome::Granted(hold));
        }
        Phase::Granted { .. } => {
            // Granted, but its safe-until has passed: renew before it is handed over.
            entry.renew_at = now;
            0
        }
        Phase::Waiting { place } => *place,
        Phase::Sent | Phase::Held { .. } => 0,
    };
    if now >= deadline {
        return Poll::Ready(WaitOutcome::TimedOut(place));
    }
    entry.waker = Some(cx.waker().clone());
    entry.wake_at = deadline;
    Poll::Pending
}

/// Returns how a blocked thread can wait inside the engine, if it can.
fn inline_wait(engine: &dyn Engine) -> Option<&dyn InlineWait> {
    engine.local()?.inline_wait()
}

thread_local! {
    /// The engine whose signals the future on this thread waits for.
    static AWAITED: RefCell<Awaited> = const { RefCell::new(None) };
}

/// Notes that the future on this thread waits for a signal of this session. A thread that is
/// blocked on the future can then wait inside the engine, where the signal arrives.
fn await_signal(core: &Core) {
    if is_blocked() && inline_wait(&*core.engine).is_some() {
        AWAITED.set(Some((Arc::clone(&core.engine), core.id)));
    }
}

/// Runs a future on this thread and returns its output: for programs without an async runtime, and
/// where a future of Tenure is awaited that has no `blocking_` form.
///
/// Never panics, inside a runtime neither: while the thread is blocked, nothing that Tenure waits
/// for runs on that runtime. Other tasks of a blocked worker wait, though.
///
/// # Examples
/// ```
/// let tenure = tenure::block_on(tenure::Tenure::connect("memory:"))?;
/// let guard = tenure::block_on(tenure.mutex("reports")?.lock())?;
/// # drop(guard);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Arc::new(Sleeper::new());
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut cx = Context::from_waker(&waker);
    // Inside a task the budget of tokio's cooperative scheduling is not renewed before the task
    // yields, which it does not while it is blocked here: without it nothing would ever be ready.
    let mut future = pin!(unconstrained(future));
    blocking(|| {
        loop {
            if let Poll::Ready(output) = Pin::as_mut(&mut future).poll(&mut cx) {
                return output;
            }
            sleeper.sleep(&AWAITED.take());
        }
    })
}

/// A thread that is blocked on a future.
struct Sleeper {
    thread: Thread,
    /// Set by the waker. The thread's park token is not enough: code inside the future may park
    /// the thread too and consume it.
    woken: AtomicBool,
    /// Where the thread waits, if that is inside an engine.
    waits_in: Mutex<Awaited>,
}

/// An engine and the session whose signals are waited for.
type Awaited = Option<(Arc<dyn Engine>, SessionId)>;

impl Sleeper {
    fn new() -> Self {
        let (woken, waits_in) = (AtomicBool::new(false), Mutex::new(None));
        Self { thread: thread::current(), woken, waits_in }
    }

    /// Sleeps until woken: inside the engine if the future waits for a signal of one that offers
    /// that, otherwise by parking the thread.
    fn sleep(&self, awaited: &Awaited) {
        while !self.woken.swap(false, Ordering::SeqCst) {
            let waited = awaited.as_ref().is_some_and(|(engine, session)| {
                inline_wait(&**engine).is_some_and(|inline| self.wait_in(engine, inline, *session))
            });
            if !waited {
                thread::park();
            }
        }
    }

    /// Waits inside the engine. Returns `false` at once if another thread does so already.
    fn wait_in(
        &self,
        engine: &Arc<dyn Engine>,
        inline: &dyn InlineWait,
        session: SessionId,
    ) -> bool {
        *self.waits_in() = Some((Arc::clone(engine), session));
        // From now on a waker interrupts the wait; an earlier one has set `woken`.
        let waited = inline.wait(session, &|| !self.woken.load(Ordering::SeqCst));
        *self.waits_in() = None;
        waited
    }

    fn waits_in(&self) -> MutexGuard<'_, Awaited> {
        self.waits_in.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if thread::current().id() == self.thread.id() {
            // Woken by the wait inside the engine itself, which checks `woken` when it returns.
            return;
        }
        let waits_in = self.waits_in().clone();
        if let Some((engine, session)) = waits_in
            && let Some(inline) = inline_wait(&*engine)
        {
            inline.interrupt(session);
        }
        self.thread.unpark();
    }
}

//! The futures a caller sleeps in, and a way to run one without a runtime. Knows wakers and
//! deadlines, not what is waited for.
//!
//! The keeper's one queue of deadlines wakes everybody, so that no lock needs a timer of its own.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::coop::unconstrained;

use super::entry::{Entry, Phase};
use super::inherited::forked_error;
use super::{Core, Over};
use crate::contract::{Attendant, ClaimId, Engine, SessionId, Verb};
use crate::process::{blocking, is_blocked};
use crate::session::Hold;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Tick;

/// Runs a call with a time limit: `None` if the limit passed first, or this is another process
/// than the one that began the call.
pub(super) async fn within<F: Future>(core: &Core, limit: Tick, call: F) -> Option<F::Output> {
    let mut call = pin!(call);
    let mut nap = Nap { core, until: limit, key: None };
    poll_fn(move |cx| {
        if core.is_inherited() {
            return Poll::Ready(None);
        }
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

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take().filter(|_| !self.core.is_inherited()) {
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
        if core.is_inherited() {
            let error = forked_error(Verb::Claim);
            return Poll::Ready(Woken::Over(Over::CutOff(error)));
        }
        let now = core.clock.now();
        let look = |entry: &mut Entry| look(entry, now, deadline, cx);
        // An entry that is gone was given back by somebody: claim anew.
        let looked = core.lock().update(id, look);
        if let Some(Poll::Pending) = &looked {
            await_signal(core);
        }
        looked.unwrap_or(Poll::Ready(Woken::Over(Over::Lapsed)))
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
    /// The engine whose signals the future on this thread waits for.
    static AWAITED: RefCell<Awaited> = const { RefCell::new(None) };
}

/// Says that a future on this thread waits for a signal of this session. If the thread is blocked
/// on that future, it can wait where the signal arrives.
fn await_signal(core: &Core) {
    if is_blocked() && core.engine.attendant().is_some() {
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

/// A thread that blocks on a future.
struct Sleeper {
    thread: Thread,
    /// Because work inside the future may park this thread too and use up its token.
    woken: AtomicBool,
    /// Where the thread waits, if that is inside an engine.
    attends: Mutex<Awaited>,
}

/// An engine and the session whose signals are waited for.
type Awaited = Option<(Arc<dyn Engine>, SessionId)>;

impl Sleeper {
    fn new() -> Self {
        let (woken, attends) = (AtomicBool::new(false), Mutex::new(None));
        Self { thread: thread::current(), woken, attends }
    }

    /// Sleeps until woken, where signals arrive if somebody is awaited who offers that.
    fn sleep(&self, awaited: &Awaited) {
        while !self.woken.swap(false, Ordering::SeqCst) {
            let attended = awaited.as_ref().is_some_and(|(engine, session)| {
                engine.attendant().is_some_and(|attendant| self.attend(engine, attendant, *session))
            });
            if !attended {
                thread::park();
            }
        }
    }

    fn attend(
        &self,
        engine: &Arc<dyn Engine>,
        attendant: &dyn Attendant,
        session: SessionId,
    ) -> bool {
        *self.attends() = Some((Arc::clone(engine), session));
        // Whoever wakes us from now on interrupts; whoever did so before has left a mark.
        let attended = attendant.attend(session, &|| !self.woken.load(Ordering::SeqCst));
        *self.attends() = None;
        attended
    }

    fn attends(&self) -> MutexGuard<'_, Awaited> {
        self.attends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if thread::current().id() == self.thread.id() {
            // Heard while it attends: it looks up by itself.
            return;
        }
        let attends = self.attends().clone();
        if let Some((engine, session)) = attends
            && let Some(attendant) = engine.attendant()
        {
            attendant.interrupt(session);
        }
        self.thread.unpark();
    }
}

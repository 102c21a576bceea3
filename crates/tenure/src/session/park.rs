//! The futures a caller sleeps in, and a way to run one without a runtime. Knows wakers and
//! deadlines, not what is waited for.
//!
//! The keeper's one queue of deadlines wakes everybody, so that no lock needs a timer of its own.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

use super::entry::{Entry, Phase};
use super::{Core, Over};
use crate::contract::{Attendant, ClaimId, Engine, SessionId};
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
    static BLOCKING: Cell<bool> = const { Cell::new(false) };
    /// The engine whose signals the future on this thread waits for.
    static AWAITED: RefCell<Option<(Arc<dyn Engine>, SessionId)>> = const { RefCell::new(None) };
}

thread_local! {
    /// Interrupts this thread while it waits inside an engine. One for all its calls.
    static BELL: OnceCell<Option<Arc<OwnedFd>>> = const { OnceCell::new() };
}

fn new_bell() -> Option<Arc<OwnedFd>> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new)
}

/// Whether this thread runs a future by blocking on it.
pub(super) fn on_blocking_thread() -> bool {
    BLOCKING.get()
}

/// Says that a future on this thread waits for a signal of this session. If the thread is blocked
/// on that future, it can wait where the signal arrives.
fn await_signal(core: &Core) {
    if on_blocking_thread() && core.engine.attendant().is_some() {
        AWAITED.set(Some((Arc::clone(&core.engine), core.id)));
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BLOCKING.set(self.0);
        }
    }
    let _restore = Restore(BLOCKING.replace(true));
    let sleeper = Arc::new(Sleeper::new());
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = Pin::as_mut(&mut future).poll(&mut cx) {
            return output;
        }
        sleeper.sleep(AWAITED.take());
    }
}

/// A thread that blocks on a future.
struct Sleeper {
    thread: Thread,
    /// Because work inside the future may park this thread too and use up its token.
    woken: AtomicBool,
    /// Set once the thread has waited inside an engine.
    bell: OnceLock<Arc<OwnedFd>>,
    attends: AtomicBool,
}

impl Sleeper {
    fn new() -> Self {
        Self {
            thread: thread::current(),
            woken: AtomicBool::new(false),
            bell: OnceLock::new(),
            attends: AtomicBool::new(false),
        }
    }

    /// Sleeps until woken, where signals arrive if somebody is awaited who offers that.
    fn sleep(&self, awaited: Option<(Arc<dyn Engine>, SessionId)>) {
        while !self.woken.swap(false, Ordering::SeqCst) {
            let attended = awaited.as_ref().is_some_and(|(engine, session)| {
                engine.attendant().is_some_and(|attendant| self.attend(attendant, *session))
            });
            if !attended {
                thread::park();
            }
        }
    }

    fn attend(&self, attendant: &dyn Attendant, session: SessionId) -> bool {
        let Some(bell) = BELL.with(|bell| bell.get_or_init(new_bell).clone()) else { return false };
        let bell = self.bell.get_or_init(|| bell);
        self.attends.store(true, Ordering::SeqCst);
        // Whoever woke us before it could see that we attend has left no ring.
        let attended = self.woken.load(Ordering::SeqCst) || attendant.attend(session, bell.as_fd());
        self.attends.store(false, Ordering::SeqCst);
        // A ring that is left over, or late, must not end every wait that follows.
        let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        attended
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if thread::current().id() == self.thread.id() {
            // Heard while it attends: it looks up by itself.
            return;
        }
        if self.attends.load(Ordering::SeqCst)
            && let Some(bell) = self.bell.get()
        {
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
        self.thread.unpark();
    }
}

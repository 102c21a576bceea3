//! A link between a session and its engine that can be interfered with: it loses, delays or repeats
//! the Nth call, reply or push. Knows the contract, not what is carried.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use super::cell_link::WatchFilters;
use super::gate::RequestGate;
use super::rate_link::rates_of;
use super::world::cells_of;
use crate::contract::{
    Batch, Cells, Claim, ClaimRef, Engine, Error, ErrorKind, Evicted, Eviction, Grant, Immediate,
    InlineWait, LocalSessions, Pending, Promises, Query, Rates, Release, Released, Renewed,
    SessionId, Signal, SignalListener, Snapshot, Take, Verdict, optional_objects,
};

/// What happens to one call or push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call does not arrive; an error says so.
    LoseCall,
    /// The call arrives; its reply is lost, and an error says so.
    LoseReply,
    /// The call does not arrive, and nothing is ever heard of it.
    HangCall,
    /// The call arrives, and nothing is ever heard of it.
    HangReply,
    /// The call arrives twice in a row.
    RepeatCall,
    /// The call arrives, and a copy of it arrives again before the next-but-one call.
    LateCopy,
    /// The call arrives only before the next-but-one call, and nothing is ever heard of it.
    LateCall,
    /// The push is lost.
    LosePush,
    /// The push arrives twice.
    RepeatPush,
    /// The push arrives only with the next one, or never.
    DelayPush,
}

impl Fault {
    /// Everything that can happen to a call.
    pub const CALLS: [Self; 7] = [
        Self::LoseCall,
        Self::LoseReply,
        Self::HangCall,
        Self::HangReply,
        Self::RepeatCall,
        Self::LateCopy,
        Self::LateCall,
    ];
    /// Everything that can happen to a push.
    pub const PUSHES: [Self; 3] = [Self::LosePush, Self::RepeatPush, Self::DelayPush];
}

/// An engine behind a link that can be interfered with.
pub struct Link {
    /// For the push filters to find back.
    me: Weak<Self>,
    inner: Arc<dyn Engine>,
    cut: AtomicBool,
    /// Replies wait here while they are held back.
    holding: Mutex<(bool, Vec<Waker>)>,
    calls: AtomicUsize,
    pushes: AtomicUsize,
    renews: AtomicUsize,
    plan: Mutex<Plan>,
    listeners: Mutex<Vec<Arc<PushFilter>>>,
    gate: Arc<RequestGate>,
    pub(super) watches: WatchFilters,
}

#[derive(Default)]
struct Plan {
    on_calls: Vec<(usize, Fault)>,
    on_pushes: Vec<(usize, Fault)>,
    late: VecDeque<(usize, Copied)>,
}

/// A call that will arrive once more.
pub(super) enum Copied {
    Claim(Arc<Claim>),
    Write(Batch),
    Take(Take),
    Renew(Vec<ClaimRef>),
    Release(Vec<Release>),
}

impl Link {
    /// A link in good order.
    #[must_use]
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        Self::gated(inner, &Arc::default())
    }

    /// A link in good order with a gate for each call and each reply.
    #[must_use]
    pub fn gated(inner: Arc<dyn Engine>, gate: &Arc<RequestGate>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            inner,
            cut: AtomicBool::new(false),
            holding: Mutex::default(),
            calls: AtomicUsize::new(0),
            pushes: AtomicUsize::new(0),
            renews: AtomicUsize::new(0),
            plan: Mutex::default(),
            listeners: Mutex::default(),
            gate: Arc::clone(gate),
            watches: WatchFilters::default(),
        })
    }

    /// Cuts the link: no call arrives and no push comes back. Or mends it.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        if !cut {
            self.watches.gap();
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(super) fn inner(&self) -> &dyn Engine {
        &*self.inner
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.me)
    }

    /// Holds all replies back from now on, or lets them through.
    pub fn hold_replies(&self, hold: bool) {
        let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        holding.0 = hold;
        let waiting = std::mem::take(&mut holding.1);
        drop(holding);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Lets trouble befall the `nth` call from the beginning, counted from 0.
    pub fn trouble_call(&self, nth: usize, trouble: Fault) {
        self.plan().on_calls.push((nth, trouble));
    }

    /// Lets trouble befall the `nth` push from the beginning, counted from 0.
    pub fn trouble_push(&self, nth: usize, trouble: Fault) {
        self.plan().on_pushes.push((nth, trouble));
    }

    /// Lets every session behind the link hear a signal that no store has sent.
    pub fn forge(&self, signal: &Signal) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners.iter().filter_map(|filter| filter.listener.upgrade()) {
            listener.on_signal(signal.clone());
        }
    }

    /// How many calls were made: claims, renewals and releases.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// How many of them were renewals.
    #[must_use]
    pub fn renews(&self) -> usize {
        self.renews.load(Ordering::SeqCst)
    }

    /// How many pushes came.
    #[must_use]
    pub fn pushes(&self) -> usize {
        self.pushes.load(Ordering::SeqCst)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, delivers late copies that are due before it, and says what befalls it.
    async fn count_call(&self) -> Option<Fault> {
        let nth = self.calls.fetch_add(1, Ordering::SeqCst);
        loop {
            let due = {
                let mut plan = self.plan();
                let due = plan.late.front().is_some_and(|(at, _)| *at <= nth);
                if due { plan.late.pop_front() } else { None }
            };
            // The reply to a late copy is dropped.
            match due {
                Some((_, Copied::Claim(claim))) => drop(self.inner.claim(&claim).await),
                Some((_, Copied::Write(batch))) => {
                    drop(cells_of(&*self.inner).write(&batch).await);
                }
                Some((_, Copied::Take(take))) => {
                    drop(rates_of(&*self.inner).take(&take).await);
                }
                Some((_, Copied::Renew(batch))) => drop(self.inner.renew(&batch).await),
                Some((_, Copied::Release(batch))) => drop(self.inner.release(&batch).await),
                None => break,
            }
        }
        let plan = self.plan();
        plan.on_calls.iter().find(|(at, _)| *at == nth).map(|(_, trouble)| *trouble)
    }

    fn count(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the next call passes without anything in its way.
    fn is_in_order(&self) -> bool {
        let (next, plan) = (self.calls(), self.plan());
        let quiet = plan.late.is_empty() && plan.on_calls.iter().all(|(at, _)| *at < next);
        drop(plan);
        let holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner).0;
        quiet && !holding && !self.is_cut() && !self.gate.is_closed()
    }

    /// Waits while replies are held back.
    async fn let_through(&self) {
        poll_fn(|cx| {
            let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
            if !holding.0 {
                return Poll::Ready(());
            }
            holding.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Carries a call through whatever befalls it.
    pub(super) fn carry<'a, T: Send + 'a>(
        &'a self,
        call: impl Fn() -> Pending<'a, T> + Send + 'a,
        copy: impl FnOnce() -> Copied + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            let trouble = self.count_call().await;
            if self.cut.load(Ordering::SeqCst) {
                return Err(lost("the link is cut"));
            }
            match trouble {
                None => {
                    self.gate.pass().await;
                    let answer = call().await;
                    self.gate.pass().await;
                    self.let_through().await;
                    return answer;
                }
                Some(Fault::LoseCall) => {}
                Some(Fault::HangCall) => std::future::pending::<()>().await,
                Some(Fault::LoseReply) => drop(call().await),
                Some(Fault::HangReply) => {
                    drop(call().await);
                    std::future::pending::<()>().await;
                }
                Some(Fault::RepeatCall) => {
                    drop(call().await);
                    return call().await;
                }
                Some(trouble) => {
                    let at = self.calls() + 1;
                    self.plan().late.push_back((at, copy()));
                    if trouble == Fault::LateCall {
                        std::future::pending::<()>().await;
                    }
                    return call().await;
                }
            }
            Err(lost("the call or its reply was lost").effect_unknown())
        })
    }
}

pub(super) fn lost(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}

impl Engine for Link {
    fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        self.carry(|| self.inner.claim(claim), || Copied::Claim(Arc::clone(claim)))
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        self.renews.fetch_add(1, Ordering::SeqCst);
        self.carry(|| self.inner.renew(batch), || Copied::Renew(batch.to_vec()))
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        self.carry(|| self.inner.release(batch), || Copied::Release(batch.to_vec()))
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        self.inner.inspect(query)
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        self.inner.evict(eviction)
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let link = Weak::clone(&self.me);
        let filter = Arc::new(PushFilter { listener, kept: Mutex::default(), link });
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|filter| filter.listener.strong_count() > 0);
        listeners.push(Arc::clone(&filter));
        drop(listeners);
        let weak: Weak<PushFilter> = Arc::downgrade(&filter);
        self.inner.listen(session, weak);
    }

    optional_objects!(self:
        immediate => self.inner.immediate().map(|_| self as &dyn Immediate),
        cells => self.inner.cells().map(|_| self as &dyn Cells),
        rates => self.inner.rates().map(|_| self as &dyn Rates),
        local => self.inner.local().map(|_| self as &dyn LocalSessions),
    );
    optional_objects!(self of inner:
        jobs, fence_floor, replication, partitions, diagnostics, ownership_proof,
        deadlocks
    );
}

/// Answers at once go through a link in good order alone, and count as calls.
impl Immediate for Link {
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant> {
        let engine = self.inner.immediate().filter(|_| self.is_in_order())?;
        engine.claim_free(claim).inspect(|_| self.count())
    }

    fn release_lone(&self, claim: &Claim) -> bool {
        let engine = self.inner.immediate().filter(|_| self.is_in_order());
        let released = engine.is_some_and(|engine| engine.release_lone(claim));
        if released {
            self.count();
        }
        released
    }
}

impl LocalSessions for Link {
    fn liveness_file(&self, session: SessionId) -> Option<PathBuf> {
        self.inner.local()?.liveness_file(session)
    }

    fn inline_wait(&self) -> Option<&dyn InlineWait> {
        // Signals come through the link, never around it.
        None
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("engine", &self.inner).finish_non_exhaustive()
    }
}

/// Stands before a session's listener.
struct PushFilter {
    listener: Weak<dyn SignalListener>,
    kept: Mutex<Option<Signal>>,
    link: Weak<Link>,
}

impl SignalListener for PushFilter {
    fn on_signal(&self, signal: Signal) {
        let (Some(listener), Some(link)) = (self.listener.upgrade(), self.link.upgrade()) else {
            return;
        };
        let nth = link.pushes.fetch_add(1, Ordering::SeqCst);
        if link.cut.load(Ordering::SeqCst) {
            return;
        }
        let trouble = {
            let plan = link.plan();
            plan.on_pushes.iter().find(|(at, _)| *at == nth).map(|(_, trouble)| *trouble)
        };
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        match trouble {
            Some(Fault::LosePush) => {}
            Some(Fault::RepeatPush) => {
                listener.on_signal(signal.clone());
                listener.on_signal(signal);
            }
            Some(Fault::DelayPush) => {
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(signal);
            }
            _ => listener.on_signal(signal),
        }
        if let Some(kept) = kept {
            listener.on_signal(kept);
        }
    }
}

//! What a scenario plays with: sessions behind links, raw clients, and time. Knows a stage.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::harness::Stage;
use super::link::Link;
use super::waiting::Waiting;
use crate::contract::{
    About, Claim, ClaimId, Ear, Engine, Error, Grant, Lineage, Name, OwnerId, Part, Parts,
    Patience, Query, Queued, Refusal, Release, Released, Renewed, SessionId, Signal, SlotView,
    Verdict,
};
use crate::primitives::Tenure;

/// One scenario's world: a fresh namespace.
pub struct World {
    stage: Box<dyn Stage>,
}

impl World {
    /// A world on this stage.
    #[must_use]
    pub fn new(stage: Box<dyn Stage>) -> Self {
        Self { stage }
    }

    /// The stage.
    #[must_use]
    pub fn stage(&self) -> &dyn Stage {
        &*self.stage
    }

    /// A session of its own, as another process would have one, behind a link.
    #[must_use]
    pub fn actor(&self) -> Actor {
        let link = Link::new(self.stage.client());
        let builder = Tenure::builder().clock(self.stage.clock()).lease(self.lease());
        let tenure = builder.open(Arc::clone(&link) as _).expect("a session opens");
        Actor { tenure, link }
    }

    /// A client that speaks the contract itself, without a session.
    #[must_use]
    pub fn raw(&self) -> Raw {
        Raw::new(self.stage.client())
    }

    /// The lease that suits the stage.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.stage.lease()
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.stage.pass(time);
    }

    /// Lets what is under way arrive.
    pub fn settle(&self) {
        self.stage.settle();
    }

    /// Runs a call to its end without time passing.
    #[track_caller]
    pub fn now<T>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        Waiting::start(call).done(self.stage())
    }

    /// Starts a call that has to wait.
    #[track_caller]
    pub fn waits<T>(&self, call: impl Future<Output = T> + Send + 'static) -> Waiting<T> {
        let mut waiting = Waiting::start(call);
        assert!(!waiting.is_done(self.stage()), "should wait, but is served at once");
        waiting
    }

    /// Fails if the call is done.
    #[track_caller]
    pub fn still_waits<T>(&self, waiting: &mut Waiting<T>) {
        assert!(!waiting.is_done(self.stage()), "should still wait, but is served");
    }

    /// What the store shows of a slot; `None` if it knows nothing of it.
    #[track_caller]
    pub fn slot(&self, name: &str) -> Option<SlotView> {
        let (engine, query) = (self.stage.client(), Query::Slot(self::name(name)));
        let seen = self.now(async move { engine.inspect(&query).await });
        seen.expect("inspects").slots.into_iter().next()
    }

    /// Fails unless nobody holds or waits for the name.
    #[track_caller]
    pub fn assert_free(&self, name: &str) {
        for _ in 0..50 {
            self.settle();
            let view = self.slot(name);
            if view.is_none_or(|view| view.holders.is_empty() && view.line.is_empty()) {
                return;
            }
        }
        panic!("{name:?} should be free: {:?}", self.slot(name));
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// A session behind a link.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The session.
    pub tenure: Tenure,
    /// Its link to the store.
    pub link: Arc<Link>,
}

/// A client that speaks the contract itself.
pub struct Raw {
    engine: Arc<dyn Engine>,
    session: SessionId,
    heard: Arc<Heard>,
}

#[derive(Default)]
struct Heard(Mutex<Vec<Signal>>);

impl Ear for Heard {
    fn hear(&self, signal: Signal) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(signal);
    }
}

/// What a raw claim asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The parts.
    pub parts: Vec<Part>,
    /// The owner.
    pub lineage: Lineage,
    /// Whether it waits.
    pub patience: Patience,
    /// The lease.
    pub lease: Duration,
    /// The lock delay.
    pub lock_delay: Duration,
    /// What it replaces.
    pub replaces: Option<ClaimId>,
}

impl Ask {
    /// A mutex, for an owner of its own, ready to wait.
    #[must_use]
    pub fn mutex(world: &World, name: &str) -> Self {
        Self::part(world, Part::mutex(self::name(name)))
    }

    /// One part, for an owner of its own, ready to wait.
    #[must_use]
    pub fn part(world: &World, part: Part) -> Self {
        Self::set(world, vec![part])
    }

    /// Several parts, for an owner of their own, ready to wait.
    #[must_use]
    pub fn set(world: &World, parts: Vec<Part>) -> Self {
        Self {
            parts,
            lineage: Lineage::root(OwnerId::new()),
            patience: Patience::Wait,
            lease: world.lease(),
            lock_delay: Duration::ZERO,
            replaces: None,
        }
    }

    /// For this owner.
    #[must_use]
    pub fn of(mut self, lineage: &Lineage) -> Self {
        self.lineage = lineage.clone();
        self
    }

    /// A try.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.patience = Patience::Try;
        self
    }
}

impl Raw {
    fn new(engine: Arc<dyn Engine>) -> Self {
        let (session, heard) = (SessionId::new(), Arc::new(Heard::default()));
        let ear: Arc<dyn Ear> = Arc::clone(&heard) as _;
        engine.listen(session, Arc::downgrade(&ear) as Weak<dyn Ear>);
        Self { engine, session, heard }
    }

    /// Its session's id.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Makes a claim without sending it.
    #[must_use]
    pub fn make(&self, ask: Ask) -> Arc<Claim> {
        Arc::new(Claim {
            id: ClaimId::new(),
            session: Some(self.session),
            lineage: ask.lineage,
            parts: Parts::set(ask.parts).expect("a set that makes sense"),
            lease: ask.lease,
            lock_delay: ask.lock_delay,
            patience: ask.patience,
            replaces: ask.replaces,
            about: About { host: "suite".into(), pid: 1, place: None, label: None },
        })
    }

    /// Sends a claim, perhaps once more.
    #[track_caller]
    pub fn send(&self, world: &World, claim: &Arc<Claim>) -> Verdict {
        let (engine, claim) = (Arc::clone(&self.engine), Arc::clone(claim));
        world.now(async move { engine.claim(&claim).await }).expect("the store answers")
    }

    /// Claims what must be granted.
    #[track_caller]
    pub fn granted(&self, world: &World, ask: Ask) -> (Arc<Claim>, Grant) {
        let claim = self.make(ask);
        match self.send(world, &claim) {
            Verdict::Granted(grant) => (claim, grant),
            other => panic!("should be granted: {other:?}"),
        }
    }

    /// Claims what must wait.
    #[track_caller]
    pub fn queued(&self, world: &World, ask: Ask) -> (Arc<Claim>, Queued) {
        let claim = self.make(ask);
        match self.send(world, &claim) {
            Verdict::Queued(queued) => (claim, queued),
            other => panic!("should wait: {other:?}"),
        }
    }

    /// Claims what must be refused.
    #[track_caller]
    pub fn refused(&self, world: &World, ask: Ask) -> Refusal {
        match self.send(world, &self.make(ask)) {
            Verdict::Refused(refusal) => refusal,
            other => panic!("should be refused: {other:?}"),
        }
    }

    /// Renews one claim.
    #[track_caller]
    pub fn renew(&self, world: &World, claim: &Claim) -> Renewed {
        let (engine, batch) = (Arc::clone(&self.engine), vec![claim.to_ref()]);
        let answers: Result<Vec<Renewed>, Error> =
            world.now(async move { engine.renew(&batch).await });
        answers.expect("the store answers").pop().expect("one answer for each claim")
    }

    /// Releases one claim.
    #[track_caller]
    pub fn release(&self, world: &World, claim: &Claim) -> Released {
        self.give_back(world, claim, false)
    }

    /// Withdraws one claim of which a copy may still arrive.
    #[track_caller]
    pub fn withdraw(&self, world: &World, claim: &Claim) -> Released {
        self.give_back(world, claim, true)
    }

    #[track_caller]
    fn give_back(&self, world: &World, claim: &Claim, uncertain: bool) -> Released {
        let engine = Arc::clone(&self.engine);
        let batch = vec![Release { claim: claim.to_ref(), uncertain }];
        let answers: Result<Vec<Released>, Error> =
            world.now(async move { engine.release(&batch).await });
        answers.expect("the store answers").pop().expect("one answer for each claim")
    }

    /// The signals since the last look.
    pub fn heard(&self, world: &World) -> Vec<Signal> {
        world.settle();
        std::mem::take(&mut *self.heard.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The grant that was pushed for this claim since the last look, if one was.
    pub fn told(&self, world: &World, claim: &Claim) -> Option<Grant> {
        self.heard(world).into_iter().find_map(|signal| match signal {
            Signal::Granted { claim: id, grant } if id == claim.id => Some(grant),
            _ => None,
        })
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").field("session", &self.session).finish_non_exhaustive()
    }
}

/// A name that is known to be one.
pub(super) fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

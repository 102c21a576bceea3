//! A client that speaks the contract itself, for the rules of stores. Knows verbs, no session.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::world::{World, name};
use crate::contract::{
    About, Claim, ClaimId, ClaimRef, Engine, Error, Evicted, Eviction, Fence, Grant, Lineage, Loss,
    Name, OwnerId, Part, Parts, Patience, Queued, Refusal, Release, Released, Renewed, SessionId,
    Signal, SignalListener, Verdict,
};

/// A client that speaks the contract itself.
pub struct Raw {
    engine: Arc<dyn Engine>,
    session: SessionId,
    heard: Arc<Heard>,
}

#[derive(Default)]
struct Heard(Mutex<Vec<Signal>>);

impl SignalListener for Heard {
    fn on_signal(&self, signal: Signal) {
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
        Self::part(world, Part::write(self::name(name)))
    }

    /// One part, for an owner of its own, ready to wait.
    #[must_use]
    pub fn part(world: &World, part: Part) -> Self {
        Self::set(world, vec![part])
    }

    /// A reader's share, for an owner of its own, ready to wait.
    #[must_use]
    pub fn read(world: &World, name: &str) -> Self {
        Self::part(world, Part::read(self::name(name)))
    }

    /// All of a read-write lock, for an owner of its own, ready to wait.
    #[must_use]
    pub fn write(world: &World, name: &str) -> Self {
        Self::part(world, Part::write(self::name(name)))
    }

    /// So many of the `capacity` permits of a semaphore, for an owner of its own, ready to wait.
    #[must_use]
    pub fn permits(world: &World, name: &str, permits: u32, capacity: u32) -> Self {
        let part = Part::permits(self::name(name), permits, capacity);
        Self::part(world, part.expect("permits that make sense"))
    }

    /// Several mutexes, for an owner of their own, ready to wait.
    #[must_use]
    pub fn mutexes(world: &World, names: &[&str]) -> Self {
        Self::set(world, names.iter().map(|text| Part::write(self::name(text))).collect())
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

    /// With this lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// With this lock delay.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Instead of this claim and for its owner: an upgrade or downgrade.
    #[must_use]
    pub fn instead_of(mut self, claim: &Claim) -> Self {
        self.replaces = Some(claim.id);
        self.of(&claim.lineage)
    }

    /// A try.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.patience = Patience::Try;
        self
    }
}

#[allow(clippy::must_use_candidate, reason = "a verb may be sent for its effect alone")]
impl Raw {
    pub(super) fn new(engine: Arc<dyn Engine>) -> Self {
        let (session, heard) = (SessionId::new(), Arc::new(Heard::default()));
        let listener: Arc<dyn SignalListener> = Arc::clone(&heard) as _;
        engine.listen(session, Arc::downgrade(&listener) as Weak<dyn SignalListener>);
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
            about: About {
                host: "suite".into(),
                pid: 1,
                place: None,
                label: None,
                conduct: crate::contract::Conduct::default(),
            },
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

    /// Sends claims one after the other.
    #[track_caller]
    pub fn send_all(&self, world: &World, claims: &[Arc<Claim>]) -> Vec<Verdict> {
        let (engine, claims) = (Arc::clone(&self.engine), claims.to_vec());
        let sending = async move {
            let mut answers = Vec::with_capacity(claims.len());
            for claim in &claims {
                answers.push(engine.claim(claim).await?);
            }
            Ok::<_, Error>(answers)
        };
        world.now(sending).expect("the store answers")
    }

    /// Renews one claim.
    #[track_caller]
    pub fn renew(&self, world: &World, claim: &Claim) -> Renewed {
        let mut answers = self.renew_all(world, vec![claim.to_ref()]);
        answers.pop().expect("one answer for each claim")
    }

    /// Renews a batch.
    #[track_caller]
    pub fn renew_all(&self, world: &World, batch: Vec<ClaimRef>) -> Vec<Renewed> {
        let (engine, sent) = (Arc::clone(&self.engine), batch.len());
        let answers = world.now(async move { engine.renew(&batch).await });
        let answers = answers.expect("the store answers");
        assert_eq!(answers.len(), sent, "one answer for each claim");
        answers
    }

    /// Renews a claim that must hold by now, and says what it holds.
    #[track_caller]
    pub fn held(&self, world: &World, claim: &Claim) -> Grant {
        let mut answer = self.renew(world, claim);
        for _ in 0..50 {
            if !matches!(answer, Renewed::Waiting(_)) {
                break;
            }
            world.settle();
            answer = self.renew(world, claim);
        }
        match answer {
            Renewed::Held(grant) => grant,
            other => panic!("should hold: {other:?}"),
        }
    }

    /// Renews a claim that must wait, and says where it stands.
    #[track_caller]
    pub fn waits(&self, world: &World, claim: &Claim) -> Queued {
        world.settle();
        match self.renew(world, claim) {
            Renewed::Waiting(queued) => queued,
            other => panic!("should wait: {other:?}"),
        }
    }

    /// Renews a claim that must be gone, and says why it is.
    #[track_caller]
    pub fn gone(&self, world: &World, claim: &Claim) -> Loss {
        match self.renew(world, claim) {
            Renewed::Gone(loss) => loss,
            other => panic!("should be gone: {other:?}"),
        }
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
        let batch = vec![Release { claim: claim.to_ref(), uncertain }];
        self.release_all(world, batch).pop().expect("one answer for each claim")
    }

    /// Releases a batch.
    #[track_caller]
    pub fn release_all(&self, world: &World, batch: Vec<Release>) -> Vec<Released> {
        let (engine, sent) = (Arc::clone(&self.engine), batch.len());
        let answers = world.now(async move { engine.release(&batch).await });
        let answers = answers.expect("the store answers");
        assert_eq!(answers.len(), sent, "one answer for each claim");
        answers
    }

    /// Releases a grant by force.
    #[track_caller]
    pub fn evict(&self, world: &World, name: &str, fence: Fence, reason: &str) -> Evicted {
        self.evict_name(world, &self::name(name), fence, reason)
    }

    /// Releases a grant of any name by force, reserved ones included.
    #[track_caller]
    pub fn evict_name(&self, world: &World, name: &Name, fence: Fence, reason: &str) -> Evicted {
        let eviction = Eviction::new(name.clone(), fence, reason).expect("a reason");
        let engine = Arc::clone(&self.engine);
        world.now(async move { engine.evict(&eviction).await }).expect("the store answers")
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

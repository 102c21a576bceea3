//! What a scenario plays with: sessions behind links, raw clients, and time. Knows a stage.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::harness::Stage;
use super::link::Link;
pub(super) use super::raw::{Ask, Raw};
use super::waiting::Waiting;
use crate::contract::{Cells, ClaimId, Engine, FenceFloor, Name, Query, SlotView, Snapshot};
use crate::limits;
use crate::primitives::Tenure;

/// Into how many steps a lease is cut where time passes step by step.
const STEPS_IN_A_LEASE: u32 = 12;
/// How many steps something may take that happens as time goes by: five leases.
const STEPS: u32 = 5 * STEPS_IN_A_LEASE;

/// How often a scenario looks for what is under way, and the pause in between: seconds together.
const LOOKS: u32 = 500;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// One scenario's world: a fresh namespace.
pub struct World {
    stage: Box<dyn Stage>,
}

#[allow(clippy::must_use_candidate, reason = "a scenario may look without wanting to know")]
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
        self.actor_with(limits::DEFAULT_MAX_LEASE)
    }

    /// A session that gives up on a store that does not answer for a lease, though its waits have
    /// no limit.
    #[must_use]
    pub fn hasty_actor(&self) -> Actor {
        self.actor_with(self.lease())
    }

    fn actor_with(&self, max_lease: Duration) -> Actor {
        let link = Link::new(self.stage.client());
        let builder = Tenure::builder().clock(self.stage.clock()).lease(self.lease());
        // A call that hangs must leave time for others within the lease.
        let builder = builder.call_limit(self.lease() / 3).close_limit(self.lease());
        let builder = builder.max_lease(max_lease);
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

    /// A lease for claims that are not about time: they outlive any number of calls.
    #[must_use]
    pub fn long_lease(&self) -> Duration {
        (self.lease() * 10).min(limits::DEFAULT_MAX_LEASE)
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

    /// What a call comes to that is served as time goes by, in a few leases at most.
    #[track_caller]
    pub fn served<T>(&self, waiting: Waiting<T>) -> T {
        let mut served = self.all_served(vec![waiting]);
        served.pop().expect("one for one")
    }

    /// What calls come to that are all served as time goes by, in a few leases at most.
    #[track_caller]
    pub fn all_served<T>(&self, mut all: Vec<Waiting<T>>) -> Vec<T> {
        for _ in 0..STEPS {
            Waiting::look(&mut all, self.stage());
            if all.iter().all(Waiting::is_served) {
                break;
            }
            self.pass(self.lease() / STEPS_IN_A_LEASE);
        }
        all.into_iter().map(|one| one.done(self.stage())).collect()
    }

    /// Lets time pass in small steps until it is so. Fails if it is not so after a few leases.
    #[track_caller]
    pub fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        for _ in 0..STEPS {
            self.settle();
            if so() {
                return;
            }
            self.pass(self.lease() / STEPS_IN_A_LEASE);
        }
        panic!("should come to pass: {what}");
    }

    /// Lets time pass in small steps, and looks after each.
    pub fn pass_watching(&self, time: Duration, mut look: impl FnMut()) {
        let step = self.lease() / STEPS_IN_A_LEASE;
        let mut left = time;
        while !left.is_zero() {
            self.pass(step.min(left));
            left = left.saturating_sub(step);
            look();
        }
    }

    /// What the store shows once what is under way has arrived. A call may have been answered
    /// before its consequences are in the store: with etcd a waiter makes itself hold when it hears
    /// of the release, which no answer waits for.
    #[track_caller]
    pub fn inspect(&self, query: Query) -> Snapshot {
        self.settle();
        let engine = self.stage.observer();
        let seen = self.now(async move { engine.inspect(&query).await });
        seen.expect("inspects")
    }

    /// What the store shows of a slot; `None` if it knows nothing of it.
    #[track_caller]
    pub fn slot(&self, name: &str) -> Option<SlotView> {
        self.inspect(Query::Slot(self::name(name))).slots.into_iter().next()
    }

    /// The claims that hold a name, longest first.
    #[track_caller]
    pub fn holders(&self, name: &str) -> Vec<ClaimId> {
        let holders = self.slot(name).map(|slot| slot.holders).unwrap_or_default();
        holders.into_iter().map(|holder| holder.claim).collect()
    }

    /// Fails unless exactly this claim holds the name, without any time passing.
    ///
    /// What is under way may be late by real time: if the store is written to while a watch of etcd
    /// is made, etcd tells this watch of changes up to a tenth of a second after others.
    #[track_caller]
    pub fn assert_served(&self, name: &str, claim: ClaimId) {
        for _ in 0..LOOKS {
            if self.holders(name) == [claim] {
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
        panic!("{name:?} should be held by {claim:?} alone: {:?}", self.slot(name));
    }

    /// The claims that wait for a name, next first.
    #[track_caller]
    pub fn line(&self, name: &str) -> Vec<ClaimId> {
        let line = self.slot(name).map(|slot| slot.queue).unwrap_or_default();
        line.into_iter().map(|waiter| waiter.claim).collect()
    }

    /// Fails if the name has a holder or a waiter.
    #[track_caller]
    pub fn assert_free(&self, name: &str) {
        for _ in 0..50 {
            self.settle();
            let view = self.slot(name);
            if view.is_none_or(|view| view.holders.is_empty() && view.queue.is_empty()) {
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

/// A name that is known to be one.
pub(super) fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

/// The cells of an engine that promises them.
pub(super) fn cells_of(engine: &dyn Engine) -> &dyn Cells {
    engine.cells().expect("the engine promises cells")
}

/// The floor of fences of an engine that promises one.
pub(super) fn floor_of(engine: &dyn Engine) -> &dyn FenceFloor {
    engine.fence_floor().expect("the engine promises a floor of fences")
}

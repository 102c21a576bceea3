//! Tests of the rules: short stories, all small cases, long random programs. Time is handed in by
//! hand and ids are small numbers, so that a failure reads well and comes back the same.
//!
//! The stories are grouped by what they are about. `facts` reads the state and says, from the
//! design alone, who may hold and who is next; `audit` checks every step of a program against it
//! and against the promises; `explore` walks all short programs, `programs` long random ones;
//! `naive` is a second ledger for one slot, slow and obviously right, compared step by step.

mod audit;
mod claims;
mod ends;
mod explore;
mod facts;
mod fences;
mod line;
mod looking;
mod naive;
mod nesting;
mod programs;
mod reentry;
mod sets;
mod time;
mod weights;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Ledger, Now};
use crate::contract::{
    About, Claim, ClaimId, Conduct, Evicted, Eviction, Fence, Grant, Lineage, Name, OwnerId, Part,
    Parts, Patience, Query, Queued, Raised, Refusal, Release, Released, Renewed, SessionId, Signal,
    SlotView, Verdict,
};
use crate::time::Tick;

/// The lease of a claim that does not say otherwise, in milliseconds.
const LEASE: u64 = 1_000;

/// Whether the long run was asked for (`TENURE_TEST_SCALE=nightly`).
fn nightly() -> bool {
    std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn mutex(text: &str) -> Part {
    Part::write(name(text))
}

fn read(text: &str) -> Part {
    Part::read(name(text))
}

fn write(text: &str) -> Part {
    Part::write(name(text))
}

fn permits(text: &str, permits: u32, capacity: u32) -> Part {
    Part::permits(name(text), permits, capacity).unwrap()
}

/// The shown part of an id is its first 32 bits: the number stands there.
fn id(number: u128) -> ClaimId {
    ClaimId::from_u128(number << 96)
}

fn session(number: u128) -> SessionId {
    SessionId::from_u128(number << 96)
}

fn owner_id(number: u128) -> OwnerId {
    OwnerId::from_u128(number << 96)
}

fn owner(number: u128) -> Lineage {
    Lineage::root(owner_id(number))
}

/// An owner and its ancestors, nearest first.
fn nested(number: u128, ancestors: &[u128]) -> Lineage {
    let ancestors: Vec<OwnerId> = ancestors.iter().map(|number| owner_id(*number)).collect();
    Lineage::nested(owner_id(number), &ancestors).unwrap()
}

/// A claim in the making. Waits, belongs to no session, and has the usual lease unless told.
#[derive(Clone, Debug)]
struct Ask(Arc<Claim>);

/// A claim with this number, of this owner, for these parts.
fn ask(number: u128, lineage: &Lineage, parts: impl IntoIterator<Item = Part>) -> Ask {
    Ask(Arc::new(Claim {
        id: id(number),
        session: None,
        lineage: lineage.clone(),
        parts: Parts::set(parts).unwrap(),
        lease: millis(LEASE),
        lock_delay: Duration::ZERO,
        patience: Patience::Wait,
        replaces: None,
        about: About {
            host: Arc::from("host"),
            pid: u32::try_from(number).unwrap(),
            place: None,
            label: None,
            conduct: Conduct::default(),
        },
    }))
}

impl Ask {
    fn with(mut self, change: impl FnOnce(&mut Claim)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    fn trying(self) -> Self {
        self.with(|claim| claim.patience = Patience::Try)
    }

    fn lease(self, lease: u64) -> Self {
        self.with(|claim| claim.lease = millis(lease))
    }

    fn delay(self, delay: u64) -> Self {
        self.with(|claim| claim.lock_delay = millis(delay))
    }

    fn session(self, number: u128) -> Self {
        self.with(|claim| claim.session = Some(session(number)))
    }

    fn replaces(self, other: &Ask) -> Self {
        let other = other.id;
        self.with(|claim| claim.replaces = Some(other))
    }
}

impl Deref for Ask {
    type Target = Arc<Claim>;

    fn deref(&self) -> &Arc<Claim> {
        &self.0
    }
}

/// A ledger and the clocks it is shown.
#[derive(Clone, Debug)]
struct World {
    ledger: Ledger,
    tick: Tick,
    wall: u64,
}

impl World {
    fn new() -> Self {
        Self { ledger: Ledger::default(), tick: Tick::ZERO + millis(LEASE), wall: 1_000_000 }
    }

    fn now(&self) -> Now {
        Now { tick: self.tick, wall_micros: self.wall }
    }

    /// Lets time pass on both clocks.
    fn pass(&mut self, passed: u64) {
        self.tick = self.tick + millis(passed);
        self.wall += passed * 1_000;
    }

    fn claim(&mut self, ask: &Ask) -> Verdict {
        self.ledger.claim(&ask.0, self.now())
    }

    #[track_caller]
    fn granted(&mut self, ask: &Ask) -> Grant {
        match self.claim(ask) {
            Verdict::Granted(grant) => grant,
            other => panic!("{} should be granted: {other:?}", ask.id),
        }
    }

    #[track_caller]
    fn queued(&mut self, ask: &Ask) -> Queued {
        match self.claim(ask) {
            Verdict::Queued(queued) => queued,
            other => panic!("{} should wait: {other:?}", ask.id),
        }
    }

    #[track_caller]
    fn refused(&mut self, ask: &Ask) -> Refusal {
        match self.claim(ask) {
            Verdict::Refused(refusal) => refusal,
            other => panic!("{} should be refused: {other:?}", ask.id),
        }
    }

    fn renew(&mut self, ask: &Ask) -> Renewed {
        self.ledger.renew(&[ask.to_ref()], self.now()).remove(0)
    }

    /// The fence a renewal tells.
    #[track_caller]
    fn fence(&mut self, ask: &Ask) -> Fence {
        match self.renew(ask) {
            Renewed::Held(grant) => fence(&grant),
            other => panic!("{} should hold: {other:?}", ask.id),
        }
    }

    fn release(&mut self, ask: &Ask) -> Released {
        self.end(ask, false)
    }

    /// A release of a claim of which copies may still be under way.
    fn release_uncertain(&mut self, ask: &Ask) -> Released {
        self.end(ask, true)
    }

    fn end(&mut self, ask: &Ask, uncertain: bool) -> Released {
        let release = Release { claim: ask.to_ref(), uncertain };
        self.ledger.release(&[release], self.now()).remove(0)
    }

    fn evict(&mut self, text: &str, fence: Fence, reason: &str) -> Evicted {
        self.ledger.evict(&Eviction::new(name(text), fence, reason).unwrap(), self.now())
    }

    fn slot(&mut self, text: &str) -> Option<SlotView> {
        self.ledger.inspect(&Query::Slot(name(text)), self.now()).slots.pop()
    }

    /// The claims that hold a slot, as their numbers, in order of their arrival there.
    fn holders(&mut self, text: &str) -> Vec<u128> {
        let slot = self.slot(text);
        slot.iter().flat_map(|slot| &slot.holders).map(|hold| number(hold.claim)).collect()
    }

    /// The claims that wait for a slot, as their numbers, next first.
    fn line(&mut self, text: &str) -> Vec<u128> {
        let slot = self.slot(text);
        slot.iter().flat_map(|slot| &slot.queue).map(|ticket| number(ticket.claim)).collect()
    }

    /// Who was told that it holds since the last call, as numbers.
    fn told(&mut self) -> Vec<u128> {
        let granted = |(_, signal): (SessionId, Signal)| match signal {
            Signal::Granted { claim, .. } => Some(number(claim)),
            _ => None,
        };
        self.ledger.take_signals().into_iter().filter_map(granted).collect()
    }
}

fn number(id: ClaimId) -> u128 {
    id.as_u128() >> 96
}

/// The only fence of a grant of one part.
#[track_caller]
fn fence(grant: &Grant) -> Fence {
    let [fence] = grant.fences.as_slice() else { panic!("one part has one fence: {grant:?}") };
    *fence
}

fn fences(grant: &Grant) -> SmallVec<[Fence; 2]> {
    grant.fences.as_slice().iter().copied().collect()
}

//! The auditor: performs a program step by step and checks each step against the promises.
//!
//! Knows the state before and after a step, the answer, and its own memory of fences and
//! tombstones. A complaint is a text; the caller prints the program with it.

mod answers;
mod families;

use std::collections::{BTreeMap, BTreeSet};

use self::families::Families;
use super::facts::{Facts, Scene, Seat, facts};
use super::*;
use crate::contract::{Arrival, Shape};

/// One step of a program. Numbers are places in the cast of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The first copy of a claim, a repeat, a late copy, or a new arrival.
    Claim(usize),
    Renew(usize),
    Release {
        at: usize,
        uncertain: bool,
    },
    /// A forced release of what this claim holds, by the fence of its first part.
    Evict(usize),
    EndSession(u128),
    /// A look at the slots of a claim.
    Look(usize),
    /// Milliseconds pass.
    Pass(u64),
    /// The wall clock is set to this many microseconds.
    Wall(u64),
}

/// A complaint, or nothing.
pub(super) type Checked = Result<(), String>;

/// Says what is wrong if it is.
fn check(right: bool, wrong: impl FnOnce() -> String) -> Checked {
    if right { Ok(()) } else { Err(wrong()) }
}

/// A ledger under audit.
#[derive(Clone, Debug)]
pub(super) struct Auditor {
    pub(super) world: World,
    pub(super) cast: Arc<[Ask]>,
    families: BTreeMap<Name, Families>,
    tombs: BTreeMap<ClaimId, Tick>,
}

/// What a step is about, before and after.
struct Case {
    step: Step,
    /// Which slots the verb must have touched.
    touched: BTreeSet<Name>,
    before: Facts,
    /// As if the touched slots had only been looked at.
    looked: Facts,
    after: Facts,
    /// The claim that the step renewed, first arrivals included.
    renewed: Option<ClaimId>,
    /// The claims that the step itself ended.
    ended: BTreeSet<ClaimId>,
}

impl Auditor {
    pub(super) fn new(cast: impl IntoIterator<Item = Ask>) -> Self {
        let cast = cast.into_iter().collect();
        Self { world: World::new(), cast, families: BTreeMap::new(), tombs: BTreeMap::new() }
    }

    /// The tombstones that should stand.
    pub(super) fn tombs(&self) -> &BTreeMap<ClaimId, Tick> {
        &self.tombs
    }

    /// Whether the fence of a holder's family is spent, and whether the holder has been told it.
    pub(super) fn family(&self, name: &Name, seat: &Seat) -> Option<(bool, bool)> {
        self.families.get(name)?.standing(seat)
    }

    /// Performs one step and checks it.
    pub(super) fn perform(&mut self, step: Step) -> Checked {
        match step {
            Step::Pass(passed) => self.world.pass(passed),
            Step::Wall(micros) => self.world.wall = micros,
            _ => return self.audit(step),
        }
        let facts = facts(&self.world.ledger);
        for (name, scene) in &facts {
            let heavy = scene.living(self.world.tick).too_heavy();
            check(!heavy, || format!("promise 1: too much holds {name}: {scene:?}"))?;
        }
        Ok(())
    }

    fn audit(&mut self, step: Step) -> Checked {
        let before = facts(&self.world.ledger);
        let touched = self.touched(step, &before);
        let mut looked = self.world.clone();
        for name in &touched {
            looked.slot(name.as_str());
        }
        let looked = facts(&looked.ledger);
        let (renewed, ended) = (None, BTreeSet::new());
        let after = Facts::new();
        let mut case = Case { step, touched, before, looked, after, renewed, ended };
        self.carry_out(&mut case)?;
        self.slots_are_served(&case)?;
        self.others_live_on(&case)?;
        self.expiries_stand(&case)?;
        self.fences_grow(&case)?;
        self.whoever_came_in_was_told(&case)?;
        let now = self.world.now();
        self.tombs.retain(|_, until| now.tick < *until);
        check(self.world.ledger.census(now).tombs == self.tombs.len(), || {
            format!("promise 6: other tombstones than {:?}", self.tombs)
        })
    }

    fn touched(&self, step: Step, before: &Facts) -> BTreeSet<Name> {
        let names = |ask: &Ask| ask.parts.names().cloned().collect();
        match step {
            Step::Claim(at) | Step::Renew(at) | Step::Release { at, .. } | Step::Look(at) => {
                names(&self.cast[at])
            }
            Step::Evict(at) => BTreeSet::from([self.cast[at].parts.first_name().clone()]),
            Step::EndSession(_) => before.keys().cloned().collect(),
            Step::Pass(_) | Step::Wall(_) => BTreeSet::new(),
        }
    }

    /// Promises 1 and 2: in every slot the step touched, nothing dead is left, no waiter that may
    /// come in waits, and no waiter came in past another.
    fn slots_are_served(&self, case: &Case) -> Checked {
        let now = self.world.tick;
        for (name, scene) in &case.after {
            let living = scene.living(now);
            let heavy = living.too_heavy();
            check(!heavy, || format!("promise 1: too much holds {name}: {scene:?}"))?;
            if !case.touched.contains(name) {
                continue;
            }
            check(living == *scene, || format!("the dead stay in {name}: {scene:?}"))?;
            for seat in &scene.line {
                check(!scene.eligible(seat, now), || {
                    format!("promise 2: {} may hold {name} but waits: {scene:?}", seat.claim.id)
                })?;
            }
            let place = |seat: &&Seat| (!scene.ahead(seat), seat.arrival);
            let ordered = scene.line.iter().is_sorted_by_key(|seat| place(&seat));
            check(ordered, || format!("promise 2: the line of {name} is not in order: {scene:?}"))?;
        }
        for (before, after, _) in case.phases() {
            for (name, scene) in after {
                let seats = before.get(name).into_iter().flat_map(Scene::seats);
                let seats: Vec<&Seat> = seats.collect();
                for seat in arrived(&seats, scene) {
                    Self::in_turn(name, seat, &seats, scene)?;
                }
            }
        }
        Ok(())
    }

    /// Promise 2: a claim that was granted did not pass one that it had to wait for.
    fn in_turn(name: &Name, seat: &Seat, before: &[&Seat], scene: &Scene) -> Checked {
        // As it was when it came in: without itself and those after it, with what it replaced.
        let mut then = scene.clone();
        let at = scene.holders.iter().position(|holder| holder.life() == seat.life());
        then.holders.truncate(at.unwrap_or_default());
        let replaced = before.iter().filter(|old| Some(old.claim.id) == seat.claim.replaces);
        then.holders.extend(replaced.map(|old| (*old).clone()));
        then.line.retain(|other| before.iter().any(|old| old.life() == other.life()));
        let passed = then.line.iter().find(|other| then.waits_behind(seat, other));
        check(passed.is_none() || then.reenters(seat), || {
            format!("promise 2: {} came into {name} past {passed:?}: {scene:?}", seat.claim.id)
        })
    }

    /// Promise 9: a step acts on its own claim only; all others that live stand as before, or have
    /// come in. A hold ends with the grant of what replaces it, and that one's wait with the hold.
    fn others_live_on(&self, case: &Case) -> Checked {
        for (name, scene) in &case.before {
            for seat in scene.living(self.world.tick).seats() {
                let (id, holds) = (seat.claim.id, seat.fence.is_some());
                let stands =
                    |other: &Seat| other.life() == seat.life() && (!holds || other.fence.is_some());
                let found = case.after.get(name).is_some_and(|scene| scene.seats().any(stands));
                let ends_too = case.ended.contains(&id)
                    || case.is_replaced(name, id)
                    || !holds && seat.claim.replaces.is_some_and(|old| case.is_gone(name, old));
                check(found || ends_too, || {
                    format!("promise 9: {} no longer stands in {name}", seat.claim.id)
                })?;
            }
        }
        for (name, scene) in case.after.iter().filter(|(name, _)| !case.touched.contains(*name)) {
            let without_reserve = |scene: &Scene| {
                let mut scene = scene.clone();
                scene.holders.iter_mut().for_each(|seat| seat.reserved = false);
                scene
            };
            let before = case.before.get(name).map(without_reserve);
            check(before == Some(without_reserve(scene)), || {
                format!("promise 9: {name} was not touched but changed: {scene:?}")
            })?;
        }
        Ok(())
    }

    /// Promise 4: one expiry for all parts of a claim, which only its own renewal changes.
    fn expiries_stand(&self, case: &Case) -> Checked {
        let mut expiries: BTreeMap<ClaimId, Tick> = BTreeMap::new();
        for (name, scene) in &case.after {
            for seat in scene.seats() {
                let id = seat.claim.id;
                let expected = if case.renewed == Some(id) {
                    Some(self.world.tick + seat.claim.lease)
                } else {
                    let before = case.before.get(name).into_iter().flat_map(Scene::seats);
                    let mut same = before.filter(|other| other.life() == seat.life());
                    same.next().map(|same| same.expires)
                };
                let alone = self.world.tick >= seat.expires;
                check(expected == Some(seat.expires), || {
                    format!("promise 4: {id} in {name} expires at {:?}", seat.expires)
                })?;
                let one = *expiries.entry(id).or_insert(seat.expires) == seat.expires;
                check(one || alone, || format!("promise 4: {id} has two expiries"))?;
            }
        }
        Ok(())
    }

    /// Promise 3.
    fn fences_grow(&mut self, case: &Case) -> Checked {
        for (before, after, renewed) in case.phases() {
            self.follow(case, before, after, renewed)?;
        }
        Ok(())
    }

    fn follow(
        &mut self,
        case: &Case,
        before: &Facts,
        after: &Facts,
        renewed: Option<ClaimId>,
    ) -> Checked {
        let now = self.world.now();
        let expired = |seat: &Seat| {
            let session = seat.claim.session.map(|session| session.as_u128() >> 96);
            let with_session = matches!(case.step, Step::EndSession(dead) if Some(dead) == session);
            now.tick >= seat.expires || with_session
        };
        let names: BTreeSet<&Name> = before.keys().chain(after.keys()).collect();
        for name in names {
            let holders = |facts: &Facts| {
                facts.get(name).map(|scene| scene.holders.clone()).unwrap_or_default()
            };
            let shape = after.get(name).or(before.get(name)).map(|scene| scene.shape);
            let families = self.families.entry(name.clone()).or_default();
            let shares = shape.is_some_and(Shape::reentrant);
            families
                .follow(&holders(before), &holders(after), shares, renewed, now, expired)
                .map_err(|wrong| format!("promise 3: in {name} {wrong}: {after:?}"))?;
        }
        Ok(())
    }

    /// A claim that waited and now holds all its parts was signalled, once, and no other.
    fn whoever_came_in_was_told(&mut self, case: &Case) -> Checked {
        let mut told = Vec::new();
        for (to, signal) in self.world.ledger.take_signals() {
            match signal {
                Signal::Granted { claim, grant } => told.push((to, claim, grant.arrival)),
                Signal::Ended { claim, .. } => check(case.ended.contains(&claim), || {
                    format!("{claim} was told of an end that did not come")
                })?,
                Signal::AllEnded { .. }
                | Signal::Resync
                | Signal::Again { .. }
                | Signal::Jobs { .. } => {
                    return Err("a ledger never loses a signal, nor itself".into());
                }
            }
        }
        // It may have been told, and then have ended in the same step.
        let replaced = |id: ClaimId| case.after.keys().any(|name| case.is_replaced(name, id));
        let holds = |life: (ClaimId, Arrival)| {
            case.after.values().flat_map(|scene| &scene.holders).any(|seat| seat.life() == life)
        };
        told.retain(|(_, id, arrival)| {
            holds((*id, *arrival)) || !case.ended.contains(id) && !replaced(*id)
        });
        let waited = |facts: &Facts, seat: &Seat| {
            facts.values().flat_map(|scene| &scene.line).any(|other| other.life() == seat.life())
        };
        let mut due = Vec::new();
        for seat in case.after.values().flat_map(|scene| &scene.holders) {
            let (Some(session), (id, arrival)) = (seat.claim.session, seat.life()) else {
                continue;
            };
            let lives = self.world.tick < seat.expires;
            let came_in = lives && waited(&case.before, seat) && !waited(&case.after, seat);
            if came_in && !due.contains(&(session, id, arrival)) {
                due.push((session, id, arrival));
            }
        }
        told.sort_unstable();
        due.sort_unstable();
        check(told == due, || format!("{told:?} were told, {due:?} came in"))
    }
}

impl Case {
    /// From what to what, and who was renewed on the way. Most verbs look first: a claim that is
    /// granted then may be renewed or replaced in the same step.
    fn phases(&self) -> Vec<(&Facts, &Facts, Option<ClaimId>)> {
        if matches!(self.step, Step::Release { .. } | Step::EndSession(_)) {
            return vec![(&self.before, &self.after, None)];
        }
        let look = (&self.before, &self.looked, None);
        vec![look, (&self.looked, &self.after, self.renewed)]
    }

    fn is_replaced(&self, name: &Name, id: ClaimId) -> bool {
        // Whatever replaced it may have ended in the same step.
        let scenes = self.after.get(name).into_iter().chain(self.looked.get(name));
        scenes.flat_map(|scene| &scene.holders).any(|seat| seat.claim.replaces == Some(id))
    }

    fn is_gone(&self, name: &Name, id: ClaimId) -> bool {
        let holders = |facts: &Facts| {
            let holders = facts.get(name).into_iter().flat_map(|scene| scene.holders.clone());
            holders.filter(|seat| seat.claim.id == id).map(|seat| seat.life()).next()
        };
        holders(&self.after) != holders(&self.before)
    }
}

/// The holders that did not hold before.
fn arrived<'a>(before: &'a [&Seat], after: &'a Scene) -> impl Iterator<Item = &'a Seat> {
    let held =
        |seat: &Seat| before.iter().any(|old| old.life() == seat.life() && old.fence.is_some());
    after.holders.iter().filter(move |seat| !held(seat))
}

/// Runs a program. If something is wrong, tells the whole story.
pub(super) fn run(cast: &[Ask], program: &[Step]) -> Checked {
    let mut auditor = Auditor::new(cast.iter().cloned());
    for (at, step) in program.iter().enumerate() {
        auditor.perform(*step).map_err(|wrong| story(cast, &program[..=at], &wrong))?;
    }
    Ok(())
}

/// A failed program for people to read.
pub(super) fn story(cast: &[Ask], program: &[Step], wrong: &str) -> String {
    use std::fmt::Write;
    let mut text = format!("{wrong}\nclaims:\n");
    for (at, ask) in cast.iter().enumerate() {
        let parts: Vec<_> = ask.parts.as_slice().iter().collect();
        let owners: Vec<_> = ask.lineage.all().map(|owner| owner.as_u128() >> 96).collect();
        let (lease, delay) = (ask.lease, ask.lock_delay);
        let replaces = ask.replaces.map(number);
        _ = writeln!(
            text,
            "  {at}: id {} owners {owners:?} {:?} lease {lease:?} delay {delay:?} \
             replaces {replaces:?} session {:?} {parts:?}",
            number(ask.id),
            ask.patience,
            ask.session,
        );
    }
    _ = write!(text, "program: {program:?}");
    text
}

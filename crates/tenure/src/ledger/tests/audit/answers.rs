//! Carries a step out and compares the answer with what stands before and after it.

use super::super::*;
use super::{Auditor, Case, Checked, Facts, Scene, Seat, Step, check, facts};
use crate::contract::{Arrival, Loss};
use crate::limits;

impl Auditor {
    pub(super) fn carry_out(&mut self, case: &mut Case) -> Checked {
        match case.step {
            Step::Claim(at) => self.claim(&self.cast[at].clone(), case),
            Step::Renew(at) => self.renew(&self.cast[at].clone(), case),
            Step::Release { at, uncertain } => {
                self.release(&self.cast[at].clone(), uncertain, case)
            }
            Step::Evict(at) => self.evict(&self.cast[at].clone(), case),
            Step::EndSession(number) => {
                let now = self.world.now();
                let of_it = |seat: &&Seat| seat.claim.session == Some(session(number));
                let seats = case.before.values().flat_map(Scene::seats).filter(of_it);
                case.ended = seats.map(|seat| seat.claim.id).collect();
                self.world.ledger.end_session(session(number), now);
                case.after = facts(&self.world.ledger);
                gone(case)
            }
            Step::Look(_) => {
                for name in &case.touched {
                    self.world.slot(name.as_str());
                }
                case.after = facts(&self.world.ledger);
                same(&case.looked, &case.after)
            }
            Step::Pass(_) | Step::Wall(_) => Ok(()),
        }
    }

    fn claim(&mut self, ask: &Ask, case: &mut Case) -> Checked {
        let verdict = self.world.claim(ask);
        case.after = facts(&self.world.ledger);
        if self.tombs.get(&ask.id).is_some_and(|until| self.world.tick < *until) {
            let refused = verdict == Verdict::Refused(Refusal::Withdrawn);
            check(refused, || format!("promise 6: a late copy heard {verdict:?}"))?;
            return same(&case.looked, &case.after);
        }
        if let Some(arrival) = arrival(&case.looked, ask) {
            return self.repeated(ask, arrival, &verdict, case);
        }
        match verdict {
            Verdict::Refused(refusal) => {
                same(&case.looked, &case.after)?;
                self.refused(ask, &refusal, case)
            }
            Verdict::Granted(grant) => {
                case.renewed = Some(ask.id);
                Self::holds(ask, &grant, case)
            }
            Verdict::Queued(queued) => {
                case.renewed = Some(ask.id);
                check(ask.patience == Patience::Wait, || "a try never waits".into())?;
                self.waits(ask, &queued, case)
            }
        }
    }

    /// Promise 5: a repeat renews and changes nothing else, and its answer is the standing one.
    fn repeated(&mut self, ask: &Ask, at: Arrival, verdict: &Verdict, case: &mut Case) -> Checked {
        case.renewed = Some(ask.id);
        let heard = match verdict {
            Verdict::Granted(grant) => {
                Self::holds(ask, grant, case)?;
                grant.arrival
            }
            Verdict::Queued(queued) => {
                self.waits(ask, queued, case)?;
                queued.arrival
            }
            Verdict::Refused(_) => return Err(format!("promise 5: a repeat heard {verdict:?}")),
        };
        check(heard == at, || format!("promise 5: a repeat arrived anew as {heard:?}"))?;
        same(&plain(&case.looked, ask), &plain(&case.after, ask))
    }

    fn renew(&mut self, ask: &Ask, case: &mut Case) -> Checked {
        let answer = self.world.renew(ask);
        case.after = facts(&self.world.ledger);
        let known = arrival(&case.looked, ask);
        let heard = match &answer {
            Renewed::Gone(loss) => {
                check(known.is_none(), || format!("{} lives but is {loss:?}", ask.id))?;
                let buried = self.tombs.contains_key(&ask.id);
                let evicted = matches!(loss, Loss::Evicted { .. });
                check(!evicted || buried, || format!("{} was never evicted", ask.id))?;
                return same(&case.looked, &case.after);
            }
            Renewed::Unanswered(_) => return Err("a ledger always answers".into()),
            Renewed::Held(grant) => {
                case.renewed = Some(ask.id);
                Self::holds(ask, grant, case)?;
                grant.arrival
            }
            Renewed::Waiting(queued) => {
                case.renewed = Some(ask.id);
                self.waits(ask, queued, case)?;
                queued.arrival
            }
        };
        check(known == Some(heard), || format!("{} answers as {heard:?}", ask.id))?;
        same(&plain(&case.looked, ask), &plain(&case.after, ask))
    }

    fn release(&mut self, ask: &Ask, uncertain: bool, case: &mut Case) -> Checked {
        // What time has ended is dropped first, but nothing is granted before it has been released.
        let living = |(name, scene): (&Name, &Scene)| (name.clone(), scene.living(self.world.tick));
        let living: Facts = case.before.iter().map(living).collect();
        // A wait ends with the hold it would replace.
        let orphan = ask.parts.names().any(|name| {
            let waits = seat(&living, name, ask.id).is_some_and(|seat| seat.fence.is_none());
            waits && ask.replaces.is_some_and(|old| seat(&living, name, old).is_none())
        });
        let living = arrival(&living, ask).is_some() && !orphan;
        let answer = self.world.end(ask, uncertain);
        case.after = facts(&self.world.ledger);
        case.ended.insert(ask.id);
        if uncertain {
            self.tombs.insert(ask.id, self.world.tick + ask.lease);
        }
        let expected = if living { Released::Done } else { Released::Gone };
        check(answer == expected, || format!("{} was {answer:?}, not {expected:?}", ask.id))?;
        gone(case)
    }

    fn evict(&mut self, ask: &Ask, case: &mut Case) -> Checked {
        let name = ask.parts.first_name();
        let holders = case.looked.get(name).map(|scene| scene.holders.clone()).unwrap_or_default();
        let mine = holders.iter().find(|seat| seat.claim.id == ask.id);
        let fence = mine.and_then(|seat| seat.fence).unwrap_or(Fence::new(limits::FENCE));
        let hit: Vec<&Seat> = holders.iter().filter(|seat| seat.fence == Some(fence)).collect();
        let answer = self.world.evict(name.as_str(), fence, "audit");
        case.after = facts(&self.world.ledger);
        for seat in &hit {
            case.ended.insert(seat.claim.id);
            case.touched.extend(seat.claim.parts.names().cloned());
            self.tombs.insert(seat.claim.id, self.world.tick + seat.claim.lease);
        }
        let right = match &answer {
            Evicted::Done(ended) => !hit.is_empty() && ended.len() == hit.len(),
            Evicted::NoSuchGrant(others) => hit.is_empty() && others.len() == holders.len(),
        };
        check(right, || format!("evicting {fence} gave {answer:?}"))?;
        gone(case)
    }

    fn holds(ask: &Ask, grant: &Grant, case: &Case) -> Checked {
        let parts = ask.parts.as_slice().iter().zip(grant.fences.as_slice());
        for (part, fence) in parts {
            let seat = seat(&case.after, part.name(), ask.id);
            let right = seat.is_some_and(|seat| {
                seat.fence == Some(*fence) && seat.arrival == grant.arrival && !seat.reserved
            });
            check(right, || format!("{} heard {grant:?} but stands as {seat:?}", ask.id))?;
        }
        let all = grant.fences.as_slice().len() == ask.parts.as_slice().len();
        check(all, || format!("{} has a fence missing", ask.id))
    }

    fn waits(&self, ask: &Ask, queued: &Queued, case: &Case) -> Checked {
        let mut worst = 0;
        for name in ask.parts.names() {
            let scene = &case.after.get(name).ok_or("it waits for a slot that is not there")?;
            let place = scene.line.iter().position(|seat| seat.claim.id == ask.id);
            worst = worst.max(place.map_or(0, |place| place + 1));
            let seat = seat(&case.after, name, ask.id);
            let right = seat.is_some_and(|seat| {
                seat.arrival == queued.arrival && seat.reserved == place.is_none()
            });
            check(right, || format!("{} waits but stands as {seat:?} in {name}", ask.id))?;
        }
        check(worst > 0 && worst == queued.place, || {
            format!("{} stands at place {worst}, not {}", ask.id, queued.place)
        })?;
        self.is_not_late(ask, queued)
    }

    /// A head of the line that asks again at the first expiry has missed nothing until then.
    fn is_not_late(&self, ask: &Ask, queued: &Queued) -> Checked {
        let first = queued.first_expiry.ok_or("the head waits for nothing that ends")?;
        if queued.place > 1 || ask.parts.as_slice().len() > 1 || first.is_zero() {
            return Ok(());
        }
        let mut later = self.world.clone();
        later.tick = later.tick + first - Duration::from_nanos(1);
        later.slot(ask.parts.first_name().as_str());
        let after = facts(&later.ledger);
        let seat = seat(&after, ask.parts.first_name(), ask.id);
        check(seat.is_none_or(|seat| seat.fence.is_none()), || {
            format!("{} is told to ask again in {first:?}, which is late", ask.id)
        })
    }

    /// A refusal has its reason in the state.
    fn refused(&self, ask: &Ask, refusal: &Refusal, case: &Case) -> Checked {
        let now = self.world.tick;
        let scene = |name: &Name| case.looked.get(name).filter(|one| one.seats().next().is_some());
        let scenes = || ask.parts.as_slice().iter().map(|part| (part, scene(part.name())));
        let right = match refusal {
            Refusal::Held { .. } => {
                let comes_in = |(part, scene): (&Part, Option<&Scene>)| {
                    let closed = case.looked.get(part.name());
                    let closed = closed.is_some_and(|scene| now < scene.closed_until);
                    let newcomer = newcomer(ask, part, now);
                    scene.map_or(!closed, |scene| scene.eligible(&newcomer, now))
                };
                ask.patience == Patience::Try && !scenes().all(comes_in)
            }
            Refusal::Shape { name, stands } => {
                scene(name).is_some_and(|scene| scene.shape == *stands)
                    && ask.parts.as_slice().iter().any(|part| part.shape() != *stands)
            }
            Refusal::NothingToReplace => ask.replaces.is_some_and(|old| {
                let own = |seat: &Seat| seat.claim.id == old && seat.owner() == ask.lineage.owner();
                let held = scenes().filter_map(|(_, scene)| scene);
                !held.flat_map(|scene| &scene.holders).any(own)
            }),
            Refusal::Upgrade { .. } => scenes().any(|(part, scene)| {
                let newcomer = newcomer(ask, part, now);
                scene.is_some_and(|scene| scene.has_rival(&newcomer))
            }),
            Refusal::Withdrawn | Refusal::Full { .. } => false,
        };
        check(right, || format!("{} was refused without reason: {refusal:?}", ask.id))
    }
}

impl Scene {
    /// Another upgrade waits, and each of the two waits for what the other's lineage holds.
    fn has_rival(&self, seat: &Seat) -> bool {
        let upgrades = |seat: &Seat| self.ahead(seat) && !self.reenters(seat);
        let waits_for = |one: &Seat, other: &Seat| {
            let mut held = self.holders.iter().filter(|hold| !one.lineage().includes(hold.owner()));
            held.any(|hold| other.lineage().includes(hold.owner()))
        };
        let rival =
            |other: &Seat| upgrades(other) && waits_for(seat, other) && waits_for(other, seat);
        upgrades(seat) && self.line.iter().any(rival)
    }
}

fn newcomer(ask: &Ask, part: &Part, now: Tick) -> Seat {
    Seat {
        claim: Arc::clone(&ask.0),
        weight: part.weight(),
        arrival: Arrival(u64::MAX),
        expires: now + ask.lease,
        fence: None,
        reserved: false,
    }
}

fn seat<'a>(facts: &'a Facts, name: &Name, id: ClaimId) -> Option<&'a Seat> {
    facts.get(name)?.seats().find(|seat| seat.claim.id == id)
}

/// The arrival of a claim that holds or waits in all its slots.
fn arrival(facts: &Facts, ask: &Ask) -> Option<Arrival> {
    let mut seats = ask.parts.names().map(|name| seat(facts, name, ask.id));
    let first = seats.next()??.arrival;
    seats.all(|seat| seat.is_some_and(|seat| seat.arrival == first)).then_some(first)
}

/// The facts without what a renewal of this claim may change.
fn plain(facts: &Facts, ask: &Ask) -> Facts {
    let mut facts = facts.clone();
    for scene in facts.values_mut() {
        for seat in scene.holders.iter_mut().chain(&mut scene.line) {
            if seat.claim.id == ask.id {
                seat.expires = Tick::ZERO;
                seat.fence = seat.fence.map(|_| Fence::new(1));
            }
        }
    }
    facts
}

fn same(expected: &Facts, found: &Facts) -> Checked {
    check(expected == found, || format!("should stand: {expected:?}\nbut stands: {found:?}"))
}

/// Whatever the step ended stands nowhere.
fn gone(case: &Case) -> Checked {
    let mut seats = case.after.values().flat_map(Scene::seats);
    let left = seats.find(|seat| case.ended.contains(&seat.claim.id));
    check(left.is_none(), || format!("promise 9: it was ended but stands: {left:?}"))
}

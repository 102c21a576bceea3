//! Verdicts on deadlocks: a waiting claim is refused if all facts stand, and only then.

use std::sync::Arc;

use super::{Ask, Raw, World, child_of, list, name, owner};
use crate::contract::{
    Claim, ClaimAt, DeadlockCase, Lineage, Loss, Part, Query, Refusal, Released, Signal, Verdict,
    VictimVerdict, concurrency_marker,
};
use crate::deadlock;
use crate::limits;

list! { Deadlocks:
    one_victim_is_refused_and_the_other_is_served cites [11] needs [Deadlocks];
    a_second_verdict_on_the_same_facts_refuses_no_claim cites [11] needs [Deadlocks];
    a_victim_learns_why_from_the_push_and_from_a_renewal cites [8, 11] needs [Deadlocks, Push];
    a_verdict_falls_if_a_hold_was_released cites [11] needs [Deadlocks];
    a_verdict_falls_if_a_wait_was_withdrawn cites [11] needs [Deadlocks];
    a_verdict_falls_if_a_hold_or_a_wait_has_expired cites [2, 11] needs [Deadlocks];
    a_verdict_falls_if_one_of_two_holders_is_gone cites [2, 11] needs [Deadlocks, Counting];
    a_verdict_falls_if_a_second_wait_appears cites [11] needs [Deadlocks];
    a_verdict_falls_if_a_nested_owner_begins_to_wait cites [11] needs [Deadlocks];
    a_verdict_falls_if_a_marker_appears_and_stands_again_without_it cites [11] needs [Deadlocks];
    a_claim_that_was_granted_meanwhile_is_not_refused cites [11] needs [Deadlocks];
    a_copy_of_a_victim_that_arrives_late_is_refused cites [6, 11] needs [Deadlocks];
    the_queue_behind_a_victim_moves_on cites [2, 11] needs [Deadlocks, Sharing];
    a_set_that_is_refused_frees_what_was_reserved cites [11] needs [Deadlocks, AtomicSets];
    a_waiting_upgrade_is_refused_and_its_read_lock_stays cites [11] needs [Deadlocks, Sharing];
    reach_shows_markers_and_waits_of_descendants cites [11] needs [Deadlocks];
    a_deadlock_at_the_limit_is_broken cites [11] needs [Deadlocks];
}

/// Two owners that hold one mutex each and wait for the other's.
struct Crossed {
    raw: Raw,
    holds: [Arc<Claim>; 2],
    waits: [Arc<Claim>; 2],
}

fn crossed(world: &World) -> Crossed {
    let raw = world.raw();
    let owners = [owner(), owner()];
    let ask =
        |n: usize, name: &str| Ask::mutex(world, name).of(&owners[n]).lease(world.long_lease());
    let holds = [raw.granted(world, ask(0, "a")).0, raw.granted(world, ask(1, "b")).0];
    let waits = [raw.queued(world, ask(0, "b")).0, raw.queued(world, ask(1, "a")).0];
    Crossed { raw, holds, waits }
}

impl Crossed {
    /// The case against the second owner, as a detector would make it.
    fn case(&self, world: &World) -> DeadlockCase {
        let owner = self.waits[0].lineage.owner();
        let found = deadlock::find_around(&world.inspect(Query::Reach(owner)), owner);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].members.len(), 2, "{found:?}");
        self.case_by_hand()
    }

    fn case_by_hand(&self) -> DeadlockCase {
        let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
        DeadlockCase {
            victim: at("a", &self.waits[1]),
            holds: vec![at("a", &self.holds[0]), at("b", &self.holds[1])],
            waits: vec![at("b", &self.waits[0]), at("a", &self.waits[1])],
            owners: self.waits.iter().map(|claim| claim.lineage.owner()).collect(),
            words: "one waits for two; two waits for one".into(),
        }
    }
}

#[track_caller]
fn verdict(world: &World, raw: &Raw, case: &DeadlockCase) -> VictimVerdict {
    let (engine, case) = (Arc::clone(raw.engine()), case.clone());
    let call = async move {
        let verdicts = engine.deadlocks().expect("promised");
        verdicts.refuse_victim(&case).await
    };
    world.now(call).expect("the store answers")
}

fn one_victim_is_refused_and_the_other_is_served(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, holds, waits } = &crossed;
    assert_eq!(verdict(world, raw, &crossed.case(world)), VictimVerdict::Refused);
    assert!(matches!(raw.gone(world, &waits[1]), Loss::Deadlock { .. }));
    raw.waits(world, &waits[0]);
    raw.held(world, &holds[1]);
    assert_eq!(raw.release(world, &holds[1]), Released::Done, "a hold is never taken away");
    raw.held(world, &waits[0]);
}

fn a_second_verdict_on_the_same_facts_refuses_no_claim(world: &World) {
    let crossed = crossed(world);
    let case = crossed.case(world);
    assert_eq!(verdict(world, &crossed.raw, &case), VictimVerdict::Refused);
    let mut other = case.clone();
    other.victim = case.waits[0].clone();
    for case in [case, other] {
        assert_eq!(verdict(world, &crossed.raw, &case), VictimVerdict::Changed);
    }
    crossed.raw.waits(world, &crossed.waits[0]);
}

fn a_victim_learns_why_from_the_push_and_from_a_renewal(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    let case = crossed.case(world);
    raw.heard(world);
    verdict(world, raw, &case);
    let told = Loss::Deadlock { words: case.words };
    let mut heard = Vec::new();
    world.until("the victim is notified", || {
        heard.extend(raw.heard(world));
        !heard.is_empty()
    });
    assert_eq!(heard, [Signal::Ended { claim: waits[1].id, loss: told.clone() }]);
    assert_eq!(raw.gone(world, &waits[1]), told);
}

fn a_verdict_falls_if_a_hold_was_released(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, holds, waits } = &crossed;
    let case = crossed.case(world);
    raw.release(world, &holds[0]);
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Changed);
    raw.held(world, &waits[1]);
}

fn a_verdict_falls_if_a_wait_was_withdrawn(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    let case = crossed.case(world);
    raw.withdraw(world, &waits[0]);
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Changed);
    raw.waits(world, &waits[1]);
}

fn a_verdict_falls_if_a_hold_or_a_wait_has_expired(world: &World) {
    for expires in ["hold", "wait"] {
        let raw = world.raw();
        let owners = [owner(), owner()];
        let (a, b) = (format!("{expires} a"), format!("{expires} b"));
        let ask = |n: usize, name: &str, short: bool| {
            let lease = if short { world.lease() / 2 } else { world.long_lease() };
            Ask::mutex(world, name).of(&owners[n]).lease(lease)
        };
        let (hold, _) = raw.granted(world, ask(0, &a, expires == "hold"));
        let (other, _) = raw.granted(world, ask(1, &b, false));
        let (wait, _) = raw.queued(world, ask(0, &b, expires == "wait"));
        let (victim, _) = raw.queued(world, ask(1, &a, false));
        let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
        let case = DeadlockCase {
            victim: at(&a, &victim),
            holds: vec![at(&a, &hold), at(&b, &other)],
            waits: vec![at(&b, &wait), at(&a, &victim)],
            owners: owners.iter().map(Lineage::owner).collect(),
            words: "expired".into(),
        };
        // Past the short lease only: all else must stand.
        world.pass(world.lease() / 4 * 3);
        assert_eq!(verdict(world, &raw, &case), VictimVerdict::Changed, "{expires}");
        raw.held(world, &other);
    }
}

/// The victim waits for both permits of a semaphore. The owner of one of them is in the cycle; the
/// other one belongs to an owner that can run, and keeps the victim in the queue. So no wait tells
/// that the first hold is gone: only the comparison of holds does.
fn a_verdict_falls_if_one_of_two_holders_is_gone(world: &World) {
    for how in ["released", "expired"] {
        let raw = world.raw();
        let owners = [owner(), owner()];
        let (permits, mutex) = (format!("{how} permits"), format!("{how} mutex"));
        let long = |ask: Ask| ask.lease(world.long_lease());
        let one = Ask::permits(world, &permits, 1, 2).of(&owners[0]);
        let (hold, _) = raw.granted(world, one.lease(world.lease() / 2));
        raw.granted(world, long(Ask::permits(world, &permits, 1, 2)));
        let (other, _) = raw.granted(world, long(Ask::mutex(world, &mutex).of(&owners[1])));
        let (wait, _) = raw.queued(world, long(Ask::mutex(world, &mutex).of(&owners[0])));
        let both = Ask::permits(world, &permits, 2, 2).of(&owners[1]);
        let (victim, _) = raw.queued(world, long(both));
        let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
        let case = DeadlockCase {
            victim: at(&permits, &victim),
            holds: vec![at(&permits, &hold), at(&mutex, &other)],
            waits: vec![at(&mutex, &wait), at(&permits, &victim)],
            owners: owners.iter().map(Lineage::owner).collect(),
            words: how.into(),
        };
        if how == "expired" {
            world.pass(world.lease() / 4 * 3);
        } else {
            raw.release(world, &hold);
        }
        assert_eq!(verdict(world, &raw, &case), VictimVerdict::Changed, "{how}");
        raw.waits(world, &victim);
    }
}

fn a_verdict_falls_if_a_second_wait_appears(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    let case = crossed.case(world);
    raw.granted(world, Ask::mutex(world, "c"));
    let (second, _) = raw.queued(world, Ask::mutex(world, "c").of(&waits[0].lineage));
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Changed);
    let owner = waits[0].lineage.owner();
    assert_eq!(deadlock::find_around(&world.inspect(Query::Reach(owner)), owner), []);
    raw.waits(world, &waits[1]);
    raw.withdraw(world, &second);
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Refused);
}

fn a_verdict_falls_if_a_nested_owner_begins_to_wait(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    let case = crossed.case(world);
    raw.granted(world, Ask::mutex(world, "c"));
    let child = child_of(&waits[0].lineage);
    let (nested, _) = raw.queued(world, Ask::mutex(world, "c").of(&child));
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Changed);
    let owner = waits[0].lineage.owner();
    assert_eq!(deadlock::find_around(&world.inspect(Query::Reach(owner)), owner), []);
    raw.withdraw(world, &nested);
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Refused);
}

fn a_verdict_falls_if_a_marker_appears_and_stands_again_without_it(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    let case = crossed.case(world);
    let part = Part::read(concurrency_marker(waits[0].lineage.owner()));
    let (marker, _) = raw.granted(world, Ask::part(world, part));
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Changed);
    let owner = waits[1].lineage.owner();
    assert_eq!(deadlock::find_around(&world.inspect(Query::Reach(owner)), owner), []);
    raw.release(world, &marker);
    assert_eq!(verdict(world, raw, &case), VictimVerdict::Refused);
}

fn a_claim_that_was_granted_meanwhile_is_not_refused(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, holds, waits } = &crossed;
    let case = crossed.case(world);
    raw.release(world, &holds[0]);
    raw.held(world, &waits[1]);
    let mut smaller = case;
    smaller.holds.clear();
    smaller.waits.truncate(1);
    assert_eq!(verdict(world, raw, &smaller), VictimVerdict::Changed);
    raw.held(world, &waits[1]);
}

fn a_copy_of_a_victim_that_arrives_late_is_refused(world: &World) {
    let crossed = crossed(world);
    let Crossed { raw, waits, .. } = &crossed;
    verdict(world, raw, &crossed.case(world));
    let again = raw.send(world, &waits[1]);
    assert!(matches!(again, Verdict::Refused(Refusal::Withdrawn)), "{again:?}");
}

fn the_queue_behind_a_victim_moves_on(world: &World) {
    let raw = world.raw();
    let owners = [owner(), owner()];
    let ask = |ask: Ask, n: usize| ask.of(&owners[n]).lease(world.long_lease());
    let (read, _) = raw.granted(world, ask(Ask::read(world, "a"), 0));
    let (other, _) = raw.granted(world, ask(Ask::mutex(world, "b"), 1));
    let (wait, _) = raw.queued(world, ask(Ask::mutex(world, "b"), 0));
    let (victim, _) = raw.queued(world, ask(Ask::write(world, "a"), 1));
    let (behind, _) = raw.queued(world, Ask::read(world, "a").lease(world.long_lease()));
    let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
    let case = DeadlockCase {
        victim: at("a", &victim),
        holds: vec![at("a", &read), at("b", &other)],
        waits: vec![at("b", &wait), at("a", &victim)],
        owners: owners.iter().map(Lineage::owner).collect(),
        words: "a writer and a reader".into(),
    };
    assert_eq!(verdict(world, &raw, &case), VictimVerdict::Refused);
    raw.held(world, &behind);
}

fn a_set_that_is_refused_frees_what_was_reserved(world: &World) {
    let raw = world.raw();
    let owners = [owner(), owner()];
    let ask = |ask: Ask, n: usize| ask.of(&owners[n]).lease(world.long_lease());
    let (one, _) = raw.granted(world, ask(Ask::mutex(world, "a"), 0));
    let (two, _) = raw.granted(world, ask(Ask::mutex(world, "b"), 1));
    let (wait, _) = raw.queued(world, ask(Ask::mutex(world, "b"), 0));
    let (set, _) = raw.queued(world, ask(Ask::mutexes(world, &["a", "c", "d"]), 1));
    let (behind, _) = raw.queued(world, Ask::mutex(world, "c").lease(world.long_lease()));
    let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
    let case = DeadlockCase {
        victim: at("a", &set),
        holds: vec![at("a", &one), at("b", &two)],
        waits: vec![at("b", &wait), at("a", &set)],
        owners: owners.iter().map(Lineage::owner).collect(),
        words: "a set".into(),
    };
    assert_eq!(verdict(world, &raw, &case), VictimVerdict::Refused);
    raw.held(world, &behind);
    world.assert_free("d");
}

fn a_waiting_upgrade_is_refused_and_its_read_lock_stays(world: &World) {
    let raw = world.raw();
    let owners = [owner(), owner()];
    let ask = |ask: Ask, n: usize| ask.of(&owners[n]).lease(world.long_lease());
    let (one, _) = raw.granted(world, ask(Ask::read(world, "a"), 0));
    let (two, _) = raw.granted(world, ask(Ask::read(world, "a"), 1));
    let (held, _) = raw.granted(world, ask(Ask::mutex(world, "b"), 0));
    let (wait, _) = raw.queued(world, ask(Ask::mutex(world, "b"), 1));
    let upgrade = Ask::write(world, "a").instead_of(&one).lease(world.long_lease());
    let (upgrade, _) = raw.queued(world, upgrade);
    let found = deadlock::find(&world.inspect(Query::Reach(owners[0].owner())));
    assert_eq!(found.len(), 1);
    let at = |text: &str, claim: &Claim| ClaimAt { name: name(text), claim: claim.id };
    let case = DeadlockCase {
        victim: at("a", &upgrade),
        holds: vec![at("a", &two), at("b", &held)],
        waits: vec![at("a", &upgrade), at("b", &wait)],
        owners: owners.iter().map(Lineage::owner).collect(),
        words: "an upgrade".into(),
    };
    assert_eq!(verdict(world, &raw, &case), VictimVerdict::Refused);
    raw.held(world, &one);
    raw.held(world, &two);
}

fn reach_shows_markers_and_waits_of_descendants(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let child = child_of(&parent);
    let me = owner();
    raw.granted(world, Ask::mutex(world, "a").of(&parent));
    raw.granted(world, Ask::mutex(world, "b"));
    raw.queued(world, Ask::mutex(world, "b").of(&child));
    raw.queued(world, Ask::mutex(world, "a").of(&me));
    let marker = concurrency_marker(child.owner());
    raw.granted(world, Ask::part(world, Part::read(marker.clone())));
    let seen = world.inspect(Query::Reach(me.owner()));
    let names: Vec<_> = seen.slots.iter().map(|slot| slot.name.clone()).collect();
    for wanted in [marker, name("a"), name("b")] {
        assert!(names.contains(&wanted), "{wanted:?} in {names:?}");
    }
}

fn a_deadlock_at_the_limit_is_broken(world: &World) {
    let raw = world.raw();
    let length = limits::DEADLOCK_FACTS / 2;
    let owners: Vec<Lineage> = (0..length).map(|_| owner()).collect();
    let ask = |n: usize, fork: usize| {
        let name = format!("fork {:03}", fork % length);
        raw.make(Ask::mutex(world, &name).of(&owners[n]).lease(world.long_lease()))
    };
    let holds: Vec<_> = (0..length).map(|n| ask(n, n)).collect();
    let waits: Vec<_> = (0..length).map(|n| ask(n, n + 1)).collect();
    raw.send_all(world, &holds);
    raw.send_all(world, &waits);
    let first = owners[0].owner();
    let found = deadlock::find_around(&world.inspect(Query::Reach(first)), first);
    assert_eq!(found[0].members.len(), length);
    let at =
        |claim: &Arc<Claim>| ClaimAt { name: claim.parts.first_name().clone(), claim: claim.id };
    let case = DeadlockCase {
        victim: at(&waits[7]),
        holds: holds.iter().map(at).collect(),
        waits: waits.iter().map(at).collect(),
        owners: owners.iter().map(Lineage::owner).collect(),
        words: found[0].words().into(),
    };
    assert!(case.fits());
    assert_eq!(verdict(world, &raw, &case), VictimVerdict::Refused);
    assert!(matches!(raw.gone(world, &waits[7]), Loss::Deadlock { .. }));
}

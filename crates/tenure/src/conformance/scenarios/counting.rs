//! Counting: permits are weighed, never more than there are, and heavy claims are not overtaken.

use super::{Ask, World, child_of, list, owner};
use crate::contract::{ErrorKind, Refusal, Shape};
use crate::limits;
use crate::primitives::Owner;

list! { Counting:
    as_many_hold_as_there_are_permits cites [1] needs [Counting];
    permits_are_weighed cites [1] needs [Counting, Queue];
    a_heavy_claim_is_not_overtaken_by_light_ones cites [2] needs [Counting, Queue];
    a_release_serves_as_many_as_fit cites [1, 2] needs [Counting, Queue];
    a_heavy_claim_that_gives_up_lets_the_light_ones_in cites [2, 7] needs [Counting, Queue];
    a_light_waiter_is_notified_when_a_heavy_one_leaves cites [2, 7] needs [Counting, Queue, Push];
    a_crashed_holder_returns_its_permits cites [1, 4] needs [Counting, Queue];
    permits_of_one_owner_add_up cites [1] needs [Counting];
    kinship_gives_no_discount_on_permits cites [1, 2] needs [Counting, Queue];
    another_size_is_refused_while_the_name_is_in_use cites [1] needs [Counting];
    another_size_is_refused_in_a_session_with_what_stands cites [1] needs [Counting];
    a_semaphore_may_be_as_large_as_the_limit cites [1] needs [Counting];
    whatever_comes_and_goes_the_sum_never_exceeds_the_size cites [1] needs [Counting, Queue];
    a_circle_that_somebody_can_open_is_no_deadlock cites [11] needs [Counting, Queue];
}

fn as_many_hold_as_there_are_permits(world: &World) {
    let raw = world.raw();
    let holders: Vec<_> =
        (0..3).map(|_| raw.granted(world, Ask::permits(world, "a", 1, 3).at_once()).0).collect();
    match raw.refused(world, Ask::permits(world, "a", 1, 3).at_once()) {
        Refusal::Held { by, .. } => assert_eq!(by.len(), 3),
        other => panic!("should name the holders: {other:?}"),
    }
    raw.release(world, &holders[1]);
    raw.granted(world, Ask::permits(world, "a", 1, 3).at_once());
    raw.refused(world, Ask::permits(world, "a", 1, 3).at_once());
}

fn permits_are_weighed(world: &World) {
    let raw = world.raw();
    let (three, _) = raw.granted(world, Ask::permits(world, "a", 3, 5));
    let (_two, _) = raw.granted(world, Ask::permits(world, "a", 2, 5));
    let (next, _) = raw.queued(world, Ask::permits(world, "a", 1, 5));
    let shown = world.slot("a").unwrap();
    assert_eq!(shown.shape, Shape::Semaphore(5));
    assert_eq!(shown.holders.iter().map(|holder| holder.weight).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(shown.queue[0].weight, 1);
    raw.release(world, &three);
    raw.held(world, &next);
    raw.granted(world, Ask::permits(world, "a", 2, 5).at_once());
}

fn a_heavy_claim_is_not_overtaken_by_light_ones(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::permits(world, "a", 2, 3));
    let (heavy, _) = raw.queued(world, Ask::permits(world, "a", 3, 3));
    let (light, queued) = raw.queued(world, Ask::permits(world, "a", 1, 3));
    assert_eq!(queued.place, 2);
    raw.refused(world, Ask::permits(world, "a", 1, 3).at_once());
    raw.release(world, &held);
    raw.held(world, &heavy);
    raw.waits(world, &light);
    raw.release(world, &heavy);
    raw.held(world, &light);
}

fn a_release_serves_as_many_as_fit(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::permits(world, "a", 4, 4));
    let ask = |permits| Ask::permits(world, "a", permits, 4);
    let line = [1, 2, 1, 1].map(|permits| raw.queued(world, ask(permits)).0);
    raw.release(world, &held);
    for claim in &line[..3] {
        raw.held(world, claim);
    }
    assert_eq!(raw.waits(world, &line[3]).place, 1);
    raw.release(world, &line[1]);
    raw.held(world, &line[3]);
}

fn a_heavy_claim_that_gives_up_lets_the_light_ones_in(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::permits(world, "a", 1, 3));
    let (heavy, _) = raw.queued(world, Ask::permits(world, "a", 3, 3));
    let light = [(); 3].map(|()| raw.queued(world, Ask::permits(world, "a", 1, 3)).0);
    raw.withdraw(world, &heavy);
    raw.held(world, &light[0]);
    raw.held(world, &light[1]);
    raw.waits(world, &light[2]);
}

/// At etcd, the waiter behind took over what the heavy one had watched, although it fitted beside
/// the holder: it was served at its next renewal.
fn a_light_waiter_is_notified_when_a_heavy_one_leaves(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let held = world.now(one.tenure.semaphore("a", 3).unwrap().acquire()).unwrap();
    let heavy = world.waits(two.tenure.semaphore("a", 3).unwrap().acquire_many(3));
    let light = world.waits(two.tenure.semaphore("a", 3).unwrap().acquire_many(2));
    drop(heavy);
    light.done(world.stage()).unwrap().check().unwrap();
    held.check().unwrap();
}

fn a_crashed_holder_returns_its_permits(world: &World) {
    let (dying, living) = (world.raw(), world.raw());
    dying.granted(world, Ask::permits(world, "a", 2, 3));
    let (one, _) = living.granted(world, Ask::permits(world, "a", 1, 3));
    let (next, _) = living.queued(world, Ask::permits(world, "a", 2, 3));
    for _ in 0..4 {
        world.pass(world.lease() / 2);
        living.held(world, &one);
        living.renew(world, &next);
    }
    living.held(world, &next);
    assert_eq!(world.holders("a"), [one.id, next.id]);
}

fn permits_of_one_owner_add_up(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (one, _) = raw.granted(world, Ask::permits(world, "a", 1, 2).of(&me));
    raw.granted(world, Ask::permits(world, "a", 1, 2).of(&me));
    raw.refused(world, Ask::permits(world, "a", 1, 2).of(&me).at_once());
    raw.release(world, &one);
    raw.granted(world, Ask::permits(world, "a", 1, 2).at_once());
}

fn kinship_gives_no_discount_on_permits(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let (held, _) = raw.granted(world, Ask::permits(world, "a", 2, 2).of(&parent));
    let (stranger, _) = raw.queued(world, Ask::permits(world, "a", 1, 2));
    let child = Ask::permits(world, "a", 2, 2).of(&child_of(&parent));
    let (child, queued) = raw.queued(world, child);
    assert_eq!(queued.place, 2, "and no better place");
    raw.release(world, &held);
    raw.held(world, &stranger);
    raw.waits(world, &child);
}

fn another_size_is_refused_while_the_name_is_in_use(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::permits(world, "a", 1, 3));
    for other in [Ask::permits(world, "a", 1, 4), Ask::mutex(world, "a")] {
        match raw.refused(world, other) {
            Refusal::Shape { name, stands } => {
                assert_eq!((name.as_str(), stands), ("a", Shape::Semaphore(3)));
            }
            refusal => panic!("should say what stands: {refusal:?}"),
        }
    }
    raw.release(world, &held);
    raw.granted(world, Ask::permits(world, "a", 4, 4).at_once());
}

fn another_size_is_refused_in_a_session_with_what_stands(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let permit = world.now(one.tenure.semaphore("a", 3).unwrap().acquire()).unwrap();
    let error = world.now(two.tenure.semaphore("a", 2).unwrap().acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("a semaphore of 3"), "{error}");
    world.now(permit.release()).unwrap();
    let both = world.now(two.tenure.semaphore("a", 2).unwrap().acquire_many(2)).unwrap();
    both.check().unwrap();
}

fn a_semaphore_may_be_as_large_as_the_limit(world: &World) {
    let raw = world.raw();
    let most = limits::PERMITS;
    let (nearly, _) = raw.granted(world, Ask::permits(world, "a", most - 1, most));
    raw.granted(world, Ask::permits(world, "a", 1, most).at_once());
    raw.refused(world, Ask::permits(world, "a", 1, most).at_once());
    raw.refused(world, Ask::permits(world, "a", most, most).at_once());
    assert_eq!(world.slot("a").unwrap().holders[0].weight, most - 1);
    raw.release(world, &nearly);
    raw.granted(world, Ask::permits(world, "a", most - 1, most).at_once());
}

fn whatever_comes_and_goes_the_sum_never_exceeds_the_size(world: &World) {
    let raw = world.raw();
    let mut claims = Vec::new();
    // A sequence without a pattern: fixed, so that a failure is repeatable.
    let mut dice = 7_u32;
    for step in 0..60 {
        dice = dice.wrapping_mul(1_103_515_245).wrapping_add(12_345) >> 1;
        let permits = 1 + dice / 8 % 5;
        if dice % 3 < 2 {
            let claim = raw.make(Ask::permits(world, "a", permits, 7).lease(world.long_lease()));
            raw.send(world, &claim);
            claims.push(claim);
        } else if !claims.is_empty() {
            let at = dice as usize / 64 % claims.len();
            raw.release(world, &claims.remove(at));
        }
        let Some(slot) = world.slot("a") else { continue };
        let sum: u32 = slot.holders.iter().map(|holder| holder.weight).sum();
        assert!(sum <= 7, "step {step}: {sum} of 7");
        let head = slot.queue.first().map_or(8, |head| head.weight);
        assert!(sum + head > 7, "step {step}: {head} would fit beside {sum} and waits");
        assert_eq!(slot.holders.len() + slot.queue.len(), claims.len(), "step {step}");
    }
}

fn a_circle_that_somebody_can_open_is_no_deadlock(world: &World) {
    // One holds a permit and waits for the mutex; two holds the mutex and waits for a permit: a
    // circle. But a third holds a permit too, and is about to give it back.
    let (here, there) = (world.actor(), world.actor());
    let (one, two) = (Owner::new(), Owner::new());
    let semaphore = here.tenure.semaphore("permits", 2).unwrap();
    let third = world.now(there.tenure.semaphore("permits", 2).unwrap().acquire()).unwrap();
    let permit = world.now(semaphore.clone().owner(&one).acquire()).unwrap();
    let mutex = world.now(there.tenure.mutex("mutex").unwrap().owner(&two).lock()).unwrap();
    let mut for_mutex = world.waits(here.tenure.mutex("mutex").unwrap().owner(&one).lock());
    let mut for_permit = world.waits(semaphore.owner(&two).acquire());
    world.pass_watching(world.lease() * 3, || {
        world.still_waits(&mut for_mutex);
        world.still_waits(&mut for_permit);
    });
    drop(third);
    let second = world.served(for_permit).expect("nobody was in a deadlock");
    drop((second, mutex));
    let first = world.served(for_mutex).expect("nobody was in a deadlock");
    drop((first, permit));
    world.assert_free("permits");
    world.assert_free("mutex");
}

//! Sets: several slots are one claim, with one id and one expiry, all or nothing.

use super::{Actor, Ask, Waiting, World, fence, list, name};
use crate::contract::{Error, Evicted, Loss, Part, Refusal, Released};
use crate::primitives::LockSetGuard;

list! { Sets:
    a_try_takes_all_or_nothing cites [1] needs [AtomicSets];
    a_waiting_set_reserves_its_parts_as_their_turns_come cites [1, 2] needs [AtomicSets, Queue];
    opposite_orders_never_wait_for_each_other cites [2, 11] needs [Queue];
    a_round_table_of_sets_is_served_to_the_last cites [1, 2, 11] needs [Queue];
    kinds_of_locks_mix_in_a_set cites [1] needs [AtomicSets, Sharing, Counting, Queue];
    a_set_has_one_expiry cites [4] needs [AtomicSets];
    withdrawing_a_set_frees_what_was_reserved cites [7] needs [AtomicSets, Queue];
    a_waiting_set_that_expires_frees_what_was_reserved cites [2, 4] needs [AtomicSets, Queue];
    evicting_one_part_ends_the_set cites [9] needs [AtomicSets, Queue];
    evicting_a_reserved_part_ends_the_wait cites [9] needs [AtomicSets, Queue];
    a_set_dies_with_its_session cites [2] needs [AtomicSets, Queue];
    the_place_of_a_set_is_the_worst_of_its_places cites [2] needs [AtomicSets, Queue];
    a_set_is_refused_as_a_whole_over_one_wrong_shape cites [1] needs [AtomicSets, Counting];
    the_same_set_twice_is_served_in_turn cites [2, 3] needs [Queue];
}

fn a_try_takes_all_or_nothing(world: &World) {
    let raw = world.raw();
    let (busy, _) = raw.granted(world, Ask::mutex(world, "b"));
    match raw.refused(world, Ask::mutexes(world, &["a", "b", "c"]).at_once()) {
        Refusal::Held { by, .. } => {
            assert_eq!((by.len(), by[0].claim), (1, busy.id));
        }
        other => panic!("should name the holder: {other:?}"),
    }
    world.assert_free("a");
    world.assert_free("c");
    raw.release(world, &busy);
    let (set, grant) = raw.granted(world, Ask::mutexes(world, &["a", "b", "c"]).at_once());
    assert_eq!(grant.fences.as_slice().len(), 3);
    for name in ["a", "b", "c"] {
        assert_eq!(world.holders(name), [set.id]);
    }
    assert_eq!(raw.release(world, &set), Released::Done);
    for name in ["a", "b", "c"] {
        world.assert_free(name);
    }
}

fn a_waiting_set_reserves_its_parts_as_their_turns_come(world: &World) {
    let raw = world.raw();
    let (a, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (b, _) = raw.granted(world, Ask::mutex(world, "b"));
    let (set, _) = raw.queued(world, Ask::mutexes(world, &["a", "b", "c"]));
    let reserved = |name: &str| {
        let holders = world.slot(name).unwrap().holders;
        holders.iter().any(|holder| holder.claim == set.id && holder.reserved)
    };
    assert!(reserved("c") && !reserved("a") && !reserved("b"));
    raw.release(world, &a);
    raw.waits(world, &set);
    assert!(reserved("a") && reserved("c"));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "c"));
    raw.release(world, &b);
    raw.held(world, &set);
    assert!(["a", "b", "c"].into_iter().all(|name| !reserved(name)), "it holds them now");
    raw.release(world, &set);
    raw.held(world, &stranger);
}

fn take(actor: &Actor, names: &[&str]) -> Waiting<Result<LockSetGuard, Error>> {
    let parts = names.iter().map(|name| actor.tenure.mutex(name).unwrap().part());
    Waiting::start(actor.tenure.lock_set(parts).unwrap().lock())
}

fn opposite_orders_never_wait_for_each_other(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut there = take(&one, &["a", "b"]);
    let mut back = take(&two, &["b", "a"]);
    world.still_waits(&mut there);
    world.still_waits(&mut back);
    drop(busy);
    let first = world.served(there).unwrap();
    world.still_waits(&mut back);
    let fences = ["a", "b"].map(|name| first.fence_of(name).unwrap());
    drop(first);
    let second = world.served(back).unwrap();
    for (name, old) in ["a", "b"].into_iter().zip(fences) {
        assert!(second.fence_of(name).unwrap() > old);
    }
}

fn a_round_table_of_sets_is_served_to_the_last(world: &World) {
    // Five at a round table, each wanting two neighbouring forks, twice over.
    const SEATS: usize = 5;
    let actors: Vec<Actor> = (0..SEATS).map(|_| world.actor()).collect();
    let forks: Vec<String> = (0..SEATS).map(|n| format!("fork{n}")).collect();
    let sit = |seat: usize| take(&actors[seat], &[&forks[seat], &forks[(seat + 1) % SEATS]]);
    let mut waiting: Vec<(usize, Waiting<_>)> =
        (0..2 * SEATS).map(|n| (n % SEATS, sit(n % SEATS))).collect();
    let mut served = 0;
    while !waiting.is_empty() {
        let mut eating: Vec<(usize, LockSetGuard)> = Vec::new();
        world.until("somebody is served", || {
            for (seat, mut one) in std::mem::take(&mut waiting) {
                if one.is_done(world.stage()) {
                    eating.push((seat, one.done(world.stage()).expect("nobody is refused")));
                } else {
                    waiting.push((seat, one));
                }
            }
            !eating.is_empty()
        });
        for (at, (seat, _)) in eating.iter().enumerate() {
            let neighbour =
                |other: usize| (seat + 1) % SEATS == other || (other + 1) % SEATS == *seat;
            assert!(eating[..at].iter().all(|(other, _)| !neighbour(*other) && other != seat));
        }
        served += eating.len();
    }
    assert_eq!(served, 2 * SEATS);
}

fn kinds_of_locks_mix_in_a_set(world: &World) {
    let raw = world.raw();
    let parts = |permits| {
        vec![
            Part::permits(name("c"), permits, 3).unwrap(),
            Part::write(name("a")),
            Part::read(name("b")),
        ]
    };
    let (set, _) = raw.granted(world, Ask::set(world, parts(2)));
    raw.refused(world, Ask::mutex(world, "a").at_once());
    raw.refused(world, Ask::write(world, "b").at_once());
    raw.granted(world, Ask::read(world, "b").at_once());
    raw.refused(world, Ask::permits(world, "c", 2, 3).at_once());
    let (next, _) = raw.queued(world, Ask::set(world, parts(1)));
    raw.release(world, &set);
    raw.held(world, &next);
    let (one, _) = raw.granted(world, Ask::permits(world, "c", 2, 3).at_once());
    raw.release(world, &one);
}

fn a_set_has_one_expiry(world: &World) {
    let (raw, other) = (world.raw(), world.raw());
    let (set, _) = raw.granted(world, Ask::mutexes(world, &["a", "b"]));
    for _ in 0..3 {
        world.pass(world.lease() * 2 / 3);
        raw.held(world, &set);
    }
    for name in ["a", "b"] {
        assert_eq!(world.holders(name), [set.id], "renewed as one");
    }
    world.pass(world.lease() * 2);
    for name in ["a", "b"] {
        other.granted(world, Ask::mutex(world, name).at_once());
    }
    raw.gone(world, &set);
}

fn withdrawing_a_set_frees_what_was_reserved(world: &World) {
    let raw = world.raw();
    let (busy, _) = raw.granted(world, Ask::mutex(world, "b"));
    let (set, _) = raw.queued(world, Ask::mutexes(world, &["a", "b"]));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    assert_eq!(raw.withdraw(world, &set), Released::Done);
    raw.held(world, &stranger);
    assert_eq!((world.holders("b"), world.line("b")), (vec![busy.id], vec![]));
}

fn a_waiting_set_that_expires_frees_what_was_reserved(world: &World) {
    let (living, stalled) = (world.raw(), world.raw());
    let (busy, _) = living.granted(world, Ask::mutex(world, "b"));
    let set = Ask::mutexes(world, &["a", "b"]).delay(world.lease() * 9);
    stalled.queued(world, set);
    let (stranger, _) = living.queued(world, Ask::mutex(world, "a"));
    for _ in 0..4 {
        world.pass(world.lease() / 2);
        living.held(world, &busy);
        living.renew(world, &stranger);
    }
    // It never held the set and did nothing under it: no lock delay.
    living.held(world, &stranger);
    assert!(world.line("b").is_empty());
}

fn evicting_one_part_ends_the_set(world: &World) {
    let raw = world.raw();
    let (set, grant) = raw.granted(world, Ask::mutexes(world, &["a", "b"]));
    let (next, _) = raw.queued(world, Ask::mutex(world, "b"));
    let evicted = raw.evict(world, "a", fence(&grant), "half of it is stuck");
    assert!(matches!(evicted, Evicted::Done(ended) if ended[0].claim == set.id));
    world.assert_free("a");
    raw.held(world, &next);
    assert!(matches!(raw.gone(world, &set), Loss::Evicted { .. }));
}

fn evicting_a_reserved_part_ends_the_wait(world: &World) {
    let raw = world.raw();
    let (busy, _) = raw.granted(world, Ask::mutex(world, "b"));
    let (set, _) = raw.queued(world, Ask::mutexes(world, &["a", "b"]));
    let reserved = world.slot("a").unwrap().holders[0].fence;
    let evicted = raw.evict(world, "a", reserved, "somebody needs it now");
    assert!(matches!(evicted, Evicted::Done(_)));
    world.assert_free("a");
    raw.release(world, &busy);
    world.assert_free("b");
    raw.gone(world, &set);
}

fn a_set_dies_with_its_session(world: &World) {
    let (dying, living) = (world.raw(), world.raw());
    dying.granted(world, Ask::mutexes(world, &["a", "b"]));
    dying.queued(world, Ask::mutexes(world, &["b", "c"]));
    let (next, _) = living.queued(world, Ask::mutexes(world, &["a", "b", "c"]));
    world.stage().end_session(dying.session());
    living.held(world, &next);
    for name in ["a", "b", "c"] {
        assert_eq!((world.holders(name), world.line(name)), (vec![next.id], vec![]));
    }
}

fn the_place_of_a_set_is_the_worst_of_its_places(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::mutex(world, "a"));
    let (b, _) = raw.granted(world, Ask::mutex(world, "b"));
    let (first, _) = raw.queued(world, Ask::mutex(world, "b"));
    raw.queued(world, Ask::mutex(world, "b"));
    let (set, queued) = raw.queued(world, Ask::mutexes(world, &["a", "b"]));
    assert_eq!(queued.place, 3);
    raw.release(world, &b);
    raw.held(world, &first);
    assert_eq!(raw.waits(world, &set).place, 2);
}

fn a_set_is_refused_as_a_whole_over_one_wrong_shape(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::permits(world, "b", 1, 2));
    match raw.refused(world, Ask::mutexes(world, &["a", "b", "c"])) {
        Refusal::Shape { name, .. } => assert_eq!(name.as_str(), "b"),
        other => panic!("should say which name: {other:?}"),
    }
    world.assert_free("a");
    world.assert_free("c");
}

fn the_same_set_twice_is_served_in_turn(world: &World) {
    let actors = [world.actor(), world.actor(), world.actor()];
    let mut guard = world.served(take(&actors[0], &["a", "b"])).unwrap();
    let mut line: Vec<_> = actors.iter().map(|actor| take(actor, &["b", "a"])).collect();
    while !line.is_empty() {
        for waiting in &mut line {
            world.still_waits(waiting);
        }
        let old = guard.fence().unwrap();
        world.now(guard.release()).unwrap();
        guard = world.served(line.remove(0)).unwrap();
        assert!(guard.fence().unwrap() > old);
    }
    drop(guard);
    world.assert_free("a");
    world.assert_free("b");
}

//! Fairness: first come, first served among the waiters that live.

use super::{Ask, Waiting, World, list};
use crate::contract::{Refusal, Verdict};

list! { Fairness:
    first_come_first_served_among_sessions cites [2] needs [Queue];
    a_long_line_is_served_in_its_order cites [2] needs [Queue];
    a_waiter_that_gave_up_is_skipped cites [2, 7] needs [Queue];
    dead_waiters_are_skipped_in_the_step_that_would_have_served_them cites [2] needs [Queue];
    a_try_never_jumps_the_line cites [2] needs [Queue];
    a_try_leaves_no_place_behind cites [2] needs [Queue];
    places_are_counted_and_move_up cites [2] needs [Queue];
    a_waiter_that_stalled_goes_to_the_end_of_the_line cites [2, 5] needs [Queue];
    lines_of_different_names_do_not_meet cites [2] needs [Queue];
    whoever_releases_and_comes_back_stands_behind_those_who_wait cites [2] needs [Queue];
}

fn first_come_first_served_among_sessions(world: &World) {
    let actors: Vec<_> = (0..5).map(|_| world.actor()).collect();
    let mut guard = world.now(actors[0].tenure.mutex("a").unwrap().lock()).unwrap();
    let mut line: Vec<Waiting<_>> =
        actors.iter().map(|actor| world.waits(actor.tenure.mutex("a").unwrap().lock())).collect();
    while !line.is_empty() {
        world.now(guard.release()).unwrap();
        guard = world.served(line.remove(0)).unwrap();
        for (at, later) in line.iter_mut().enumerate() {
            assert!(!later.is_done(world.stage()), "{at} came out of turn");
        }
    }
    drop(guard);
    world.assert_free("a");
}

fn a_long_line_is_served_in_its_order(world: &World) {
    let raw = world.raw();
    let ask = || Ask::mutex(world, "a").lease(world.long_lease());
    let (mut held, _) = raw.granted(world, ask());
    let line: Vec<_> = (0..30).map(|_| raw.make(ask())).collect();
    for (at, verdict) in raw.send_all(world, &line).into_iter().enumerate() {
        assert!(matches!(verdict, Verdict::Queued(queued) if queued.place == at + 1));
    }
    let ids: Vec<_> = line.iter().map(|claim| claim.id).collect();
    assert_eq!(world.line("a"), ids);
    for (at, next) in line.into_iter().enumerate() {
        raw.release(world, &held);
        raw.held(world, &next);
        assert_eq!(world.line("a"), ids[at + 1..]);
        held = next;
    }
}

fn a_waiter_that_gave_up_is_skipped(world: &World) {
    let actors = [world.actor(), world.actor(), world.actor()];
    let guard = world.now(actors[0].tenure.mutex("a").unwrap().lock()).unwrap();
    let gives_up = world.waits(actors[1].tenure.mutex("a").unwrap().lock());
    let next = world.waits(actors[2].tenure.mutex("a").unwrap().lock());
    drop(gives_up);
    world.until("it left the line", || world.line("a").len() == 1);
    drop(guard);
    world.served(next).unwrap().check().unwrap();
}

fn dead_waiters_are_skipped_in_the_step_that_would_have_served_them(world: &World) {
    let (living, dying) = (world.raw(), world.raw());
    let (held, _) = living.granted(world, Ask::mutex(world, "a"));
    for _ in 0..3 {
        dying.queued(world, Ask::mutex(world, "a"));
    }
    let (next, queued) = living.queued(world, Ask::mutex(world, "a"));
    assert_eq!(queued.place, 4);
    world.stage().end_session(dying.session());
    living.release(world, &held);
    living.held(world, &next);
}

fn a_try_never_jumps_the_line(world: &World) {
    let (dead, waiter, eager) = (world.raw(), world.raw(), world.raw());
    dead.granted(world, Ask::mutex(world, "a"));
    let (next, _) = waiter.queued(world, Ask::mutex(world, "a"));
    for _ in 0..4 {
        world.pass(world.lease() / 2);
        // The name may be free for an instant: who waits has it, not who tries.
        eager.refused(world, Ask::mutex(world, "a").at_once());
        waiter.renew(world, &next);
    }
    waiter.held(world, &next);
    match eager.refused(world, Ask::mutex(world, "a").at_once()) {
        Refusal::Held { by, waiting } => assert_eq!((by[0].claim, waiting), (next.id, 0)),
        other => panic!("should name the holder: {other:?}"),
    }
}

fn a_try_leaves_no_place_behind(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    for _ in 0..3 {
        raw.refused(world, Ask::mutex(world, "a").at_once());
    }
    assert!(world.line("a").is_empty());
    raw.release(world, &held);
    world.assert_free("a");
}

fn places_are_counted_and_move_up(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::mutex(world, "a"));
    let line = [1, 2, 3, 4].map(|place| {
        let (claim, queued) = raw.queued(world, Ask::mutex(world, "a"));
        assert_eq!(queued.place, place);
        claim
    });
    raw.withdraw(world, &line[1]);
    let places = [0, 2, 3].map(|at| raw.waits(world, &line[at]).place);
    assert_eq!(places, [1, 2, 3]);
    raw.withdraw(world, &line[0]);
    assert_eq!(raw.waits(world, &line[3]).place, 2);
    let (_, late) = raw.queued(world, Ask::mutex(world, "a"));
    assert_eq!(late.place, 3, "late arrivals stand behind");
}

fn a_waiter_that_stalled_goes_to_the_end_of_the_line(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut stalled = world.waits(two.tenure.mutex("a").unwrap().lock());
    world.stage().end_session(two.tenure.session_id());
    let mut other = world.waits(one.tenure.mutex("a").unwrap().lock());
    world.until("it claimed anew", || {
        world.still_waits(&mut stalled);
        world.line("a").len() == 2
    });
    drop(guard);
    assert!(!stalled.is_done(world.stage()), "its place is gone");
    world.until("the other is served", || other.is_done(world.stage()));
    drop(other);
    world.served(stalled).unwrap().check().unwrap();
}

fn lines_of_different_names_do_not_meet(world: &World) {
    let raw = world.raw();
    let names = ["a", "b", "c"];
    let held = names.map(|name| raw.granted(world, Ask::mutex(world, name)).0);
    let line = names.map(|name| {
        let (claim, queued) = raw.queued(world, Ask::mutex(world, name));
        assert_eq!(queued.place, 1);
        claim
    });
    raw.release(world, &held[1]);
    raw.held(world, &line[1]);
    raw.waits(world, &line[0]);
    raw.waits(world, &line[2]);
}

fn whoever_releases_and_comes_back_stands_behind_those_who_wait(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let mut guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    for round in 0..4 {
        let (mine, theirs) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let waiting = world.waits(theirs.tenure.mutex("a").unwrap().lock());
        world.now(guard.release()).unwrap();
        let again = world.now(mine.tenure.mutex("a").unwrap().try_lock()).unwrap();
        assert!(again.is_none(), "round {round}: it was handed over");
        guard = world.served(waiting).unwrap();
    }
}

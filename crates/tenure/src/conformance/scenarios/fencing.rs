//! Fencing: the fences of one name strictly grow, and a claim that was lost has none.

use std::sync::Arc;

use super::{Ask, Waiting, World, cells_of, child_of, fence, list, name, owner};
use crate::contract::{
    Batch, Cell, ErrorKind, Expect, Fence, Grant, Part, Put, PutVerdict, Verdict,
};
use crate::limits;

list! { Fencing:
    fences_grow_over_release_expiry_and_the_end_of_a_session cites [3] needs [];
    fences_grow_over_forced_releases_and_withdrawals cites [3] needs [];
    fences_grow_over_every_shape_of_a_name cites [3] needs [Sharing, Counting];
    fences_of_many_names_each_grow cites [3] needs [];
    fences_grow_over_claims_that_are_sent_together cites [3] needs [];
    fences_stay_in_their_range cites [3] needs [];
    every_reader_and_every_permit_has_a_fence_of_its_own cites [3] needs [Sharing, Counting];
    the_fences_of_a_set_each_grow cites [3] needs [AtomicSets];
    a_push_and_a_renewal_name_the_same_fence cites [3, 5] needs [Queue, Push];
    a_renewal_keeps_the_fence cites [3] needs [];
    an_upgrade_brings_a_new_fence_and_a_downgrade_keeps_it cites [3] needs [Sharing, Queue];
    a_fence_is_an_error_after_a_loss cites [4] needs [];
    a_cell_refuses_the_fence_of_an_earlier_holder cites [3, 4] needs [Cells];
}

fn fences_grow_over_release_expiry_and_the_end_of_a_session(world: &World) {
    let mut last = Fence::new(0);
    let mut grown = |grant: &Grant| {
        assert!(fence(grant) > last, "{:?} after {last:?}", fence(grant));
        last = fence(grant);
    };
    for _ in 0..3 {
        let raw = world.raw();
        let (released, grant) = raw.granted(world, Ask::mutex(world, "a"));
        grown(&grant);
        raw.release(world, &released);
        let (_expires, grant) = raw.granted(world, Ask::mutex(world, "a"));
        grown(&grant);
        world.pass(world.lease() * 2);
        let (_ends, grant) = raw.granted(world, Ask::mutex(world, "a"));
        grown(&grant);
        world.stage().end_session(raw.session());
    }
}

fn fences_grow_over_forced_releases_and_withdrawals(world: &World) {
    let raw = world.raw();
    let mut last = Fence::new(0);
    for round in 0..6 {
        let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
        assert!(fence(&grant) > last);
        last = fence(&grant);
        if round % 2 == 0 {
            raw.evict(world, "a", last, "for the sake of it");
        } else {
            raw.withdraw(world, &held);
        }
    }
}

fn fences_grow_over_every_shape_of_a_name(world: &World) {
    let raw = world.raw();
    let mut last = Fence::new(0);
    for _ in 0..3 {
        let asks = [
            Ask::mutex(world, "a"),
            Ask::read(world, "a"),
            Ask::permits(world, "a", 2, 3),
            Ask::write(world, "a"),
            Ask::permits(world, "a", 1, 1),
        ];
        for ask in asks {
            let (held, grant) = raw.granted(world, ask);
            assert!(fence(&grant) > last, "{:?}", held.parts);
            last = fence(&grant);
            raw.release(world, &held);
        }
    }
}

fn fences_of_many_names_each_grow(world: &World) {
    // Idle names may be forgotten by the store; their fences may not.
    let raw = world.raw();
    let names: Vec<String> = (0..24).map(|n| format!("n{n}")).collect();
    let mut last = vec![Fence::new(0); names.len()];
    for _ in 0..3 {
        for (name, last) in names.iter().zip(&mut last) {
            let (held, grant) = raw.granted(world, Ask::mutex(world, name));
            assert!(fence(&grant) > *last, "{name}");
            *last = fence(&grant);
            raw.release(world, &held);
        }
    }
}

/// Claims that are sent at once may go to the store as one call. No time passes between them and
/// those that follow.
fn fences_grow_over_claims_that_are_sent_together(world: &World) {
    let raw = world.raw();
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut last = names.map(|_| Fence::new(0));
    for round in 0..3 {
        let claims = names.map(|name| raw.make(Ask::mutex(world, name)));
        let sent = claims.each_ref().map(|claim| {
            let (engine, claim) = (Arc::clone(raw.engine()), Arc::clone(claim));
            Waiting::start(async move { engine.claim(&claim).await })
        });
        for (at, claimed) in sent.into_iter().enumerate() {
            let verdict = claimed.done(world.stage()).unwrap();
            let Verdict::Granted(grant) = verdict else { panic!("{verdict:?}") };
            assert!(fence(&grant) > last[at], "round {round}: {grant:?} after {:?}", last[at]);
            last[at] = fence(&grant);
        }
        // One alone, in the same instant.
        raw.release(world, &claims[1]);
        let (again, grant) = raw.granted(world, Ask::mutex(world, "b"));
        assert!(fence(&grant) > last[1], "round {round}: {grant:?} after {:?}", last[1]);
        last[1] = fence(&grant);
        raw.release(world, &again);
        for claim in claims {
            raw.release(world, &claim);
        }
    }
}

fn fences_stay_in_their_range(world: &World) {
    let raw = world.raw();
    for _ in 0..5 {
        let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
        let number = fence(&grant).get();
        assert!(number > 0 && number < limits::FENCE, "a double must hold it: {number}");
        assert_eq!(world.slot("a").unwrap().holders[0].fence.get(), number, "shown exactly");
        raw.release(world, &held);
    }
}

fn every_reader_and_every_permit_has_a_fence_of_its_own(world: &World) {
    let raw = world.raw();
    for ask in [Ask::read(world, "a"), Ask::permits(world, "b", 1, 9)] {
        let mut last = Fence::new(0);
        for _ in 0..4 {
            let (_, grant) = raw.granted(world, ask.clone().of(&owner()));
            assert!(fence(&grant) > last);
            last = fence(&grant);
        }
    }
}

fn the_fences_of_a_set_each_grow(world: &World) {
    let raw = world.raw();
    let (alone, b) = raw.granted(world, Ask::mutex(world, "b"));
    raw.release(world, &alone);
    let (set, first) = raw.granted(world, Ask::mutexes(world, &["c", "a", "b"]));
    assert_eq!(first.fences.as_slice().len(), 3, "one for each name");
    assert!(first.fences.as_slice()[1] > fence(&b), "in the order of names");
    raw.release(world, &set);
    let (_, second) = raw.granted(world, Ask::mutexes(world, &["a", "b", "c"]));
    for (old, new) in first.fences.as_slice().iter().zip(second.fences.as_slice()) {
        assert!(new > old);
    }
    let largest = |grant: &Grant| grant.fences.as_slice().iter().copied().max();
    assert!(largest(&second) > largest(&first));
}

fn a_push_and_a_renewal_name_the_same_fence(world: &World) {
    let (holder, waiter) = (world.raw(), world.raw());
    let (held, old) = holder.granted(world, Ask::mutex(world, "a"));
    let (next, queued) = waiter.queued(world, Ask::mutex(world, "a"));
    holder.release(world, &held);
    let mut told = None;
    world.until("the push arrives", || {
        told = told.take().or_else(|| waiter.told(world, &next));
        told.is_some()
    });
    let told = told.unwrap();
    assert_eq!(told.arrival, queued.arrival);
    assert!(fence(&told) > fence(&old));
    assert_eq!(waiter.held(world, &next), told);
    assert_eq!(world.slot("a").unwrap().holders[0].fence, fence(&told));
}

fn a_renewal_keeps_the_fence(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    for _ in 0..4 {
        assert_eq!(raw.held(world, &held), grant);
        world.pass(world.lease() / 3);
    }
}

fn an_upgrade_brings_a_new_fence_and_a_downgrade_keeps_it(world: &World) {
    let raw = world.raw();
    let (reader, one) = raw.granted(world, Ask::read(world, "a"));
    let (other, two) = raw.granted(world, Ask::read(world, "a"));
    raw.release(world, &other);
    let (writer, three) = raw.granted(world, Ask::write(world, "a").instead_of(&reader));
    assert!(fence(&three) > fence(&two) && fence(&two) > fence(&one));
    let (reader, four) = raw.granted(world, Ask::read(world, "a").instead_of(&writer));
    assert_eq!(fence(&four), fence(&three));
    assert_eq!(fence(&raw.held(world, &reader)), fence(&three));
    // A nested writer under a reader is an upgrade as well.
    let parent = owner();
    raw.release(world, &reader);
    let (_, outer) = raw.granted(world, Ask::read(world, "a").of(&parent));
    let (_, inner) = raw.granted(world, Ask::write(world, "a").of(&child_of(&parent)));
    assert!(fence(&inner) > fence(&outer));
}

fn a_fence_is_an_error_after_a_loss(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    guard.fence().unwrap();
    actor.link.cut(true);
    world.pass(world.lease() * 3 / 2);
    let error = guard.fence().unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Lost, "a"));
    assert!(guard.fence_of("a").is_err() && guard.remaining().is_zero());
}

fn a_cell_refuses_the_fence_of_an_earlier_holder(world: &World) {
    let raw = world.raw();
    let (_crashed, old) = raw.granted(world, Ask::part(world, Part::write(name("a"))));
    world.pass(world.lease() * 2);
    let (_successor, new) = raw.granted(world, Ask::mutex(world, "a"));
    let put = |text: &str, fence: Fence| {
        let (engine, put) = (raw.engine().clone(), Put::new(name("state"), text).fenced(fence));
        assert_eq!(put.expect, Expect::Fence(fence));
        let batch = Batch::from(&put);
        let verdict = world.now(async move { cells_of(&*engine).write(&batch).await });
        verdict.unwrap().into_single()
    };
    assert!(matches!(put("first", fence(&old)), PutVerdict::Done(_)), "not overtaken yet");
    assert!(matches!(put("second", fence(&new)), PutVerdict::Done(_)));
    assert_eq!(put("late", fence(&old)), PutVerdict::Stale(fence(&new)));
    assert!(matches!(put("third", fence(&new)), PutVerdict::Done(_)), "the same fence again");
    let engine = raw.engine().clone();
    let cell = world.now(async move { cells_of(&*engine).get(&name("state")).await }).unwrap();
    let Some(Cell { value, fence: seen, .. }) = cell else { panic!("it was written") };
    assert_eq!((value, seen), (b"third".to_vec(), Some(fence(&new))));
}

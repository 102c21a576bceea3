//! Raised fences: every grant after a raise has a fence above the number, and a raise that would
//! lower anything is refused.

use super::{Ask, Raw, Waiting, World, fence, floor_of, list};
use crate::contract::{ErrorKind, Fence, Raised};
use crate::limits;

list! { Fencing:
    raised_fences_are_above_the_number_for_names_old_and_new cites [3] needs [FenceFloor];
    a_claim_that_waits_is_granted_above_fences_that_were_raised cites [3] needs [FenceFloor, Queue];
    the_fences_of_a_set_are_above_fences_that_were_raised cites [3] needs [FenceFloor, AtomicSets];
    a_hold_keeps_its_fence_when_fences_are_raised cites [3] needs [FenceFloor];
    raising_fences_to_what_was_given_out_changes_nothing cites [3] needs [FenceFloor];
    grants_beside_a_raise_never_fall cites [3] needs [FenceFloor];
    fences_are_raised_within_their_range_or_not_at_all cites [3] needs [];
}

/// Further than any clock of a stage goes on its own.
const FAR: u64 = 1_000_000_000_000;

fn raise(world: &World, raw: &Raw, to: u64) -> Raised {
    let engine = raw.engine().clone();
    let raised = world.now(async move { floor_of(&*engine).raise_fences(Fence::new(to)).await });
    raised.expect("the store answers")
}

/// How far fences have got.
fn highest(world: &World, raw: &Raw) -> u64 {
    match raise(world, raw, 0) {
        Raised::NotAbove(highest) => highest.get(),
        Raised::Done => panic!("0 is above nothing"),
    }
}

/// Raises fences far above all there are, and says to what. Some stores have one floor for all
/// namespaces, and another test may have raised it meanwhile.
fn raise_far(world: &World, raw: &Raw) -> u64 {
    for _ in 0..20 {
        let to = highest(world, raw) + FAR;
        if raise(world, raw, to) == Raised::Done {
            assert!(highest(world, raw) >= to);
            return to;
        }
    }
    panic!("fences are never raised");
}

fn raised_fences_are_above_the_number_for_names_old_and_new(world: &World) {
    let (one, two) = (world.raw(), world.raw());
    let (used, old) = one.granted(world, Ask::mutex(world, "used"));
    one.release(world, &used);
    assert!(highest(world, &two) >= fence(&old).get());
    let to = Fence::new(raise_far(world, &one));
    let mut last = [to; 2];
    // By the client that raised and by another, again and again: it stays above, and grows.
    for raw in [&two, &one, &two] {
        for (name, last) in ["used", "new"].into_iter().zip(&mut last) {
            let (held, grant) = raw.granted(world, Ask::mutex(world, name));
            assert!(fence(&grant) > *last, "{name}: {:?} after {last:?}", fence(&grant));
            *last = fence(&grant);
            raw.release(world, &held);
        }
    }
}

fn a_claim_that_waits_is_granted_above_fences_that_were_raised(world: &World) {
    let (holder, waiter) = (world.raw(), world.raw());
    let (held, _) = holder.granted(world, Ask::mutex(world, "a"));
    let (next, _) = waiter.queued(world, Ask::mutex(world, "a"));
    let to = raise_far(world, &holder);
    holder.release(world, &held);
    let grant = waiter.held(world, &next);
    assert!(fence(&grant).get() > to, "{:?} is not above {to}", fence(&grant));
}

fn the_fences_of_a_set_are_above_fences_that_were_raised(world: &World) {
    let raw = world.raw();
    let (alone, _) = raw.granted(world, Ask::mutex(world, "b"));
    raw.release(world, &alone);
    let to = raise_far(world, &raw);
    let (_, grant) = raw.granted(world, Ask::mutexes(world, &["a", "b", "c"]));
    for fence in grant.fences.as_slice() {
        assert!(fence.get() > to, "{fence:?} is not above {to}");
    }
}

fn a_hold_keeps_its_fence_when_fences_are_raised(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    raise_far(world, &raw);
    assert_eq!(raw.held(world, &held), grant, "a renewal");
    assert_eq!(world.slot("a").unwrap().holders[0].fence, fence(&grant), "as the store shows it");
}

fn raising_fences_to_what_was_given_out_changes_nothing(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    raw.release(world, &held);
    let given = fence(&grant).get();
    for to in [1, given - 1, given] {
        let Raised::NotAbove(highest) = raise(world, &raw, to) else {
            panic!("{to} was given out: {given}");
        };
        assert!(highest.get() >= given);
    }
    let to = raise_far(world, &raw);
    for again in [given, to - 1, to] {
        assert!(matches!(raise(world, &raw, again), Raised::NotAbove(_)), "{again} after {to}");
    }
    let (_, grant) = raw.granted(world, Ask::mutex(world, "b"));
    assert!(fence(&grant).get() > to);
}

fn grants_beside_a_raise_never_fall(world: &World) {
    let raws = [world.raw(), world.raw(), world.raw()];
    let mut last = 0;
    for _ in 0..4 {
        let to = highest(world, &raws[0]) + FAR;
        let claims = raws.each_ref().map(|raw| raw.make(Ask::mutex(world, "a").at_once()));
        let sent = raws.iter().zip(&claims).map(|(raw, claim)| {
            let (engine, claim) = (raw.engine().clone(), claim.clone());
            Waiting::start(async move { engine.claim(&claim).await })
        });
        let mut sent: Vec<_> = sent.collect();
        let engine = raws[0].engine().clone();
        let raised =
            Waiting::start(async move { floor_of(&*engine).raise_fences(Fence::new(to)).await });
        let raised = raised.done(world.stage()).expect("the store answers");
        for sent in sent.drain(..) {
            sent.done(world.stage()).expect("the store answers");
        }
        for (raw, claim) in raws.iter().zip(&claims) {
            if world.holders("a") == [claim.id] {
                let given = world.slot("a").unwrap().holders[0].fence.get();
                assert!(given > last, "{given} after {last}");
                last = given;
            }
            raw.withdraw(world, claim);
        }
        let (held, grant) = raws[1].granted(world, Ask::mutex(world, "a"));
        let floor = if raised == Raised::Done { last.max(to) } else { last };
        assert!(fence(&grant).get() > floor, "{:?} after {last}, raised {to}", fence(&grant));
        last = fence(&grant).get();
        raws[1].release(world, &held);
    }
}

fn fences_are_raised_within_their_range_or_not_at_all(world: &World) {
    let actor = world.actor();
    let (tenure, promised) = (actor.tenure.clone(), actor.tenure.promises().fence_floor);
    let raise = |to: u64| {
        let tenure = tenure.clone();
        world.now(async move { tenure.raise_fences(to).await })
    };
    for to in [limits::FENCE_FLOOR + 1, limits::FENCE, u64::MAX] {
        assert_eq!(raise(to).unwrap_err().kind(), ErrorKind::InvalidOption, "{to}");
    }
    let asked = tenure.clone();
    let highest = world.now(async move { asked.highest_fence().await });
    if !promised {
        let error = raise(FAR).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(highest.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let highest = highest.unwrap().get();
    let error = raise(highest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains(&highest.to_string()), "{error}");
}

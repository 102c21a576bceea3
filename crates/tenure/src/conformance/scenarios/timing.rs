//! Timing of loss: what a late answer is worth, and what is no loss at all.

use super::{Fault, World, list};
use crate::contract::ErrorKind;

list! { Loss:
    a_late_answer_counts_from_when_it_was_asked_for cites [4] needs [];
    a_late_renewal_counts_from_when_it_was_asked_for cites [4] needs [];
    a_release_that_gets_no_answer_is_no_loss cites [9, 10] needs [];
}

fn a_late_answer_counts_from_when_it_was_asked_for(world: &World) {
    let (holder, next) = (world.actor(), world.actor());
    holder.link.hold_replies(true);
    let mut late = world.waits(holder.tenure.mutex("a").unwrap().lock());
    world.pass(world.lease() / 4);
    world.still_waits(&mut late);
    holder.link.hold_replies(false);
    let guard = late.done(world.stage()).unwrap();
    holder.link.cut(true);
    let waiting = world.waits(next.tenure.mutex("a").unwrap().lock());
    never_both(world, &guard, waiting);
}

fn a_late_renewal_counts_from_when_it_was_asked_for(world: &World) {
    let (holder, next) = (world.actor(), world.actor());
    let guard = world.now(holder.tenure.mutex("a").unwrap().lock()).unwrap();
    holder.link.hold_replies(true);
    // A renewal is asked for at a third of the lease, and answered a little later.
    world.pass(world.lease() * 40 / 100);
    holder.link.hold_replies(false);
    world.settle();
    holder.link.cut(true);
    let waiting = world.waits(next.tenure.mutex("a").unwrap().lock());
    never_both(world, &guard, waiting);
}

/// Lets time pass in small steps until the next one is served: at no step do both believe to hold.
fn never_both(
    world: &World,
    guard: &crate::primitives::MutexGuard,
    mut waiting: super::Waiting<Result<crate::primitives::MutexGuard, crate::contract::Error>>,
) {
    for _ in 0..90 {
        world.pass(world.lease() / 30);
        if waiting.is_done(world.stage()) {
            assert!(guard.check().is_err(), "the next one holds, and the first still believes to");
            return;
        }
    }
    panic!("the next one was never served");
}

fn a_release_that_gets_no_answer_is_no_loss(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    actor.link.trouble_call(actor.link.calls(), Fault::HangReply);
    let mut release = world.waits(guard.release());
    for _ in 0..12 {
        world.pass(world.lease() / 10);
        if release.is_done(world.stage()) {
            break;
        }
    }
    if let Err(error) = release.done(world.stage()) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "released, and nobody took it: {error}");
    }
    world.pass(world.lease());
    world.assert_free("a");
}

//! A store that is away for a while: a wait bridges the outage up to its limit, a try answers at
//! once, and what is returned in the end tells the cause, the effect and how often it was tried.

use super::{Fault, Waiting, World, list};
use crate::contract::{Effect, ErrorKind};

list! { Waiting:
    a_wait_goes_on_through_an_outage cites [5, 10] needs [];
    a_set_waits_through_an_outage cites [5, 10] needs [];
    a_try_during_an_outage_is_answered_after_a_few_quick_attempts cites [10] needs [];
    a_limit_that_passes_during_an_outage_tells_the_cause_and_no_effect cites [10] needs [];
    one_attempt_of_unknown_effect_makes_the_effect_of_all_unknown cites [5, 6, 10] needs [];
    a_place_in_line_that_an_outage_cost_is_taken_anew cites [5, 7] needs [Queue];
    an_exchange_that_an_outage_outlasts_is_given_up_with_its_lock cites [10] needs [Sharing];
}

fn a_wait_goes_on_through_an_outage(world: &World) {
    // With a limit and without one.
    for limit in [Some(world.lease() * 4), None] {
        let actor = world.actor();
        let mutex = actor.tenure.mutex("a").unwrap();
        let mutex = limit.map_or(mutex.clone(), |limit| mutex.timeout(limit));
        actor.link.cut(true);
        let mut waiting = world.waits(mutex.lock());
        world.pass_watching(world.lease(), || world.still_waits(&mut waiting));
        assert!(actor.link.calls() > 2, "it has tried again and again");
        actor.link.cut(false);
        let guard = world.served(waiting).unwrap();
        guard.check().unwrap();
        world.now(guard.release()).unwrap();
    }
}

fn a_set_waits_through_an_outage(world: &World) {
    let actor = world.actor();
    let parts = ["a", "b"].map(|name| actor.tenure.mutex(name).unwrap().part());
    let set = actor.tenure.lock_set(parts).unwrap().timeout(world.lease() * 4);
    actor.link.cut(true);
    let mut waiting = world.waits(set.lock());
    world.pass_watching(world.lease(), || world.still_waits(&mut waiting));
    actor.link.cut(false);
    let guard = world.served(waiting).unwrap();
    guard.fence_of("a").and(guard.fence_of("b")).unwrap();
}

fn a_try_during_an_outage_is_answered_after_a_few_quick_attempts(world: &World) {
    let actor = world.actor();
    actor.link.cut(true);
    let mut tried = Waiting::start(actor.tenure.mutex("a").unwrap().try_lock());
    world.until("it is answered", || tried.is_done(world.stage()));
    let error = tried.done(world.stage()).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.to_string().contains("tried 3 times in "), "{error}");
}

fn a_limit_that_passes_during_an_outage_tells_the_cause_and_no_effect(world: &World) {
    let actor = world.actor();
    actor.link.cut(true);
    let mutex = actor.tenure.mutex("a").unwrap().timeout(world.lease());
    let error = world.served(Waiting::start(mutex.lock())).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    let said = error.to_string();
    assert!(said.contains("the link is cut; tried ") && said.contains(" times in "), "{said}");
    assert!(error.may_start_over(), "it never held: {error}");
}

fn one_attempt_of_unknown_effect_makes_the_effect_of_all_unknown(world: &World) {
    let actor = world.actor();
    // The store grants it, but the push is lost, and nothing else comes through.
    actor.link.trouble_call(0, Fault::HangReply);
    let mutex = actor.tenure.mutex("a").unwrap().timeout(world.lease());
    let waiting = world.waits(mutex.lock());
    actor.link.cut(true);
    let error = world.served(waiting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    actor.link.cut(false);
    world.until("what was granted is free again", || world.holders("a").is_empty());
}

fn a_place_in_line_that_an_outage_cost_is_taken_anew(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mutex = two.tenure.mutex("a").unwrap().timeout(world.lease() * 8);
    let mut waiting = world.waits(mutex.lock());
    let first = world.line("a");
    two.link.cut(true);
    world.until("its ticket is gone", || {
        world.still_waits(&mut waiting);
        world.line("a").is_empty()
    });
    // So that its session knows of it as well.
    world.pass_watching(world.lease(), || world.still_waits(&mut waiting));
    two.link.cut(false);
    world.until("it stands in line again", || {
        world.still_waits(&mut waiting);
        world.line("a").len() == 1
    });
    assert_ne!(world.line("a"), first, "under a fresh id");
    world.now(guard.release()).unwrap();
    world.served(waiting).unwrap().check().unwrap();
}

fn an_exchange_that_an_outage_outlasts_is_given_up_with_its_lock(world: &World) {
    let actor = world.actor();
    let lock = actor.tenure.rwlock("a").unwrap().timeout(world.lease() * 20);
    let reader = world.now(lock.read()).unwrap();
    actor.link.cut(true);
    let unchanged = world.served(Waiting::start(reader.upgrade())).unwrap_err();
    assert!(unchanged.guard.check().is_err(), "the reader was lost long before the limit");
    let error = unchanged.error;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.may_start_over(), "what was done under the read lock was done: {error}");
    actor.link.cut(false);
    world.until("nothing is left of it", || actor.tenure.claim_count() == 0);
}

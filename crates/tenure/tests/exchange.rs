//! Exchanges (upgrade, downgrade), late answers and endings: no session believes to hold what the
//! store has given away. Each story was once true.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use common::{World, millis, now, poll_once, secs};
use tenure::conformance::{Fault, Link};
use tenure::contract::Claim;
use tenure::time::Tick;
use tenure::{ErrorKind, Event, Loss, Owner, Tenure, Witness};

/// A session behind a link of its own.
fn linked(world: &World) -> (Arc<Link>, Tenure) {
    let link = Link::new(Arc::new(world.store.clone()));
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let tenure = builder.open(Arc::clone(&link) as _).unwrap();
    (link, tenure)
}

#[test]
fn an_answer_that_a_push_has_overtaken_does_not_end_the_grant() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let holder = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    let mut waiting = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    link.hold_replies(true);
    world.advance(millis(10_500));
    assert_eq!(link.renews(), 1);
    // The renewal was answered "waiting"; before the answer is here, the lock is handed over.
    now(holder.release()).unwrap();
    let guard = poll_once(waiting.as_mut()).expect("pushed").unwrap();
    link.hold_replies(false);
    world.settle();
    assert!(guard.check().is_ok(), "the answer was only late");
    world.advance(secs(60));
    assert!(guard.check().is_ok());
}

#[test]
fn an_upgrade_that_never_reached_the_store_leaves_the_reader_as_it_was() {
    let world = World::new();
    let tenure = world.tenure();
    let reader = now(tenure.rwlock("a").unwrap().timeout(secs(1)).read()).unwrap();
    world.engine.refuse.store(true, Ordering::SeqCst);
    let mut upgrade = Box::pin(reader.upgrade());
    let mut answer = None;
    for _ in 0..20 {
        answer = answer.or_else(|| poll_once(upgrade.as_mut()));
        world.advance(millis(100));
    }
    world.engine.refuse.store(false, Ordering::SeqCst);
    let unchanged = answer.expect("given up").unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::Unavailable);
    world.advance(secs(60));
    assert!(unchanged.guard.check().is_ok(), "renewed ever since");
    now(unchanged.guard.upgrade()).unwrap().check().unwrap();
}

#[test]
fn an_upgrade_that_timed_out_leaves_nobody_believing_to_read() {
    // The push of the grant is lost: the store has exchanged reader for writer, and giving the
    // writer back leaves nothing.
    let world = World::new();
    world.engine.deaf.store(true, Ordering::SeqCst);
    let tenure = world.tenure();
    world.engine.deaf.store(false, Ordering::SeqCst);
    let other = world.tenure();
    let reader = now(tenure.rwlock("a").unwrap().timeout(secs(1)).read()).unwrap();
    let blocker = now(other.rwlock("a").unwrap().read()).unwrap();
    let mut upgrade = Box::pin(reader.upgrade());
    assert!(poll_once(upgrade.as_mut()).is_none());
    world.advance(millis(500));
    now(blocker.release()).unwrap();
    world.advance(millis(600));
    let unchanged = poll_once(upgrade.as_mut()).expect("timed out").unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::TimedOut);
    assert_eq!(unchanged.guard.check().unwrap_err().loss(), Some(&Loss::ExchangeGivenUp));
    world.settle();
    assert!(now(other.rwlock("a").unwrap().try_write()).unwrap().is_some());
}

#[test]
fn a_downgrade_without_an_answer_leaves_nobody_believing_to_write() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let writer = now(tenure.rwlock("a").unwrap().timeout(secs(1)).write()).unwrap();
    link.hold_replies(true);
    let mut downgrade = Box::pin(writer.downgrade());
    assert!(poll_once(downgrade.as_mut()).is_none());
    world.advance(millis(1_100));
    let unchanged = poll_once(downgrade.as_mut()).expect("no answer").unwrap_err();
    assert!(unchanged.guard.check().is_err());
    link.hold_replies(false);
    world.advance(secs(3));
    assert!(now(world.tenure().rwlock("a").unwrap().try_write()).unwrap().is_some());
}

#[test]
fn an_upgrade_of_what_the_store_forgot_loses_the_guard() {
    let world = World::new();
    let reader = now(world.tenure().rwlock("a").unwrap().read()).unwrap();
    world.store.lose_memory();
    let unchanged = now(reader.upgrade()).unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::Lost);
    assert!(unchanged.guard.check().is_err());
}

#[test]
fn what_an_exchange_has_replaced_is_forgotten_with_the_push_that_grants_it() {
    let world = World::new();
    let (tenure, other) = (world.tenure(), world.tenure());
    let reader = now(tenure.rwlock("a").unwrap().read()).unwrap();
    let blocker = now(other.rwlock("a").unwrap().read()).unwrap();
    let (old, mut upgrade) = (reader.status(), Box::pin(reader.upgrade()));
    assert!(poll_once(upgrade.as_mut()).is_none());
    assert!(old.check().is_ok() && tenure.claim_count() == 2, "it reads while it waits");
    now(blocker.release()).unwrap();
    assert_eq!(old.check().unwrap_err().loss(), Some(&Loss::Released));
    assert_eq!(tenure.claim_count(), 1);
    assert!(poll_once(upgrade.as_mut()).expect("alone now").unwrap().check().is_ok());
}

#[test]
fn an_exchange_whose_push_was_lost_is_no_loss_of_what_it_replaced() {
    let world = World::new();
    world.engine.deaf.store(true, Ordering::SeqCst);
    let (tenure, other) = (world.tenure(), world.tenure());
    let reader = now(tenure.rwlock("a").unwrap().read()).unwrap();
    let blocker = now(other.rwlock("a").unwrap().read()).unwrap();
    world.advance(secs(5));
    let (old, mut upgrade) = (reader.status(), Box::pin(reader.upgrade()));
    assert!(poll_once(upgrade.as_mut()).is_none());
    now(blocker.release()).unwrap();
    // The renewal of the read finds it gone: what it was exchanged for is asked about first.
    world.advance(millis(5_100));
    assert_eq!(old.check().unwrap_err().loss(), Some(&Loss::Released));
    assert!(poll_once(upgrade.as_mut()).expect("alone now").unwrap().check().is_ok());
}

#[test]
fn an_exchange_whose_answer_is_under_way_is_no_loss_of_what_it_replaced() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let reader = now(tenure.rwlock("a").unwrap().read()).unwrap();
    world.advance(secs(9));
    link.trouble_call(1, Fault::HangReply);
    let (old, mut upgrade) = (reader.status(), Box::pin(reader.upgrade()));
    assert!(poll_once(upgrade.as_mut()).is_none(), "exchanged in the store");
    world.advance(millis(1_500));
    assert_eq!(link.renews(), 1, "it was said to be gone");
    assert!(old.check().is_ok(), "the answer may still come");
    let mut answer = None;
    for _ in 0..10 {
        answer = answer.or_else(|| poll_once(upgrade.as_mut()));
        world.advance(millis(100));
    }
    assert!(answer.expect("sent again").unwrap().check().is_ok());
    assert_eq!(old.check().unwrap_err().loss(), Some(&Loss::Released));
}

#[test]
fn a_read_lock_entered_during_an_upgrade_outlives_the_exchange() {
    let world = World::new();
    let lock = world.tenure().rwlock("a").unwrap().owner(&Owner::new());
    let reader = now(lock.read()).unwrap();
    let other = now(world.tenure().rwlock("a").unwrap().read()).unwrap();
    let mut upgrade = Box::pin(reader.upgrade());
    assert!(poll_once(upgrade.as_mut()).is_none());
    let second = now(lock.read()).unwrap();
    now(other.release()).unwrap();
    let _writer = poll_once(upgrade.as_mut()).expect("alone now").unwrap();
    assert!(second.check().is_ok());
}

#[test]
fn a_downgrade_under_an_owner_lets_other_readers_in() {
    let world = World::new();
    let lock = world.tenure().rwlock("a").unwrap().owner(&Owner::new());
    let _reader = now(now(lock.write()).unwrap().downgrade()).unwrap();
    assert!(now(world.tenure().rwlock("a").unwrap().try_read()).unwrap().is_some());
}

#[test]
fn an_upgrade_fails_if_its_shared_read_hold_was_lost_meanwhile() {
    let world = World::new();
    let (tenure, other) = (world.tenure(), world.tenure());
    let lock = tenure.rwlock("a").unwrap().owner(&Owner::new());
    let (first, _second) = (now(lock.read()).unwrap(), now(lock.read()).unwrap());
    let blocker = now(other.rwlock("a").unwrap().read()).unwrap();
    let fence = first.fence().unwrap();
    let mut upgrade = Box::pin(first.upgrade());
    assert!(poll_once(upgrade.as_mut()).is_none());
    now(other.force_release("a", fence, "by hand")).unwrap();
    now(blocker.release()).unwrap();
    world.settle();
    let unchanged = poll_once(upgrade.as_mut()).expect("decided").unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::Lost, "somebody may have written in between");
}

#[test]
fn a_copy_of_a_claim_that_was_refused_is_refused_when_it_arrives_late() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    let holder = now(world.tenure().mutex("a").unwrap().lock()).unwrap();
    link.trouble_call(0, Fault::LateCall);
    let mut attempt = Box::pin(tenure.mutex("a").unwrap().try_lock());
    let mut answer = poll_once(attempt.as_mut());
    for _ in 0..40 {
        if answer.is_some() {
            break;
        }
        world.advance(millis(100));
        answer = poll_once(attempt.as_mut());
    }
    assert!(answer.expect("answered").unwrap().is_none());
    world.settle();
    now(holder.release()).unwrap();
    // The copy arrives with these calls at the latest.
    now(now(tenure.mutex("b").unwrap().lock()).unwrap().release()).unwrap();
    world.assert_empty("no copy came back");
}

#[test]
fn a_copy_of_a_claim_that_was_granted_and_released_is_refused_when_it_arrives_late() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    link.trouble_call(0, Fault::HangCall);
    link.trouble_call(1, Fault::LateCopy);
    let mut lock = Box::pin(tenure.mutex("a").unwrap().lock());
    let mut answer = poll_once(lock.as_mut());
    for _ in 0..40 {
        if answer.is_some() {
            break;
        }
        world.advance(millis(100));
        answer = poll_once(lock.as_mut());
    }
    now(answer.expect("answered").unwrap().release()).unwrap();
    // The copy arrives with these calls at the latest.
    now(now(tenure.mutex("b").unwrap().lock()).unwrap().release()).unwrap();
    world.assert_empty("no copy came back");
}

#[test]
fn closing_withdraws_what_waits_even_if_nobody_polls_it() {
    let world = World::new();
    let (one, two) = (world.tenure(), world.tenure());
    let holder = now(one.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = Box::pin(two.mutex("a").unwrap().lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    tenure::block_on(two.close());
    assert_eq!(world.census(), (1, 0));
    now(holder.release()).unwrap();
    world.assert_empty("closed");
}

#[test]
fn a_max_hold_that_passes_before_the_pick_up_ends_the_grant_without_a_spin() {
    let world = World::new();
    let tenure = world.tenure();
    let holder = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = Box::pin(tenure.mutex("a").unwrap().max_hold(millis(50)).lock());
    assert!(poll_once(waiting.as_mut()).is_none());
    now(holder.release()).unwrap();
    world.advance(millis(60));
    assert_eq!(world.census(), (0, 0), "given back");
    let guard = poll_once(waiting.as_mut()).expect("claims anew").unwrap();
    assert!(guard.check().is_ok());
    assert!(world.engine.renews.load(Ordering::SeqCst) < 10);
}

#[test]
fn finished_work_is_not_undone_by_a_release_that_gets_no_answer() {
    let world = World::new();
    let (link, tenure) = linked(&world);
    link.trouble_call(1, Fault::LoseReply);
    let output = now(tenure.mutex("a").unwrap().run(|_| async { 42 }));
    assert_eq!(output.unwrap(), 42);
    world.advance(secs(1));
    world.assert_empty("released in the background");
}

/// Panics at the first renewal.
#[derive(Debug, Default)]
struct Panics(AtomicBool);

impl Witness for Panics {
    fn on_event(&self, _: &Arc<Claim>, _at: Tick, event: &Event) {
        let first = matches!(event, Event::Renewed { .. }) && !self.0.swap(true, Ordering::SeqCst);
        assert!(!first, "a witness of the test's own");
    }
}

#[test]
fn a_renewal_that_is_noticed_too_late_does_not_bring_a_grant_back() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let lost = guard.lost();
    // The keeper renews, and the reply is held up for longer than the grant may be trusted.
    *world.engine.stall.lock().unwrap() = Some((world.clock.clone(), secs(25)));
    world.clock.jump(secs(10));
    assert_eq!(tenure::block_on(lost), Loss::Expired);
    assert!(guard.check().is_err());
}

/// Asks the session that it witnesses how many claims it has, at each event.
#[derive(Debug, Default)]
struct Asks {
    tenure: OnceLock<Tenure>,
    seen: Mutex<Vec<(&'static str, usize)>>,
}

impl Witness for Asks {
    fn on_event(&self, _: &Arc<Claim>, _at: Tick, event: &Event) {
        let name = match event {
            Event::Sent => "sent",
            Event::Queued { .. } => "queued",
            Event::Granted { .. } => "granted",
            Event::Renewed { .. } => "renewed",
            Event::Released => "released",
            _ => "other",
        };
        if let Some(tenure) = self.tenure.get() {
            let claims = tenure.claim_count();
            self.seen.lock().unwrap().push((name, claims));
        }
    }
}

/// A witness is never called under a lock of the session, whichever event it is.
#[test]
fn a_witness_may_use_the_session_at_every_event() {
    let world = World::new();
    let asks = Arc::new(Asks::default());
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let builder = builder.witness(Arc::clone(&asks) as _);
    let tenure = builder.open(Arc::clone(&world.engine) as _).unwrap();
    asks.tenure.set(tenure.clone()).unwrap();
    let first = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut second = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(second.as_mut()).is_none());
    world.advance(secs(11));
    now(first.release()).unwrap();
    world.settle();
    let second = poll_once(second.as_mut()).expect("it was granted").unwrap();
    now(second.release()).unwrap();
    let seen: Vec<_> = asks.seen.lock().unwrap().iter().map(|(name, _)| *name).collect();
    let expected =
        ["sent", "granted", "sent", "queued", "renewed", "released", "granted", "released"];
    assert_eq!(seen, expected);
}

#[test]
fn a_keeper_that_panics_closes_its_session_and_everybody_knows() {
    let world = World::new();
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let builder = builder.witness(Arc::new(Panics::default()));
    let tenure = builder.open(Arc::new(world.store.clone())).unwrap();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let lost = guard.lost();
    world.clock.jump(secs(10));
    // The keeper wakes, renews, and panics in the witness.
    assert_eq!(tenure::block_on(lost), Loss::Closed);
    assert!(guard.check().is_err());
    tenure::block_on(tenure.close());
    assert_eq!(now(tenure.mutex("b").unwrap().lock()).unwrap_err().kind(), ErrorKind::Closed);
}

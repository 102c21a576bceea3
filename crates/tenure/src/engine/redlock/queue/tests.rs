//! The queue of one process for one name, on instants that a test hands in.

use super::*;
use crate::contract::{Fence, Lineage, Part, samples};

const LIMIT: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

fn claim_of(lineage: Lineage) -> Arc<Claim> {
    let session = Some(SessionId::new());
    Arc::new(Claim {
        session,
        lineage,
        lease: LEASE,
        ..samples::claim(Part::write("a".parse().unwrap()))
    })
}

fn claims<const N: usize>() -> [Arc<Claim>; N] {
    std::array::from_fn(|_| claim_of(Lineage::root(OwnerId::new())))
}

/// A queue of these waiters, the first with the turn.
fn queue(waiters: &[Arc<Claim>]) -> TryQueue {
    let mut queue = TryQueue::new(&waiters[0], at(0), LIMIT);
    for waiter in &waiters[1..] {
        assert_ne!(queue.may_try(waiter, at(0), LIMIT), Admission::Try, "one tries at a time");
    }
    queue
}

fn holder(claim: &Claim) -> HolderView {
    HolderView {
        claim: claim.id,
        session: claim.session,
        lineage: claim.lineage.clone(),
        weight: 1,
        fence: Fence::new(1),
        reserved: false,
        held_for: Duration::ZERO,
        expires_in: LEASE,
        about: claim.about.clone(),
    }
}

#[track_caller]
fn notified(departure: Departure, claim: &Claim) -> Duration {
    match departure {
        Departure::Others(Some(notice)) if notice.claim == claim.id => notice.after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pauses_double_up_to_a_second_with_chance_in_their_second_half() {
    for (tries, least, most) in [(0, 4, 8), (3, 32, 64), (7, 500, 1000), (99, 500, 1000)] {
        let millis = pause(tries).as_millis();
        assert!((least..=most).contains(&millis), "{tries}: {millis}");
    }
}

#[test]
fn waiters_try_one_after_another_in_the_order_of_their_arrival() {
    let [a, b, c] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b), Arc::clone(&c)]);
    for (winner, next) in [(&a, &b), (&b, &c)] {
        assert_eq!(queue.may_try(winner, at(1), LIMIT), Admission::Try);
        assert_eq!(notified(queue.won(winner, at(2)), next), MAX_PAUSE);
        let notice = queue.released(winner.id, false, at(3));
        assert_eq!((notice.claim, notice.after), (next.id, Duration::ZERO));
    }
    assert_eq!(queue.may_try(&c, at(4), LIMIT), Admission::Try);
    assert_eq!(queue.won(&c, at(5)), Departure::Last);
}

#[test]
fn a_waiter_that_leaves_passes_its_pause_on() {
    let [a, b, c] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b), Arc::clone(&c)]);
    let pause = queue.lost(a.id, Some(&holder(&claims::<1>()[0])), None, at(10)).unwrap();
    assert_eq!(queue.leave(b.id, at(10)), Departure::Others(None));
    assert_eq!(notified(queue.leave(a.id, at(10)), &c), pause);
    assert_eq!(queue.leave(c.id, at(10)), Departure::Last);
}

#[test]
fn a_waiter_that_stalls_with_the_turn_goes_to_the_back() {
    let [a, b, c] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b), Arc::clone(&c)]);
    let Admission::Wait(Some(pause)) = queue.may_try(&b, at(0), LIMIT) else { panic!("no time") };
    let late = at(0) + pause;
    assert_eq!(queue.may_try(&b, late, LIMIT), Admission::Try);
    assert_ne!(queue.may_try(&a, late, LIMIT), Admission::Try);
    notified(queue.won(&b, late), &c);
    notified(queue.won(&c, late), &a);
}

#[test]
fn a_waiter_that_has_not_asked_for_its_lease_is_skipped() {
    let [a, b, c] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b), Arc::clone(&c)]);
    let late = at(0) + LEASE;
    assert_eq!(queue.may_try(&c, late, LIMIT), Admission::Try);
    assert_eq!(queue.won(&c, late), Departure::Last, "the others are gone");
    assert!(queue.places.is_empty());
}

#[test]
fn every_waiter_tries_for_itself_while_too_few_nodes_answer() {
    let [a, b, c] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b), Arc::clone(&c)]);
    queue.failed();
    assert_eq!(queue.may_try(&b, at(1), LIMIT), Admission::Try);
    assert_eq!(queue.may_try(&c, at(1), LIMIT), Admission::Try);
    assert_eq!(queue.lost(b.id, Some(&holder(&claims::<1>()[0])), None, at(2)), None);
    assert_ne!(queue.may_try(&c, at(3), LIMIT), Admission::Try);
}

#[test]
fn a_waiter_tries_at_once_if_the_holder_that_was_met_may_be_its_ancestor() {
    let [a] = claims();
    let [parent] = claims();
    let child = claim_of(Lineage::nested(OwnerId::new(), &[parent.lineage.owner()]).unwrap());
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&child)]);
    queue.lost(a.id, Some(&holder(&parent)), None, at(1));
    assert_eq!(queue.may_try(&child, at(2), LIMIT), Admission::Try);
}

#[test]
fn hand_offs_stay_inside_a_process_for_a_streak_while_others_wait() {
    let waiters = claims::<12>();
    let mut queue = queue(&waiters);
    let mut at_once = 0;
    for waiter in &waiters[..11] {
        queue.won(waiter, at(1));
        at_once += u32::from(queue.released(waiter.id, true, at(1)).after.is_zero());
    }
    assert_eq!(at_once, 10, "all but the ninth");
}

#[test]
fn a_message_about_a_release_of_this_process_is_no_news() {
    let [a, b, other] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b)]);
    queue.won(&a, at(1));
    queue.released(a.id, false, at(2));
    assert_eq!(queue.published(a.id, 2, at(2)), None);
    let notices = (0..3).map(|_| queue.published(other.id, 2, at(3)).is_some());
    assert_eq!(notices.collect::<Vec<_>>(), [true, true, false], "the first, and a majority");
}

#[test]
fn processes_spread_their_tries_further_after_votes_were_split() {
    let [a, b] = claims();
    let mut queue = queue(&[Arc::clone(&a), Arc::clone(&b)]);
    for _ in 0..10 {
        queue.lost(a.id, None, None, at(1));
    }
    assert_eq!(queue.splits, MAX_DOUBLINGS);
    for _ in 0..10 {
        queue.lost(a.id, Some(&holder(&b)), None, at(1));
    }
    assert_eq!(queue.splits, 0);
}

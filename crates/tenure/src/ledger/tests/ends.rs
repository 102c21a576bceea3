//! Stories of ends and limits: forced release, the end of a session, too many.

use super::*;
use crate::contract::Loss;
use crate::limits;

#[test]
fn a_forced_release_ends_exactly_the_grant_with_that_fence_and_tells_the_reason() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [read("a")]).session(n));
    let first = world.granted(&one);
    world.granted(&two);
    let Evicted::Done(ended) = world.evict("a", fence(&first), "maintenance") else {
        panic!("it was held")
    };
    assert_eq!((ended.len(), ended[0].claim), (1, id(1)));
    let loss = Loss::Evicted { reason: Arc::from("maintenance") };
    let signals = world.ledger.take_signals();
    assert_eq!(signals, [(session(1), Signal::Ended { claim: id(1), loss: loss.clone() })]);
    assert_eq!(world.renew(&one), Renewed::Gone(loss), "also if it missed the signal");
    assert_eq!(world.holders("a"), [2]);
}

/// Promise 9: a caller that looked a moment ago must not end a successor.
#[test]
fn a_forced_release_with_an_old_fence_ends_nothing_and_says_who_holds() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let old = fence(&world.granted(&one));
    world.release(&one);
    assert_eq!(world.evict("a", old, "late"), Evicted::NoSuchGrant(vec![]));
    world.granted(&ask(2, &owner(2), [mutex("a")]));
    let Evicted::NoSuchGrant(holders) = world.evict("a", old, "late") else {
        panic!("the fence is not that of the holder")
    };
    assert_eq!(holders[0].claim, id(2));
    assert_eq!(world.holders("a"), [2]);
}

/// Promise 6.
#[test]
fn a_late_copy_of_an_evicted_claim_is_refused() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let grant = world.granted(&one);
    world.evict("a", fence(&grant), "maintenance");
    assert_eq!(world.refused(&one), Refusal::Withdrawn);
    world.pass(LEASE);
    world.granted(&one);
}

#[test]
fn a_forced_release_hands_the_slot_on() {
    let mut world = World::new();
    let grant = world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a")]).session(2));
    world.evict("a", fence(&grant), "maintenance");
    assert_eq!(world.told(), [2]);
}

#[test]
fn a_forced_release_ends_every_claim_that_shares_the_fence() {
    let mut world = World::new();
    let grant = world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.granted(&ask(2, &owner(1), [mutex("a")]));
    world.granted(&ask(3, &nested(3, &[1]), [mutex("a")]));
    world.granted(&ask(4, &nested(4, &[3, 1]), [mutex("a")]));
    let Evicted::Done(ended) = world.evict("a", fence(&grant), "stuck") else { panic!("held") };
    assert_eq!(ended.len(), 4);
    assert_eq!(world.slot("a"), None);
}

/// Were claims taken out one by one and the line served between, a waiting child would come in
/// with the fence that is just being ended.
#[test]
fn nobody_comes_in_with_a_fence_while_it_is_being_ended() {
    let mut world = World::new();
    let parent = owner(1);
    let grant = world.granted(&ask(1, &parent, [mutex("a")]));
    world.granted(&ask(2, &nested(2, &[1]), [mutex("a")]));
    world.granted(&ask(3, &parent, [mutex("a")]));
    let sibling = ask(4, &nested(4, &[1]), [mutex("a")]);
    world.queued(&sibling);
    world.evict("a", fence(&grant), "stuck");
    assert_eq!(world.holders("a"), [4]);
    assert!(fence(&grant) < world.fence(&sibling));
}

#[test]
fn the_end_of_a_session_ends_all_it_holds_and_waits_for_and_nothing_else() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).session(1));
    world.granted(&ask(2, &owner(2), [mutex("b")]).session(2));
    world.queued(&ask(3, &owner(3), [mutex("b"), mutex("c")]).session(1));
    world.queued(&ask(4, &owner(4), [mutex("a")]).session(2));
    world.granted(&ask(5, &owner(5), [mutex("d")]));
    let now = world.now();
    world.ledger.end_session(session(1), now);
    assert_eq!(world.told(), [4]);
    assert_eq!((world.holders("b"), world.line("b")), (vec![2], vec![]));
    assert_eq!((world.slot("c"), world.holders("d")), (None, vec![5]));
}

#[test]
fn a_hold_whose_claim_is_repeated_without_a_session_outlives_the_session() {
    let mut world = World::new();
    let (mine, other) = (ask(1, &owner(1), [mutex("a")]), ask(2, &owner(2), [mutex("a")]));
    let grant = world.granted(&mine.clone().session(1));
    world.queued(&other.session(2));
    assert_eq!(world.granted(&mine).fences, grant.fences, "the same grant");
    let now = world.now();
    world.ledger.end_session(session(1), now);
    assert_eq!((world.holders("a"), world.line("a")), (vec![1], vec![2]));
}

#[test]
fn the_end_of_a_session_counts_as_an_expiry_with_its_lock_delay() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).session(1).delay(500));
    world.pass(100);
    let now = world.now();
    world.ledger.end_session(session(1), now);
    let two = ask(2, &owner(2), [mutex("a")]);
    assert_eq!(world.queued(&two).first_expiry, Some(millis(500)));
}

#[test]
fn the_end_of_a_session_does_not_prolong_the_delay_of_what_had_expired_before() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).session(1).delay(500));
    world.pass(LEASE + 500);
    let now = world.now();
    world.ledger.end_session(session(1), now);
    world.granted(&ask(2, &owner(2), [mutex("a")]).trying());
}

/// Promise 2. The story of a bug: the line was served without looking for the dead first.
#[test]
fn the_end_of_a_session_skips_a_dead_head_of_another_session() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).session(1).lease(9 * LEASE));
    world.queued(&ask(2, &owner(2), [mutex("a")]).session(2));
    world.queued(&ask(3, &owner(3), [mutex("a")]).session(3).lease(9 * LEASE));
    world.pass(LEASE);
    let now = world.now();
    world.ledger.end_session(session(1), now);
    assert_eq!(world.told(), [3]);
}

#[test]
fn a_line_has_a_limit_and_says_so() {
    let mut world = World::new();
    let holder = ask(1, &owner(1), [read("a")]);
    world.granted(&holder);
    let writer = ask(2, &owner(2), [write("a")]);
    world.queued(&writer);
    for n in 3..=limits::WAITERS as u128 + 1 {
        world.queued(&ask(n, &owner(n), [read("a")]));
    }
    let late = ask(20_000, &owner(20_000), [read("a")]);
    let full = Refusal::Full { name: name("a"), limit: limits::WAITERS };
    assert_eq!(world.refused(&late), full);
    assert!(matches!(world.queued(&writer).place, 1), "those in line may still repeat");
    // Who need not wait is not turned away by a full line.
    world.granted(&ask(20_001, &owner(1), [read("a")]));
    world.granted(&ask(20_002, &nested(7, &[1]), [read("a")]).trying());
    world.release(&writer);
    assert_eq!(world.line("a").len(), 2, "as many come in as may hold");
    assert_eq!(world.holders("a").len(), limits::HOLDERS);
}

#[test]
fn the_holders_of_a_slot_have_a_limit_and_who_must_wait_anyway_may_wait() {
    let mut world = World::new();
    let most = u32::try_from(limits::HOLDERS).unwrap();
    for n in 1..=u128::from(most) {
        world.granted(&ask(n, &owner(n), [permits("a", 1, most + 1)]));
    }
    let late = ask(20_000, &owner(20_000), [permits("a", 1, most + 1)]);
    let full = Refusal::Full { name: name("a"), limit: limits::HOLDERS };
    assert_eq!(world.refused(&late), full, "a permit is left, but no room for its holder");
    assert_eq!(world.queued(&ask(20_001, &owner(20_001), [permits("a", 2, most + 1)])).place, 1);
}

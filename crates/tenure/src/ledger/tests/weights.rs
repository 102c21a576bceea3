//! Stories of weights: permits add up, readers and writers alternate, upgrades and downgrades.

use super::*;

#[test]
fn permits_are_given_until_none_are_left() {
    let mut world = World::new();
    let asks: Vec<Ask> = (1..=4).map(|n| ask(n, &owner(n), [permits("s", 1, 3)])).collect();
    for ask in &asks[..3] {
        world.granted(ask);
    }
    world.queued(&asks[3]);
    world.release(&asks[1]);
    assert_eq!(world.holders("s"), [1, 3, 4]);
}

#[test]
fn permits_of_one_owner_and_of_nested_owners_add_up() {
    let mut world = World::new();
    let me = owner(1);
    world.granted(&ask(1, &me, [permits("s", 1, 3)]));
    world.granted(&ask(2, &me, [permits("s", 1, 3)]));
    world.granted(&ask(3, &nested(3, &[1]), [permits("s", 1, 3)]));
    world.refused(&ask(4, &me, [permits("s", 1, 3)]).trying());
    world.refused(&ask(5, &nested(5, &[1]), [permits("s", 1, 3)]).trying());
}

#[test]
fn heavy_and_light_claims_share_the_permits() {
    let mut world = World::new();
    let two = ask(1, &owner(1), [permits("s", 2, 5)]);
    world.granted(&two);
    world.granted(&ask(2, &owner(2), [permits("s", 3, 5)]));
    world.queued(&ask(3, &owner(3), [permits("s", 1, 5)]));
    world.queued(&ask(4, &owner(4), [permits("s", 1, 5)]));
    world.queued(&ask(5, &owner(5), [permits("s", 1, 5)]));
    world.release(&two);
    assert_eq!((world.holders("s"), world.line("s")), (vec![2, 3, 4], vec![5]));
}

/// Promise 2: a heavy claim at the head is not starved by light ones behind it.
#[test]
fn a_heavy_head_blocks_the_light_ones_behind_it() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [permits("s", 1, 3)]));
    world.granted(&one);
    world.granted(&two);
    let heavy = ask(3, &owner(3), [permits("s", 3, 3)]);
    world.queued(&heavy);
    world.queued(&ask(4, &owner(4), [permits("s", 1, 3)]));
    world.release(&one);
    assert_eq!(world.line("s"), [3, 4]);
    world.release(&two);
    assert_eq!((world.holders("s"), world.line("s")), (vec![3], vec![4]));
    world.release(&heavy);
    assert_eq!(world.holders("s"), [4]);
}

/// Promise 2: a semaphore knows no owners, so not even the same owner passes its own heavy claim.
#[test]
fn a_light_permit_waits_behind_a_heavy_one_of_the_same_owner() {
    let mut world = World::new();
    let me = owner(1);
    world.granted(&ask(1, &me, [permits("s", 1, 2)]));
    world.queued(&ask(2, &me, [permits("s", 2, 2)]));
    world.refused(&ask(3, &me, [permits("s", 1, 2)]).trying());
    assert_eq!(world.queued(&ask(4, &me, [permits("s", 1, 2)])).place, 2);
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let mut world = World::new();
    let readers = [1, 2, 3].map(|n| ask(n, &owner(n), [read("a")]));
    for reader in &readers {
        world.granted(reader);
    }
    let writer = ask(4, &owner(4), [write("a")]).session(4);
    world.queued(&writer);
    world.queued(&ask(5, &owner(5), [write("a")]).session(5));
    for reader in &readers {
        assert!(world.told().is_empty());
        world.release(reader);
    }
    assert_eq!(world.told(), [4]);
    assert_eq!(world.holders("a"), [4]);
}

/// Promise 2.
#[test]
fn a_writer_is_not_starved_by_readers_that_keep_coming() {
    let mut world = World::new();
    let first = ask(1, &owner(1), [read("a")]);
    world.granted(&first);
    let writer = ask(2, &owner(2), [write("a")]);
    world.queued(&writer);
    for n in 3..20 {
        world.queued(&ask(n, &owner(n), [read("a")]));
    }
    world.release(&first);
    assert_eq!(world.holders("a"), [2]);
    world.release(&writer);
    assert_eq!(world.holders("a").len(), 17, "then all readers up to the next writer");
}

/// Promise 2.
#[test]
fn readers_are_not_starved_by_writers_that_keep_coming() {
    let mut world = World::new();
    let first = ask(1, &owner(1), [write("a")]);
    world.granted(&first);
    for n in [2, 3] {
        world.queued(&ask(n, &owner(n), [read("a")]));
    }
    for n in [4, 5] {
        world.queued(&ask(n, &owner(n), [write("a")]));
    }
    world.queued(&ask(6, &owner(6), [read("a")]));
    world.release(&first);
    assert_eq!((world.holders("a"), world.line("a")), (vec![2, 3], vec![4, 5, 6]));
}

#[test]
fn an_upgrade_of_the_only_holder_is_granted_at_once_with_a_new_fence() {
    let mut world = World::new();
    let me = owner(1);
    let reader = ask(1, &me, [read("a")]);
    let first = fence(&world.granted(&reader));
    world.queued(&ask(9, &owner(9), [write("a")]));
    let writer = ask(2, &me, [write("a")]).replaces(&reader);
    assert!(first < fence(&world.granted(&writer)));
    assert_eq!(world.holders("a"), [2], "what it replaces is gone");
}

#[test]
fn an_upgrade_waits_for_the_other_readers_ahead_of_the_line() {
    let mut world = World::new();
    let me = owner(1);
    let (mine, other) = (ask(1, &me, [read("a")]), ask(2, &owner(2), [read("a")]));
    let first = fence(&world.granted(&mine));
    world.granted(&other);
    world.queued(&ask(3, &owner(3), [write("a")]));
    let upgrade = ask(4, &me, [write("a")]).replaces(&mine);
    assert_eq!(world.queued(&upgrade).place, 1);
    assert_eq!(world.holders("a"), [1, 2], "it still reads while it waits");
    world.release(&other);
    assert_eq!((world.holders("a"), world.line("a")), (vec![4], vec![3]));
    assert!(first < world.fence(&upgrade));
}

#[test]
fn an_upgrade_beside_the_read_it_keeps_gives_both_the_new_fence() {
    let mut world = World::new();
    let me = owner(1);
    let reader = ask(1, &me, [read("a")]);
    let first = fence(&world.granted(&reader));
    let second = fence(&world.granted(&ask(2, &me, [write("a")])));
    assert!(first < second);
    assert_eq!(world.fence(&reader), second, "from its next renewal");
}

#[test]
fn a_second_upgrade_is_refused_at_once_and_names_the_first() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [read("a")]));
    world.granted(&one);
    world.granted(&two);
    let first = ask(3, &owner(1), [write("a")]).replaces(&one);
    world.queued(&first);
    let second = ask(4, &owner(2), [write("a")]).replaces(&two);
    assert_eq!(world.refused(&second), Refusal::Upgrade { by: first.about.clone() });
    assert_eq!(world.holders("a"), [1, 2], "the refused one still reads");
    world.release(&two);
    assert_eq!(world.holders("a"), [3]);
}

#[test]
fn after_the_first_upgrade_was_withdrawn_the_second_may_be_asked() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [read("a")]));
    world.granted(&one);
    world.granted(&two);
    let first = ask(3, &owner(1), [write("a")]).replaces(&one);
    world.queued(&first);
    world.release(&first);
    world.queued(&ask(4, &owner(2), [write("a")]).replaces(&two));
}

#[test]
fn a_try_upgrade_that_cannot_be_granted_is_refused_and_leaves_the_read() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [read("a")]));
    world.granted(&one);
    world.granted(&two);
    let upgrade = ask(3, &owner(1), [write("a")]).replaces(&one).trying();
    assert!(matches!(world.refused(&upgrade), Refusal::Held { .. }));
    assert_eq!(world.holders("a"), [1, 2]);
}

#[test]
fn an_upgrade_that_waits_ends_when_the_hold_it_replaces_ends() {
    for expires in [false, true] {
        let mut world = World::new();
        let mine = ask(1, &owner(1), [read("a")]);
        world.granted(&mine);
        world.granted(&ask(2, &owner(2), [read("a")]).lease(9 * LEASE));
        let upgrade = ask(3, &owner(1), [write("a")]).replaces(&mine).lease(9 * LEASE);
        world.queued(&upgrade);
        if expires {
            world.pass(LEASE);
        } else {
            world.release(&mine);
        }
        assert_eq!(world.renew(&upgrade), Renewed::Gone(crate::contract::Loss::Forgotten));
        world.granted(&ask(4, &owner(4), [read("a")]).trying());
    }
}

#[test]
fn what_replaces_nothing_is_refused() {
    let mut world = World::new();
    let gone = ask(1, &owner(1), [read("a")]);
    let claim = ask(2, &owner(1), [write("a")]).replaces(&gone);
    assert_eq!(world.refused(&claim), Refusal::NothingToReplace);
    world.granted(&gone);
    let thief = ask(3, &owner(3), [read("a")]).replaces(&gone);
    assert_eq!(world.refused(&thief), Refusal::NothingToReplace, "it is another owner's");
}

#[test]
fn a_downgrade_keeps_the_fence_and_lets_the_readers_in() {
    let mut world = World::new();
    let me = owner(1);
    let writer = ask(1, &me, [write("a")]);
    let first = fence(&world.granted(&writer));
    world.queued(&ask(2, &owner(2), [read("a")]).session(2));
    world.queued(&ask(3, &owner(3), [read("a")]).session(3));
    world.queued(&ask(4, &owner(4), [write("a")]).session(4));
    let reader = ask(5, &me, [read("a")]).replaces(&writer);
    assert_eq!(fence(&world.granted(&reader)), first);
    assert_eq!(world.told(), [2, 3]);
    assert_eq!((world.holders("a"), world.line("a")), (vec![5, 2, 3], vec![4]));
    assert_eq!(world.fence(&reader), first);
}

#[test]
fn a_repeated_upgrade_is_the_same_upgrade() {
    let mut world = World::new();
    let me = owner(1);
    let reader = ask(1, &me, [read("a")]);
    world.granted(&reader);
    let writer = ask(2, &me, [write("a")]).replaces(&reader);
    let first = world.granted(&writer);
    assert_eq!(world.granted(&writer), first, "though what it replaced is gone (promise 5)");
}

#[test]
fn a_reader_that_re_enters_never_waits_behind_an_upgrade_that_waits_for_it() {
    let mut world = World::new();
    let [one, two] = [1, 2].map(|n| ask(n, &owner(n), [read("a")]));
    world.granted(&one);
    world.granted(&two);
    world.queued(&ask(3, &owner(1), [write("a")]).replaces(&one));
    world.granted(&ask(4, &owner(2), [read("a")]).trying());
    world.granted(&ask(5, &nested(5, &[2]), [read("a")]).trying());
    world.refused(&ask(6, &owner(6), [read("a")]).trying());
}

//! Stories of nested owners: `tenure run` inside `tenure run`, `make -j` under a lock.

use super::*;

#[test]
fn a_child_comes_in_beside_its_ancestors_however_deep() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.granted(&ask(2, &nested(2, &[9, 1]), [mutex("a")]).trying());
    world.granted(&ask(3, &nested(3, &[2, 9, 1]), [mutex("a")]).trying());
}

#[test]
fn an_ancestor_does_not_come_in_beside_its_child() {
    let mut world = World::new();
    world.granted(&ask(1, &nested(2, &[1]), [mutex("a")]));
    world.refused(&ask(2, &owner(1), [mutex("a")]).trying());
}

#[test]
fn siblings_exclude_each_other_in_the_order_in_which_they_came() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]).lease(9 * LEASE));
    let jobs: Vec<Ask> = (2..=5).map(|n| ask(n, &nested(n, &[1]), [mutex("a")])).collect();
    world.granted(&jobs[0]);
    for job in &jobs[1..] {
        world.queued(job);
    }
    for pair in jobs.windows(2) {
        world.release(&pair[0]);
        assert_eq!(world.holders("a"), [1, number(pair[1].id)]);
    }
}

#[test]
fn a_sibling_waits_ahead_of_strangers_who_wait_for_the_parent() {
    let mut world = World::new();
    let parent = ask(1, &owner(1), [mutex("a")]);
    world.granted(&parent);
    let job = ask(2, &nested(2, &[1]), [mutex("a")]);
    world.granted(&job);
    world.queued(&ask(3, &owner(3), [mutex("a")]));
    assert_eq!(world.queued(&ask(4, &nested(4, &[1]), [mutex("a")])).place, 1);
    assert_eq!(world.line("a"), [4, 3]);
    world.release(&job);
    assert_eq!((world.holders("a"), world.line("a")), (vec![1, 4], vec![3]));
}

#[test]
fn children_that_waited_before_their_parent_came_in_are_let_in_with_it() {
    let mut world = World::new();
    let holder = ask(9, &owner(9), [mutex("a")]);
    world.granted(&holder);
    world.queued(&ask(1, &owner(1), [mutex("a")]).session(1));
    world.queued(&ask(2, &owner(2), [mutex("a")]).session(2));
    world.queued(&ask(3, &nested(3, &[1]), [mutex("a")]).session(3));
    world.queued(&ask(4, &nested(4, &[1]), [mutex("a")]).session(4));
    world.release(&holder);
    assert_eq!(world.told(), [1, 3]);
    assert_eq!(world.line("a"), [4, 2]);
}

#[test]
fn a_child_outlives_the_hold_of_its_parent() {
    let mut world = World::new();
    let parent = ask(1, &owner(1), [mutex("a")]);
    world.granted(&parent);
    world.granted(&ask(2, &nested(2, &[1]), [mutex("a")]));
    world.release(&parent);
    world.refused(&ask(3, &owner(3), [mutex("a")]).trying());
    world.refused(&ask(4, &nested(4, &[1]), [mutex("a")]).trying());
}

#[test]
fn nested_readers_share_and_a_nested_writer_waits_for_its_siblings_only() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [write("a")]));
    let readers = [2, 3].map(|n| ask(n, &nested(n, &[1]), [read("a")]));
    world.granted(&readers[0]);
    world.granted(&readers[1]);
    let writer = ask(4, &nested(4, &[1]), [write("a")]);
    world.queued(&writer);
    world.queued(&ask(5, &nested(5, &[1]), [read("a")]));
    world.release(&readers[0]);
    world.release(&readers[1]);
    assert_eq!((world.holders("a"), world.line("a")), (vec![1, 4], vec![5]));
}

/// The story of a bug: on a mutex the scan stopped at a head that could not come in, though one
/// behind it could: `c` waits for `b`, whose grandchild therefore must not wait behind `c`.
#[test]
fn a_grandchild_never_waits_behind_an_uncle_that_waits_for_its_parent() {
    for part in [mutex("a"), write("a")] {
        let mut world = World::new();
        world.granted(&ask(1, &owner(1), [part.clone()]));
        world.granted(&ask(2, &nested(2, &[1]), [part.clone()]));
        let first = ask(3, &nested(3, &[2, 1]), [part.clone()]);
        world.granted(&first);
        world.queued(&ask(4, &nested(4, &[1]), [part.clone()]));
        world.queued(&ask(5, &nested(5, &[2, 1]), [part.clone()]));
        world.release(&first);
        assert_eq!((world.holders("a"), world.line("a")), (vec![1, 2, 5], vec![4]));
    }
}

/// The same, when the owner that was let in twice has children between its tickets.
#[test]
fn a_second_ticket_of_an_owner_comes_in_though_its_children_hold_and_wait() {
    let mut world = World::new();
    let holder = ask(9, &owner(9), [mutex("a")]);
    world.granted(&holder);
    world.queued(&ask(11, &owner(1), [mutex("a")]).session(1));
    world.queued(&ask(21, &nested(2, &[1]), [mutex("a")]).session(1));
    world.queued(&ask(31, &nested(3, &[1]), [mutex("a")]).session(1));
    world.queued(&ask(12, &owner(1), [mutex("a")]).session(1));
    world.release(&holder);
    let mut told = world.told();
    told.sort_unstable();
    assert_eq!(told, [11, 12, 21]);
    assert_eq!(world.line("a"), [31]);
}

#[test]
fn a_nested_reader_never_waits_behind_an_upgrade_that_waits_for_its_own_lineage() {
    let mut world = World::new();
    let parent = ask(1, &owner(1), [read("a")]);
    world.granted(&parent);
    world.granted(&ask(2, &owner(2), [read("a")]));
    world.queued(&ask(3, &owner(2), [write("a")]));
    world.granted(&ask(4, &nested(4, &[1]), [read("a")]).trying());
    world.granted(&ask(5, &nested(5, &[4, 1]), [read("a")]).trying());
}

#[test]
fn a_nested_claim_heavier_than_its_base_is_an_upgrade_with_a_new_fence() {
    let mut world = World::new();
    let parent = ask(1, &owner(1), [read("a")]);
    let first = fence(&world.granted(&parent));
    let child = ask(2, &nested(2, &[1]), [write("a")]);
    let second = fence(&world.granted(&child));
    assert!(first < second);
    assert_eq!(world.fence(&parent), second);
    world.refused(&ask(3, &owner(3), [read("a")]).trying());
}

#[test]
fn a_nested_upgrade_and_its_uncle_s_are_rivals_only_if_each_holds_the_other_up() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [read("a")]));
    for n in [2, 3] {
        world.granted(&ask(n, &nested(n, &[1]), [read("a")]));
    }
    // The parent's upgrade waits for both children; a child's waits only for its sibling.
    world.queued(&ask(11, &owner(1), [write("a")]));
    let child = ask(12, &nested(2, &[1]), [write("a")]);
    world.queued(&child);
    let sibling = ask(13, &nested(3, &[1]), [write("a")]);
    assert_eq!(world.refused(&sibling), Refusal::Upgrade { by: child.about.clone() });
    world.release(&ask(3, &nested(3, &[1]), [read("a")]));
    assert_eq!(world.holders("a"), [1, 2, 12]);
}

#[test]
fn nested_claims_of_an_unknown_ancestor_wait_like_strangers() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a")]));
    assert_eq!(world.queued(&ask(3, &nested(3, &[8]), [mutex("a")])).place, 2);
}

#[test]
fn a_child_stays_ahead_of_the_line_while_its_parent_holds_at_all() {
    let mut world = World::new();
    let (one, again) = (ask(1, &owner(1), [mutex("a")]), ask(2, &owner(1), [mutex("a")]));
    let sibling = ask(3, &nested(3, &[1]), [mutex("a")]);
    for holder in [&one, &again, &sibling] {
        world.granted(holder);
    }
    world.queued(&ask(4, &owner(4), [mutex("a")]));
    let child = ask(5, &nested(5, &[1]), [mutex("a")]).session(5);
    world.queued(&child);
    assert_eq!(world.line("a"), [5, 4]);
    world.release(&again);
    assert_eq!(world.line("a"), [5, 4], "the parent has another hold");
    world.release(&sibling);
    assert_eq!(world.told(), [5]);
    assert_eq!(world.holders("a"), [1, 5]);
}

#[test]
fn after_a_lock_delay_a_child_passes_whoever_waits_for_its_parent() {
    let mut world = World::new();
    for n in [1, 2] {
        world.granted(&ask(n, &owner(n), [read("a")]).lease(10 * LEASE));
    }
    world.granted(&ask(3, &owner(3), [read("a")]).delay(LEASE));
    world.pass(LEASE);
    // No new grant until the lock delay is over.
    world.queued(&ask(4, &nested(4, &[1]), [write("a")]).lease(10 * LEASE));
    world.queued(&ask(5, &nested(5, &[2]), [read("a")]).lease(10 * LEASE).session(5));
    world.pass(LEASE);
    assert_eq!(world.line("a"), [4], "it waits for the second reader, and so not for its child");
    assert_eq!(world.told(), [5]);
    assert_eq!(world.holders("a"), [1, 2, 5]);
}

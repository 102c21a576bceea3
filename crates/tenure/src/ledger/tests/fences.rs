//! Stories of fences: they grow through everything (promise 3), and are shared only by kin.

use super::super::Shelf;
use super::*;

#[test]
fn a_fence_is_at_least_the_wall_clock_in_microseconds() {
    let mut world = World::new();
    let grant = world.granted(&ask(1, &owner(1), [mutex("a")]));
    assert_eq!(fence(&grant).get(), world.wall);
}

#[test]
fn fences_grow_over_releases_though_the_clock_stands_still() {
    let mut world = World::new();
    let mut last = 0;
    for n in 1..=5 {
        let one = ask(n, &owner(n), [mutex("a")]);
        let fence = fence(&world.granted(&one)).get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        world.release(&one);
    }
}

#[test]
fn fences_grow_over_expiry_and_over_hand_offs() {
    let mut world = World::new();
    let first = fence(&world.granted(&ask(1, &owner(1), [mutex("a")])));
    let two = ask(2, &owner(2), [mutex("a")]).lease(5 * LEASE);
    world.queued(&two);
    let three = ask(3, &owner(3), [mutex("a")]).lease(5 * LEASE);
    world.queued(&three);
    world.pass(LEASE);
    let second = world.fence(&two);
    world.release(&two);
    let third = world.fence(&three);
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[test]
fn every_reader_and_every_permit_has_a_fence_of_its_own() {
    let mut world = World::new();
    for part in [read("a"), permits("s", 1, 9)] {
        let grants = [1, 2, 3].map(|n| ask(n, &owner(n), [part.clone()]));
        let fences = grants.map(|ask| fence(&world.granted(&ask)));
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    }
}

#[test]
fn permits_of_one_owner_do_not_share_a_fence() {
    let mut world = World::new();
    let one = owner(1);
    let first = world.granted(&ask(1, &one, [permits("s", 1, 3)]));
    let second = world.granted(&ask(2, &one, [permits("s", 1, 3)]));
    assert!(fence(&first) < fence(&second));
}

#[test]
fn a_slot_that_was_forgotten_and_came_back_goes_on_above_its_old_fences() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let first = fence(&world.granted(&one));
    world.release(&one);
    assert!(world.ledger.shelf.peek(&name("a")).is_none(), "it is forgotten");
    assert_eq!(world.ledger.mint.floor, first.get());
    world.wall = 5;
    let second = fence(&world.granted(&one));
    assert!(first < second, "{first} {second}");
}

#[test]
fn fences_grow_though_the_wall_clock_was_stepped_back() {
    let mut world = World::new();
    let mut last = fence(&world.granted(&ask(1, &owner(1), [read("a")])));
    for (n, wall) in [(2, 500), (3, 0), (4, 2_000_000), (5, 1_999_999)] {
        world.wall = wall;
        let next = fence(&world.granted(&ask(n, &owner(n), [read("a")])));
        assert!(last < next, "{last} {next} at {wall}");
        last = next;
    }
}

#[test]
fn fences_start_above_the_floor_the_ledger_was_opened_with() {
    let mut world = World::new();
    world.ledger = Ledger::default();
    world.ledger.mint.floor = 9_000_000;
    let grant = world.granted(&ask(1, &owner(1), [mutex("a")]));
    assert_eq!(fence(&grant).get(), 9_000_001);
}

#[test]
fn a_name_reused_with_another_shape_goes_on_above_its_old_fences() {
    let mut world = World::new();
    let first = fence(&world.granted(&ask(1, &owner(1), [mutex("a")]).delay(100)));
    world.pass(LEASE);
    world.wall = 0;
    let two = ask(2, &owner(2), [permits("a", 1, 3)]);
    world.queued(&two);
    world.pass(100);
    assert!(first < fence(&world.granted(&two)));
}

#[test]
fn a_renewal_alone_never_changes_a_fence() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    let first = fence(&world.granted(&one));
    for _ in 0..5 {
        world.pass(LEASE / 2);
        assert_eq!(world.fence(&one), first);
    }
}

#[test]
fn a_set_has_one_fence_for_each_part_in_the_order_of_the_names() {
    let mut world = World::new();
    let parts = || [mutex("b"), read("a"), permits("c", 1, 2)];
    let first = fences(&world.granted(&ask(1, &owner(1), parts()).lease(200)));
    world.pass(200);
    let second = fences(&world.granted(&ask(2, &owner(2), parts())));
    assert_eq!((first.len(), second.len()), (3, 3));
    assert!(first.iter().zip(&second).all(|(first, second)| first < second));
    let slot = world.slot("b").unwrap();
    assert_eq!(slot.holders[0].fence, second[1]);
}

/// Nested claims share the ancestor's fence.
#[test]
fn nested_owners_share_the_fence_of_their_ancestor() {
    let mut world = World::new();
    let outer = fence(&world.granted(&ask(1, &owner(1), [mutex("a")])));
    let inner = fence(&world.granted(&ask(2, &nested(2, &[1]), [mutex("a")])));
    let innermost = fence(&world.granted(&ask(3, &nested(3, &[2, 1]), [mutex("a")])));
    assert_eq!((outer, outer), (inner, innermost));
}

/// The expired one may still write with the shared fence, so the next may not use it.
#[test]
fn after_a_nested_claim_expired_the_next_and_the_ancestor_share_a_new_fence() {
    let mut world = World::new();
    let outer = ask(1, &owner(1), [mutex("a")]).lease(9 * LEASE);
    let first = fence(&world.granted(&outer));
    let inner = ask(2, &nested(2, &[1]), [mutex("a")]);
    assert_eq!(fence(&world.granted(&inner)), first);
    world.pass(LEASE);
    let next = fence(&world.granted(&ask(3, &nested(3, &[1]), [mutex("a")])));
    assert!(first < next);
    assert_eq!(world.fence(&outer), next, "the ancestor has it from its next renewal");
}

#[test]
fn after_a_nested_claim_expired_the_ancestor_s_renewal_alone_brings_the_new_fence() {
    let mut world = World::new();
    let outer = ask(1, &owner(1), [mutex("a")]).lease(9 * LEASE);
    let first = fence(&world.granted(&outer));
    world.granted(&ask(2, &nested(2, &[1]), [mutex("a")]));
    world.pass(LEASE);
    let renewed = world.fence(&outer);
    assert!(first < renewed);
    assert_eq!(world.fence(&outer), renewed, "once is enough");
    let next = fence(&world.granted(&ask(3, &nested(3, &[1]), [mutex("a")])));
    assert_eq!(next, renewed);
}

#[test]
fn a_waiting_sibling_that_follows_an_expired_one_has_the_new_fence() {
    let mut world = World::new();
    let outer = ask(1, &owner(1), [mutex("a")]).lease(9 * LEASE);
    let first = fence(&world.granted(&outer));
    world.granted(&ask(2, &nested(2, &[1]), [mutex("a")]));
    let sibling = ask(3, &nested(3, &[1]), [mutex("a")]).lease(9 * LEASE);
    world.queued(&sibling);
    world.pass(LEASE);
    let next = world.fence(&sibling);
    assert!(first < next);
    assert_eq!(world.fence(&outer), next);
}

#[test]
fn a_nested_release_leaves_the_shared_fence_as_it_is() {
    let mut world = World::new();
    let outer = ask(1, &owner(1), [mutex("a")]);
    let first = fence(&world.granted(&outer));
    let inner = ask(2, &nested(2, &[1]), [mutex("a")]);
    world.granted(&inner);
    world.release(&inner);
    assert_eq!(world.fence(&outer), first);
    assert_eq!(fence(&world.granted(&ask(3, &nested(3, &[1]), [mutex("a")]))), first);
}

#[test]
fn a_stranger_after_a_nested_family_has_a_fence_above_all_of_theirs() {
    let mut world = World::new();
    let outer = ask(1, &owner(1), [mutex("a")]);
    let inner = ask(2, &nested(2, &[1]), [mutex("a")]);
    let first = fence(&world.granted(&outer));
    world.granted(&inner);
    world.release(&outer);
    world.release(&inner);
    assert!(first < fence(&world.granted(&ask(3, &owner(3), [mutex("a")]))));
}

#[test]
fn what_shared_a_fence_leaves_nothing_behind() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [read("a")]));
    let (outer, inner) = (ask(2, &owner(2), [read("a")]), ask(3, &owner(2), [read("a")]));
    assert_eq!(world.granted(&outer).fences, world.granted(&inner).fences);
    let groups = |world: &World| -> usize {
        world.ledger.shelf.slots().map(|(_, slot)| slot.groups.len()).sum()
    };
    world.release(&inner);
    assert_eq!(groups(&world), 1, "the outer one still has it");
    world.release(&outer);
    assert_eq!(groups(&world), 0);
}

#[test]
fn a_raise_lifts_every_later_fence_and_none_that_is_held() {
    let mut world = World::new();
    let held = ask(1, &owner(1), [mutex("a")]);
    let old = fence(&world.granted(&held));
    let waits = ask(2, &owner(2), [mutex("a")]);
    world.queued(&waits);
    let to = Fence::new(old.get() + 1_000);
    for low in [Fence::new(0), old] {
        assert_eq!(world.ledger.raise_fences(low), Raised::NotAbove(old));
    }
    assert_eq!(world.ledger.raise_fences(to), Raised::Done);
    assert_eq!(world.ledger.raise_fences(to), Raised::NotAbove(to));
    assert_eq!(world.fence(&held), old);
    world.release(&held);
    assert_eq!(world.fence(&waits).get(), to.get() + 1);
    assert_eq!(fence(&world.granted(&ask(3, &owner(3), [mutex("b")]))).get(), to.get() + 1);
}

//! Stories of re-entry: the same owner claims again on a mutex or a read-write lock.

use super::*;

#[test]
fn the_same_owner_comes_in_again_at_once_with_the_fence_it_has() {
    let mut world = World::new();
    let me = owner(1);
    for part in [mutex("m"), read("r"), write("w")] {
        let first = world.granted(&ask(1, &me, [part.clone()]));
        let second = world.granted(&ask(2, &me, [part]).trying());
        assert_eq!(first.fences, second.fences);
        assert_ne!(first.arrival, second.arrival, "another claim, another arrival");
    }
}

#[test]
fn the_slot_is_free_when_the_last_claim_goes_in_whatever_order() {
    let mut world = World::new();
    let me = owner(1);
    let mine = [1, 2, 3].map(|n| ask(n, &me, [mutex("a")]));
    for ask in &mine {
        world.granted(ask);
    }
    world.queued(&ask(9, &owner(9), [mutex("a")]).session(9));
    for ask in [&mine[0], &mine[2]] {
        world.release(ask);
        assert!(world.told().is_empty());
    }
    world.release(&mine[1]);
    assert_eq!(world.told(), [9]);
}

#[test]
fn each_claim_of_a_re_entry_lives_by_its_own_lease() {
    let mut world = World::new();
    let me = owner(1);
    world.granted(&ask(1, &me, [mutex("a")]));
    world.granted(&ask(2, &me, [mutex("a")]).lease(3 * LEASE));
    world.pass(LEASE);
    assert_eq!(world.holders("a"), [2]);
    world.refused(&ask(9, &owner(9), [mutex("a")]).trying());
}

#[test]
fn an_owner_weighs_as_much_as_its_heaviest_claim() {
    let mut world = World::new();
    let me = owner(1);
    let (reader, writer) = (ask(1, &me, [read("a")]), ask(2, &me, [write("a")]));
    world.granted(&reader);
    world.granted(&writer);
    let other = ask(3, &owner(3), [read("a")]);
    world.refused(&other.clone().trying());
    world.release(&writer);
    world.granted(&other);
}

#[test]
fn a_writer_may_read_without_a_new_fence_and_without_giving_up_the_write() {
    let mut world = World::new();
    let me = owner(1);
    let first = world.granted(&ask(1, &me, [write("a")]));
    let second = world.granted(&ask(2, &me, [read("a")]));
    assert_eq!(first.fences, second.fences);
    world.refused(&ask(3, &owner(3), [read("a")]).trying());
}

#[test]
fn re_entry_passes_a_line_of_strangers() {
    let mut world = World::new();
    let me = owner(1);
    for (one, stranger) in [(mutex("m"), mutex("m")), (read("r"), write("r"))] {
        world.granted(&ask(1, &me, [one.clone()]));
        world.queued(&ask(2, &owner(2), [stranger]));
        world.granted(&ask(3, &me, [one]).trying());
    }
}

#[test]
fn granting_an_owner_also_grants_its_other_tickets_that_fit_its_weight() {
    let mut world = World::new();
    let (me, other) = (owner(1), owner(2));
    let holder = ask(9, &owner(9), [write("a")]);
    world.granted(&holder);
    world.queued(&ask(1, &me, [write("a")]).session(1));
    world.queued(&ask(2, &other, [read("a")]).session(2));
    world.queued(&ask(3, &me, [read("a")]).session(1));
    world.queued(&ask(4, &me, [write("a")]).session(1));
    world.release(&holder);
    assert_eq!(world.told(), [1, 3, 4]);
    let slot = world.slot("a").unwrap();
    assert!(slot.holders.iter().all(|hold| hold.fence == slot.holders[0].fence));
}

#[test]
fn a_write_ticket_of_an_owner_that_came_in_as_a_reader_has_become_an_upgrade() {
    let mut world = World::new();
    let me = owner(1);
    let holder = ask(9, &owner(9), [write("a")]);
    world.granted(&holder);
    world.queued(&ask(1, &me, [read("a")]).session(1));
    world.queued(&ask(2, &owner(2), [read("a")]).session(2));
    world.queued(&ask(3, &me, [write("a")]).session(1));
    world.release(&holder);
    // At that moment it is the only holder, and stands ahead of the reader that came before.
    assert_eq!(world.told(), [1, 3]);
    assert_eq!(world.line("a"), [2]);
}

/// The story of a bug: on a mutex the scan of the line stopped at its head, so the second
/// ticket of the owner that was just let in stayed behind a sibling that waited for that owner.
#[test]
fn a_second_ticket_of_a_nested_owner_comes_in_with_the_first_past_a_sibling() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    let first = ask(2, &nested(2, &[1]), [mutex("a")]);
    world.granted(&first);
    let (three, four) = (nested(3, &[1]), nested(4, &[1]));
    world.queued(&ask(31, &three, [mutex("a")]).session(3));
    world.queued(&ask(41, &four, [mutex("a")]).session(4));
    world.queued(&ask(32, &three, [mutex("a")]).session(3));
    world.release(&first);
    assert_eq!(world.told(), [31, 32]);
}

/// Re-entry adds no weight, so nothing stands in its way: not what its own children hold, nor
/// what they wait for.
#[test]
fn an_owner_re_enters_while_its_children_hold_and_wait() {
    let mut world = World::new();
    let me = owner(1);
    for part in [mutex("m"), write("w")] {
        world.granted(&ask(1, &me, [part.clone()]));
        world.granted(&ask(2, &nested(2, &[1]), [part.clone()]));
        world.queued(&ask(3, &nested(3, &[1]), [part.clone()]));
        world.granted(&ask(4, &me, [part]).trying());
    }
    world.granted(&ask(5, &me, [read("w")]).trying());
}

#[test]
fn a_re_entered_claim_that_expired_spends_the_shared_fence() {
    let mut world = World::new();
    let me = owner(1);
    let outer = ask(1, &me, [mutex("a")]).lease(5 * LEASE);
    let first = fence(&world.granted(&outer));
    world.granted(&ask(2, &me, [mutex("a")]));
    world.pass(LEASE);
    assert!(first < world.fence(&outer));
}

/// What comes in with its owner still comes in in order: the fence of each follows from it.
#[test]
fn the_tickets_of_one_owner_come_in_in_the_order_in_which_they_came() {
    let mut world = World::new();
    let me = owner(1);
    let holder = ask(9, &owner(9), [write("a")]);
    world.granted(&holder);
    world.queued(&ask(1, &me, [read("a")]));
    world.queued(&ask(2, &me, [write("a")]));
    world.queued(&ask(3, &me, [read("a")]));
    world.release(&holder);
    assert_eq!(world.holders("a"), [1, 2, 3]);
}

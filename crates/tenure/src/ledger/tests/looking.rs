//! Stories of looking: one slot, pages, reach; and of forgetting: sweeps and the census.

use super::super::Census;
use super::super::Shelf;
use super::*;
use crate::contract::{Page, Pattern, Shape, Snapshot};

#[test]
fn a_slot_shows_its_shape_its_holders_and_its_line_in_order() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [write("a")]).session(7));
    world.pass(100);
    world.queued(&ask(2, &owner(2), [read("a")]));
    world.granted(&ask(3, &nested(3, &[1]), [read("a")]));
    world.pass(50);
    world.queued(&ask(4, &nested(4, &[1]), [write("a")]));
    let slot = world.slot("a").unwrap();
    assert_eq!((slot.name, slot.shape, slot.closed_for), (name("a"), Shape::Lock, None));
    let holders: Vec<_> = slot.holders.iter().map(|one| (number(one.claim), one.weight)).collect();
    assert_eq!(holders, [(1, crate::limits::FULL_WEIGHT), (3, 1)]);
    assert_eq!(slot.holders[0].session, Some(session(7)));
    assert_eq!(slot.holders[0].held_for, millis(150));
    assert_eq!(slot.holders[0].expires_in, millis(850));
    let line: Vec<_> = slot.queue.iter().map(|one| (number(one.claim), one.ahead)).collect();
    assert_eq!(line, [(4, true), (2, false)]);
    assert_eq!((slot.queue[1].waited_for, slot.queue[1].expires_in), (millis(50), millis(950)));
}

#[test]
fn looking_changes_nothing_but_what_time_has_ended() {
    let mut world = World::new();
    let one = ask(1, &owner(1), [mutex("a")]);
    world.granted(&one);
    world.queued(&ask(2, &owner(2), [mutex("a")]).lease(9 * LEASE).session(2));
    assert_eq!(world.slot("a"), world.slot("a"));
    world.pass(LEASE);
    assert_eq!(world.holders("a"), [2], "the dead are dropped and the line is served");
    assert_eq!(world.told(), [2]);
    assert_eq!(world.slot("nobody"), None);
}

fn page(world: &mut World, pattern: &str, after: Option<&str>, limit: usize) -> Snapshot {
    let page =
        Page { pattern: Pattern::new(pattern), after: after.map(name), limit, ..Page::default() };
    let now = world.now();
    world.ledger.inspect(&Query::Page(page), now)
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.slots.iter().map(|slot| slot.name.as_str()).collect()
}

#[test]
fn pages_follow_each_other_by_name_and_match_the_pattern() {
    let mut world = World::new();
    for (n, text) in (1..).zip(["job:3", "job:1", "other", "job:2", "job:5", "job:4"]) {
        world.granted(&ask(n, &owner(n), [mutex(text)]));
    }
    let first = page(&mut world, "job:*", None, 2);
    assert_eq!(names(&first), ["job:1", "job:2"]);
    assert_eq!(first.more_after, Some(name("job:2")));
    let second = page(&mut world, "job:*", Some("job:2"), 2);
    assert_eq!(names(&second), ["job:3", "job:4"]);
    let third = page(&mut world, "job:*", Some("job:4"), 2);
    assert_eq!((names(&third), &third.more_after), (vec!["job:5"], &None));
    let exact = page(&mut world, "job:*", None, 5);
    assert_eq!(
        (exact.slots.len(), exact.more_after),
        (5, None),
        "nothing follows a full last page"
    );
    assert_eq!(names(&page(&mut world, "*", Some("job:5"), 0)), ["other"], "at least one");
}

#[test]
fn a_page_does_not_show_what_is_dead() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.granted(&ask(2, &owner(2), [mutex("b")]).lease(9 * LEASE));
    world.granted(&ask(3, &owner(3), [mutex("c")]).delay(500));
    world.pass(LEASE);
    let all = page(&mut world, "*", None, 10);
    assert_eq!(names(&all), ["b", "c"]);
    assert_eq!(all.slots[1].closed_for, Some(millis(500)), "closed is worth showing");
}

fn reach(world: &mut World, number: u128) -> Snapshot {
    let now = world.now();
    world.ledger.inspect(&Query::Reach(owner_id(number)), now)
}

#[test]
fn reach_follows_waits_to_holders_and_to_those_before_and_on() {
    let mut world = World::new();
    // 1 waits for b, held by 2, who waits for c, held by 3; 4 waits for b too, and for d.
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.granted(&ask(2, &owner(2), [mutex("b")]));
    world.granted(&ask(3, &owner(3), [mutex("c")]));
    world.granted(&ask(5, &owner(5), [mutex("d")]));
    world.granted(&ask(6, &owner(6), [mutex("e")]));
    world.queued(&ask(44, &owner(4), [mutex("b")]));
    world.queued(&ask(45, &owner(4), [mutex("d")]));
    world.queued(&ask(11, &owner(1), [mutex("b")]));
    world.queued(&ask(22, &owner(2), [mutex("c")]));
    assert_eq!(names(&reach(&mut world, 1)), ["b", "c", "d"]);
    assert_eq!(names(&reach(&mut world, 2)), ["c"]);
    assert!(reach(&mut world, 3).slots.is_empty(), "who waits for nothing reaches nothing");
    world.queued(&ask(33, &owner(3), [mutex("a")]));
    let circle = reach(&mut world, 3);
    assert_eq!(names(&circle), ["a", "b", "c", "d"]);
    assert!(!circle.truncated);
}

#[test]
fn reach_sees_the_places_of_a_set_and_its_reserved_parts() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a"), mutex("b")]));
    world.queued(&ask(3, &owner(3), [mutex("b")]));
    let seen = reach(&mut world, 3);
    assert_eq!(names(&seen), ["a", "b"]);
    assert!(seen.slots[1].holders[0].reserved);
}

#[test]
fn reach_drops_the_dead_it_meets() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a")]).lease(9 * LEASE));
    world.pass(LEASE);
    assert!(reach(&mut world, 2).slots.iter().all(|slot| slot.queue.is_empty()));
}

#[test]
fn a_picture_that_is_too_large_says_so() {
    let mut world = World::new();
    for n in 0..=crate::limits::REACH_SLOTS as u128 {
        let text = format!("n{n}");
        world.granted(&ask(2 * n + 2, &owner(1), [mutex(&text)]));
        world.queued(&ask(2 * n + 3, &owner(2), [mutex(&text)]));
    }
    let seen = reach(&mut world, 2);
    assert_eq!((seen.slots.len(), seen.truncated), (crate::limits::REACH_SLOTS, true));
}

#[test]
fn names_that_nobody_asks_for_again_are_forgotten_by_a_sweep() {
    let mut world = World::new();
    for n in 1..=5_000 {
        world.granted(&ask(n, &owner(n), [mutex(&format!("n{n}"))]));
        world.pass(LEASE);
    }
    let slots = world.ledger.shelf.slots().count();
    assert!(slots <= 1_100, "{slots} slots of which one lives");
    let now = world.now();
    assert_eq!(world.ledger.census(now), Census::default());
}

#[test]
fn old_tombstones_are_forgotten() {
    let mut world = World::new();
    for n in 1..=5_000 {
        world.release_uncertain(&ask(n, &owner(n), [mutex("a")]));
        world.pass(LEASE / 4);
    }
    let now = world.now();
    assert_eq!(world.ledger.census(now).tombs, 3);
    assert!(world.ledger.shelf.tombs(Tick::ZERO) <= 1_100);
}

#[test]
fn many_tombstones_stand_until_their_time_and_are_forgotten_after_it() {
    let mut world = World::new();
    let claim = |number| ask(number, &owner(number), [mutex("a")]);
    for number in 1..=3_000 {
        world.release_uncertain(&claim(number));
    }
    for number in 1..=3_000 {
        assert_eq!(world.refused(&claim(number)), Refusal::Withdrawn, "a late copy");
    }
    world.pass(LEASE);
    for number in 3_001..=6_000 {
        world.release_uncertain(&claim(number));
    }
    assert_eq!(world.ledger.shelf.tombs(Tick::ZERO), 3_000, "the others are gone");
}

#[test]
fn the_census_counts_the_living() {
    let mut world = World::new();
    world.granted(&ask(1, &owner(1), [mutex("a")]));
    world.queued(&ask(2, &owner(2), [mutex("a"), mutex("b")]));
    let three = ask(3, &owner(3), [mutex("c")]);
    world.release_uncertain(&three);
    let now = world.now();
    assert_eq!(world.ledger.census(now), Census { holds: 2, tickets: 1, tombs: 1 });
    world.pass(LEASE);
    let now = world.now();
    assert_eq!(world.ledger.census(now), Census::default());
}

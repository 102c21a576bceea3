//! Looking: slots, pages, what an owner can reach; cells and fenced writes; the docs' promises.

mod common;

use common::{World, now, poll_once, secs};
use tenure::contract::{Engine, Version};
use tenure::{Expect, Fence, Name, Owner, Page, Pattern, Put, PutVerdict, Query};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn a_slot_shows_holders_and_line_with_place_and_label() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().label("first").lock()).unwrap();
    let mut next = Box::pin(tenure.mutex("a").unwrap().label("second").lock());
    assert!(poll_once(next.as_mut()).is_none());
    world.advance(secs(5));
    let seen = now(tenure.inspect(&Query::Slot(name("a")))).unwrap();
    let slot = &seen.slots[0];
    let (holder, waiter) = (&slot.holders[0], &slot.queue[0]);
    assert_eq!(holder.fence, guard.fence().unwrap());
    assert_eq!(holder.held_for, secs(5));
    assert_eq!(waiter.waited_for, secs(5));
    assert_eq!(holder.session, Some(tenure.session_id()));
    let text = format!("{holder}");
    assert!(text.contains("'first'") && text.contains("looking.rs"), "{text}");
    assert!(waiter.about.to_string().contains("'second'"));
    let sessions = seen.sessions();
    assert_eq!((sessions.len(), sessions[0].holds.len(), sessions[0].waits.len()), (1, 1, 1));
    let none = now(tenure.inspect(&Query::Slot(name("b")))).unwrap();
    assert!(none.slots.is_empty());
}

#[test]
fn pages_go_through_all_names_that_match() {
    let world = World::new();
    let tenure = world.tenure();
    let names: Vec<String> = (0..25).map(|n| format!("account:{n:02}")).collect();
    let lock = |name: &str| now(tenure.mutex(name).unwrap().lock()).unwrap();
    let _guards: Vec<_> = names.iter().map(|name| lock(name)).collect();
    let _other = lock("other");
    let mut page = Page { pattern: Pattern::new("account:*"), after: None, limit: 10 };
    let mut seen = Vec::new();
    loop {
        let snapshot = now(tenure.inspect(&Query::Page(page.clone()))).unwrap();
        seen.extend(snapshot.slots.iter().map(|slot| slot.name.to_string()));
        page.after = snapshot.more_after;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, names);
}

#[test]
fn reach_shows_everything_an_owner_waits_for_over_several_slots() {
    let world = World::new();
    let tenure = world.tenure();
    let owners: Vec<Owner> = (0..3).map(|_| Owner::new()).collect();
    let lock = |n: usize, name: &str| tenure.mutex(name).unwrap().owner(&owners[n]).lock();
    let _held: Vec<_> =
        ["a", "b", "c"].iter().zip(0..).map(|(name, n)| now(lock(n, name))).collect();
    // 0 waits for b (held by 1), 1 waits for c (held by 2); a is held and nobody waits for it.
    let mut zero = Box::pin(lock(0, "b"));
    let mut one = Box::pin(lock(1, "c"));
    assert!(poll_once(zero.as_mut()).is_none() && poll_once(one.as_mut()).is_none());
    let owner = {
        let seen = now(tenure.inspect(&Query::Slot(name("b")))).unwrap();
        seen.slots[0].queue[0].lineage.owner()
    };
    let reach = now(tenure.inspect(&Query::Reach(owner))).unwrap();
    let names: Vec<_> = reach.slots.iter().map(|slot| slot.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    assert!(!reach.truncated);
}

#[test]
fn cells_compare_and_set_expire_and_refuse_stale_fences() {
    let world = World::new();
    let cells = world.store.cells().unwrap();
    let put = |put: Put| now(cells.put(&put)).unwrap();
    let cell = || now(cells.get(&name("leader"))).unwrap();
    let Ok(PutVerdict::Done(first)) = Ok::<_, ()>(put(Put::new(name("leader"), "one"))) else {
        panic!("written")
    };
    let absent = Put::new(name("leader"), "two").expect(Expect::Absent);
    assert!(matches!(put(absent), PutVerdict::Refused(Some(cell)) if cell.value == b"one"));
    let next = Put::new(name("leader"), "two").expect(Expect::Version(first));
    assert!(matches!(put(next.clone()), PutVerdict::Done(version) if version > first));
    assert!(matches!(put(next), PutVerdict::Refused(Some(_))), "the version has moved on");
    let fenced = |number, text: &str| Put::new(name("leader"), text).fenced(Fence::new(number));
    assert!(matches!(put(fenced(7, "seven")), PutVerdict::Done(_)));
    assert_eq!(put(fenced(6, "six")), PutVerdict::Stale(Fence::new(7)));
    assert!(matches!(put(fenced(7, "seven again")), PutVerdict::Done(_)));
    now(cells.remove(&name("leader"), Expect::Anything)).unwrap();
    assert_eq!(cell(), None);
    assert_eq!(put(fenced(6, "six")), PutVerdict::Stale(Fence::new(7)), "removal forgets no fence");
    assert!(matches!(put(fenced(8, "eight").time_to_live(secs(5))), PutVerdict::Done(_)));
    assert_eq!(cell().unwrap().expires_in, Some(secs(5)));
    world.advance(secs(5));
    assert_eq!(cell(), None);
    let gone = Put::new(name("leader"), "x").expect(Expect::Version(Version(1)));
    assert_eq!(put(gone), PutVerdict::Refused(None));
}

#[test]
fn cells_are_listed_by_pattern_and_bad_values_are_refused() {
    let world = World::new();
    let cells = world.store.cells().unwrap();
    for n in 0..5 {
        now(cells.put(&Put::new(name(&format!("k{n}")), vec![n]))).unwrap();
    }
    let list = |after: Option<&Name>, limit| {
        let pattern = Pattern::new("k*");
        let cells = now(cells.list(&pattern, after, limit)).unwrap();
        cells.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 3), ["k0", "k1", "k2"]);
    assert_eq!(list(Some(&name("k2")), 3), ["k3", "k4"]);
    let large = Put::new(name("k"), vec![0; 256 * 1024 + 1]);
    let error = now(cells.put(&large)).unwrap_err();
    assert!(error.to_string().contains("at most 262144 bytes"), "{error}");
    let zero = Put::new(name("k"), "x").time_to_live(std::time::Duration::ZERO);
    assert!(now(cells.put(&zero)).unwrap_err().to_string().contains("forget the value at once"));
}

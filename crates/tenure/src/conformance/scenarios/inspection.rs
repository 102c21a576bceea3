//! Inspection: what can be seen is what is so, exactly, and looking changes nothing.

use super::{Ask, World, fence, list, name, owner};
use crate::contract::{Claim, Engine, Label, Name, Page, Pattern, Query, SlotView, Snapshot};
use crate::limits;

list! { Inspection:
    a_holder_is_shown_with_all_that_is_known_of_it cites [1] needs [];
    the_line_is_shown_in_its_order cites [2] needs [Queue];
    labels_and_places_in_the_code_come_back_exactly cites [10] needs [Queue];
    a_detached_claim_belongs_to_no_session cites [4] needs [];
    what_ended_is_not_shown cites [4] needs [Queue];
    looking_renews_nothing cites [4] needs [];
    a_closed_name_says_for_how_long cites [4] needs [];
    reserved_parts_are_told_from_held_ones cites [1] needs [AtomicSets, Queue];
    pages_go_through_all_names_that_match cites [1] needs [];
    names_are_listed_in_the_order_of_their_bytes cites [1] needs [];
    odd_names_come_back_exactly cites [1] needs [];
    reach_follows_waits_over_several_slots cites [11] needs [Queue];
    reach_of_an_owner_that_waits_for_nothing_is_empty cites [11] needs [Queue];
    a_snapshot_tells_what_each_session_holds_and_waits_for cites [1] needs [Queue];
    what_is_promised_is_there_through_a_wrapper_too cites [10] needs [];
}

fn a_holder_is_shown_with_all_that_is_known_of_it(world: &World) {
    let actor = world.actor();
    let guard = world.now(actor.tenure.mutex("a").unwrap().lock()).unwrap();
    world.pass(world.lease());
    let slot = world.slot("a").unwrap();
    let [holder] = &slot.holders[..] else { panic!("one holder: {slot:?}") };
    assert_eq!((slot.name.as_str(), slot.queue.len(), slot.closed_for), ("a", 0, None));
    assert_eq!((holder.claim, holder.fence), (guard.claim_id(), guard.fence().unwrap()));
    assert_eq!(holder.session, Some(actor.tenure.session_id()));
    assert_eq!((holder.weight, holder.reserved), (limits::FULL_WEIGHT, false));
    assert_eq!(holder.about.pid, std::process::id());
    assert!(holder.held_for > world.lease() / 2 && holder.held_for < world.lease() * 4);
    assert!(!holder.expires_in.is_zero() && holder.expires_in < world.lease() * 5 / 4);
    drop(guard);
    world.until("nobody is shown", || world.slot("a").is_none_or(|slot| slot.holders.is_empty()));
}

/// A wrapper around an engine once lost one of its optional methods in silence, so that bad links
/// on a cluster were never tested with batches by node.
fn what_is_promised_is_there_through_a_wrapper_too(world: &World) {
    let (actor, engine) = (world.actor(), world.stage().client());
    let (promises, link) = (engine.promises(), &actor.link);
    assert_eq!(promises.cells, link.cells().is_some());
    assert_eq!(promises.fence_floor, link.fence_floor().is_some());
    assert_eq!(promises.replicas, link.replication().is_some());
    assert_eq!(engine.partitions().is_some(), link.partitions().is_some());
    assert_eq!(engine.diagnostics().is_some(), link.diagnostics().is_some());
    assert_eq!(engine.ownership_proof().is_some(), link.ownership_proof().is_some());
    assert_eq!(engine.local().is_some(), link.local().is_some());
}

fn the_line_is_shown_in_its_order(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a").of(&me));
    let line = [(); 3].map(|()| raw.queued(world, Ask::mutex(world, "a")).0);
    let slot = world.slot("a").unwrap();
    assert_eq!(slot.holders[0].lineage, me);
    for (waiter, claim) in slot.queue.iter().zip(&line) {
        assert_eq!((waiter.claim, waiter.session), (claim.id, Some(raw.session())));
        assert_eq!((&waiter.lineage, waiter.weight), (&claim.lineage, limits::FULL_WEIGHT));
        assert!(!waiter.ahead && !waiter.expires_in.is_zero());
        assert_eq!(waiter.about, claim.about);
    }
    raw.withdraw(world, &line[1]);
    assert_eq!(world.line("a"), [line[0].id, line[2].id]);
    assert_eq!(world.holders("a"), [held.id]);
}

fn labels_and_places_in_the_code_come_back_exactly(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let label = "näme \"quoted\" {50 %} a:b/c\\d * 名前 🔒";
    let _guard = world.now(one.tenure.mutex("a").unwrap().label(label).lock()).unwrap();
    let longest = "x".repeat(128);
    let _next = world.waits(two.tenure.mutex("a").unwrap().label(&longest).lock());
    let slot = world.slot("a").unwrap();
    for (about, label) in [(&slot.holders[0].about, label), (&slot.queue[0].about, &longest)] {
        assert_eq!(about.label.as_ref().map(Label::as_str), Some(label));
        let place = about.place.as_ref().unwrap().to_string();
        assert!(place.contains("inspection.rs:"), "{place}");
        assert!(!about.host.is_empty() && about.pid == std::process::id());
    }
}

fn a_detached_claim_belongs_to_no_session(world: &World) {
    let raw = world.raw();
    let claim = Claim { session: None, ..(*raw.make(Ask::mutex(world, "a"))).clone() };
    let claim = std::sync::Arc::new(claim);
    assert!(matches!(raw.send(world, &claim), crate::contract::Verdict::Granted(_)));
    assert_eq!(world.slot("a").unwrap().holders[0].session, None);
    world.pass(world.lease() * 2 / 3);
    raw.held(world, &claim);
    world.pass(world.lease() * 2);
    world.assert_free("a");
}

fn what_ended_is_not_shown(world: &World) {
    let (dying, stalled) = (world.raw(), world.raw());
    dying.granted(world, Ask::mutex(world, "a"));
    stalled.queued(world, Ask::mutex(world, "a"));
    world.pass(world.lease() * 2);
    let shown = |slot: &SlotView| !slot.holders.is_empty() || !slot.queue.is_empty();
    assert!(!world.slot("a").is_some_and(|slot| shown(&slot)));
    let all = world.inspect(Query::Page(Page::default()));
    assert!(!all.slots.iter().any(shown), "{all:?}");
}

fn looking_renews_nothing(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let looks = || {
        world.slot("a");
        world.inspect(Query::Page(Page::default()));
        world.inspect(Query::Reach(held.lineage.owner()));
    };
    world.pass_watching(world.lease() / 2, looks);
    let left = world.slot("a").unwrap().holders[0].expires_in;
    assert!(left < world.lease() * 5 / 6, "{left:?}");
    world.pass_watching(world.lease() * 3 / 2, looks);
    world.assert_free("a");
}

fn a_closed_name_says_for_how_long(world: &World) {
    let raw = world.raw();
    raw.granted(world, Ask::mutex(world, "a").delay(world.lease() * 3));
    assert_eq!(world.slot("a").unwrap().closed_for, None);
    world.pass(world.lease() * 2);
    let slot = world.slot("a").expect("closed is something to know");
    let closed = slot.closed_for.expect("its holder expired");
    assert!(slot.holders.is_empty() && closed > world.lease() && closed < world.lease() * 3);
    world.pass(world.lease() * 3);
    assert_eq!(world.slot("a").and_then(|slot| slot.closed_for), None);
}

fn reserved_parts_are_told_from_held_ones(world: &World) {
    let raw = world.raw();
    let (busy, _) = raw.granted(world, Ask::mutex(world, "b"));
    let (set, _) = raw.queued(world, Ask::mutexes(world, &["a", "b"]));
    let reserved = |name: &str| world.slot(name).unwrap().holders[0].reserved;
    assert!(reserved("a") && !reserved("b"));
    raw.release(world, &busy);
    let grant = raw.held(world, &set);
    assert!(!reserved("a") && !reserved("b"));
    assert_eq!(world.slot("a").unwrap().holders[0].fence, fence(&grant));
}

/// Everything a page by page walk shows.
fn walk(world: &World, pattern: &str, limit: usize) -> Vec<Name> {
    let mut page = Page { pattern: Pattern::new(pattern), limit, ..Page::default() };
    let mut seen = Vec::new();
    loop {
        let Snapshot { slots, more_after, .. } = world.inspect(Query::Page(page.clone()));
        assert!(slots.len() <= limit);
        assert!(seen.len() < 1_000, "pages must come to an end");
        seen.extend(slots.into_iter().map(|slot| slot.name));
        match more_after {
            None => return seen,
            after => page.after = after,
        }
    }
}

fn hold_all(world: &World, names: &[String]) {
    let raw = world.raw();
    let claims: Vec<_> = names
        .iter()
        .map(|name| raw.make(Ask::mutex(world, name).lease(world.long_lease())))
        .collect();
    raw.send_all(world, &claims);
}

fn pages_go_through_all_names_that_match(world: &World) {
    let accounts: Vec<String> = (0..25).map(|n| format!("account:{n:02}")).collect();
    hold_all(world, &accounts);
    hold_all(world, &["accounts".to_owned(), "other".to_owned()]);
    let texts = |names: Vec<Name>| names.iter().map(Name::to_string).collect::<Vec<_>>();
    for limit in [1, 10, 25, 1_000] {
        assert_eq!(texts(walk(world, "account:*", limit)), accounts, "pages of {limit}");
    }
    assert_eq!(texts(walk(world, "account:?7", 10)), ["account:07", "account:17"]);
    assert_eq!(walk(world, "*", 7).len(), 27);
    assert_eq!(texts(walk(world, "other", 5)), ["other"]);
    assert!(walk(world, "oth", 5).is_empty(), "the whole name has to match");
}

fn names_are_listed_in_the_order_of_their_bytes(world: &World) {
    let texts =
        ["b", "B", "a", "a b", "a!", "é", "e", "z", "Z", "名", "~", "10", "9", "a-b", "a_b"];
    let texts: Vec<String> = texts.map(str::to_owned).into();
    hold_all(world, &texts);
    let mut expected: Vec<Name> = texts.iter().map(|text| name(text)).collect();
    expected.sort();
    for limit in [1, 4, 100] {
        assert_eq!(walk(world, "*", limit), expected, "pages of {limit}");
    }
}

fn odd_names_come_back_exactly(world: &World) {
    let odd =
        ["{a}", "a*b", "a?b", "[a-z]", "a\\*b", "%", "a%b_c", "'", "\"", "$1", "a/b", "名 前"];
    let texts: Vec<String> = odd.map(str::to_owned).into();
    hold_all(world, &texts);
    for text in &texts {
        assert_eq!(world.slot(text).unwrap().name.as_str(), text);
    }
    let shown = |pattern: &str| -> Vec<String> {
        walk(world, pattern, 100).iter().map(Name::to_string).collect()
    };
    assert_eq!(shown("*").len(), texts.len());
    // Nothing but a star and a question mark is special.
    assert_eq!(shown("[a-z]"), ["[a-z]"]);
    assert_eq!(shown("a%*"), ["a%b_c"]);
    assert_eq!(shown("?a?"), ["{a}"]);
    assert_eq!(shown("a\\*"), ["a\\*b"]);
}

fn reach_follows_waits_over_several_slots(world: &World) {
    let raw = world.raw();
    let owners = [owner(), owner(), owner(), owner()];
    let ask = |n: usize, name: &str| Ask::mutex(world, name).of(&owners[n]);
    for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        raw.granted(world, ask(n, name));
    }
    // 0 waits for b, behind 3, who waits for d as its own; 1 waits for c. No claim waits for a.
    raw.queued(world, ask(3, "b"));
    raw.queued(world, ask(0, "b"));
    raw.queued(world, ask(1, "c"));
    let reach = |n: usize| -> Vec<String> {
        let seen = world.inspect(Query::Reach(owners[n].owner()));
        assert!(!seen.truncated);
        seen.slots.iter().map(|slot| slot.name.to_string()).collect()
    };
    assert_eq!(reach(0), ["b", "c"]);
    assert_eq!(reach(1), ["c"]);
    raw.queued(world, ask(2, "d"));
    assert_eq!(reach(0), ["b", "c", "d"]);
    assert_eq!(reach(2), ["b", "c", "d"], "through 3, which holds d and waits for b");
    let seen = world.inspect(Query::Reach(owners[0].owner()));
    assert_eq!((seen.slots[0].holders.len(), seen.slots[0].queue.len()), (1, 2));
}

fn reach_of_an_owner_that_waits_for_nothing_is_empty(world: &World) {
    let raw = world.raw();
    let me = owner();
    raw.granted(world, Ask::mutex(world, "a").of(&me));
    raw.queued(world, Ask::mutex(world, "a"));
    for owner in [me.owner(), crate::contract::OwnerId::new()] {
        assert!(world.inspect(Query::Reach(owner)).slots.is_empty());
    }
}

fn a_snapshot_tells_what_each_session_holds_and_waits_for(world: &World) {
    let (one, two) = (world.raw(), world.raw());
    one.granted(world, Ask::mutex(world, "a"));
    one.granted(world, Ask::mutex(world, "b"));
    two.granted(world, Ask::mutex(world, "c"));
    two.queued(world, Ask::mutex(world, "a"));
    let sessions = world.inspect(Query::Page(Page::default())).sessions();
    assert_eq!(sessions.len(), 2);
    let of = |raw: &super::Raw| {
        let view = sessions.iter().find(|view| view.session == Some(raw.session())).unwrap();
        assert_eq!((view.host.as_str(), view.pid), ("suite", 1));
        (view.holds.clone(), view.waits.clone())
    };
    assert_eq!(of(&one), (vec![name("a"), name("b")], vec![]));
    assert_eq!(of(&two), (vec![name("c")], vec![name("a")]));
}

//! Looking: slots, pages, what an owner can reach; cells and fenced writes; the docs' promises.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::{World, now, poll_once, secs};
use tenure::contract::{Batch, CellQuery, Claim, Engine, Part, Parts, Refusal, Version};
use tenure::time::Tick;
use tenure::{
    CallOutcome, Cell, CellChange, CellRange, ErrorKind, Event, Expect, Fence, Name, Owner, Page,
    Pattern, Put, PutVerdict, Query, StoreCall, Tenure, Verb, Witness,
};

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
    let mut page = Page { pattern: Pattern::new("account:*"), limit: 10, ..Page::default() };
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
    // 0 waits for b (held by 1), 1 waits for c (held by 2); a is held and nothing waits for it.
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
    let put = |put: Put| now(cells.write(&Batch::from(&put))).unwrap().into_single();
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
    now(cells.write(&Batch::new().remove(name("leader"), Expect::Anything))).unwrap();
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
        now(cells.write(&Batch::from(&Put::new(name(&format!("k{n}")), vec![n])))).unwrap();
    }
    let list = |after: Option<&Name>, limit| {
        let pattern = Pattern::new("k*");
        let cells = now(cells.list(CellQuery { pattern: &pattern, after, limit })).unwrap();
        cells.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 3), ["k0", "k1", "k2"]);
    assert_eq!(list(Some(&name("k2")), 3), ["k3", "k4"]);
    let large = Put::new(name("k"), vec![0; 256 * 1024 + 1]);
    let error = now(cells.write(&Batch::from(&large))).unwrap_err();
    assert!(error.to_string().contains("at most 262144 bytes"), "{error}");
    let zero = Put::new(name("k"), "x").time_to_live(std::time::Duration::ZERO);
    assert!(
        now(cells.write(&Batch::from(&zero)))
            .unwrap_err()
            .to_string()
            .contains("forget the value at once")
    );
}

/// Writes down calls, and the ends of claims that were not granted.
#[derive(Debug, Default)]
struct Notes {
    calls: Mutex<Vec<(Verb, usize, CallOutcome)>>,
    ends: Mutex<Vec<String>>,
    /// Every event with its instant.
    events: Mutex<Vec<(Tick, Event)>>,
}

impl Notes {
    fn inspects(&self) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| call.0 == Verb::Inspect).count()
    }
}

impl Witness for Notes {
    fn on_event(&self, _claim: &Arc<Claim>, at: Tick, event: &Event) {
        self.events.lock().unwrap().push((at, event.clone()));
        let end = match event {
            Event::Refused { why: Refusal::Held { .. } } => "refused: held".to_owned(),
            Event::Refused { why } => format!("refused: {why:?}"),
            Event::Withdrawn { why } => format!("withdrawn: {why:?}"),
            _ => return,
        };
        self.ends.lock().unwrap().push(end);
    }

    fn on_call(&self, call: &StoreCall) {
        self.calls.lock().unwrap().push((call.verb, call.items, call.outcome));
    }
}

fn noted(world: &World) -> (Tenure, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let builder = builder.witness(Arc::clone(&notes) as _);
    (builder.open(Arc::clone(&world.engine) as _).unwrap(), notes)
}

#[test]
fn a_witness_is_told_every_call_to_the_store_with_its_outcome() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    now(tenure.inspect(&Query::Slot(name("a")))).unwrap();
    now(tenure.cells().put(&Put::new(name("k"), "v"))).unwrap();
    now(guard.release()).unwrap();
    let taken = std::mem::take(&mut *notes.calls.lock().unwrap());
    let replied = |verb| (verb, 1, CallOutcome::Replied);
    assert_eq!(taken, [Verb::Claim, Verb::Inspect, Verb::Cell, Verb::Release].map(replied));
    // What is taken again by the same owner makes no call.
    let owner = Owner::new();
    let lock = || tenure.mutex("a").unwrap().owner(&owner).lock();
    let _held = (now(lock()).unwrap(), now(lock()).unwrap());
    assert_eq!(*notes.calls.lock().unwrap(), [replied(Verb::Claim)]);
    world.engine.refuse.store(true, Ordering::SeqCst);
    notes.calls.lock().unwrap().clear();
    let mut tried = Box::pin(tenure.mutex("b").unwrap().try_lock());
    assert!(poll_once(tried.as_mut()).is_none(), "it pauses before it tries again");
    let failed = (Verb::Claim, 1, CallOutcome::Failed(ErrorKind::Unavailable));
    assert_eq!(*notes.calls.lock().unwrap(), [failed]);
}

#[test]
fn a_witness_is_told_why_a_claim_came_to_nothing() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    let mutex = tenure.mutex("a").unwrap();
    let guard = now(mutex.lock()).unwrap();
    assert!(now(mutex.try_lock()).unwrap().is_none());
    let mut dropped = Box::pin(mutex.lock());
    assert!(poll_once(dropped.as_mut()).is_none());
    drop(dropped);
    let mut limited = Box::pin(mutex.clone().timeout(secs(5)).lock());
    assert!(poll_once(limited.as_mut()).is_none());
    world.advance(secs(6));
    assert_eq!(now(limited).unwrap_err().kind(), ErrorKind::TimedOut);
    let mut closed = Box::pin(mutex.lock());
    assert!(poll_once(closed.as_mut()).is_none());
    let mut closing = Box::pin(tenure.close());
    let _ = poll_once(closing.as_mut());
    assert_eq!(now(closed).unwrap_err().kind(), ErrorKind::Closed);
    drop(guard);
    let expected =
        ["refused: held", "withdrawn: Dropped", "withdrawn: TimedOut", "withdrawn: Closed"];
    assert_eq!(*notes.ends.lock().unwrap(), expected);
}

#[test]
fn a_witness_is_told_how_long_a_hold_could_still_have_been_trusted() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    let _guard = now(tenure.mutex("a").unwrap().lease(secs(30)).lock()).unwrap();
    for _ in 0..25 {
        world.advance(secs(1));
    }
    let (mut trusted, mut renewals) = (Tick::default(), 0);
    for (at, event) in notes.events.lock().unwrap().iter() {
        match event {
            Event::Granted { safe_until, .. } => trusted = *safe_until,
            Event::Renewed { safe_until, slack } => {
                assert_eq!(*slack, trusted.since(*at), "what was left just before");
                assert!(*slack > secs(0) && *safe_until > trusted);
                (trusted, renewals) = (*safe_until, renewals + 1);
            }
            _ => {}
        }
    }
    assert!(renewals >= 2, "{renewals} renewals in 25 s of a lease of 30 s");
}

#[test]
fn a_witness_is_told_that_a_wait_goes_on_under_another_id() {
    let world = World::new();
    let holder = world.tenure();
    let _guard = now(holder.mutex("a").unwrap().lock()).unwrap();
    let (tenure, notes) = noted(&world);
    let mut waits = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(waits.as_mut()).is_none());
    // No renewal is answered for more than a lease.
    world.engine.refuse.store(true, Ordering::SeqCst);
    for _ in 0..90 {
        world.advance(secs(1));
        let done = poll_once(waits.as_mut()).is_some();
        if done || !notes.ends.lock().unwrap().is_empty() {
            break;
        }
    }
    assert_eq!(notes.ends.lock().unwrap()[0], "withdrawn: ClaimedAnew");
}

#[test]
fn a_witness_is_told_which_wait_was_refused_to_break_a_deadlock() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    let owners = [Owner::new(), Owner::new()];
    let lock = |n: usize, name: &str| tenure.mutex(name).unwrap().owner(&owners[n]).lock();
    let _held = (now(lock(0, "a")).unwrap(), now(lock(1, "b")).unwrap());
    let mut waits = [Box::pin(lock(0, "b")), Box::pin(lock(1, "a"))];
    let mut refused = Vec::new();
    for _ in 0..20 {
        for wait in &mut waits {
            if refused.is_empty() {
                refused.extend(poll_once(wait.as_mut()).map(Result::unwrap_err));
            }
        }
        world.advance(secs(1));
    }
    assert_eq!(refused[0].kind(), ErrorKind::Deadlock);
    assert_eq!(*notes.ends.lock().unwrap(), ["withdrawn: Deadlock"]);
}

#[test]
fn every_witness_is_told_and_a_re_entry_is_no_event() {
    let world = World::new();
    let notes = [Arc::new(Notes::default()), Arc::new(Notes::default())];
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let builder = notes.iter().fold(builder, |builder, one| builder.witness(Arc::clone(one) as _));
    let tenure = builder.open(Arc::clone(&world.engine) as _).unwrap();
    let owner = Owner::new();
    let lock = || tenure.mutex("a").unwrap().owner(&owner).lock();
    let told = |at: usize| {
        let events = notes[at].events.lock().unwrap();
        events.iter().map(|(_, event)| format!("{event:?}")).collect::<Vec<_>>()
    };
    let outer = now(lock()).unwrap();
    let before = told(0);
    assert!(!before.is_empty());
    let inner = now(lock()).unwrap();
    now(inner.release()).unwrap();
    assert_eq!(told(0), before, "neither the second lock nor its release");
    now(outer.release()).unwrap();
    assert!(told(0).len() > before.len());
    assert_eq!(told(0), told(1));
    let calls = |at: usize| notes[at].calls.lock().unwrap().clone();
    assert_eq!(calls(0), calls(1));
    assert_eq!(calls(0).len(), 2, "a claim and a release");
}

#[test]
fn raising_fences_is_a_call_to_the_store() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    now(tenure.raise_fences(1 << 52)).unwrap();
    let calls = notes.calls.lock().unwrap().clone();
    assert_eq!(calls, [(Verb::RaiseFences, 1, CallOutcome::Replied)]);
}

#[test]
fn cells_that_tenure_keeps_for_itself_are_neither_written_nor_watched() {
    let world = World::new();
    let tenure = world.tenure();
    let cells = tenure.cells();
    let own = Name::from_store("\u{1}election:a").unwrap();
    let put = Put::new(own.clone(), "x");
    let several = Batch::new().put(Put::new(name("a"), "x")).put(put.clone());
    let refused = [
        now(cells.put(&put)).unwrap_err(),
        now(cells.write(&several)).unwrap_err(),
        now(cells.remove(&own, Expect::Anything)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
    assert_eq!(now(cells.get(&name("a"))).unwrap(), None, "nothing of the batch was written");
    for prefix in ["\u{1}", "\u{1}election:", "a\n"] {
        let error = CellRange::prefix(prefix).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        // The variant can be made without the constructor.
        let error = now(cells.watch(CellRange::Prefix(prefix.to_owned()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    for text in ["\u{1}election:a", "a\u{1}"] {
        let error = tenure.mutex(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
}

#[test]
fn many_viewers_share_the_looks_of_a_sampler() {
    let world = World::new();
    let (tenure, notes) = noted(&world);
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let sampler = tenure.sampler(Pattern::all(), secs(1));
    let seen: Vec<u64> = (0..5).map(|_| now(sampler.clone().next(0)).unwrap().number).collect();
    assert_eq!((seen, notes.inspects()), (vec![1; 5], 1), "the first one looks for all");
    let mut viewers: Vec<_> = (0..5).map(|_| Box::pin(sampler.next(1))).collect();
    assert!(viewers.iter_mut().all(|viewer| poll_once(viewer.as_mut()).is_none()));
    now(guard.release()).unwrap();
    world.advance(secs(1));
    for viewer in viewers {
        let sample = now(viewer).unwrap();
        assert_eq!((sample.number, sample.slots.len()), (2, 0));
    }
    assert_eq!(notes.inspects(), 2);
    // A viewer that leaves in the middle of a look leaves it to the next one.
    world.advance(secs(1));
    world.engine.suspend.store(true, Ordering::SeqCst);
    let mut leaves = Box::pin(sampler.next(2));
    assert!(poll_once(leaves.as_mut()).is_none());
    drop(leaves);
    world.engine.suspend.store(false, Ordering::SeqCst);
    assert_eq!(now(sampler.next(2)).unwrap().number, 3);
}

#[test]
fn what_tenure_keeps_for_itself_is_listed_only_on_demand() {
    let world = World::new();
    let tenure = world.tenure();
    let own = Name::from_store("\u{1}election:a").unwrap();
    let claim = World::detached_claim("a", secs(30));
    let parts = Parts::one(Part::write(own.clone()));
    let claim = Arc::new(Claim { parts, ..Claim::clone(&claim) });
    now(world.store.claim(&claim)).unwrap();
    let batch = Batch::from(&Put::new(own.clone(), "host-7"));
    now(world.store.cells().unwrap().write(&batch)).unwrap();
    let _guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    now(tenure.cells().put(&Put::new(name("a"), "v"))).unwrap();

    let slots = |reserved: bool| {
        let page = Page { reserved, ..Page::default() };
        let seen = now(tenure.inspect(&Query::Page(page))).unwrap();
        seen.slots.iter().map(|slot| slot.name.shown().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (slots(false), slots(true)),
        (vec!["a".into()], vec!["@election:a".into(), "a".into()])
    );
    let cells = tenure.cells();
    let all = Pattern::all();
    let shown = |cells: Vec<(Name, Cell)>| {
        cells.iter().map(|(name, _)| name.shown().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(now(cells.list(&all, None, 10)).unwrap()), ["a"]);
    assert_eq!(shown(now(cells.list_all(&all, None, 10)).unwrap()), ["@election:a", "a"]);
    // Nor does a watch of everything show them.
    let mut watch = now(cells.watch(CellRange::prefix("").unwrap())).unwrap();
    let first = now(watch.next()).unwrap();
    assert!(matches!(first, CellChange::Put(seen, _) if seen == name("a")));
    now(world.store.cells().unwrap().write(&batch)).unwrap();
    let mut next = Box::pin(watch.next());
    assert!(poll_once(next.as_mut()).is_none());
}

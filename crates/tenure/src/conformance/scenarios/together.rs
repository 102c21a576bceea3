//! Sets as their callers see them: the same whether the engine takes all names in one step or the
//! session takes them one by one.

use super::{Actor, Ask, Waiting, World, list, name};
use crate::contract::{Error, ErrorKind, Evicted, Loss, Name, Part};
use crate::primitives::{LockSet, LockSetGuard, scope};

list! { Sets:
    a_caller_that_tries_gets_all_or_nothing cites [1] needs [];
    a_guard_of_a_set_has_a_fence_for_each_name cites [3] needs [];
    a_set_is_free_when_its_release_is_confirmed cites [7] needs [];
    a_caller_that_leaves_gives_back_what_its_set_had cites [7] needs [Queue];
    a_set_that_waits_too_long_says_for_which_name cites [10] needs [Queue];
    a_caller_is_told_which_name_of_its_set_has_another_shape cites [1] needs [Counting];
    evicting_what_a_waiting_set_has_ends_the_wait cites [9] needs [Queue];
    a_set_that_waits_is_renewed_as_long_as_it_takes cites [4, 8] needs [Queue];
    a_set_that_was_cut_off_is_lost_as_a_whole cites [4] needs [];
    a_set_cut_off_while_it_waits_is_taken_anew_or_not_at_all cites [1, 4] needs [Queue];
    a_set_is_held_for_max_hold_at_most cites [4] needs [];
    a_scope_re_enters_the_names_of_its_set cites [1] needs [];
    a_guard_holds_kinds_of_locks_that_mix cites [1] needs [Sharing, Counting];
    a_set_that_is_tried_again_holds_nothing_while_it_pauses cites [1, 7] needs [];
    tries_for_a_set_end_with_their_time_or_their_number cites [7, 10] needs [];
}

fn set(actor: &Actor, names: &[&str]) -> LockSet {
    let parts = names.iter().map(|name| actor.tenure.mutex(name).unwrap().part());
    actor.tenure.lock_set(parts).unwrap()
}

fn take(actor: &Actor, names: &[&str]) -> Waiting<Result<LockSetGuard, Error>> {
    Waiting::start(set(actor, names).lock())
}

fn a_caller_that_tries_gets_all_or_nothing(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let tried = world.now(set(&two, &["c", "b", "a"]).try_lock()).unwrap();
    assert!(tried.is_none(), "one of them is held");
    world.assert_free("a");
    world.assert_free("c");
    world.now(busy.release()).unwrap();
    let taken = world.now(set(&two, &["c", "b", "a"]).try_lock()).unwrap();
    let taken = taken.expect("all are free");
    for name in ["a", "b", "c"] {
        assert!(world.now(one.tenure.mutex(name).unwrap().try_lock()).unwrap().is_none());
    }
    drop(taken);
    for name in ["a", "b", "c"] {
        world.assert_free(name);
    }
}

fn a_guard_of_a_set_has_a_fence_for_each_name(world: &World) {
    let actor = world.actor();
    let alone = world.now(actor.tenure.mutex("b").unwrap().lock()).unwrap();
    let old = alone.fence().unwrap();
    world.now(alone.release()).unwrap();
    let guard = world.now(set(&actor, &["c", "a", "b", "a"]).lock()).unwrap();
    let names: Vec<&str> = guard.names().map(Name::as_str).collect();
    assert_eq!((names, guard.name().as_str()), (vec!["a", "b", "c"], "a"));
    let fences = ["a", "b", "c"].map(|name| guard.fence_of(name).unwrap());
    assert!(fences[1] > old, "in the order of names");
    assert_eq!(guard.fence().unwrap(), fences.into_iter().max().unwrap());
    assert_eq!(world.holders("a"), [guard.claim_id()]);
    for (name, fence) in ["a", "b", "c"].into_iter().zip(fences) {
        assert_eq!(world.slot(name).unwrap().holders[0].fence, fence, "as the store shows it");
    }
    assert!(guard.fence_of("d").is_err() && guard.check().is_ok());
    world.now(guard.release()).unwrap();
    let next = world.now(set(&actor, &["a", "b", "c"]).lock()).unwrap();
    assert!(next.fence().unwrap() > fences.into_iter().max().unwrap());
    for (name, fence) in ["a", "b", "c"].into_iter().zip(fences) {
        assert!(next.fence_of(name).unwrap() > fence, "{name}");
    }
}

fn a_set_is_free_when_its_release_is_confirmed(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(set(&one, &["a", "b", "c"]).lock()).unwrap();
    let watching = guard.status();
    world.now(guard.release()).unwrap();
    assert_eq!(watching.check().unwrap_err().loss(), Some(&Loss::Released));
    let next = world.now(set(&two, &["a", "b", "c"]).try_lock()).unwrap();
    assert!(next.is_some());
    assert_eq!(one.tenure.claim_count(), 0);
}

fn a_caller_that_leaves_gives_back_what_its_set_had(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut leaving = take(&two, &["a", "b", "c"]);
    world.still_waits(&mut leaving);
    let mut stranger = Waiting::start(one.tenure.mutex("a").unwrap().lock());
    world.still_waits(&mut stranger);
    drop(leaving);
    drop(world.served(stranger).unwrap());
    assert_eq!((world.holders("b"), world.line("b")), (vec![busy.claim_id()], vec![]));
    assert_eq!(two.tenure.claim_count(), 0);
    drop(busy);
    for name in ["a", "b", "c"] {
        world.assert_free(name);
    }
}

fn a_set_that_waits_too_long_says_for_which_name(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().label("nightly").lock()).unwrap();
    let waiting = set(&two, &["a", "b", "c"]).timeout(world.lease() / 2).lock();
    let error = world.served(world.waits(waiting)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(error.name().map(Name::as_str), Some("b"), "{error}");
    assert_eq!((error.held_by().len(), error.place()), (1, Some(1)), "{error}");
    assert_eq!(error.held_by()[0].claim, busy.claim_id());
    world.assert_free("a");
    world.assert_free("c");
    assert_eq!(two.tenure.claim_count(), 0);
}

fn a_caller_is_told_which_name_of_its_set_has_another_shape(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let _permit = world.now(one.tenure.semaphore("b", 2).unwrap().acquire()).unwrap();
    let error = world.now(set(&two, &["a", "b", "c"]).lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    assert_eq!(error.name().map(Name::as_str), Some("b"), "{error}");
    world.assert_free("a");
    world.assert_free("c");
    assert_eq!(two.tenure.claim_count(), 0);
}

fn evicting_what_a_waiting_set_has_ends_the_wait(world: &World) {
    let (one, two, raw) = (world.actor(), world.actor(), world.raw());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = take(&two, &["a", "b"]);
    world.still_waits(&mut waiting);
    let fence = world.slot("a").unwrap().holders[0].fence;
    assert!(matches!(raw.evict(world, "a", fence, "needed elsewhere"), Evicted::Done(_)));
    let error = world.served(waiting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("needed elsewhere"), "{error}");
    world.assert_free("a");
    drop(busy);
    world.assert_free("b");
}

fn a_set_that_waits_is_renewed_as_long_as_it_takes(world: &World) {
    let (one, two, raw) = (world.actor(), world.actor(), world.raw());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = take(&two, &["a", "b"]);
    world.pass_watching(world.lease() * 3, || {
        world.still_waits(&mut waiting);
        raw.refused(world, Ask::mutex(world, "a").at_once());
    });
    drop(busy);
    let guard = world.served(waiting).unwrap();
    world.pass(world.lease() * 2);
    assert!(guard.check().is_ok());
    assert!(guard.remaining() > world.lease() / 3);
}

fn a_set_that_was_cut_off_is_lost_as_a_whole(world: &World) {
    let (one, raw) = (world.actor(), world.raw());
    let guard = world.now(set(&one, &["a", "b", "c"]).lock()).unwrap();
    let mut lost = Waiting::start(guard.lost());
    one.link.cut(true);
    world.until("it is lost", || {
        let over = guard.check().is_err();
        for name in ["a", "b", "c"] {
            let free = raw.send(world, &raw.make(Ask::mutex(world, name).at_once()));
            assert!(over || !matches!(free, crate::contract::Verdict::Granted(_)), "{name}");
        }
        over
    });
    assert!(lost.is_done(world.stage()));
    for name in ["a", "b", "c"] {
        assert_eq!(guard.fence_of(name).unwrap_err().kind(), ErrorKind::Lost);
    }
    one.link.cut(false);
    assert_eq!(world.now(guard.release()).unwrap_err().kind(), ErrorKind::Lost);
    world.until("nothing is left of it", || one.tenure.claim_count() == 0);
}

fn a_set_cut_off_while_it_waits_is_taken_anew_or_not_at_all(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut waiting = take(&two, &["a", "b"]);
    world.still_waits(&mut waiting);
    two.link.cut(true);
    world.pass(world.lease() * 2);
    let mut between = Waiting::start(one.tenure.mutex("a").unwrap().lock());
    world.until("somebody else has it", || between.is_done(world.stage()));
    let between = between.done(world.stage()).unwrap();
    let fence = between.fence().unwrap();
    two.link.cut(false);
    drop(between);
    drop(busy);
    match world.served(waiting) {
        Ok(guard) => assert!(guard.fence_of("a").unwrap() > fence, "taken anew"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    world.assert_free("a");
    world.assert_free("b");
}

fn a_set_is_held_for_max_hold_at_most(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let most = world.lease() * 2;
    let guard = world.now(set(&one, &["a", "b"]).max_hold(most).lock()).unwrap();
    world.pass(world.lease());
    assert!(guard.check().is_ok());
    world.pass(world.lease());
    world.until("it is over", || guard.check().is_err());
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::MaxHold));
    let next = world.served(take(&two, &["a", "b"])).unwrap();
    assert!(next.check().is_ok());
}

fn a_scope_re_enters_the_names_of_its_set(world: &World) {
    let (one, other) = (world.actor(), world.actor());
    let tenure = one.tenure.clone();
    let both = set(&one, &["a", "b"]);
    let work = scope(async move {
        let outer = tenure.mutex("b")?.lock().await?;
        let set = both.lock().await?;
        let inner = tenure.mutex("a")?.lock().await?;
        set.release().await?;
        inner.check()?;
        Ok::<_, Error>((outer, inner))
    });
    let (outer, inner) = world.now(work).unwrap();
    for name in ["a", "b"] {
        let tried = world.now(other.tenure.mutex(name).unwrap().try_lock()).unwrap();
        assert!(tried.is_none(), "{name} is still held by what entered it beside the set");
    }
    world.now(outer.release()).unwrap();
    world.now(inner.release()).unwrap();
    world.assert_free("a");
    world.assert_free("b");
}

fn a_guard_holds_kinds_of_locks_that_mix(world: &World) {
    let (one, raw) = (world.actor(), world.raw());
    let parts =
        [Part::permits(name("c"), 2, 3).unwrap(), Part::write(name("a")), Part::read(name("b"))];
    let guard = world.now(one.tenure.lock_set(parts).unwrap().lock()).unwrap();
    raw.refused(world, Ask::mutex(world, "a").at_once());
    raw.refused(world, Ask::write(world, "b").at_once());
    raw.granted(world, Ask::read(world, "b").at_once());
    raw.refused(world, Ask::permits(world, "c", 2, 3).at_once());
    raw.granted(world, Ask::permits(world, "c", 1, 3).at_once());
    world.now(guard.release()).unwrap();
    raw.granted(world, Ask::mutex(world, "a").at_once());
    raw.granted(world, Ask::permits(world, "c", 2, 3).at_once());
}

fn a_set_that_is_tried_again_holds_nothing_while_it_pauses(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let mut trying = Waiting::start(set(&two, &["a", "b", "c"]).try_lock_for(world.lease() * 20));
    world.still_waits(&mut trying);
    for name in ["a", "c"] {
        world.assert_free(name);
        // Not only by the look of it: another client gets the name, and keeps it from the set.
        let taken = Waiting::start(one.tenure.mutex(name).unwrap().lock());
        drop(world.served(taken).unwrap());
    }
    assert_eq!((world.holders("b"), world.line("b")), (vec![busy.claim_id()], vec![]));
    drop(busy);
    let guard = world.served(trying).unwrap().expect("all are free, and there is time");
    for name in ["a", "b", "c"] {
        assert_eq!(world.slot(name).unwrap().holders[0].fence, guard.fence_of(name).unwrap());
    }
}

fn tries_for_a_set_end_with_their_time_or_their_number(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let busy = world.now(one.tenure.mutex("b").unwrap().lock()).unwrap();
    let names = ["a", "b", "c"];
    let in_time = set(&two, &names).try_lock_for(world.lease() / 2);
    assert!(world.served(Waiting::start(in_time)).unwrap().is_none());
    let in_number = set(&two, &names).max_tries(2).try_lock_for(world.lease() * 1_000);
    assert!(world.served(Waiting::start(in_number)).unwrap().is_none());
    let single = set(&two, &names).max_tries(0).try_lock_for(world.lease() * 1_000);
    assert!(world.served(Waiting::start(single)).unwrap().is_none());
    assert_eq!((world.holders("b"), world.line("b")), (vec![busy.claim_id()], vec![]));
    world.assert_free("a");
    world.assert_free("c");
    assert_eq!(two.tenure.claim_count(), 0);
    drop(busy);
    world.assert_free("b");
    let at_once = world.now(set(&two, &names).try_lock_for(std::time::Duration::ZERO)).unwrap();
    assert!(at_once.is_some(), "one attempt is made in any case");
}

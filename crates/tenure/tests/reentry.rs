//! Re-entry, owners, scopes and sets.

mod common;

use std::sync::atomic::Ordering;

use common::{World, now, poll_once, secs};
use tenure::contract::Promises;
use tenure::engine::memory;
use tenure::{Loss, Owner, scope};

#[test]
fn a_scope_enters_again_without_a_call_and_frees_with_its_last_guard() {
    let world = World::new();
    let tenure = world.tenure();
    let other = world.tenure().mutex("a").unwrap().owner(&Owner::new());
    now(scope(async {
        let outer = tenure.mutex("a").unwrap().lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().lock().await.unwrap();
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 1, "no round trip");
        assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
        outer.release().await.unwrap();
        assert!(inner.check().is_ok(), "one guard is left");
        assert!(other.try_lock().await.unwrap().is_none());
        inner.release().await.unwrap();
        assert!(other.try_lock().await.unwrap().is_some());
    }));
}

#[test]
fn a_scope_reaches_through_function_calls_and_not_into_other_flows() {
    let world = World::new();
    let tenure = world.tenure();
    let mutex = tenure.mutex("a").unwrap();
    now(scope(async {
        let _outer = mutex.lock().await.unwrap();
        // Another future, polled inside, belongs to the scope; one made for another owner does not.
        assert!(mutex.try_lock().await.unwrap().is_some());
        let stranger = Owner::new();
        assert!(mutex.clone().owner(&stranger).try_lock().await.unwrap().is_none());
    }));
    assert_eq!(Owner::current(), None);
}

#[test]
fn outside_a_scope_every_lock_is_its_own_owner() {
    let world = World::new();
    let tenure = world.tenure();
    let _guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(now(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none());
}

#[test]
fn a_child_enters_what_its_parent_holds_and_siblings_exclude_each_other() {
    let world = World::new();
    let (tenure, elsewhere) = (world.tenure(), world.tenure());
    let parent = Owner::new();
    // As another process would: through the environment, in another session.
    let one = Owner::from_env_value(&parent.to_env_value()).unwrap().child().unwrap();
    let two = parent.child().unwrap();
    let outer = now(tenure.mutex("a").unwrap().owner(&parent).lock()).unwrap();
    let mut stranger = Box::pin(tenure.mutex("a").unwrap().lock());
    assert!(poll_once(stranger.as_mut()).is_none());
    let first = now(elsewhere.mutex("a").unwrap().owner(&one).lock()).unwrap();
    assert_eq!(first.fence().unwrap(), outer.fence().unwrap(), "nested claims share the fence");
    let mut second = Box::pin(elsewhere.mutex("a").unwrap().owner(&two).lock());
    assert!(poll_once(second.as_mut()).is_none(), "a sibling waits");
    now(first.release()).unwrap();
    let second = poll_once(second.as_mut()).expect("ahead of the stranger").unwrap();
    now(outer.release()).unwrap();
    assert!(poll_once(stranger.as_mut()).is_none(), "the child still holds");
    now(second.release()).unwrap();
    assert!(poll_once(stranger.as_mut()).is_some());
}

#[test]
fn after_a_nested_crash_the_survivors_get_a_new_fence() {
    let world = World::new();
    let (tenure, dying) = (world.tenure(), world.tenure());
    let parent = Owner::new();
    let outer = now(tenure.mutex("a").unwrap().owner(&parent).lock()).unwrap();
    let old = outer.fence().unwrap();
    let child = parent.child().unwrap();
    let lost = now(dying.mutex("a").unwrap().owner(&child).lock()).unwrap();
    assert_eq!(lost.fence().unwrap(), old);
    world.store.end_session(dying.session_id());
    let next = now(tenure.mutex("a").unwrap().owner(&parent.child().unwrap()).lock()).unwrap();
    assert!(next.fence().unwrap() > old, "the dead child may still write with the old one");
    world.advance(secs(11));
    assert_eq!(outer.fence().unwrap(), next.fence().unwrap(), "from its next renewal on");
}

#[test]
fn a_writer_may_read_and_a_lone_reader_may_write_in_its_own_scope() {
    let world = World::new();
    let tenure = world.tenure();
    let lock = tenure.rwlock("a").unwrap();
    now(scope(async {
        let reader = lock.read().await.unwrap();
        let writer = lock.write().await.unwrap();
        assert!(writer.fence().unwrap() > reader.fence().unwrap(), "an upgrade: a new fence");
        let again = lock.read().await.unwrap();
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 2, "re-entry needs no call");
        drop((writer, again));
        world.settle();
        assert!(world.tenure().rwlock("a").unwrap().try_read().await.unwrap().is_some());
        drop(reader);
    }));
    world.assert_empty("scope");
}

#[test]
fn permits_of_one_owner_add_up() {
    let world = World::new();
    let tenure = world.tenure();
    let semaphore = tenure.semaphore("a", 2).unwrap();
    now(scope(async {
        let _one = semaphore.acquire().await.unwrap();
        let _two = semaphore.acquire().await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none());
    }));
}

#[test]
fn opposite_transfers_never_deadlock() {
    let world = World::new();
    let tenure = world.tenure();
    let part = |name: &str| tenure.mutex(name).unwrap().part();
    let busy = now(tenure.mutex("account:2").unwrap().lock()).unwrap();
    let mut there =
        Box::pin(tenure.lock_set([part("account:1"), part("account:2")]).unwrap().lock());
    let mut back =
        Box::pin(tenure.lock_set([part("account:2"), part("account:1")]).unwrap().lock());
    assert!(poll_once(there.as_mut()).is_none());
    assert!(poll_once(back.as_mut()).is_none());
    now(busy.release()).unwrap();
    let first = poll_once(there.as_mut()).expect("first come, first served").unwrap();
    assert!(poll_once(back.as_mut()).is_none());
    let fences = ["account:1", "account:2"].map(|name| first.fence_of(name).unwrap());
    now(first.release()).unwrap();
    let second = poll_once(back.as_mut()).expect("then the other").unwrap();
    for (name, old) in ["account:1", "account:2"].into_iter().zip(fences) {
        assert!(second.fence_of(name).unwrap() > old);
    }
    assert!(second.fence().unwrap() > *fences.iter().max().unwrap());
}

#[test]
fn a_set_is_all_or_nothing() {
    let world = World::new();
    let tenure = world.tenure();
    let part = |name: &str| tenure.mutex(name).unwrap().part();
    let busy = now(tenure.mutex("b").unwrap().lock()).unwrap();
    let all = tenure.lock_set([part("a"), part("b"), part("c")]).unwrap();
    assert!(now(all.try_lock()).unwrap().is_none());
    assert!(now(tenure.mutex("a").unwrap().try_lock()).unwrap().is_some(), "nothing was taken");
    world.settle();
    now(busy.release()).unwrap();
    let held = now(all.try_lock()).unwrap().expect("all free");
    assert_eq!(held.names().count(), 3);
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 4, "one call for the whole set");
}

#[test]
fn a_family_is_one_lock() {
    let world = World::new();
    let tenure = world.tenure();
    let family = tenure.family("account:*").unwrap();
    let guard = now(family.lock("account:17")).unwrap();
    assert!(now(family.try_lock("account:18")).unwrap().is_none());
    let name: tenure::Name = "account:*".parse().unwrap();
    let seen = now(tenure.inspect(&tenure::Query::Slot(name))).unwrap();
    let label = seen.slots[0].holders[0].about.label.clone().unwrap();
    assert_eq!(label.as_str(), "account:17", "people see which member it was");
    drop(guard);
}

#[test]
fn the_same_owner_waiting_twice_is_served_together() {
    let world = World::new();
    let tenure = world.tenure();
    let owner = Owner::new();
    let busy = now(tenure.mutex("a").unwrap().lock()).unwrap();
    let mut one = Box::pin(tenure.mutex("a").unwrap().owner(&owner).lock());
    let mut stranger = Box::pin(tenure.mutex("a").unwrap().lock());
    let mut two = Box::pin(tenure.mutex("a").unwrap().owner(&owner).lock());
    for waiting in [&mut one, &mut two] {
        assert!(poll_once(waiting.as_mut()).is_none());
    }
    assert!(poll_once(stranger.as_mut()).is_none());
    now(busy.release()).unwrap();
    let one = poll_once(one.as_mut()).expect("its turn").unwrap();
    let two = poll_once(two.as_mut()).expect("the same owner").unwrap();
    assert_eq!(one.fence().unwrap(), two.fence().unwrap());
    drop((one, two));
    world.settle();
    assert!(poll_once(stranger.as_mut()).is_some());
}

#[test]
fn what_is_held_as_one_kind_of_lock_is_not_entered_as_another() {
    let world = World::new();
    let tenure = world.tenure();
    let owner = Owner::new();
    let _guard = now(tenure.mutex("a").unwrap().owner(&owner).lock()).unwrap();
    let error = now(tenure.semaphore("a", 2).unwrap().owner(&owner).acquire()).unwrap_err();
    assert_eq!(error.kind(), tenure::ErrorKind::Shape);
}

#[test]
fn the_holder_of_a_mutex_enters_again_as_its_reader_and_as_its_writer() {
    let world = World::new();
    let tenure = world.tenure();
    let owner = Owner::new();
    let guard = now(tenure.mutex("a").unwrap().owner(&owner).lock()).unwrap();
    let reader = now(tenure.rwlock("a").unwrap().owner(&owner).read()).unwrap();
    let writer = now(tenure.rwlock("a").unwrap().owner(&owner).write()).unwrap();
    assert_eq!(reader.fence().unwrap(), guard.fence().unwrap());
    assert_eq!(writer.fence().unwrap(), guard.fence().unwrap());
}

#[test]
fn a_hold_can_still_be_entered_after_another_owner_has_left_the_name() {
    let world = World::new();
    let tenure = world.tenure();
    let [one, two] = [Owner::new(), Owner::new()].map(|owner| {
        let lock = tenure.rwlock("a").unwrap().owner(&owner);
        let guard = now(lock.read()).unwrap();
        (lock, guard)
    });
    drop(one);
    let again = now(two.0.read()).unwrap();
    assert_eq!(again.fence().unwrap(), two.1.fence().unwrap());
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 2, "entered without a call");
}

#[test]
fn an_inner_max_hold_ends_the_inner_guard_and_leaves_the_outer_one() {
    let world = World::new();
    let tenure = world.tenure();
    let stranger = world.tenure().mutex("a").unwrap().owner(&Owner::new());
    now(scope(async {
        let outer = tenure.mutex("a").unwrap().lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().max_hold(secs(5)).lock().await.unwrap();
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 1, "no round trip");
        assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
        assert!(inner.remaining() <= secs(5));
        let mut lost = Box::pin(inner.lost());
        world.advance(secs(4));
        assert!(inner.check().is_ok() && poll_once(lost.as_mut()).is_none());
        world.advance(secs(1));
        assert_eq!(poll_once(lost.as_mut()), Some(Loss::MaxHold));
        assert_eq!(inner.fence().unwrap_err().loss(), Some(&Loss::MaxHold));
        assert!(outer.check().is_ok() && stranger.try_lock().await.unwrap().is_none());
        assert_eq!(inner.release().await.unwrap_err().loss(), Some(&Loss::MaxHold));
        assert!(outer.check().is_ok(), "one share was given up, and only once");
        outer.release().await.unwrap();
    }));
    world.assert_empty("released");
}

#[test]
fn an_inner_max_hold_ends_the_lock_if_the_outer_guard_has_gone_before() {
    let world = World::new();
    let tenure = world.tenure();
    let inner = now(scope(async {
        let outer = tenure.mutex("a").unwrap().lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().max_hold(secs(5)).lock().await.unwrap();
        outer.release().await.unwrap();
        inner
    }));
    assert!(inner.check().is_ok());
    world.advance(secs(6));
    assert_eq!(inner.check().unwrap_err().loss(), Some(&Loss::MaxHold));
    world.assert_empty("given back, though its guard is still about");
}

#[test]
fn an_outer_max_hold_ends_the_inner_guards_too() {
    let world = World::new();
    let tenure = world.tenure();
    now(scope(async {
        let outer = tenure.mutex("a").unwrap().max_hold(secs(5)).lock().await.unwrap();
        let plain = tenure.mutex("a").unwrap().lock().await.unwrap();
        let longer = tenure.mutex("a").unwrap().max_hold(secs(9)).lock().await.unwrap();
        world.advance(secs(6));
        for held in [outer.status(), plain.status(), longer.status()] {
            assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::MaxHold));
        }
    }));
    world.assert_empty("given back");
}

#[test]
fn a_reader_with_an_end_of_its_own_upgrades_beside_the_outer_reader() {
    let world = World::new();
    let tenure = world.tenure();
    now(scope(async {
        let outer = tenure.rwlock("a").unwrap().read().await.unwrap();
        let inner = tenure.rwlock("a").unwrap().max_hold(secs(5)).read().await.unwrap();
        let writer = inner.upgrade().await.unwrap();
        assert!(outer.check().is_ok() && writer.remaining() <= secs(5));
        world.advance(secs(6));
        assert_eq!(writer.check().unwrap_err().loss(), Some(&Loss::MaxHold));
        assert!(outer.check().is_ok());
    }));
    world.assert_empty("released");
}

#[test]
fn an_inner_lock_with_another_lease_is_a_claim_of_its_own_with_the_same_fence() {
    let world = World::new();
    let tenure = world.tenure();
    let inner = now(scope(async {
        let outer = tenure.mutex("a").unwrap().lease(secs(30)).lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().lease(secs(3)).lock().await.unwrap();
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 2, "one call");
        assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
        assert!(inner.remaining() <= secs(3) && outer.remaining() > secs(20));
        world.advance(secs(20));
        assert!(outer.check().is_ok() && inner.check().is_ok(), "each is renewed in its time");
        outer.release().await.unwrap();
        inner
    }));
    // From here on a crash would free the name after three seconds, not after thirty.
    world.engine.refuse.store(true, Ordering::SeqCst);
    world.advance(secs(3));
    assert_eq!(inner.check().unwrap_err().loss(), Some(&Loss::Expired));
    assert_eq!(world.census(), (0, 0));
}

#[test]
fn where_the_store_knows_no_reentry_an_inner_lock_shares_the_lease_of_the_outer_one() {
    static PROMISES: Promises = Promises { queue: false, ..memory::PROMISES };
    let world = World::new();
    *world.engine.promises.lock().unwrap() = Some(&PROMISES);
    let tenure = world.tenure();
    now(scope(async {
        let _outer = tenure.mutex("a").unwrap().lease(secs(30)).lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().lease(secs(3)).lock().await.unwrap();
        assert_eq!(world.engine.claims.load(Ordering::SeqCst), 1, "no claim that would wait");
        assert!(inner.remaining() > secs(20));
    }));
}

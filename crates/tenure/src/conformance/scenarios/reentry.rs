//! Re-entry and nesting: an owner and its descendants enter what it holds; siblings and strangers
//! do not. Stores without a line know re-entry inside a process only, so these need one.

use super::{Ask, Waiting, World, child_of, fence, list, owner};
use crate::contract::{Evicted, Loss};
use crate::primitives::{Owner, scope};

list! { Reentry:
    an_owner_holds_until_its_last_claim_goes cites [1, 3] needs [Queue];
    an_owner_enters_again_whoever_waits cites [2] needs [Queue];
    an_owner_enters_again_from_a_session_with_waiters cites [2] needs [Queue];
    an_owner_weighs_as_much_as_its_heaviest_claim cites [1] needs [Queue, Sharing];
    granting_an_owner_grants_its_other_tickets cites [2, 3] needs [Queue];
    a_child_enters_what_its_parent_holds cites [1, 3] needs [Queue];
    siblings_exclude_each_other cites [1] needs [Queue];
    a_nested_claim_stands_ahead_of_strangers cites [2] needs [Queue];
    a_child_holds_on_when_its_parent_lets_go cites [1] needs [Queue];
    a_sibling_whose_parent_let_go_stands_where_it_arrived cites [2] needs [Queue];
    after_a_nested_expiry_the_survivors_have_a_new_fence cites [3] needs [Queue];
    evicting_a_fence_ends_everybody_who_shares_it cites [9] needs [Queue];
    a_session_enters_again_without_a_call cites [1] needs [];
    an_inner_lock_keeps_its_shorter_lease cites [1, 4] needs [Queue];
    a_scope_of_another_process_enters_by_its_parent cites [1, 2] needs [Queue];
}

fn an_owner_holds_until_its_last_claim_goes(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (one, first) = raw.granted(world, Ask::mutex(world, "a").of(&me));
    let (two, second) = raw.granted(world, Ask::mutex(world, "a").of(&me).at_once());
    assert_eq!(fence(&first), fence(&second), "the fence is the one it has");
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    raw.release(world, &one);
    raw.waits(world, &stranger);
    raw.held(world, &two);
    raw.release(world, &two);
    assert!(fence(&raw.held(world, &stranger)) > fence(&first));
}

fn an_owner_enters_again_whoever_waits(world: &World) {
    let raw = world.raw();
    let me = owner();
    raw.granted(world, Ask::mutex(world, "a").of(&me));
    for _ in 0..3 {
        raw.queued(world, Ask::mutex(world, "a"));
    }
    raw.granted(world, Ask::mutex(world, "a").of(&me).at_once());
    raw.granted(world, Ask::mutex(world, "a").of(&me));
    assert_eq!((world.holders("a").len(), world.line("a").len()), (3, 3));
}

/// A claim was placed behind a waiter of its own session, although its owner held the lock in
/// another session, and waited for a renewal.
fn an_owner_enters_again_from_a_session_with_waiters(world: &World) {
    let (one, two) = (world.raw(), world.raw());
    let me = owner();
    one.granted(world, Ask::mutex(world, "a").of(&me));
    two.queued(world, Ask::mutex(world, "a"));
    two.granted(world, Ask::mutex(world, "a").of(&me));
    assert_eq!((world.holders("a").len(), world.line("a").len()), (2, 1));
}

fn an_owner_weighs_as_much_as_its_heaviest_claim(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (writer, _) = raw.granted(world, Ask::write(world, "a").of(&me));
    let (reader, _) = raw.granted(world, Ask::read(world, "a").of(&me));
    let (other, _) = raw.queued(world, Ask::read(world, "a"));
    let (next, _) = raw.queued(world, Ask::write(world, "a"));
    raw.release(world, &writer);
    raw.held(world, &other);
    raw.held(world, &reader);
    raw.release(world, &other);
    raw.waits(world, &next);
    raw.release(world, &reader);
    raw.held(world, &next);
}

fn granting_an_owner_grants_its_other_tickets(world: &World) {
    let raw = world.raw();
    let me = owner();
    let (busy, _) = raw.granted(world, Ask::mutex(world, "a"));
    let (one, _) = raw.queued(world, Ask::mutex(world, "a").of(&me));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    let (two, _) = raw.queued(world, Ask::mutex(world, "a").of(&me));
    raw.release(world, &busy);
    assert_eq!(fence(&raw.held(world, &one)), fence(&raw.held(world, &two)));
    raw.waits(world, &stranger);
    raw.release(world, &one);
    raw.waits(world, &stranger);
    raw.release(world, &two);
    raw.held(world, &stranger);
}

fn a_child_enters_what_its_parent_holds(world: &World) {
    let (raw, elsewhere) = (world.raw(), world.raw());
    let parent = owner();
    let grandchild = child_of(&child_of(&parent));
    let (outer, one) = raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (inner, two) = elsewhere.granted(world, Ask::mutex(world, "a").of(&grandchild));
    assert_eq!(fence(&one), fence(&two), "nested claims share the fence");
    assert_eq!(world.holders("a"), [outer.id, inner.id]);
    // It does not go the other way: what a child holds keeps its parent out.
    let (_, three) = raw.granted(world, Ask::mutex(world, "b").of(&child_of(&parent)));
    raw.refused(world, Ask::mutex(world, "b").of(&parent).at_once());
    assert_eq!(world.slot("b").unwrap().holders[0].fence, fence(&three));
}

fn siblings_exclude_each_other(world: &World) {
    let raw = world.raw();
    let parent = owner();
    raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (one, _) = raw.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    raw.refused(world, Ask::mutex(world, "a").of(&child_of(&parent)).at_once());
    let (two, _) = raw.queued(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    let (three, _) = raw.queued(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    raw.release(world, &one);
    raw.held(world, &two);
    raw.waits(world, &three);
    raw.release(world, &two);
    raw.held(world, &three);
}

fn a_nested_claim_stands_ahead_of_strangers(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let (outer, _) = raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    let (one, _) = raw.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    let (two, queued) = raw.queued(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    assert_eq!(queued.place, 1);
    assert_eq!(raw.waits(world, &stranger).place, 2);
    raw.release(world, &one);
    raw.held(world, &two);
    raw.release(world, &two);
    raw.waits(world, &stranger);
    raw.release(world, &outer);
    raw.held(world, &stranger);
}

fn a_child_holds_on_when_its_parent_lets_go(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let (outer, grant) = raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (inner, _) = raw.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    raw.release(world, &outer);
    raw.waits(world, &stranger);
    assert_eq!(fence(&raw.held(world, &inner)), fence(&grant));
    raw.release(world, &inner);
    raw.held(world, &stranger);
}

fn a_sibling_whose_parent_let_go_stands_where_it_arrived(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let (outer, _) = raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (inner, _) = raw.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    let (sibling, _) = raw.queued(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    assert_eq!(world.line("a"), [sibling.id, stranger.id], "ahead while its parent holds");
    raw.release(world, &outer);
    assert_eq!(world.line("a"), [stranger.id, sibling.id], "behind who came before it");
    raw.release(world, &inner);
    raw.held(world, &stranger);
    raw.waits(world, &sibling);
}

fn after_a_nested_expiry_the_survivors_have_a_new_fence(world: &World) {
    let (living, dying) = (world.raw(), world.raw());
    let parent = owner();
    let (outer, old) = living.granted(world, Ask::mutex(world, "a").of(&parent));
    let nested = Ask::mutex(world, "a").of(&child_of(&parent));
    let (lost, shared) = dying.granted(world, nested);
    assert_eq!(fence(&shared), fence(&old));
    world.stage().end_session(dying.session());
    dying.gone(world, &lost);
    let nested = Ask::mutex(world, "a").of(&child_of(&parent));
    let (next, new) = living.granted(world, nested);
    assert!(fence(&new) > fence(&old), "the dead child may still write with the old one");
    assert_eq!(fence(&living.held(world, &outer)), fence(&new), "from its next renewal on");
    // A release is no expiry: what follows shares the fence again.
    living.release(world, &next);
    let (_, third) = living.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    assert_eq!(fence(&third), fence(&new));
}

fn evicting_a_fence_ends_everybody_who_shares_it(world: &World) {
    let raw = world.raw();
    let parent = owner();
    let (outer, grant) = raw.granted(world, Ask::mutex(world, "a").of(&parent));
    let (inner, _) = raw.granted(world, Ask::mutex(world, "a").of(&child_of(&parent)));
    let (stranger, _) = raw.queued(world, Ask::mutex(world, "a"));
    let evicted = raw.evict(world, "a", fence(&grant), "the whole tree is stuck");
    assert!(matches!(evicted, Evicted::Done(ended) if ended.len() == 2));
    raw.held(world, &stranger);
    raw.gone(world, &outer);
    raw.gone(world, &inner);
}

fn a_session_enters_again_without_a_call(world: &World) {
    let (actor, other) = (world.actor(), world.actor());
    let (tenure, link) = (actor.tenure.clone(), actor.link.clone());
    let guards = world.now(scope(async move {
        let first = tenure.mutex("a").unwrap().lock().await.unwrap();
        let calls = link.calls();
        let mut guards = vec![first];
        for _ in 0..10 {
            guards.push(tenure.mutex("a").unwrap().lock().await.unwrap());
            guards.push(tenure.mutex("a").unwrap().try_lock().await.unwrap().unwrap());
        }
        assert_eq!(link.calls(), calls, "no round trip");
        guards
    }));
    let fences: Vec<_> = guards.iter().map(|guard| guard.fence().unwrap()).collect();
    assert!(fences.iter().all(|fence| *fence == fences[0]));
    assert_eq!(world.holders("a").len(), 1);
    let mut waiting = world.waits(other.tenure.mutex("a").unwrap().lock());
    for guard in guards {
        world.still_waits(&mut waiting);
        drop(guard);
    }
    world.served(waiting).unwrap().check().unwrap();
}

/// The lease of an inner lock was once ignored: its guard went on by the longer one of the outer.
fn an_inner_lock_keeps_its_shorter_lease(world: &World) {
    let (actor, other) = (world.actor(), world.actor());
    let (tenure, long, short) = (actor.tenure.clone(), world.long_lease(), world.lease());
    let (outer, inner) = world.now(scope(async move {
        let outer = tenure.mutex("a").unwrap().lease(long).lock().await.unwrap();
        let inner = tenure.mutex("a").unwrap().lease(short).lock().await.unwrap();
        (outer, inner)
    }));
    assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
    world.now(outer.release()).unwrap();
    inner.check().unwrap();
    actor.link.cut(true);
    world.pass(short * 2);
    assert_eq!(inner.check().unwrap_err().loss(), Some(&Loss::Expired));
    world.served(Waiting::start(other.tenure.mutex("a").unwrap().lock())).unwrap().check().unwrap();
}

fn a_scope_of_another_process_enters_by_its_parent(world: &World) {
    let (here, there) = (world.actor(), world.actor());
    let parent = Owner::new();
    let told = Owner::from_env_value(&parent.to_env_value()).unwrap();
    let (one, two) = (told.child().unwrap(), told.child().unwrap());
    let outer = world.now(here.tenure.mutex("a").unwrap().owner(&parent).lock()).unwrap();
    let stranger = world.waits(here.tenure.mutex("a").unwrap().lock());
    let first = world.now(there.tenure.mutex("a").unwrap().owner(&one).lock()).unwrap();
    let second = world.waits(there.tenure.mutex("a").unwrap().owner(&two).lock());
    assert_eq!(first.fence().unwrap(), outer.fence().unwrap());
    world.now(first.release()).unwrap();
    let second = world.served(second).unwrap();
    drop((outer, second));
    world.served(stranger).unwrap().check().unwrap();
    world.assert_free("a");
}

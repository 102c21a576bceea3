//! Exclusion: living holders never weigh more than the capacity. Every kind of lock is also tried
//! as a mutex.

use std::future::Future;
use std::pin::Pin;

use super::{Ask, Waiting, World, list};
use crate::contract::{Error, Refusal};
use crate::primitives::{LockStatus, Tenure};

list! { Exclusion:
    a_second_claim_waits_until_the_first_lets_go cites [1, 2] needs [];
    a_try_is_refused_with_who_holds cites [1] needs [];
    nobody_else_can_release_or_renew_a_claim cites [9] needs [];
    a_mutex_serves_as_a_mutex cites [1] needs [];
    a_write_lock_serves_as_a_mutex cites [1] needs [Sharing];
    a_semaphore_of_one_serves_as_a_mutex cites [1] needs [Counting];
    a_heavy_permit_serves_as_a_mutex cites [1] needs [Counting];
    a_set_serves_as_a_mutex cites [1] needs [Sharing, Counting];
    a_family_serves_as_a_mutex cites [1] needs [];
    a_scope_serves_as_a_mutex cites [1] needs [];
    a_preset_serves_as_a_mutex cites [1] needs [];
}

fn a_second_claim_waits_until_the_first_lets_go(world: &World) {
    let (one, two) = (world.actor(), world.actor());
    let guard = world.now(one.tenure.mutex("a").unwrap().lock()).unwrap();
    let mut waiting = world.waits(two.tenure.mutex("a").unwrap().lock());
    world.still_waits(&mut waiting);
    world.now(guard.release()).unwrap();
    let guard = world.served(waiting).unwrap();
    assert!(guard.check().is_ok());
    world.now(guard.release()).unwrap();
    world.assert_free("a");
}

fn a_try_is_refused_with_who_holds(world: &World) {
    let raw = world.raw();
    let (held, grant) = raw.granted(world, Ask::mutex(world, "a"));
    match raw.refused(world, Ask::mutex(world, "a").at_once()) {
        Refusal::Held { by, waiting } => {
            assert_eq!((by.len(), waiting), (1, 0));
            assert_eq!(by[0].claim, held.id);
            assert_eq!(by[0].fence, grant.fences.as_slice()[0]);
        }
        other => panic!("should name the holder: {other:?}"),
    }
}

fn nobody_else_can_release_or_renew_a_claim(world: &World) {
    let raw = world.raw();
    let (held, _) = raw.granted(world, Ask::mutex(world, "a"));
    let stranger = raw.make(Ask::mutex(world, "a"));
    assert_eq!(raw.release(world, &stranger), crate::contract::Released::Gone);
    assert!(matches!(raw.renew(world, &stranger), crate::contract::Renewed::Gone(_)));
    assert!(matches!(raw.renew(world, &held), crate::contract::Renewed::Held(_)));
    let by = world.slot("a").expect("still held").holders;
    assert_eq!((by.len(), by[0].claim), (1, held.id));
}

type Taking = Pin<Box<dyn Future<Output = Result<Box<dyn Grip>, Error>> + Send>>;

/// Whatever guard a kind of lock gives.
trait Grip: Send {
    fn status(&self) -> &LockStatus;
}

impl<G: std::ops::Deref<Target = LockStatus> + Send> Grip for G {
    fn status(&self) -> &LockStatus {
        self
    }
}

/// Plays the life of a mutex with any lock that can be one: three sessions, one at a time, in turn,
/// growing fences, and a free name at the end.
fn as_a_mutex(world: &World, take: fn(&Tenure) -> Taking) {
    let actors = [world.actor(), world.actor(), world.actor()];
    let mut guard = world.now(take(&actors[0].tenure)).unwrap();
    let mut line: Vec<Waiting<_>> =
        actors.iter().map(|actor| world.waits(take(&actor.tenure))).collect();
    let mut last = guard.status().fence().unwrap();
    while !line.is_empty() {
        for waiting in &mut line {
            world.still_waits(waiting);
        }
        drop(guard);
        guard = world.served(line.remove(0)).unwrap();
        let fence = guard.status().fence().unwrap();
        assert!(fence > last, "fences grow");
        last = fence;
    }
    drop(guard);
    for name in ["a", "b", "c", "a:*"] {
        world.assert_free(name);
    }
}

/// Boxes the guard of a lock's future.
fn boxed<G: Grip + 'static>(
    future: impl Future<Output = Result<G, Error>> + Send + 'static,
) -> Taking {
    Box::pin(async move { future.await.map(|guard| Box::new(guard) as Box<dyn Grip>) })
}

fn a_mutex_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| boxed(tenure.mutex("a").unwrap().lock()));
}

fn a_write_lock_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| boxed(tenure.rwlock("a").unwrap().write()));
}

fn a_semaphore_of_one_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| boxed(tenure.semaphore("a", 1).unwrap().acquire()));
}

fn a_heavy_permit_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| boxed(tenure.semaphore("a", 5).unwrap().acquire_many(3)));
}

fn a_set_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| {
        let parts = [
            tenure.mutex("c").unwrap().part(),
            tenure.rwlock("a").unwrap().write_part(),
            tenure.semaphore("b", 2).unwrap().part(2).unwrap(),
        ];
        boxed(tenure.lock_set(parts).unwrap().lock())
    });
}

fn a_family_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| boxed(tenure.family("a:*").unwrap().lock("a:1")));
}

fn a_scope_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| {
        let mutex = tenure.mutex("a").unwrap();
        boxed(crate::primitives::scope(async move { mutex.lock().await }))
    });
}

fn a_preset_serves_as_a_mutex(world: &World) {
    as_a_mutex(world, |tenure| {
        let mutex = tenure.mutex("a").unwrap().preset("financial").no_timeout();
        boxed(mutex.lock())
    });
}

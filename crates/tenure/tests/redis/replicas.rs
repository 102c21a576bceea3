//! Replicas: they are no place for locks, until they are promoted.

use servers::{Redis, eventually};
use tenure::block_on;
use tenure::{Effect, ErrorKind, Tenure};

use crate::host::{done, key};

#[test]
fn a_replica_refuses_clearly_and_works_once_it_is_promoted() {
    let primary = Redis::start();
    let replica = Redis::builder().replica_of(&primary).start();
    let refused = || {
        let error = block_on(Tenure::connect(&replica.url())).map(drop).unwrap_err();
        let (kind, effect) = (error.kind(), error.effect());
        assert_eq!((kind, effect), (ErrorKind::Unavailable, Effect::None), "{error}");
        assert!(error.to_string().contains("is a replica"), "{error}");
        assert!(error.help().contains("primary"), "{error}");
    };
    // Whether the store was used before or not.
    refused();
    let writer = block_on(Tenure::connect(&primary.url())).unwrap();
    let guard = block_on(writer.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let has_heard = || done(&replica, &["EXISTS", &key("a")]).int() == Some(1);
    eventually("the replica has heard of it", has_heard);
    refused();
    done(&replica, &["REPLICAOF", "NO", "ONE"]);
    let tenure = block_on(Tenure::connect(&replica.url())).unwrap();
    // What was held is held here too, as far as it had been told.
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none());
    block_on(tenure.force_release("a", fence, "its holder stayed behind")).unwrap();
    let next = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(next.fence().unwrap() > fence, "fences go on");
    block_on(next.release()).unwrap();
}

#[test]
fn a_primary_that_becomes_a_replica_refuses_and_its_holders_lose_in_time() {
    let (primary, other) = (Redis::start(), Redis::start());
    let lease = std::time::Duration::from_secs(1);
    let tenure = block_on(Tenure::builder().lease(lease).connect(&primary.url())).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    done(&primary, &["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    // It cannot be renewed any more, or the store has been replaced by an empty one.
    block_on(guard.lost());
    assert!(guard.fence().is_err());
    let error = block_on(tenure.mutex("b").unwrap().try_lock()).map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("is a replica"), "{error}");
    done(&primary, &["REPLICAOF", "NO", "ONE"]);
    eventually("it serves again", || {
        block_on(tenure.mutex("b").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

//! Memory that is full: what is held can be kept and given back, and what is new is refused.

use std::time::Duration;

use servers::Redis;
use tenure::block_on;
use tenure::{Effect, ErrorKind, Page, Query, Tenure};

use crate::host::{Book, assert_empty, done};
use crate::logs::logs;

/// From now on there is no room, or as much as one likes.
fn limit(redis: &Redis, bytes: &str) {
    done(redis, &["CONFIG", "SET", "maxmemory", bytes]);
}

#[test]
fn full_memory_refuses_claims_and_serves_everybody_who_is_there() {
    let (redis, book) = (Redis::start(), Book::new());
    let lease = Duration::from_secs(2);
    let (holder, other) = (book.session(&redis.url(), lease), book.session(&redis.url(), lease));
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let alone = block_on(holder.mutex("b").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    limit(&redis, "1");
    for name in ["a", "b", "new"] {
        let error = block_on(other.mutex(name).unwrap().try_lock()).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        let said = error.to_string();
        assert!(said.contains("out of memory") && said.contains("maxmemory"), "{said}");
    }
    let parts = ["new", "newer"].map(|name| other.mutex(name).unwrap().part());
    let error = block_on(other.lock_set(parts).unwrap().try_lock()).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    // Two leases' worth of renewals, of holders and of who waits.
    book.renewals(6);
    for held in [&guard, &alone] {
        held.check().unwrap();
    }
    let seen = block_on(other.inspect(&Query::Page(Page::default()))).unwrap();
    let seen: Vec<_> =
        seen.slots.iter().map(|slot| (slot.name.as_str(), slot.queue.len())).collect();
    assert_eq!(seen, [("a", 1), ("b", 0)]);
    // A client that comes back to a full server that it knows is served.
    let late = book.session(&redis.url(), lease);
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    block_on(alone.release()).unwrap();
    limit(&redis, "0");
    block_on(block_on(late.mutex("new").unwrap().lock()).unwrap().release()).unwrap();
    for tenure in [holder, other, late] {
        block_on(tenure.close());
    }
    book.assert_sound("full memory");
    assert_empty(&redis.url(), Tenure::builder());
}

#[test]
fn a_server_that_evicts_is_refused_unless_the_risk_is_taken() {
    logs();
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::builder().arg("maxmemory", "64mb").arg("maxmemory-policy", policy);
        let redis = redis.start();
        let error = block_on(Tenure::connect(&redis.url())).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let said = error.to_string();
        assert!(said.contains(policy) && said.contains("eviction=allow"), "{said}");
        let warning = format!("evicts keys ({policy}): locks may be lost");
        assert!(!logs().contains(&warning), "nobody was let in");
        let url = format!("{}?eviction=allow", redis.url());
        let tenure = block_on(Tenure::connect(&url)).unwrap();
        assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_some());
        assert!(logs().contains(&warning), "it is said in the log: {}", logs());
    }
    // Where memory has no limit nothing is ever evicted.
    let redis = Redis::builder().arg("maxmemory-policy", "allkeys-lru").start();
    assert!(block_on(Tenure::connect(&redis.url())).is_ok());
}

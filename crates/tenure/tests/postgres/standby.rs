//! Standbys, and the next host of a URL.

use servers::{Postgres, eventually};
use tenure::block_on;
use tenure::{ErrorKind, Tenure};

use crate::clients::Traffic;
use crate::host::{AHEAD, micros, session};

#[test]
fn a_standby_is_refused_and_found_once_it_is_promoted() {
    let first = Postgres::start();
    let warm = session(&first.url());
    let held = block_on(warm.mutex("a").unwrap().lock()).unwrap();
    let before = held.fence().unwrap();
    let second = first.standby();
    second.wait_until_caught_up(&first);
    let error = block_on(Tenure::connect(&second.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
        second.port(),
        first.port()
    );
    let tenure = session(&url);
    assert!(
        block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none(),
        "the first one answers"
    );
    // Before the crash: the client may find the other host by itself as soon as it takes writes.
    let crashed = micros(&second);
    first.kill();
    second.promote();
    eventually("the other host is found", || {
        block_on(tenure.mutex("b").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
    assert!(
        block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none(),
        "the lock came along"
    );
    let fence = block_on(tenure.mutex("c").unwrap().lock()).unwrap().fence().unwrap();
    assert!(fence > before, "fences go on");
    // What the standby never heard of may have had numbers up to two seconds ahead of the clock.
    assert!(fence.get() > crashed + AHEAD, "fences leap: {fence}, not above {crashed}");
    // Once: a promotion that is not remembered would take numbers with every connection.
    let last = || second.done("SELECT last_value FROM tenure.numbers");
    let before = last();
    block_on(session(&second.url()).close());
    assert_eq!(last(), before, "the promotion is known");
}

/// A standby hears of a commit after the client does, so that a promotion may lose the latest ones.
/// What that permits and what not: see `common/traffic.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn traffic_goes_on_through_a_promotion_and_no_fence_is_given_twice() {
    let first = Postgres::start();
    let second = first.standby();
    second.wait_until_caught_up(&first);
    let (one, two) = (first.port(), second.port());
    let url = format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{two}/postgres");
    let mut traffic = Traffic::start(&url, &["a", "b"]).await;
    traffic.everybody_is_served("the start");
    first.kill();
    second.promote();
    traffic.in_calm("a promotion");
    traffic.finish().await;
}

//! A sentinel that is cut off from the servers and from the other sentinels, and still answers
//! clients: it names the primary of the time before, for ever. Named first in the URL, it once kept
//! every client away from the new primary.

use std::time::Duration;

use servers::{Redis, Sentinel, Sentinels, eventually};
use tenure::Tenure;
use tenure::contract::Health;

use crate::following::connections;
use crate::losing::served;

/// For what has to happen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Outlives every fail-over here.
const LEASE: Duration = Duration::from_secs(60);

/// A primary with a replica, their sentinels, and one that is cut off.
struct Stage {
    set: Sentinels,
    stale: Sentinel,
}

impl Stage {
    fn new() -> Self {
        let node = Redis::builder().password("pw");
        let set = Sentinels::builder().replicas(1).node(node).start();
        let stale = set.cut_off_sentinel();
        Self { set, stale }
    }

    /// The sentinel that is cut off, then so many of the others.
    fn url(&self, others: usize) -> String {
        let others = self.set.sentinels().iter().take(others).map(Sentinel::port);
        let url = self.set.url_by([self.stale.port()].into_iter().chain(others));
        url.replace("://", "://:pw@")
    }

    async fn connect(&self, others: usize) -> Tenure {
        Tenure::builder().lease(LEASE).connect(&self.url(others)).await.unwrap()
    }
}

/// With two others by their majority; with one other by the epoch, which is higher after the
/// fail-over.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_starts_after_the_fail_over_finds_the_new_primary() {
    let stage = Stage::new();
    let _dead = tokio::task::block_in_place(|| stage.set.kill_primary());
    for others in [2, 1] {
        let tenure = stage.connect(others).await;
        let guard = tenure.mutex("a").unwrap().lock().await.unwrap();
        guard.release().await.unwrap();
        let found = tenure.doctor().await.unwrap();
        let outdated = format!("127.0.0.1:{} is out of date", stage.stale.port());
        let told = |check: &str, words: &str| {
            found.iter().any(|finding| {
                finding.check == check
                    && finding.state == Health::Bad
                    && finding.what.contains(words)
            })
        };
        assert!(told("sentinel", &outdated), "{found:#?}");
        assert!(told("fail-over", "the sentinels name different primaries"), "{found:#?}");
        tenure.close().await;
    }
}

/// The old primary is there, as a replica. No client may stay with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_stale_sentinel_names_and_that_is_a_replica_is_left() {
    let stage = Stage::new();
    let before = stage.connect(2).await;
    before.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
    tokio::task::block_in_place(|| stage.set.failover());
    let after = stage.connect(1).await;
    for tenure in [before, after] {
        served(&tenure.mutex("a").unwrap()).await.release().await.unwrap();
        tenure.close().await;
    }
}

/// One holds and one waits when the primary dies. Both come to the new primary, and the waiter is
/// served there.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_that_were_there_before_follow_to_the_new_primary() {
    let stage = Stage::new();
    let (holder, other) = (stage.connect(2).await, stage.connect(2).await);
    let guard = holder.mutex("a").unwrap().lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("a").unwrap();
        async move { served(&mutex).await }
    });
    tokio::task::block_in_place(|| {
        let key = "tenure:{default/a}:l";
        eventually("the waiter stands in line at the replica too", || {
            let line = stage.set.replicas()[0].cmd(&["ZCARD", key]);
            line.is_ok_and(|count| count == servers::Reply::Int(1))
        });
    });
    let _dead = tokio::task::block_in_place(|| stage.set.kill_primary());
    assert!(guard.check().is_ok(), "the lease is longer than the fail-over");
    assert!(!waiting.is_finished(), "the new primary knows who holds");
    // Given back in the background if the connection is not there yet.
    drop(guard.release().await);
    let next = tokio::time::timeout(LIMIT, waiting).await.expect("the waiter is served").unwrap();
    next.release().await.unwrap();
    for tenure in [holder, other] {
        tenure.close().await;
    }
}

/// Nothing is asked for, and the primary falls silent with all connections open: only an
/// announcement can tell, and the sentinel that is named first will never make it.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engine_hears_the_sentinels_that_are_not_cut_off() {
    let stage = Stage::new();
    let tenure = stage.connect(1).await;
    let old = stage.set.primary();
    let before = connections(old);
    assert!(before > 0);
    tokio::task::block_in_place(|| {
        old.stop();
        stage.set.wait_until_replaced(old);
        let new = stage.set.primary();
        eventually("all connections are to the new primary", || connections(new) == before);
    });
    tenure.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
    old.cont();
}

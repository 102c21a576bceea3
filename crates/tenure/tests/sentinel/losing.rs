//! Fail-overs that lose what was written last: what becomes of holders, and of fences.

use std::time::Duration;

use servers::{Redis, RedisBuilder, Sentinel, Sentinels, eventually};
use tenure::{ErrorKind, Mutex, MutexGuard, Tenure};

/// For what has to happen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The password of clients, where they need one.
const PASSWORD: &str = "pw";

/// A primary and a replica that has not heard of anything since it was cut off. The sentinels are
/// slow to call a server down, because they promote no replica that was out of touch for more than
/// ten times as long.
fn cut_off() -> Sentinels {
    let set = Sentinels::builder().replicas(1).sentinel("down-after-milliseconds", "3000").start();
    let (primary, replica) = (set.primary(), set.replicas()[0]);
    // With a wrong password it cannot come back by itself. To stop the process would not do: what
    // was sent to it would be read once it goes on.
    replica.cmd(&["CONFIG", "SET", "masterauth", "wrong"]).unwrap();
    primary.cmd(&["CLIENT", "KILL", "TYPE", "REPLICA"]).unwrap();
    eventually("the replica is out of touch", || {
        field(primary, "connected_slaves") == "0" && field(replica, "master_link_status") == "down"
    });
    set
}

fn field(server: &Redis, name: &str) -> String {
    server.info("replication", name).unwrap_or_default()
}

/// Takes a lock as soon as a server serves.
pub(crate) async fn served(mutex: &Mutex) -> MutexGuard {
    let serving = async {
        loop {
            match mutex.lock().await {
                Ok(guard) => break guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    tokio::time::timeout(LIMIT, serving).await.expect("the lock is granted")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_a_fail_over_forgot_is_followed_by_one_with_a_larger_fence() {
    let set = cut_off();
    let (lease, url) = (Duration::from_secs(60), set.url());
    let connect = || Tenure::builder().lease(lease).connect(&url);
    let (first, second) = (connect().await.unwrap(), connect().await.unwrap());
    let (mine, theirs) = (first.mutex("a").unwrap(), second.mutex("a").unwrap());
    let mut last = None;
    for _ in 0..100 {
        let guard = mine.lock().await.unwrap();
        let fence = Some(guard.fence().unwrap());
        assert!(fence > last, "{fence:?} after {last:?}");
        last = fence;
        guard.release().await.unwrap();
    }
    let held = mine.lock().await.unwrap();
    let fence = held.fence().unwrap();
    assert!(Some(fence) > last);
    let _dead = tokio::task::block_in_place(|| set.kill_primary());
    // It is held for another minute, and kept alive: only who forgot it can grant it now.
    let next = served(&theirs).await;
    assert_eq!(next.fencing(), tenure::contract::Fencing::ClockBounded);
    assert!(next.fence().unwrap() > fence, "{:?} after {fence:?}", next.fence());
    // Its holder is told at its next renewal, and released nothing of the other's.
    tokio::time::timeout(LIMIT, held.lost()).await.expect("the holder is told");
    assert_eq!(held.fence().unwrap_err().kind(), ErrorKind::Lost);
    drop(held);
    assert!(next.check().is_ok());
    next.release().await.unwrap();
}

/// The price of `grace=yes`: nothing is granted after a fail-over until every lease that the new
/// primary may not know of has ended. What it gives: no two holders.
#[tokio::test(flavor = "multi_thread")]
async fn with_grace_nobody_comes_in_after_a_fail_over_before_old_leases_have_ended() {
    let set = cut_off();
    let lease = Duration::from_secs(5);
    let url = format!("{}?grace=yes&new=yes", set.url());
    let connect = || Tenure::builder().lease(lease).max_lease(lease).connect(&url);
    let (first, second) = (connect().await.unwrap(), connect().await.unwrap());
    let held = served(&first.mutex("a").unwrap()).await;
    let fence = held.fence().unwrap();
    let _dead = tokio::task::block_in_place(|| set.kill_primary());
    let next = served(&second.mutex("a").unwrap()).await;
    // The one before no longer believed in its grant when the next was made, and it was forgotten.
    assert_eq!(held.fence().unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.fence().unwrap() > fence);
    next.release().await.unwrap();
}

/// Cuts a primary off from its replicas and from the sentinels, all of which speak to it as one
/// user. Clients, which are another user, go on with it.
fn partition(primary: &Redis) {
    let user = primary.cmd(&["ACL", "WHOAMI"]).unwrap().text().unwrap().to_owned();
    let mut admin = primary.connect().unwrap();
    let mut done = |words: &[&str]| {
        let reply = admin.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert_eq!(reply.error(), None, "{words:?}");
        reply
    };
    done(&["AUTH", PASSWORD]);
    done(&["ACL", "SETUSER", &user, "off"]);
    done(&["CLIENT", "KILL", "USER", &user]);
    eventually("no replica is in touch", || {
        let info = done(&["INFO", "replication"]);
        info.text().unwrap().contains("connected_slaves:0\r")
    });
}

/// A client that is cut off together with the primary and one sentinel, and a client on the side
/// of the other sentinels, which gets the lock there: the guards of both, with the servers.
async fn on_two_sides(
    node: RedisBuilder,
) -> (MutexGuard, MutexGuard, (Sentinels, Sentinel, [Tenure; 2])) {
    let (set, stale) = tokio::task::block_in_place(|| {
        let set = Sentinels::builder().replicas(2).node(node.password(PASSWORD));
        let set = set.sentinel("down-after-milliseconds", "3000").start();
        let stale = set.cut_off_sentinel();
        (set, stale)
    });
    let lease = Duration::from_secs(10);
    let connect = |url: String| {
        let url = format!("{}?grace=yes&new=yes", url.replace("://", &format!("://:{PASSWORD}@")));
        let builder = Tenure::builder().lease(lease).max_lease(lease);
        async move { builder.connect(&url).await.unwrap() }
    };
    let alone = connect(set.url_by([stale.port()])).await;
    let other = connect(set.url()).await;
    let held = served(&alone.mutex("a").unwrap()).await;
    tokio::task::block_in_place(|| {
        let old = set.primary();
        partition(old);
        set.wait_until_replaced(old);
    });
    let next = served(&other.mutex("a").unwrap()).await;
    (held, next, (set, stale, [alone, other]))
}

/// What the pages say of a client that is alone with the old primary: grace does not help.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_alone_with_the_old_primary_goes_on_beside_the_next_holder() {
    let (held, next, _servers) = on_two_sides(Redis::builder()).await;
    next.check().unwrap();
    held.check().unwrap();
}

/// What ends that: a primary without replicas refuses renewals, before the grace of the next one
/// has passed.
#[tokio::test(flavor = "multi_thread")]
async fn min_replicas_to_write_with_grace_leaves_one_holder_of_two_sides() {
    let node = Redis::builder().arg("min-replicas-to-write", "1").arg("min-replicas-max-lag", "1");
    let (held, next, _servers) = on_two_sides(node).await;
    assert_eq!(held.fence().unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
}

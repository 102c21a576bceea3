//! Fail-overs that lose what was written last: what becomes of holders, and of fences.

use std::time::Duration;

use servers::{Redis, Sentinels, eventually};
use tenure::{ErrorKind, Mutex, MutexGuard, Tenure};

/// For what has to happen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

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

//! Which server is the primary, and the error when no sentinel knows.

use std::time::Duration;

use servers::{Proxy, Redis, Reply, Sentinels, eventually};
use tenure::{ErrorKind, Tenure};

#[tokio::test(flavor = "multi_thread")]
async fn one_sentinel_that_answers_is_enough() {
    let set = Sentinels::start(0);
    set.sentinels()[0].kill();
    // This one accepts connections and says nothing.
    set.sentinels()[1].stop();
    let tenure = Tenure::connect(&set.url()).await.unwrap();
    assert_eq!(tenure.promises().engine, "redis+sentinel");
    tenure.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
}

/// Sentinels had 0.4 s for a handshake and an answer: over a slow link, or on a busy host, all of
/// them counted as absent, and connecting failed for good.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_answer_late_are_waited_for() {
    let set = Sentinels::start(0);
    let slow = |port: u16| {
        let proxy = Proxy::to(("127.0.0.1", port));
        // A handshake and an answer: two round trips.
        proxy.delay(Duration::from_millis(125), Duration::from_millis(125));
        proxy
    };
    let proxies: Vec<Proxy> = set.sentinels().iter().map(|one| slow(one.port())).collect();
    let url = set.url_by(proxies.iter().map(Proxy::port));
    let tenure = Tenure::connect(&url).await.unwrap();
    tenure.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_and_absent_sentinels_are_told_apart() {
    let set = Sentinels::start(0);
    let error = Tenure::connect(&set.url().replace("mymaster", "other")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("knows no primary named other"), "{error}");
    assert!(error.help().contains("sentinel monitor"), "{error}");
    let url = set.url();
    drop(set);
    let error = Tenure::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no sentinel says where mymaster is"), "{error}");
}

/// A primary that is behind its sentinels' back a replica by now, as in the first moment after a
/// fail-over or behind a name that has not moved yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_left_and_tried_again_until_it_is_the_primary() {
    let (redis, other) = (Redis::start(), Redis::start());
    let tenure = Tenure::connect(&redis.url()).await.unwrap();
    let mutex = tenure.mutex("a").unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let count = || redis.info("stats", "total_connections_received").unwrap();
    let port = other.port().to_string();
    redis.cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let before: u64 = count().parse().unwrap();
    let error = mutex.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    eventually("the connections are given up and made anew", || {
        count().parse::<u64>().unwrap() > before + 4
    });
    let refused = Tenure::connect(&redis.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(redis.cmd(&["REPLICAOF", "NO", "ONE"]), Ok(Reply::Text("OK".to_owned())));
    // Attempts may be a second apart by now.
    let limit = Duration::from_secs(30);
    let served = async {
        loop {
            match mutex.lock().await {
                Ok(guard) => break guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    let guard = tokio::time::timeout(limit, served).await.unwrap();
    guard.release().await.unwrap();
}

//! Announcements of the sentinels are received, also by clients that make no calls.

use servers::{Redis, Sentinels, eventually};
use tenure::Tenure;

/// The primary falls silent with all its connections open. A client with a call under way notices
/// by the silence; an engine without any has nothing but the announcement to go by. Whether it was
/// heard can be seen at the new primary before anything is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_engine_follows_what_the_sentinels_announce() {
    let set = Sentinels::start(1);
    let tenure = Tenure::connect(&set.url()).await.unwrap();
    let mutex = tenure.mutex("a").unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let old = set.primary();
    let before = connections(old);
    assert!(before > 0);
    tokio::task::block_in_place(|| {
        old.stop();
        set.wait_until_replaced(old);
        let new = set.primary();
        eventually("all connections are to the new primary", || connections(new) == before);
    });
    let guard = mutex.lock().await.unwrap();
    assert!(guard.fence().is_ok());
    guard.release().await.unwrap();
    old.cont();
}

/// The one sentinel that is listened to dies; what the next one announces is heard.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_sentinel_is_listened_to_when_one_is_gone() {
    let set = Sentinels::start(1);
    let tenure = Tenure::connect(&set.url()).await.unwrap();
    let listeners = |at: usize| {
        let clients = set.sentinels()[at].read(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
        named(clients.text().unwrap())
    };
    tokio::task::block_in_place(|| {
        eventually("the first is listened to", || listeners(0) == 1);
        set.sentinels()[0].kill();
        eventually("the second is listened to", || listeners(1) == 1);
        let old = set.primary();
        let before = connections(old);
        old.stop();
        eventually("the two agree without the third", || {
            let new = set.nodes().iter().find(|node| node.port() != old.port()).unwrap();
            new.info("replication", "role").as_deref() == Some("master")
                && connections(new) == before
        });
        old.cont();
    });
    tenure.close().await;
}

/// How many connections of ours a server has.
pub(crate) fn connections(server: &Redis) -> usize {
    named(server.read(&["CLIENT", "LIST"]).text().unwrap())
}

/// How many lines of a list of clients are ours. Other tests have servers of their own.
fn named(list: &str) -> usize {
    let name = format!("name=tenure-{} ", std::process::id());
    list.lines().filter(|line| line.contains(&name)).count()
}

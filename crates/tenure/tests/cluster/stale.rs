//! A node that clients reach and the cluster does not: cut off from the bus, or removed. It goes on
//! answering with the map it had.

use std::time::Duration;

use servers::{Cluster, Redis};
use tenure::contract::Health;
use tenure::{ErrorKind, Tenure};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Else all nodes refuse everything as soon as one slot is kept by no node.
fn cluster() -> Cluster {
    Cluster::start_with(|| Redis::builder().arg("cluster-require-full-coverage", "no"))
}

/// All nodes, this one first.
fn url(cluster: &Cluster, first: &Redis) -> String {
    let others = cluster.nodes().iter().filter(|node| node.port() != first.port());
    let hosts = std::iter::once(first).chain(others).map(|one| format!("127.0.0.1:{}", one.port()));
    format!("redis+cluster://{}", hosts.collect::<Vec<_>>().join(","))
}

fn keeper<'c>(cluster: &'c Cluster, key: &str) -> &'c Redis {
    cluster.keeper(cluster.slot_of(key))
}

/// A name whose lock is kept where the terms of all clients are.
fn beside_the_terms(cluster: &Cluster) -> String {
    let terms = keeper(cluster, "tenure:{default}:terms").port();
    let kept_there =
        |name: &String| keeper(cluster, &format!("tenure:{{default/{name}}}")).port() == terms;
    (0..1_000).map(|n| format!("lock-{n}")).find(kept_there).expect("one of many")
}

/// A lock is taken and given back, whatever goes wrong before that passes.
async fn locks(tenure: &Tenure, name: &str) {
    let mutex = tenure.mutex(name).unwrap();
    let served = async {
        loop {
            match mutex.lock().await {
                Ok(guard) => match guard.release().await {
                    Ok(()) => return,
                    // The fail-over may have taken longer than the lease.
                    Err(error) => assert!(error.is_transient() || error.loss().is_some()),
                },
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("the new master is found");
}

/// Says again and again what is seen until it names the node. A survey of the cluster gives each
/// node 0.4 s, and one that a busy machine keeps from answering in time is not named.
async fn named<T>(at: &str, mut see: impl AsyncFnMut() -> (T, String)) -> (T, String) {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (state, what) = see().await;
        if what.contains(at) || tokio::time::Instant::now() > end {
            return (state, what);
        }
    }
}

/// What a doctor says of the slots, once it has heard the node.
async fn slots_finding(url: &str, at: &str) -> (Health, String) {
    let doctor = Tenure::builder().call_limit(PATIENCE).connect(url).await.unwrap();
    named(&format!("{at} answers"), async || {
        let findings = doctor.doctor().await.unwrap();
        let slots = findings.into_iter().find(|finding| finding.check == "slots").unwrap();
        (slots.state, slots.what)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_from_the_bus_hides_no_new_master_from_anybody() {
    let cluster = cluster();
    let name = beside_the_terms(&cluster);
    let slot = cluster.slot_of(&format!("tenure:{{default/{name}}}"));
    let stale = cluster.another(slot);
    let at = format!("127.0.0.1:{}", stale.port());
    let url = url(&cluster, stale);
    tokio::task::block_in_place(|| cluster.cut_off(stale));
    // The one that is cut off has nothing wrong to say of this slot yet.
    let before = Tenure::connect(&url).await.unwrap();
    locks(&before, &name).await;
    let dead = tokio::task::block_in_place(|| cluster.kill_keeper(slot));
    let map = stale.cmd(&["CLUSTER", "SLOTS"]).unwrap();
    assert!(
        format!("{map:?}").contains(&dead.port().to_string()),
        "it knows of no change: {map:?}"
    );
    locks(&before, &name).await;
    let after = Tenure::connect(&url).await.unwrap();
    locks(&after, &name).await;
    let (health, what) = slots_finding(&url, &at).await;
    assert_eq!(health, Health::Note, "{what}");
    assert!(what.contains(&format!("{at} answers, but is not in the cluster")), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_removed_takes_no_slot_from_anybody_and_is_named() {
    let cluster = cluster();
    let name = beside_the_terms(&cluster);
    let slot = cluster.slot_of(&format!("tenure:{{default/{name}}}"));
    let removed = cluster.another(slot);
    let at = format!("127.0.0.1:{}", removed.port());
    let url = url(&cluster, removed);
    let (early, mut theirs) =
        (Tenure::connect(&url).await.unwrap(), (0..).map(|n| format!("x-{n}")));
    locks(&early, &name).await;
    let theirs = theirs.find(|name| {
        keeper(&cluster, &format!("tenure:{{default/{name}}}")).port() == removed.port()
    });
    tokio::task::block_in_place(|| cluster.forget(removed));
    for kind in ["normal", "pubsub"] {
        cluster.keeper(slot).cmd(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
    }
    locks(&early, &name).await;
    let late = Tenure::connect(&url).await.unwrap();
    locks(&late, &name).await;
    // Its own slots have no keeper that the cluster knows.
    let mutex = late.mutex(&*theirs.unwrap()).unwrap();
    let (error, _) = named(&format!("{at} answers"), async || {
        let error = mutex.try_lock().await.unwrap_err();
        let what = error.to_string();
        (error, what)
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("{at} answers, but is not in the")), "{error}");
    assert!(!error.help().contains("--cluster fix"), "{}", error.help());
    let (health, what) = slots_finding(&url, &at).await;
    assert_eq!(health, Health::Bad, "{what}");
    assert!(what.contains(&format!("{at} answers, but is not in the cluster")), "{what}");
    // By itself it knows nothing of the others.
    let error = Tenure::connect(&format!("redis+cluster://{at}")).await.unwrap_err();
    assert!(error.to_string().contains(&format!("{at} is the only node that answered")), "{error}");
    assert!(error.help().contains("do not run redis-cli --cluster fix"), "{error}");
}

//! A slot that moves while its locks are held and waited for.

use std::time::Duration;

use servers::{Cluster, Redis, eventually};
use tenure::{ErrorKind, Tenure};

/// So long that no renewal comes in time to show a change.
const LONG: Duration = Duration::from_secs(600);
/// How long anything else may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(cluster: &Cluster) -> Tenure {
    Tenure::builder().max_lease(LONG).lease(LONG).connect(&cluster.url()).await.unwrap()
}

fn slot(cluster: &Cluster, name: &str) -> u16 {
    cluster.slot_of(&format!("tenure:{{default/{name}}}"))
}

/// Waits until so many claims of a client have been answered: in line.
async fn in_line(tenure: &Tenure, name: &str, count: usize) {
    let looking = async {
        loop {
            let name = tenure::contract::Name::try_from(name).unwrap();
            let seen = tenure.inspect(&tenure::contract::Query::Slot(name)).await.unwrap();
            if seen.slots.first().is_some_and(|slot| slot.queue.len() == count) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_told_by_push_after_its_slot_moved_and_after_a_fail_over() {
    let cluster = Cluster::start();
    let (one, other) = (connect(&cluster).await, connect(&cluster).await);
    let slot = slot(&cluster, "a");
    let (mine, theirs) = (one.mutex("a").unwrap(), other.mutex("a").unwrap());
    let changes: [(&str, &(dyn Fn() + Sync)); 2] = [
        ("a move", &|| cluster.move_slot(slot, cluster.another(slot), || ())),
        ("a fail-over", &|| cluster.failover(slot)),
    ];
    for (what, change) in changes {
        let held = mine.lock().await.unwrap();
        let theirs = theirs.clone();
        let waiter = tokio::spawn(async move { theirs.lock().await });
        in_line(&one, "a", 1).await;
        tokio::task::block_in_place(change);
        let released = held.release();
        tokio::time::timeout(PATIENCE, released).await.expect(what).unwrap();
        let guard = tokio::time::timeout(PATIENCE, waiter).await.expect(what).unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_keys_are_half_here_and_half_there_is_granted_to_nobody_else() {
    let cluster = Cluster::start();
    let (one, other) = (connect(&cluster).await, connect(&cluster).await);
    let slot = slot(&cluster, "a");
    let held = one.mutex("a").unwrap().lock().await.unwrap();
    let mutex = other.mutex("a").unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    in_line(&one, "a", 1).await;
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        cluster.move_slot(slot, cluster.another(slot), || {
            let tried = runtime.block_on(mutex.try_lock());
            let error = tried.expect_err("nobody knows who holds it");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(held.check().is_ok());
        });
    });
    assert!(mutex.try_lock().await.unwrap().is_none(), "it is held still, and waited for");
    let fence = held.fence().unwrap();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    assert!(guard.fence().unwrap() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_with_one_node_costs_no_lock_on_another() {
    // Else all nodes refuse everything as soon as one slot is kept by no node.
    let partial = || Redis::builder().arg("cluster-require-full-coverage", "no");
    let cluster = Cluster::start_with(partial);
    let builder = Tenure::builder().lease(Duration::from_secs(15));
    let tenure = builder.connect(&cluster.url()).await.unwrap();
    let (silent, replica) = (&cluster.nodes()[0], &cluster.nodes()[3]);
    let (mut theirs, mut others) = (Vec::new(), Vec::new());
    for n in 0..30 {
        let name = format!("lock-{n}");
        let guard = tenure.mutex(&*name).unwrap().lock().await.unwrap();
        let keeper = cluster.keeper(slot(&cluster, &name)).port();
        if keeper == silent.port() { theirs.push(guard) } else { others.push(guard) }
    }
    assert!(!theirs.is_empty() && !others.is_empty());
    // Its replica too, so that no node takes its place.
    replica.stop();
    silent.stop();
    tokio::task::block_in_place(|| {
        eventually("the locks on the silent node are lost", || {
            theirs.iter().all(|guard| guard.check().is_err())
        });
    });
    let kept = others.iter().filter(|guard| guard.check().is_ok()).count();
    silent.cont();
    replica.cont();
    assert_eq!(kept, others.len(), "and no others");
}

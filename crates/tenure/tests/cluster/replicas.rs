//! Grants that replicas have, at the node that keeps the name.

use std::time::Duration;

use servers::Cluster;
use tenure::{ErrorKind, Tenure};

const WITHIN: Duration = Duration::from_millis(1_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_confirmed_by_the_replica_of_its_own_node_before_and_after_a_fail_over() {
    let cluster = Cluster::start();
    let tenure = Tenure::builder().replicas(1, WITHIN).connect(&cluster.url()).await.unwrap();
    for n in 0..6 {
        let guard = tenure.mutex(format!("a-{n}")).unwrap().lock().await.unwrap();
        assert_eq!(guard.replicas(), Some(1));
        guard.release().await.unwrap();
    }
    let slot = cluster.slot_of("tenure:{default/a-0}");
    tokio::task::block_in_place(|| {
        cluster.failover(slot);
        cluster.wait_until_settled();
    });
    let mutex = tenure.mutex("a-0").unwrap();
    let served = async {
        loop {
            match mutex.lock().await {
                Ok(guard) => break guard,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    let guard = tokio::time::timeout(Duration::from_secs(60), served).await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
}

//! Traffic through moves and fail-overs. The slot of one lock is moved and its node is killed; the
//! other is somewhere else.

use servers::Cluster;

use crate::clients::Traffic;

/// The slot of the first is tormented.
const NAMES: [&str; 2] = ["traffic", "elsewhere"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_served_through_moves_and_fail_overs_and_fences_only_grow() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of(&format!("tenure:{{default/{}}}", NAMES[0]));
    let mut traffic = Traffic::start(&cluster.url(), &NAMES).await;
    traffic.in_calm("the start");
    tokio::task::block_in_place(|| {
        for _ in 0..3 {
            cluster.move_slot(slot, cluster.another(slot), || ());
            traffic.everybody_is_served("a move of the slot");
        }
        cluster.failover(slot);
        traffic.everybody_is_served("a fail-over by order");
        cluster.wait_until_settled();
        let dead = cluster.kill_keeper(slot);
        traffic.everybody_is_served("a killed master");
        dead.restart();
        cluster.wait_until_settled();
        traffic.in_calm("the return of the dead as a replica");
        // Silent, with all its connections open: only the other nodes tell.
        let silent = cluster.keeper(slot);
        silent.stop();
        cluster.wait_for_another(slot, silent.port());
        traffic.everybody_is_served("a silent master");
        silent.cont();
        cluster.wait_until_settled();
        traffic.in_calm("the return of the silent as a replica");
    });
    traffic.finish().await;
}

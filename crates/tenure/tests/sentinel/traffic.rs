//! Traffic through every kind of fail-over.

use servers::Sentinels;

use crate::clients::Traffic;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_served_through_every_kind_of_fail_over_and_fences_only_grow() {
    let set = Sentinels::start(2);
    let mut traffic = Traffic::start(&set.url(), &["traffic"]).await;
    traffic.in_calm("the start");
    tokio::task::block_in_place(|| {
        set.failover();
        traffic.everybody_is_served("a fail-over by order");
        set.wait_until_settled();
        traffic.in_calm("the return of the old primary as a replica");
        let dead = set.kill_primary();
        traffic.everybody_is_served("a killed primary");
        dead.restart();
        set.wait_until_settled();
        traffic.in_calm("the return of the dead as a replica");
        // Silent, with all its connections open: only the sentinels tell.
        let silent = set.primary();
        silent.stop();
        set.wait_until_replaced(silent);
        traffic.everybody_is_served("a silent primary");
        silent.cont();
        set.wait_until_settled();
        traffic.in_calm("the return of the silent as a replica");
    });
    traffic.finish().await;
}

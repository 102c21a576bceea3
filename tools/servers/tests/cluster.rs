//! A cluster does what tests will want of it.

use servers::{Cluster, Reply};

fn get(cluster: &Cluster, slot: u16) -> Result<Reply, String> {
    cluster.keeper(slot).cmd(&["GET", "a"])
}

#[test]
fn a_slot_moves_with_its_keys_and_a_replica_takes_over_by_order_and_by_death() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of("a");
    let first = cluster.keeper(slot).port();
    let ok = Ok(Reply::Text("OK".to_owned()));
    assert_eq!(cluster.keeper(slot).cmd(&["SET", "a", "1"]), ok);
    let one = Ok(Reply::Text("1".to_owned()));
    let mut midway = None;
    cluster.move_slot(slot, cluster.another(slot), || {
        let answer = cluster.nodes().iter().find(|node| node.port() == first);
        midway = Some(answer.unwrap().cmd(&["GET", "a"]).unwrap());
    });
    let said = midway.unwrap();
    assert!(said.error().is_some_and(|error| error.starts_with("ASK")), "{said:?}");
    let second = cluster.keeper(slot).port();
    assert_ne!(first, second);
    assert_eq!(get(&cluster, slot), one);
    cluster.failover(slot);
    let third = cluster.keeper(slot).port();
    assert_ne!(second, third);
    assert_eq!(get(&cluster, slot), one);
    cluster.wait_until_settled();
    let dead = cluster.kill_keeper(slot);
    assert_eq!(dead.port(), third);
    assert_eq!(get(&cluster, slot), one);
    dead.restart();
    cluster.wait_until_settled();
    assert_eq!(cluster.masters().len(), 3);
}

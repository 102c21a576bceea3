//! Sentinels do what tests will want of them.

use servers::{Fsync, Redis, Reply, Sentinels};

#[test]
fn a_primary_is_replaced_by_order_and_by_its_death_and_comes_back_as_a_replica() {
    // A server that comes back empty may be asked for everything before it is told to follow.
    let node = Redis::builder().append_only(Fsync::Always);
    let set = Sentinels::builder().replicas(2).node(node).start();
    let first = set.primary().port();
    assert_eq!(set.primary().cmd(&["SET", "a", "1"]), Ok(Reply::Text("OK".to_owned())));
    // A replica that has not heard of it yet may be the next primary.
    assert_eq!(set.primary().cmd(&["WAIT", "2", "20000"]), Ok(Reply::Int(2)));
    set.failover();
    let second = set.primary().port();
    assert_ne!(first, second);
    set.wait_until_settled();
    let dead = set.kill_primary();
    assert_eq!(dead.port(), second);
    assert_ne!(set.primary().port(), second);
    dead.restart();
    set.wait_until_settled();
    assert_eq!(set.replicas().len(), 2);
    assert_eq!(set.primary().cmd(&["GET", "a"]), Ok(Reply::Text("1".to_owned())));
}

//! What a vote is worth: for how long a hold is trusted, what an attempt that lost leaves behind,
//! and when a node that may have lost its memory votes again.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::{Tenure, block_on};

use crate::host::Nodes;

/// Long enough that nothing ends by itself.
const LONG: Duration = Duration::from_secs(60);

/// How far clocks may differ, twice: as the docs say.
const CLOCKS: Duration = Duration::from_secs(4);

fn connect(url: &str) -> Tenure {
    block_on(Tenure::builder().lease(LONG).connect(url)).unwrap()
}

#[test]
fn a_hold_is_trusted_for_a_tenth_less_than_its_lease_or_for_what_the_url_says() {
    let nodes = Nodes::start(3, 0);
    for (option, percent) in [("", 90), ("&drift=30%25", 70), ("&drift=2%25", 98)] {
        let tenure = connect(&format!("{}{option}", nodes.new_url()));
        let guard = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().expect("it is free");
        let trusted = guard.remaining();
        assert!(trusted <= LONG * percent / 100, "{option}: {trusted:?}");
        assert!(trusted > LONG * (percent - 20) / 100, "{option}: {trusted:?}");
        block_on(guard.release()).unwrap();
    }
}

#[test]
fn an_attempt_that_lost_leaves_nothing_at_the_nodes_that_granted_it() {
    let nodes = Nodes::start(3, 0);
    let (one, two) = (connect(&nodes.new_url()), connect(&nodes.url()));
    let guard = block_on(one.mutex("a").unwrap().try_lock()).unwrap().expect("it is free");
    let key = "tenure:{default/a}:q";
    let taken = |node: &Redis| node.read(&["HGET", key, "i"]).text().is_some();
    eventually("all nodes have the hold", || nodes.servers.iter().all(taken));
    // One node forgets it, and so grants the other's attempt, which two nodes refuse.
    nodes.servers[2].cmd(&["DEL", key]).unwrap();
    assert!(block_on(two.mutex("a").unwrap().try_lock()).unwrap().is_none());
    // The answer does not wait for the third node.
    let counted = || nodes.servers[2].read(&["HGET", key, "c"]).text().is_some();
    eventually("the attempt is granted there", counted);
    eventually("the attempt is withdrawn there", || !taken(&nodes.servers[2]));
    assert!(guard.check().is_ok());
}

/// The clock of a node, in microseconds.
fn clock(node: &Redis) -> u64 {
    let time = node.read(&["TIME"]);
    let word = |at: usize| time.list()[at].text().unwrap().parse::<u64>().unwrap();
    word(0) * 1_000_000 + word(1)
}

#[test]
fn a_node_without_a_past_is_closed_until_every_lease_and_every_fence_from_before_is_over() {
    let nodes = Nodes::start(3, 0);
    let closed_for = LONG + LONG / 10 + CLOCKS;
    for past in ["none", "lost"] {
        let before = clock(&nodes.servers[0]);
        let builder = Tenure::builder().lease(LONG).max_lease(LONG);
        let tenure = block_on(builder.connect(&nodes.url())).unwrap();
        let ready = nodes.servers[0].read(&["HGET", "tenure:{default}:node", "ready"]);
        let ready: u64 = ready.text().unwrap().parse().unwrap();
        let closed = Duration::from_micros(ready - before);
        assert!(closed >= closed_for, "past {past}: {closed:?}");
        drop(tenure);
        nodes.servers.iter().for_each(Redis::restart);
    }
}

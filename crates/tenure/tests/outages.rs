//! All servers of a store are killed and started again: a lock and a connect with a limit wait
//! through it and are served, a try answers at once. The same story on each engine whose servers
//! are several; Redis and PostgreSQL have it among their own tests.
#![cfg(all(feature = "etcd", feature = "redis", feature = "redlock"))]

use std::thread::spawn;
use std::time::Duration;

use servers::{Cluster, Etcd, Redis, Sentinel, Sentinels};
use tenure::{ErrorKind, Tenure, block_on};

/// Long enough for any restart on any machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Nodes of a quorum that were restarted grant nothing for as long as the longest lease.
const LEASE: Duration = Duration::from_secs(3);

/// Connects, has the servers killed, and has them started again while a lock and a connect wait.
#[track_caller]
fn wait_through_an_outage(url: &str, kill: impl FnOnce(), restart: impl FnOnce()) {
    let builder = Tenure::builder().lease(LEASE).max_lease(LEASE).connect_timeout(LIMIT);
    let tenure = block_on(builder.clone().connect(url)).unwrap();
    // As after any use: connections to all servers that a lock needs stand.
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    kill();
    let mutex = tenure.mutex("a").unwrap().timeout(LIMIT);
    let locking = spawn(move || block_on(mutex.lock()));
    let url = url.replace("?new=yes", "");
    let connecting = spawn(move || block_on(builder.connect(&url)));
    // Both have met servers that are not there: this one has, three times.
    let error = block_on(tenure.mutex("b").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!locking.is_finished() && !connecting.is_finished(), "they wait");
    restart();
    let guard = locking.join().unwrap().unwrap_or_else(|error| panic!("the lock: {error}"));
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
    let other = connecting.join().unwrap().unwrap_or_else(|error| panic!("the connect: {error}"));
    let guard = block_on(other.mutex("a").unwrap().timeout(LIMIT).lock()).unwrap();
    block_on(guard.release()).unwrap();
}

#[test]
fn an_etcd_that_is_restarted() {
    let etcd = Etcd::start();
    wait_through_an_outage(&etcd.url(), || etcd.kill(0), || etcd.restart(0));
}

#[test]
fn a_quorum_whose_majority_is_restarted() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redlock://{}?new=yes", hosts.join(","));
    let majority = &nodes[1..];
    let kill = || majority.iter().for_each(Redis::kill);
    wait_through_an_outage(&url, kill, || majority.iter().for_each(Redis::restart));
}

#[test]
fn a_primary_that_is_restarted_with_its_sentinels() {
    let set = Sentinels::start(0);
    let kill = || {
        set.sentinels().iter().for_each(Sentinel::kill);
        set.nodes().iter().for_each(Redis::kill);
    };
    let restart = || {
        set.nodes().iter().for_each(Redis::restart);
        set.sentinels().iter().for_each(Sentinel::restart);
    };
    wait_through_an_outage(&set.url(), kill, restart);
}

#[test]
fn a_cluster_that_is_restarted() {
    let cluster = Cluster::start();
    let kill = || cluster.nodes().iter().for_each(Redis::kill);
    wait_through_an_outage(&cluster.url(), kill, || {
        cluster.nodes().iter().for_each(Redis::restart);
    });
}

//! What all clients of a namespace have to agree on, and servers that cannot serve.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::blocking::wait;
use tenure::{Error, ErrorKind, Tenure};

use crate::host::done;

fn refused(url: &str, max_lease: u64) -> Error {
    let builder = Tenure::builder().max_lease(Duration::from_secs(max_lease));
    let error = wait(builder.connect(url)).map(|_| panic!("{url}")).unwrap_err();
    assert!(!error.next_step().is_empty(), "{error}");
    error
}

#[test]
fn clients_that_state_different_longest_leases_are_refused() {
    let redis = Redis::start();
    let first = wait(Tenure::connect(&redis.url())).unwrap();
    let error = refused(&redis.url(), 30);
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let said = error.to_string();
    assert!(said.contains("60s") && said.contains("30s"), "it names both: {said}");
    // Nothing has changed for the first one; and another namespace has terms of its own.
    assert!(wait(first.mutex("a").unwrap().try_lock()).unwrap().is_some());
    let other = Tenure::builder().max_lease(Duration::from_secs(30)).namespace("other");
    assert!(wait(other.connect(&redis.url())).is_ok());
}

#[test]
fn a_namespace_of_a_newer_layout_is_refused() {
    let redis = Redis::start();
    done(&redis, &["HSET", "tenure:{default}:terms", "version", "2", "max_lease", "60000000"]);
    let error = refused(&redis.url(), 60);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("layout 2"), "{error}");
    assert_eq!(done(&redis, &["DBSIZE"]).int(), Some(1), "nothing was written");
}

#[test]
fn a_client_that_reconnects_to_other_terms_is_refused_too() {
    let redis = Redis::start();
    let tenure = wait(Tenure::connect(&redis.url())).unwrap();
    done(&redis, &["HSET", "tenure:{default}:terms", "version", "2"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the client learns of it", || {
        let outcome = wait(tenure.mutex("a").unwrap().try_lock());
        outcome.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
    });
}

#[test]
fn a_node_of_a_cluster_is_refused() {
    let redis = Redis::builder().arg("cluster-enabled", "yes").start();
    // A cluster that is not made yet serves nobody, and may do so later.
    let error = refused(&redis.url(), 60);
    assert!(error.to_string().contains("cluster"), "{error}");
    done(&redis, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster is up", || {
        let info = done(&redis, &["CLUSTER", "INFO"]);
        info.text().unwrap().contains("cluster_state:ok")
    });
    let error = refused(&redis.url(), 60);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a node of a cluster"), "{error}");
}

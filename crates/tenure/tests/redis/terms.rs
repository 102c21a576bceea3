//! What all clients of a namespace have to agree on, and servers that cannot serve.

use std::time::Duration;

use servers::{Redis, eventually};
use tenure::block_on;
use tenure::{Error, ErrorKind, Tenure};

use crate::host::done;

fn refused(url: &str, max_lease: u64) -> Error {
    let builder = Tenure::builder().max_lease(Duration::from_secs(max_lease));
    let error = block_on(builder.connect(url)).map(|_| panic!("{url}")).unwrap_err();
    assert!(!error.help().is_empty(), "{error}");
    error
}

#[test]
fn clients_that_state_different_longest_leases_are_refused() {
    let redis = Redis::start();
    let first = block_on(Tenure::connect(&redis.url())).unwrap();
    let error = refused(&redis.url(), 30);
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let said = error.to_string();
    assert!(said.contains("60s") && said.contains("30s"), "it names both: {said}");
    let us = format!(":{}", std::process::id());
    assert!(said.contains("clients are connected: ") && said.contains(&us), "who is there: {said}");
    // Nothing has changed for the first one; and another namespace has terms of its own.
    assert!(block_on(first.mutex("a").unwrap().try_lock()).unwrap().is_some());
    let other = Tenure::builder().max_lease(Duration::from_secs(30)).namespace("other");
    assert!(block_on(other.connect(&redis.url())).is_ok());
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
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    done(&redis, &["HSET", "tenure:{default}:terms", "version", "2"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the client learns of it", || {
        let outcome = block_on(tenure.mutex("a").unwrap().try_lock());
        outcome.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
    });
}

#[test]
fn a_node_of_a_cluster_is_refused() {
    let redis = Redis::builder().arg("cluster-enabled", "yes").start();
    // A cluster that is not made yet serves no client, and may do so later.
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

fn connect(url: &str, max_lease: u64) -> Result<Tenure, Error> {
    block_on(Tenure::builder().max_lease(Duration::from_secs(max_lease)).connect(url))
}

#[test]
fn the_longest_lease_changes_when_the_last_client_has_left() {
    let redis = Redis::start();
    let first = connect(&redis.url(), 60).unwrap();
    let guard = block_on(first.mutex("a").unwrap().lock()).unwrap();
    refused(&redis.url(), 30);
    block_on(guard.release()).unwrap();
    block_on(first.close());
    drop(first);
    let mut second = None;
    eventually("its connections are gone", || {
        second = connect(&redis.url(), 30).ok();
        second.is_some()
    });
    let second = second.unwrap();
    assert!(block_on(second.mutex("a").unwrap().try_lock()).unwrap().is_some());
    let stands = done(&redis, &["HGET", "tenure:{default}:terms", "max_lease"]);
    assert_eq!(stands.text(), Some("30000000"));
    assert!(refused(&redis.url(), 60).to_string().contains("clients are connected"));
}

/// A client whose connections were cut while the value was changed must not go on with the old one.
#[test]
fn a_client_that_was_away_when_the_longest_lease_changed_is_refused() {
    let redis = Redis::start();
    let proxy = servers::Proxy::to(("127.0.0.1", redis.port()));
    let away = connect(&proxy.redis_url(), 60).unwrap();
    proxy.refuse(true);
    proxy.cut();
    let mut second = None;
    eventually("the server has noticed", || {
        second = connect(&redis.url(), 30).ok();
        second.is_some()
    });
    proxy.refuse(false);
    eventually("it is told", || {
        let outcome = block_on(away.mutex("a").unwrap().try_lock());
        assert!(!matches!(&outcome, Ok(Some(_))), "it holds, by another longest lease");
        outcome.is_err_and(|error| error.kind() == ErrorKind::InvalidOption)
    });
}

#[test]
fn who_changes_the_longest_lease_must_be_told_who_is_there() {
    let redis = Redis::start();
    drop(connect(&redis.url(), 60).unwrap());
    let user = ["ACL", "SETUSER", "u", "on", ">p", "~tenure:*", "&tenure:*", "+@all"];
    done(&redis, &user);
    done(&redis, &["ACL", "SETUSER", "u", "-pubsub"]);
    eventually("nobody is there", || {
        done(&redis, &["PUBSUB", "CHANNELS", "tenure:*"]).list().is_empty()
    });
    let error = refused(&redis.url_as("u", "p"), 30);
    assert!(error.to_string().contains("+pubsub|channels"), "{error}");
    done(&redis, &["ACL", "SETUSER", "u", "+pubsub|channels"]);
    assert!(connect(&redis.url_as("u", "p"), 30).is_ok());
}

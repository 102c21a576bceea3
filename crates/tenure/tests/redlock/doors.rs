//! Who may be a node, what a quorum refuses, and how a new set is opened.

use std::time::Duration;

use servers::{Proxy, Redis};
use tenure::block_on;
use tenure::{ErrorKind, Owner, Tenure};

use crate::host::{Book, Nodes, url_of};

/// Why a URL is refused.
#[track_caller]
fn refusal(url: &str) -> (ErrorKind, String) {
    let error = block_on(Tenure::builder().connect(url)).unwrap_err();
    (error.kind(), error.to_string())
}

/// A set of the given server and two good ones.
fn beside(server: &Redis, others: &[Redis; 2]) -> String {
    url_of([server.port(), others[0].port(), others[1].port()].into_iter())
}

#[test]
fn what_cannot_be_a_node_is_refused_at_the_door() {
    let others = [Redis::start(), Redis::start()];
    let (kind, why) = refusal(&url_of(others.iter().map(Redis::port)));
    assert_eq!(kind, ErrorKind::InvalidOption);
    assert!(why.contains("at least 3 nodes, this URL names 2"), "{why}");

    let other_door = Proxy::to(("127.0.0.1", others[0].port()));
    let ports = [others[0].port(), other_door.port(), others[1].port()];
    let (kind, why) = refusal(&url_of(ports.into_iter()));
    assert_eq!(kind, ErrorKind::InvalidOption);
    assert!(why.contains("are the same server"), "{why}");

    let replica = Redis::builder().replica_of(&others[0]).start();
    let (kind, why) = refusal(&beside(&replica, &others));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(why.contains("is a replica"), "{why}");

    let member = Redis::builder().arg("cluster-enabled", "yes").start();
    let (kind, why) = refusal(&beside(&member, &others));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(why.contains("is a node of a cluster"), "{why}");
}

#[test]
fn nodes_are_reached_by_tls_and_no_stranger_is_believed() {
    let nodes = [(); 3].map(|()| Redis::builder().tls().start());
    let hosts: Vec<_> = nodes.iter().map(|node| format!("localhost:{}", node.tls_port())).collect();
    let url = |ca: &std::path::Path| {
        format!("redlocks://{}?new=yes&ca={}", hosts.join(","), ca.display())
    };
    // Each server has an authority of its own here, so only one of them is known to us.
    let (kind, why) = refusal(&url(&nodes[0].certificates().ca()));
    assert_eq!(kind, ErrorKind::InvalidOption, "{why}");
    assert!(why.contains("is not trusted"), "{why}");
    let all = nodes.iter().map(|node| std::fs::read_to_string(node.certificates().ca()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("authorities.pem");
    std::fs::write(&bundle, all.collect::<String>()).unwrap();
    let tenure = block_on(Tenure::builder().connect(&url(&bundle))).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap();
    guard.expect("it is free").check().unwrap();
}

#[test]
fn a_new_set_waits_unless_it_is_declared_new() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().connect(&nodes.url())).unwrap();
    let error = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("?new=yes"), "{error}");
    let declared = block_on(Tenure::builder().connect(&nodes.new_url())).unwrap();
    let guard = block_on(declared.mutex("a").unwrap().try_lock()).unwrap();
    guard.expect("it is free").check().unwrap();
}

#[test]
fn a_set_with_a_past_is_not_new_whatever_the_url_says() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().connect(&nodes.new_url())).unwrap();
    nodes.servers[0].restart();
    let again = block_on(Tenure::builder().connect(&nodes.new_url())).unwrap();
    let findings = block_on(again.doctor()).unwrap();
    let closed = findings.iter().filter(|finding| finding.what.contains("lost its memory"));
    assert_eq!(closed.count(), 1, "{findings:?}");
    let guard = block_on(again.mutex("a").unwrap().try_lock()).unwrap();
    guard.expect("two nodes are enough").check().unwrap();
    drop(tenure);
}

#[test]
fn a_set_that_was_used_and_restarted_cannot_be_declared_new() {
    // It remembers, though perhaps not the last moments: a claim from then may still hold.
    let nodes = Nodes::start(3, 3);
    let tenure = block_on(Tenure::builder().connect(&nodes.url())).unwrap();
    drop(tenure);
    for server in &nodes.servers {
        server.restart();
    }
    let declared = block_on(Tenure::builder().connect(&nodes.new_url())).unwrap();
    let error = block_on(declared.mutex("a").unwrap().try_lock()).unwrap_err();
    assert!(error.to_string().contains("lost their memory"), "{error}");
}

#[test]
fn a_server_is_a_store_of_its_own_or_a_node_and_never_both() {
    let nodes = Nodes::start(3, 0);
    let tenure = block_on(Tenure::builder().connect(&nodes.new_url())).unwrap();
    let (kind, why) = refusal(&nodes.servers[0].url());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(why.contains("layout quorum-1"), "{why}");
    drop(tenure);
    let plain = Tenure::builder().namespace("plain");
    let plain = block_on(plain.connect(&nodes.servers[0].url())).unwrap();
    let quorum = Tenure::builder().namespace("plain");
    let error = block_on(quorum.connect(&nodes.new_url())).unwrap_err();
    assert!(error.to_string().contains("either a store of its own"), "{error}");
    drop(plain);
}

#[test]
fn what_a_quorum_cannot_promise_is_refused_with_who_can() {
    let nodes = Nodes::start(3, 0);
    let (one, two) = (Book::new(), Book::new());
    let lease = Duration::from_secs(10);
    let (one, two) = (one.session(&nodes.new_url(), lease), two.session(&nodes.url(), lease));
    let refusals = [
        block_on(one.rwlock("a").unwrap().read()).unwrap_err(),
        block_on(one.semaphore("a", 3).unwrap().acquire()).unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let said = error.to_string();
        assert!(said.contains("do not know each other") && said.contains("redis"), "{said}");
    }
    // Inside a process an owner enters again; through another session it would wait for itself.
    let owner = Owner::new();
    let outer = block_on(one.mutex("b").unwrap().owner(&owner).lock()).unwrap();
    let inner = block_on(one.mutex("b").unwrap().owner(&owner).lock()).unwrap();
    assert_eq!(outer.fence().unwrap(), inner.fence().unwrap());
    let error = block_on(two.mutex("b").unwrap().owner(&owner).lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("holds the name already"), "{error}");
}

//! The command on a quorum of servers. What works on every store is in `shared.rs`.

mod common;

use std::time::Duration;

use common::{Place, stderr};
use servers::{Direction, Redis};

/// A place at so many unused nodes.
fn quorum(count: usize) -> (Place, Vec<Redis>) {
    let nodes: Vec<Redis> = (0..count).map(|_| Redis::builder().clock().start()).collect();
    let place = Place::memory().reached_by(url_of(&nodes));
    let declared = format!("{}?new=yes", place.url());
    assert_eq!(place.code(&["run", "first", "--url", &declared, "--", "true"]), 0);
    (place, nodes)
}

fn url_of(nodes: &[Redis]) -> String {
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("redlock://{}", hosts.join(","))
}

#[test]
fn a_command_runs_alone_and_the_waiter_follows() {
    let (place, _nodes) = quorum(3);
    let mut first = place.start(&["run", "x", "-c", "echo $$; exec sleep 600"]);
    first.line();
    assert_eq!(place.code(&["run", "x", "--no-wait", "--", "touch", "ran"]), 75);
    let mut second = place.start(&["run", "x", "-w", "60s", "-c", "echo mine"]);
    first.signal(rustix::process::Signal::TERM);
    first.ends();
    assert_eq!(second.line(), "mine");
    assert_eq!(second.ends(), 0);
    assert!(!place.file("ran").exists());
}

#[test]
fn a_handle_is_taken_renewed_shown_and_given_back() {
    let (place, _nodes) = quorum(3);
    let taken = place.says_json(&["acquire", "x", "--lease", "40s", "--json"]);
    let handle = taken["handle"].as_str().expect("a handle");
    let fence = taken["fence"].as_u64().expect("a fence");
    assert_eq!(place.says_json(&["renew", handle, "--json"])["fence"], fence);
    let listed = place.says_json(&["ls", "--json"]);
    assert_eq!(listed["locks"][0]["name"], "x", "{listed}");
    let output = place.run(&["acquire", "x", "-w", "50ms"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert_eq!(place.code(&["release", handle]), 0);
    assert_eq!(place.code(&["release", handle]), 1);
    let next = place.says_json(&["acquire", "x", "--json"]);
    assert!(next["fence"].as_u64().expect("a fence") > fence, "{next}");
}

#[test]
fn what_a_quorum_cannot_promise_is_said_with_who_can() {
    let (place, _nodes) = quorum(3);
    for arguments in
        [&["run", "x", "--slots", "2", "--", "true"][..], &["run", "x", "--shared", "--", "true"]]
    {
        let output = place.run(arguments);
        assert!(!output.status.success(), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("do not know each other") && said.contains("redis"), "{said}");
    }
}

#[test]
fn doctor_tells_of_every_node() {
    let (place, nodes) = quorum(4);
    let said = place.says(&["doctor"]);
    assert!(said.contains("4 of 4 grant, 3 must; an even number survives no more"), "{said}");
    assert_eq!(said.matches("keeps nothing through a restart").count(), 4, "{said}");

    nodes[0].step_clock(Duration::from_secs(3_600), Direction::Forward);
    nodes[1].restart();
    let said = place.says(&["doctor"]);
    assert!(said.contains("clock 3600") || said.contains("clock 3599"), "{said}");
    assert!(said.contains("may have lost its memory and grants nothing for another"), "{said}");

    nodes[2].kill();
    nodes[3].kill();
    let output = place.run(&["doctor"]);
    assert!(!output.status.success());
    let said = common::stdout(&output);
    assert!(said.contains("only 2 of 4 nodes answered, 3 must"), "{said}");
    for node in &nodes[2..] {
        assert!(said.contains(&format!("127.0.0.1:{}", node.port())), "{said}");
    }
    let output = place.run(&["run", "x", "-w", "5s", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(!place.file("ran").exists());
}

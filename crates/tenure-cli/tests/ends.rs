//! How commands end while their server is silent or gone: what has to be told is told first, and
//! the wait for the server has a time limit of its own, far below the lease. A server that is
//! stopped forgets nothing and answers nothing.

mod common;

use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Place, Running, eventually, stderr};
use rustix::process::{Signal, kill_process};
use servers::{Cluster, Redis};

/// The longest lease that the namespace allows, longer than any test waits for an end.
const LEASE: &str = "60s";

/// Waits for a cue before it ends.
const CUED: &str = "echo on; while [ ! -e cue ]; do sleep 0.05; done; exit 7";

/// Starts with standard error in a file.
fn start(place: &Place, arguments: &[&str]) -> Running {
    let mut command = place.tenure(arguments);
    command.stderr(std::fs::File::create(place.file("errors")).unwrap());
    Running::start(command)
}

/// Waits until the process reads its signals instead of dying of them.
fn catches_signals(running: &Running) {
    let path = format!("/proc/{}/status", running.child.id());
    eventually("signals are caught", || {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        blocked.is_some_and(|mask| mask & 1 << 14 != 0)
    });
}

#[test]
fn a_hold_tells_its_loss_before_it_waits_for_a_silent_server() {
    let place = Place::redis();
    let mut hold = start(&place, &["hold", "x", "--lease", "2s", "--close-timeout", "10m"]);
    assert!(hold.line().starts_with("holding x"));
    place.server().stop();
    eventually("the loss is told", || place.read("errors").starts_with("tenure: lost x: "));
    assert!(hold.child.try_wait().unwrap().is_none(), "it waits until the release is confirmed");
    place.server().cont();
    assert_eq!(hold.ends(), 123);
}

#[test]
fn a_hold_that_is_ended_on_a_silent_server_does_not_wait_for_its_lease() {
    let place = Place::redis();
    let mut hold = start(&place, &["hold", "x", "--lease", LEASE, "--close-timeout", "500ms"]);
    assert!(hold.line().starts_with("holding x"));
    place.server().stop();
    hold.signal(Signal::INT);
    assert_eq!(hold.ends(), 69);
    let said = place.read("errors");
    assert!(said.contains("did not confirm the release within"), "{said}");
    assert!(said.contains("when its lease ends, in at most"), "{said}");
}

#[test]
fn a_hold_that_is_ended_without_a_server_does_not_wait_for_its_lease() {
    let place = Place::redis();
    let mut hold = start(&place, &["hold", "x", "--lease", LEASE, "--close-timeout", "500ms"]);
    assert!(hold.line().starts_with("holding x"));
    place.server().kill();
    hold.signal(Signal::TERM);
    assert_eq!(hold.ends(), 69);
    assert!(place.read("errors").contains("did not confirm the release within"));
}

#[test]
fn a_second_signal_ends_what_waits_for_a_silent_server() {
    let place = Place::redis();
    let mut hold = start(&place, &["hold", "x", "--lease", LEASE, "--close-timeout", "10m"]);
    assert!(hold.line().starts_with("holding x"));
    let cued = ["run", "y", "--lease", LEASE, "--close-timeout", "10m", "-c", CUED];
    let mut run = place.start(&cued);
    assert_eq!(run.line(), "on");
    place.server().stop();
    place.write("cue", "");
    // Signals that are not read yet are one.
    eventually("both have ended", || {
        let still = |running: &mut Running| running.child.try_wait().unwrap().is_none();
        let (holds, runs) = (still(&mut hold), still(&mut run));
        if holds {
            hold.signal(Signal::INT);
        }
        if runs {
            run.signal(Signal::TERM);
        }
        !holds && !runs
    });
    assert_eq!(hold.ends(), 69);
}

#[test]
fn a_run_ends_with_its_command_and_so_does_its_output_although_the_server_is_silent() {
    let place = Place::redis();
    let mut command =
        place.tenure(&["run", "x", "--lease", LEASE, "--close-timeout", "500ms", "-c", CUED]);
    let first = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    eventually("the command runs", || place.code(&["show", "x"]) == 0);
    place.server().stop();
    place.write("cue", "");
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(first.wait_with_output()));
    let output = ended.recv_timeout(Duration::from_secs(30)).expect("its output ends").unwrap();
    assert_eq!(output.status.code(), Some(7));
    let said = stderr(&output);
    assert!(said.contains("did not confirm the release within"), "{said}");
}

/// Says that it runs, and runs until it is stopped.
const LONG: &str = "echo on; exec sleep 600";

#[test]
fn a_leader_tells_its_loss_and_ends_before_it_waits_for_a_silent_server() {
    let place = Place::redis();
    let election = ["run", "--elect", "e", "--once", "--lease", "2s", "--close-timeout", "10m"];
    let mut leader = start(&place, &[&election[..], &["-c", LONG]].concat());
    assert_eq!(leader.line(), "on");
    place.server().stop();
    eventually("the loss is told", || place.read("errors").starts_with("tenure: lost e: "));
    assert_eq!(leader.ends(), 123);
    // What is left to tidy up can end.
    place.server().cont();
}

#[test]
fn a_leader_that_is_ended_on_a_silent_server_does_not_wait_for_its_lease() {
    let place = Place::redis();
    let election = ["run", "--elect", "e", "--lease", LEASE, "--close-timeout", "500ms"];
    let mut leader = start(&place, &[&election[..], &["-c", LONG]].concat());
    assert_eq!(leader.line(), "on");
    place.server().stop();
    leader.signal(Signal::TERM);
    assert_eq!(leader.ends(), 143);
    let said = place.read("errors");
    assert!(said.contains("e: the store did not confirm the end of the term within"), "{said}");
    assert!(said.contains("when the lease ends, in at most"), "{said}");
}

#[test]
fn a_worker_tells_its_loss_before_it_waits_for_a_silent_server() {
    let place = Place::redis();
    place.says(&["push", "mail", "x"]);
    let mut worker = start(&place, &["work", "mail", "--lease", "2s", "--", "sh", "-c", LONG]);
    assert_eq!(worker.line(), "on");
    place.server().stop();
    let loss = "tenure: lost job 1 of mail: ";
    eventually("the loss is told", || place.read("errors").starts_with(loss));
    assert_eq!(place.read("errors").matches(loss).count(), 1, "once");
    // It would begin anew: it has not ended.
    assert!(worker.child.try_wait().unwrap().is_none());
    place.server().cont();
    assert_eq!(worker.line(), "on", "the next attempt");
    worker.signal(Signal::KILL);
}

#[test]
fn a_worker_that_is_ended_on_a_silent_server_does_not_wait_for_its_lease() {
    // Longer than any limit of this test.
    let (lease, place) = ("10m", Place::redis());
    let queue =
        ["--max-lease", lease, "--close-timeout", "500ms", "work", "mail", "--lease", lease];
    place.says(&["--max-lease", lease, "push", "mail", "x"]);
    let command = ["--grace", "0s", "--", "sh", "-c", LONG];
    let mut worker = start(&place, &[&queue[..], &command].concat());
    assert_eq!(worker.line(), "on");
    place.server().stop();
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), 69);
    let said = place.read("errors");
    let told = "mail: the store did not confirm the end of this worker within ";
    assert!(said.contains(told), "{said}");
}

/// The master of a name is dead, and no replica takes its place: the claim was never sent, so there
/// is nothing to withdraw and no lease to wait for.
#[test]
fn a_claim_at_a_cluster_whose_master_is_dead_is_answered_long_before_its_lease_ends() {
    let cluster =
        Cluster::start_with(|| Redis::builder().arg("cluster-require-full-coverage", "no"));
    let place = Place::memory().reached_by(cluster.url());
    // Far longer than this test waits for an end.
    let lease = ["--max-lease", "10m", "--lease", "10m"];
    let run = |more: &[&str]| {
        let command = ["-c", "echo ran"];
        start(&place, &[&["run", "m"][..], &lease, more, &command].concat())
    };
    let mut first = run(&["--no-wait"]);
    assert_eq!((first.line(), first.ends()), ("ran".to_owned(), 0));
    let masters: Vec<u16> = cluster.masters().iter().map(|node| node.port()).collect();
    let keeper = cluster.keeper(cluster.slot_of("tenure:{default/m}"));
    let replicas = cluster.nodes().iter().filter(|node| !masters.contains(&node.port()));
    replicas.for_each(Redis::kill);
    keeper.kill();
    for limit in [&["--no-wait"][..], &["--wait", "2s"]] {
        let mut claim = run(limit);
        assert_eq!((claim.line(), claim.ends()), (String::new(), 69), "{limit:?}");
        let said = place.read("errors");
        assert!(said.contains("tried ") && said.contains(" times in "), "{limit:?}: {said}");
    }
}

#[test]
fn a_wait_that_is_given_up_on_a_silent_server_ends_at_once() {
    let place = Place::redis();
    let _holder = place.held("x");
    let common = ["--lease", LEASE, "--close-timeout", "500ms"];
    let mut waiting: Vec<Running> = Vec::new();
    for arguments in [&["hold", "x"][..], &["acquire", "x"], &["run", "x", "-c", "touch ran"]] {
        waiting.push(place.start(&[arguments, &common].concat()));
        place.wait_for_line("x", waiting.len());
    }
    place.server().stop();
    for waits in &mut waiting {
        waits.signal(Signal::TERM);
        assert_eq!(waits.ends(), 143);
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_signal_ends_what_still_connects_to_a_silent_server() {
    let place = Place::redis();
    place.server().stop();
    for arguments in [&["hold", "x"][..], &["acquire", "x"], &["run", "x", "-c", "touch ran"]] {
        let mut connects = place.start(arguments);
        catches_signals(&connects);
        connects.signal(Signal::TERM);
        assert_eq!(connects.ends(), 143, "{arguments:?}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_waiting_acquire_for_one_of_many_that_is_killed_blocks_no_other_waiter() {
    let place = Place::embedded();
    let slots = ["--slots", "1"];
    let arguments = ["run", "x", "--slots", "1", "-c", CUED];
    let mut holder = place.start(&arguments);
    assert_eq!(holder.line(), "on");
    let acquire = [&["acquire", "x", "--lease", LEASE][..], &slots].concat();
    let mut first = place.start(&acquire);
    place.wait_for_line("x", 1);
    let mut second = place.start(&acquire);
    place.wait_for_line("x", 2);
    kill_process(first.pid(), Signal::KILL).unwrap();
    first.ends();
    place.write("cue", "");
    assert_eq!(holder.ends(), 7);
    // It is served long before the lease of the one that was killed has ended.
    let handle = second.line();
    assert_eq!(second.ends(), 0);
    assert_eq!(place.code(&[&["run", "x", "-n"], &slots[..], &["--", "true"]].concat()), 75);
    assert_eq!(place.code(&["renew", &handle]), 0, "it outlives the process that took it");
    assert_eq!(place.code(&["release", &handle]), 0);
    assert_eq!(place.code(&[&["run", "x", "-n"], &slots[..], &["--", "true"]].concat()), 0);
}

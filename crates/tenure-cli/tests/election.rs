//! `tenure run --elect` and `tenure leader`: one command on many hosts, through `kill -9` and
//! SIGSTOP.

mod common;

use std::process::Stdio;

use common::{Place, Running, alive, eventually, stderr, stdout};
use rustix::process::Signal;
use serde_json::Value;

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        the_command_runs_with_its_term_and_others_see_the_leader,
        kill_9_of_a_leader_lets_the_next_lead_only_when_its_tree_is_gone,
        a_leader_that_was_stopped_for_longer_than_its_lease_ends_its_command_first,
        the_command_starts_again_in_a_later_term_until_tenure_is_stopped,
        a_forced_end_of_the_store_stops_the_command,
        once_ends_with_the_command,
        a_candidate_that_waits_ends_with_a_signal,
        watch_tells_of_every_leader,
    ]
);

/// Says who it is, and runs until it is stopped.
const LEAD: &str = "echo \"$$ $TENURE_TERM\"; exec sleep 600";

/// Standard options of a candidate: a lease that ends soon.
fn candidate(place: &Place, more: &[&str]) -> Running {
    let mut arguments = vec!["run", "--elect", "e", "--lease", "3s", "--kill-after", "500ms"];
    arguments.extend(more);
    let mut command = place.tenure(&arguments);
    command.stderr(Stdio::null());
    Running::start(command)
}

/// The process of a leader's command, and its term.
fn led(running: &mut Running) -> (String, u64) {
    let line = running.line();
    let (pid, term) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    (pid.to_owned(), term.parse().unwrap())
}

fn leader(place: &Place) -> Value {
    let output = place.run(&["leader", "e", "--json"]);
    let shown: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(output.status.code(), Some(i32::from(shown["leader"].is_null())), "{output:?}");
    shown["leader"].clone()
}

fn candidates(place: &Place) -> usize {
    let shown = place.says_json(&["ls", "--all", "--json"]);
    let locks = shown["locks"].as_array().unwrap();
    let election = locks.iter().find(|lock| lock["name"] == "@election:e");
    election.map_or(0, |election| election["queue"].as_array().unwrap().len())
}

fn the_command_runs_with_its_term_and_others_see_the_leader(place: &Place) {
    let output = place.run(&["leader", "e"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), "tenure: e: no leader\n".into()));
    let mut first = candidate(place, &["--value", "10.0.0.7:4100", "-c", LEAD]);
    let (pid, term) = led(&mut first);
    let seen = leader(place);
    assert_eq!((&seen["term"], &seen["value"]), (&term.into(), &"10.0.0.7:4100".into()));
    assert_eq!(seen["pid"], first.child.id());
    assert_eq!(seen["label"], "echo");
    let said = place.says(&["leader", "e"]);
    assert!(said.starts_with("e  ") && said.contains(&format!("term {term}")), "{said}");
    assert!(said.ends_with("value 10.0.0.7:4100\n"), "{said}");
    // A lock of that name is another thing, and the environment says what this one is.
    assert_eq!(place.code(&["run", "e", "--no-wait", "--", "true"]), 0);
    first.signal(Signal::TERM);
    assert_eq!(first.ends(), 143);
    assert!(!alive(&pid));
    assert_eq!(leader(place), Value::Null);
    let script = "echo $TENURE_MODE $TENURE_NAME $TENURE_HELD; echo $TENURE_TERM $TENURE_FENCE";
    let said = place.says(&["run", "--elect", "e", "--once", "-c", script]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "leader e");
    let (one, other) = lines[1].split_once(' ').unwrap();
    assert!(one == other && one.parse::<u64>().unwrap() > term, "{said}");
}

fn kill_9_of_a_leader_lets_the_next_lead_only_when_its_tree_is_gone(place: &Place) {
    let script = "setsid sleep 601 & echo \"$$ $TENURE_TERM\"; echo $!; wait";
    let mut first = candidate(place, &["-c", script]);
    let (pid, term) = led(&mut first);
    let daemon = first.line();
    let seen = "kill -0 $OLD 2>/dev/null || kill -0 $OLDER 2>/dev/null; echo \"$? $TENURE_TERM\"";
    let mut command = place.tenure(&["run", "--elect", "e", "--lease", "3s", "--once", "-c", seen]);
    command.env("OLD", &pid).env("OLDER", &daemon);
    let mut second = Running::start(command);
    eventually("the second one waits", || candidates(place) == 1);
    first.signal(Signal::KILL);
    let (gone, next) = led(&mut second);
    assert_eq!(gone, "1", "the tree of the first one still ran");
    assert!(next > term);
    assert_eq!(second.ends(), 0);
}

fn a_leader_that_was_stopped_for_longer_than_its_lease_ends_its_command_first(place: &Place) {
    let mut first = candidate(place, &["-c", LEAD]);
    let (pid, term) = led(&mut first);
    let mut second = candidate(place, &["-c", LEAD]);
    eventually("the second one waits", || candidates(place) == 1);
    // The front is stopped, so that it does not continue the guardian, which cannot renew.
    let guardian = first.guardian();
    first.signal(Signal::STOP);
    rustix::process::kill_process(guardian, Signal::STOP).unwrap();
    let (next_pid, next) = led(&mut second);
    assert!(next > term && alive(&next_pid));
    let seen = leader(place);
    assert_eq!(seen["term"], next);
    rustix::process::kill_process(guardian, Signal::CONT).unwrap();
    first.signal(Signal::CONT);
    eventually("the first command is stopped", || !alive(&pid));
    // It stands in the queue again, and leads when the second one is gone.
    eventually("the first one waits", || candidates(place) == 1);
    second.signal(Signal::TERM);
    assert_eq!(second.ends(), 143);
    let (_, last) = led(&mut first);
    assert!(last > next);
}

fn the_command_starts_again_in_a_later_term_until_tenure_is_stopped(place: &Place) {
    // The first two end by themselves, the third one stays.
    let script = "echo >> runs; echo \"$$ $TENURE_TERM\"; \
                  if [ $(wc -l < runs) -ge 3 ]; then exec sleep 600; fi; exit 1";
    let mut running = candidate(place, &["-c", script]);
    let (_, first) = led(&mut running);
    let (_, second) = led(&mut running);
    let (pid, third) = led(&mut running);
    assert!(first < second && second < third);
    running.signal(Signal::INT);
    assert_eq!(running.ends(), 130);
    assert!(!alive(&pid));
}

fn a_forced_end_of_the_store_stops_the_command(place: &Place) {
    let mut running = candidate(place, &["--once", "-c", LEAD]);
    let (pid, _) = led(&mut running);
    place.lose_store();
    assert_eq!(running.ends(), 123);
    assert!(!alive(&pid));
}

fn once_ends_with_the_command(place: &Place) {
    assert_eq!(place.code(&["run", "--elect", "e", "--once", "-c", "exit 7"]), 7);
    let output = place.run(&["run", "--elect", "e", "--once", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    let output = place.run(&["run", "--elect", "e", "--", "no-such-command"]);
    assert_eq!(output.status.code(), Some(127), "it is not tried again and again");
    for wrong in [&["--shared"][..], &["--no-wait"], &["--wait", "0"], &["--also", "f"]] {
        let mut arguments = vec!["run", "--elect", "e"];
        arguments.extend(wrong);
        arguments.extend(["--", "touch", "ran"]);
        assert_eq!(place.code(&arguments), 125, "{wrong:?}");
    }
    assert!(!place.file("ran").exists());
    let mut first = candidate(place, &["-c", LEAD]);
    led(&mut first);
    let waited = place.run(&["run", "--elect", "e", "--wait", "300ms", "--", "touch", "ran"]);
    assert_eq!(waited.status.code(), Some(75));
    assert!(stderr(&waited).contains("election \"e\""), "{waited:?}");
}

fn a_candidate_that_waits_ends_with_a_signal(place: &Place) {
    let mut first = candidate(place, &["-c", LEAD]);
    led(&mut first);
    let mut second = candidate(place, &["-c", LEAD]);
    eventually("the second one waits", || candidates(place) == 1);
    second.signal(Signal::TERM);
    assert_eq!(second.ends(), 143);
    eventually("it has left the queue", || candidates(place) == 0);
}

fn watch_tells_of_every_leader(place: &Place) {
    let mut watch = place.start(&["leader", "e", "--watch", "--json"]);
    let mut next = || serde_json::from_str::<Value>(&watch.line()).expect("JSON")["leader"].clone();
    assert_eq!(next(), Value::Null);
    let mut terms = Vec::new();
    for value in ["one", "two\n"] {
        let arguments = ["run", "--elect", "e", "--once", "--value", value, "-c", LEAD];
        let mut running = Running::start(place.tenure(&arguments));
        let (_, term) = led(&mut running);
        let seen = next();
        assert_eq!((&seen["term"], &seen["value"]), (&term.into(), &value.into()));
        running.signal(Signal::TERM);
        assert_eq!(running.ends(), 143);
        assert_eq!(next(), Value::Null);
        terms.push(term);
    }
    assert!(terms[0] < terms[1]);
}

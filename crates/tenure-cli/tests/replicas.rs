//! The command through sentinels, and locks that replicas have.

mod common;

use common::{Place, stderr};
use servers::{Redis, Sentinels};

/// A place whose server has a replica.
fn pair() -> (Place, Redis) {
    let place = Place::redis();
    let replica = Redis::builder().replica_of(place.server()).start();
    place.server().wait_until_followed(1);
    (place, replica)
}

#[test]
fn a_command_runs_only_once_replicas_have_its_lock() {
    let (place, replica) = pair();
    let with = |within: &str, arguments: &[&str], more: &[&str]| -> Vec<String> {
        let asking = ["--replicas", "1", "--replicas-within", within];
        arguments.iter().chain(&asking).chain(more).map(ToString::to_string).collect()
    };
    assert_eq!(place.run(&with("1500ms", &["run", "x"], &["--", "true"])).status.code(), Some(0));
    for command in [&["hold", "x", "--max-hold", "1ms", "--json"][..], &["acquire", "y", "--json"]]
    {
        let printed = place.run(&with("1500ms", command, &[])).stdout;
        let printed: serde_json::Value = serde_json::from_slice(&printed).expect("JSON");
        assert_eq!(printed["replicas"], 1, "{printed}");
    }

    replica.stop();
    for (arguments, more) in [
        (&["run", "x"][..], &["--", "touch", "ran"][..]),
        (&["hold", "x"], &[]),
        (&["acquire", "x"], &[]),
        (&["acquire", "x", "--no-wait"], &[]),
    ] {
        let output = place.run(&with("300ms", arguments, more));
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("only 0 of 1 replicas confirmed within 300ms"), "{said}");
    }
    assert!(!place.file("ran").exists());
    replica.cont();
    // Given back each time, so no command has to wait for a lease.
    assert_eq!(place.code(&["run", "x", "--no-wait", "--", "true"]), 0);
}

#[test]
fn replicas_that_make_no_sense_are_refused() {
    let place = Place::redis();
    for arguments in [
        &["--replicas", "0"][..],
        &["--replicas", "65"],
        &["--replicas", "1", "--replicas-within", "2s"],
        &["--replicas-within", "1s"],
    ] {
        for (command, code) in [("acquire", 2), ("hold", 2), ("run", 125)] {
            let more: &[&str] = if command == "run" { &["--", "true"] } else { &[] };
            let words: Vec<&str> =
                [command, "x"].iter().chain(arguments).chain(more).copied().collect();
            assert_eq!(place.code(&words), code, "{words:?}");
        }
    }
    // An engine without any.
    let place = Place::memory();
    assert_eq!(place.code(&["acquire", "x", "--replicas", "1"]), 2);
    assert_eq!(place.code(&["run", "x", "--replicas", "1", "--", "true"]), 125);
}

#[test]
fn a_command_outlives_a_fail_over_that_its_lease_outlives() {
    let set = Sentinels::start(1);
    let place = Place::memory().reached_by(set.url());
    let work = "echo in; while [ ! -e done ]; do sleep 0.05; done; exit 7";
    let mut first = place.start(&["run", "x", "--replicas", "1", "-c", work]);
    assert_eq!(first.line(), "in");
    let _dead = set.kill_primary();
    // The replica that took over had the lock, and keeps others out.
    let code = || place.code(&["run", "x", "--no-wait", "--", "true"]);
    servers::eventually("the new primary answers", || code() == 75);
    place.write("done", "");
    assert_eq!(first.ends(), 7);
    assert_eq!(place.code(&["run", "x", "--wait", "30s", "--", "true"]), 0);
}

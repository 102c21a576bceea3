//! `tenure push`, `tenure work` and `tenure jobs` as their users meet them, without a server.

mod common;

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use common::{Place, alive, eventually, stderr};
use rustix::process::Signal;
use serde_json::json;

#[test]
fn a_job_is_pushed_worked_on_and_gone() {
    let place = Place::embedded();
    assert_eq!(place.says(&["push", "mail", "to ann"]), "1\n");
    assert_eq!(place.says(&["push", "mail", "to bob", "--priority", "9"]), "2\n");
    let queues = place.says_json(&["jobs", "queues", "--json"]);
    assert_eq!(queues["queues"][0]["ready"], 2);
    let script = "cat >> out; echo \" $TENURE_QUEUE $TENURE_JOB $TENURE_ATTEMPT\" >> out";
    place.says(&["work", "mail", "--drain", "--", "sh", "-c", script]);
    assert_eq!(place.read("out"), "to bob mail 2 1\nto ann mail 1 1\n", "larger priorities first");
    assert_eq!(place.code(&["jobs", "show", "mail", "1"]), 1);
}

#[test]
fn payloads_come_from_standard_input_and_each_line_can_be_a_job() {
    let place = Place::embedded();
    let mut push = place.tenure(&["push", "mail", "--lines"]);
    let mut push = push.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    push.stdin.take().unwrap().write_all(b"a\nb\n\nc\n").unwrap();
    assert!(push.wait().unwrap().success());
    place.says(&["work", "mail", "--drain", "--slots", "1", "--", "sh", "-c", "cat >> out"]);
    assert_eq!(place.read("out"), "abc");
}

#[test]
fn exit_codes_say_what_became_of_a_job() {
    let place = Place::embedded();
    place.says(&["push", "mail", "x", "--max-attempts", "1"]);
    place.says(&["work", "mail", "--drain", "--", "sh", "-c", "exit 3"]);
    let dead = place.says_json(&["jobs", "dead", "mail", "--json"]);
    assert_eq!(dead["jobs"][0]["errors"][0]["error"], "exit code 3");
    let shown = place.says(&["jobs", "show", "mail", "1"]);
    assert!(shown.contains("state     dead") && shown.contains("payload   x"), "{shown}");
    place.says(&["jobs", "retry", "mail", "1"]);
    let later = ["work", "mail", "--drain", "--later", "1h", "--", "sh", "-c", "exit 75"];
    place.says(&later);
    let job = place.says_json(&["jobs", "show", "mail", "1", "--json"]);
    assert_eq!((&job["state"], &job["attempts"]), (&json!("scheduled"), &json!(0)));
    place.says(&["jobs", "cancel", "mail", "1"]);
    place.says(&["push", "mail", "y", "--max-attempts", "1"]);
    let output = place.run(&["work", "mail", "--drain", "--", "no-such-program-anywhere"]);
    assert!(stderr(&output).contains("cannot run no-such-program-anywhere"), "{output:?}");
    let dead = place.says_json(&["jobs", "dead", "mail", "--json"]);
    let error = dead["jobs"][0]["errors"][0]["error"].as_str().unwrap();
    assert!(error.contains("not found"), "{error}");
}

#[test]
fn a_recurring_job_is_added_listed_run_and_removed() {
    let place = Place::embedded();
    let add = ["jobs", "cron", "add", "sync", "often", "* * * * * *", "--lane", "sync", "tick"];
    place.says(&add);
    place.says(&["jobs", "cron", "add", "sync", "nightly", "30 3 * * *", "--zone", "Asia/Tokyo"]);
    let seen = place.says_json(&["jobs", "cron", "list", "sync", "--json"]);
    assert_eq!((&seen["recurring"][0]["name"]), &json!("nightly"));
    let next = seen["recurring"][0]["next"].as_str().unwrap();
    assert!(next.ends_with("T18:30:00.000Z"), "{next}");
    assert_eq!(seen["recurring"][1]["expression"], "* * * * * *");
    let listed = place.says_json(&["jobs", "list", "sync", "--json"]);
    let keys: Vec<&str> =
        listed["jobs"].as_array().unwrap().iter().filter_map(|job| job["key"].as_str()).collect();
    assert_eq!(keys, ["@cron:often", "@cron:nightly"]);
    let mut worker = place.tenure(&["work", "sync", "--", "sh", "-c", "cat >> out; echo >> out"]);
    let mut worker = worker.stdout(Stdio::null()).spawn().unwrap();
    eventually("two runs", || place.read("out").lines().count() >= 2);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&worker),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    worker.wait().unwrap();
    assert!(place.read("out").lines().all(|line| line == "tick"));
    place.says(&["jobs", "cron", "rm", "sync", "often"]);
    assert_eq!(place.code(&["jobs", "cron", "rm", "sync", "often"]), 1);
    let left = place.says_json(&["jobs", "cron", "ls", "sync", "--json"]);
    assert_eq!(left["recurring"].as_array().unwrap().len(), 1);
}

#[test]
fn what_makes_no_sense_is_said_and_changes_nothing() {
    let place = Place::embedded();
    let cron = ["jobs", "cron", "add", "mail", "n"];
    let bad_time = [&cron[..], &["61 * * * *"]].concat();
    let bad_zone = [&cron[..], &["@daily", "--zone", "Mars/Olympus"]].concat();
    let wrong: [(&[&str], i32, &str); 10] = [
        (&bad_time, 2, "is not a cron expression"),
        (&bad_zone, 2, "\"Mars/Olympus\" is not a time zone"),
        (&["push", "mail", "x", "--priority", "10"], 2, "the priority is 10, not 0 to 9"),
        (&["push", "mail", "x", "--max-attempts", "0"], 2, "not 1 to"),
        (&["push", "", "x"], 2, "name"),
        (&["push", "mail", "x", "--lane", "l", "--lane-limit", "0"], 2, "limit of a lane"),
        (&["jobs", "show", "mail", "7"], 1, "no job 7"),
        (&["jobs", "retry", "mail", "7"], 1, "no job 7"),
        (&["jobs", "set", "mail"], 2, "nothing to set"),
        (&["work", "mail", "--slots", "0", "--", "true"], 2, "1 to 256 slots"),
    ];
    for (arguments, code, says) in wrong {
        let output = place.run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    place.says(&["push", "mail", "x"]);
    let output = place.run(&["jobs", "retry", "mail", "1"]);
    assert!(stderr(&output).contains("job 1 is ready; nothing was changed"));
    assert_eq!(place.says(&["push", "mail", "--key", "k", "x"]), "2\n");
    let second = place.run(&["push", "mail", "--key", "k", "x"]);
    assert_eq!((second.status.code(), &*second.stdout), (Some(1), &b"2\n"[..]));
}

#[test]
fn a_store_without_jobs_says_why_and_what_to_use() {
    let place = Place::etcd();
    for arguments in [&["push", "mail", "x"][..], &["work", "mail", "--", "true"]] {
        let output = place.run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("consensus") && said.contains("tenure promises"), "{said}");
    }
}

#[test]
fn a_paused_queue_hands_out_nothing() {
    let place = Place::embedded();
    place.says(&["push", "mail", "x"]);
    place.says(&["jobs", "pause", "mail"]);
    let mut worker = place.start(&["work", "mail", "--", "touch", "ran"]);
    place.says(&["jobs", "set", "mail", "--keep-done", "1h", "--aging", "10s"]);
    let queues = place.says_json(&["jobs", "queues", "--json"]);
    assert_eq!(
        (&queues["queues"][0]["paused"], &queues["queues"][0]["ready"]),
        (&json!(true), &json!(1))
    );
    place.says(&["jobs", "resume", "mail"]);
    eventually("done", || {
        place.says_json(&["jobs", "queues", "--json"])["queues"][0]["done"] == json!(1)
    });
    assert!(place.file("ran").exists());
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), 0);
}

/// Waits for a file with a process id in it.
fn pid_in(place: &Place, name: &str) -> String {
    eventually(name, || {
        std::fs::read_to_string(place.file(name)).is_ok_and(|text| text.ends_with('\n'))
    });
    place.read(name).trim().to_owned()
}

#[test]
fn a_worker_that_is_killed_takes_the_whole_tree_of_its_command_along_first() {
    let place = Place::embedded();
    place.says(&["push", "mail", "x"]);
    // A grandchild in a session of its own: not in any group of the command.
    let script = "setsid sh -c 'echo $$ > grandchild; exec sleep 120' & echo $$ > child; wait";
    let mut first = place.start(&["work", "mail", "--", "sh", "-c", script]);
    let (child, grandchild) = (pid_in(&place, "child"), pid_in(&place, "grandchild"));
    // The second worker sees whether anything of the first attempt is left when it begins.
    let check = format!(
        "kill -0 {child} 2> /dev/null && echo alive; kill -0 {grandchild} 2> /dev/null && \
         echo alive; echo attempt $TENURE_ATTEMPT"
    );
    let second =
        ["work", "mail", "--", "sh", "-c", &format!("({check}) > seen.new; mv seen.new seen")];
    let mut second = place.start(&second);
    first.signal(Signal::KILL);
    first.ends();
    eventually("the second attempt", || place.file("seen").exists());
    assert_eq!(place.read("seen"), "attempt 2\n");
    assert!(!alive(&child) && !alive(&grandchild));
    second.signal(Signal::TERM);
    assert_eq!(second.ends(), 0);
}

#[test]
fn a_worker_that_is_stopped_gives_its_command_time_and_then_the_job_back() {
    let place = Place::embedded();
    place.says(&["push", "mail", "x"]);
    let mut worker = place.start(&[
        "work",
        "mail",
        "--grace",
        "0s",
        "--",
        "sh",
        "-c",
        "echo $$ > child; sleep 120",
    ]);
    let child = pid_in(&place, "child");
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), 0);
    assert!(!alive(&child));
    let job = place.says_json(&["jobs", "show", "mail", "1", "--json"]);
    assert_eq!((&job["state"], &job["attempts"]), (&json!("ready"), &json!(0)));
}

#[test]
fn a_worker_that_is_paused_for_a_lease_loses_its_command_before_another_has_the_job() {
    let place = Place::embedded();
    place.says(&["push", "mail", "x"]);
    let first =
        ["work", "mail", "--lease", "600ms", "--", "sh", "-c", "echo $$ > child; sleep 120"];
    let mut first = place.start(&first);
    let child = pid_in(&place, "child");
    first.signal(Signal::STOP);
    let check = format!(
        "(kill -0 {child} 2> /dev/null && echo alive; echo over) > seen.new; mv seen.new seen"
    );
    let mut second = place.start(&["work", "mail", "--", "sh", "-c", &check]);
    eventually("the second attempt", || place.file("seen").exists());
    assert_eq!(place.read("seen"), "over\n");
    first.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(50));
    for worker in [&mut first, &mut second] {
        worker.signal(Signal::TERM);
        assert_eq!(worker.ends(), 0);
    }
    assert_eq!(place.code(&["jobs", "show", "mail", "1"]), 1, "done by the second");
}

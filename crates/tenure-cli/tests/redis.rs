//! The command on a Redis that misbehaves, and what becomes of its password. What works on every
//! store is in `shared.rs`.

mod common;

use std::process::Output;

use common::{Place, Running, alive, output, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};
use servers::Redis;

/// Never to be seen, except where the user put it.
const CANARY: &str = "c4n4ry";

/// Says when it was told to stop, and does.
const OBEDIENT: &str = "trap 'echo told > log; exit' TERM; echo $$; while :; do sleep 0.05; done";

/// One line for every command that talks to the store. The last one leaves a lock behind.
const COMMANDS: &[&[&str]] = &[
    &["run", "x", "--", "touch", "ran"],
    &["hold", "x", "--max-hold", "10ms"],
    &["wait", "x"],
    &["ls"],
    &["show", "x"],
    &["sessions"],
    &["watch", "--for", "10ms"],
    &["force-release", "x", "--fence", "1", "--reason", "test"],
    &["raise-fences"],
    &["doctor"],
    &["acquire", "x"],
];

#[test]
fn a_run_whose_processes_are_all_gone_frees_its_lock_when_its_lease_ends() {
    let place = Place::redis();
    let mut first = place.start(&["run", "x", "--lease", "2s", "-c", "echo $$; exec sleep 600"]);
    let child = pid(&first.line());
    // The front is stopped first, so that it cannot give the lock back for its guardian.
    let guardian = first.guardian();
    first.signal(Signal::STOP);
    for process in [guardian, first.pid(), child] {
        kill_process(process, Signal::KILL).unwrap();
    }
    first.ends();
    assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 75, "the lease still runs");
    assert_eq!(place.code(&["run", "x", "-w", "20s", "--", "true"]), 0);
}

#[test]
fn a_command_is_told_and_gone_before_others_can_have_the_lock_of_a_silent_server() {
    let place = Place::redis();
    let mut first = place.start(&["run", "x", "--lease", "3s", "-c", OBEDIENT]);
    let child = first.line();
    let check = format!("kill -0 {child} 2>/dev/null && echo alive || echo gone");
    let mut second = place.start(&["run", "x", "-c", &check]);
    place.wait_for_line("x", 1);
    // The server keeps its memory, and replies to no client.
    place.server().stop();
    assert_eq!(first.ends(), 123);
    assert_eq!(place.read("log"), "told\n");
    assert!(!alive(&child));
    place.server().cont();
    assert_eq!(second.line(), "gone");
    assert_eq!(second.ends(), 0);
}

#[test]
fn a_command_is_stopped_when_its_server_dies_and_when_it_comes_back_without_memory() {
    for comes_back in [false, true] {
        let place = Place::redis();
        let mut command = place.tenure(&["run", "x", "--lease", "3s", "-c", OBEDIENT]);
        command.stderr(std::fs::File::create(place.file("errors")).unwrap());
        let mut holder = Running::start(command);
        let child = holder.line();
        place.server().kill();
        if comes_back {
            place.server().restart();
        }
        assert_eq!(holder.ends(), 123, "{comes_back}");
        assert_eq!(place.read("log"), "told\n", "{comes_back}");
        assert!(!alive(&child));
        let said = place.read("errors");
        let why = if comes_back { "no longer knows it" } else { "could not be renewed" };
        assert!(said.starts_with("tenure: lost x: ") && said.contains(why), "{said}");
    }
}

#[test]
fn a_server_that_is_not_there_gives_69_and_says_where_it_should_be() {
    let place = Place::redis();
    let address = format!("127.0.0.1:{}", place.server().port());
    place.lose_store();
    for arguments in COMMANDS {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {output:?}");
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("no connection") && said.contains(&address), "{said}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_wait_limit_counts_for_a_server_that_is_away_too() {
    let place = Place::redis();
    place.server().kill();
    // At once, or when the limit has passed, and not with the first attempt.
    for lock in [&["run", "x"][..], &["hold", "x"], &["acquire", "x"]] {
        let command: &[&str] = if lock[0] == "run" { &["--", "touch", "ran"] } else { &[] };
        let at_once = place.run(&[lock, &["--no-wait"], command].concat());
        assert_eq!(at_once.status.code(), Some(69), "{at_once:?}");
        let late = place.run(&[lock, &["--wait", "1500ms"], command].concat());
        assert_eq!(late.status.code(), Some(69), "{late:?}");
        let said = stderr(&late);
        assert!(said.contains("the store is away; trying for up to 1.5s"), "{said}");
        assert!(said.contains("tried ") && said.contains(" times in "), "{said}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_run_with_a_wait_limit_goes_on_through_a_restart_of_its_server() {
    let place = Place::redis();
    place.server().kill();
    let mut first = place.start(&["run", "x", "--wait", "2m", "-c", "echo $TENURE_FENCE"]);
    let mut hold = place.start(&["hold", "y", "--wait", "2m", "--max-hold", "1s"]);
    // Nothing in their way but the server.
    assert_eq!(place.code(&["ls"]), 69);
    place.server().restart();
    assert!(first.line().parse::<u64>().unwrap() > 0);
    assert_eq!(first.ends(), 0);
    assert_eq!(hold.ends(), 124);
}

#[test]
fn a_waiter_in_line_is_served_by_the_server_that_was_started_again() {
    let place = Place::redis();
    let mut holder = place.held("x");
    let mut waiter = place.start(&["run", "x", "--wait", "2m", "--lease", "2s", "-c", "echo in"]);
    let mut permit = place.start(&["acquire", "permits", "--slots", "1", "--wait", "2m"]);
    permit.line();
    let mut second = place.start(&["acquire", "permits", "--slots", "1", "--wait", "2m"]);
    place.wait_for_line("x", 1);
    place.wait_for_line("permits", 1);
    place.server().kill();
    holder.signal(Signal::TERM);
    holder.ends();
    place.server().restart();
    assert_eq!(waiter.line(), "in");
    assert_eq!(waiter.ends(), 0);
    assert_ne!(second.line(), "", "a handle");
    assert_eq!((permit.ends(), second.ends()), (0, 0));
}

#[test]
fn a_signal_ends_the_wait_for_a_server_that_is_away() {
    let place = Place::redis();
    place.server().kill();
    for command in [&["run", "x", "--wait", "5m", "--", "true"][..], &["hold", "x", "--wait", "5m"]]
    {
        let mut process = place.tenure(command);
        let errors = place.file("errors");
        process.stderr(std::fs::File::create(&errors).unwrap());
        let mut waiting = Running::start(process);
        common::eventually("it says that it waits", || place.read("errors").contains("is away"));
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.ends(), 143, "{command:?}");
    }
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let redis = Redis::builder().password("right").start();
    let url = redis.url_as("", CANARY);
    let place = Place::on(redis).reached_by(url);
    for arguments in COMMANDS {
        let output = place.run(&verbose(arguments));
        let code = match arguments[0] {
            "run" => 125,
            "doctor" => 1,
            _ => 2,
        };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let said = silent_about_the_canary(&output);
        assert!(said.contains("refused the user or the password"), "{said}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_password_is_shown_by_no_command_whatever_becomes_of_it() {
    let redis = Redis::builder().password(CANARY).start();
    let urls = [
        redis.url_as("", CANARY),
        // In plain text to another host, which is refused before anything is sent.
        format!("redis://:{CANARY}@far.example"),
        format!("redis://:a/{CANARY}@127.0.0.1"),
        format!("redis://127.0.0.1:1?pass={CANARY}"),
    ];
    let mut place = Place::on(redis);
    for (at, url) in urls.into_iter().enumerate() {
        place = place.reached_by(url);
        for arguments in COMMANDS {
            let output = place.run(&verbose(arguments));
            silent_about_the_canary(&output);
            let fails = at > 0 || matches!(arguments[0], "show" | "force-release" | "hold");
            assert_eq!(output.status.success(), !fails, "{arguments:?}: {output:?}");
        }
    }
}

#[test]
fn a_password_can_come_from_a_file() {
    let place = Place::on(Redis::builder().password(CANARY).start());
    let run = |file: &str| {
        let mut command = place.tenure(&["run", "x", "-c", "env"]);
        output(command.env("TENURE_PASSWORD_FILE", place.file(file)))
    };
    place.write("password", &format!("{CANARY}\n"));
    let output = run("password");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    silent_about_the_canary(&output);
    let output = run("absent");
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("the password file cannot be read"), "{output:?}");
    let output = place.run(&["ls"]);
    assert!(stderr(&output).contains("the server wants a password"), "{output:?}");
}

#[test]
fn a_password_is_only_where_the_user_put_it() {
    let redis = Redis::builder().password(CANARY).start();
    let url = redis.url_as("", CANARY);
    let place = Place::on(redis);
    let file = format!("profile = \"a\"\n[profiles.a]\nurl = \"{url}\"\n");
    let config = place.write("config.toml", &file);
    let config = config.to_str().unwrap();
    // How the command is told, by variable or argument; how many words of the front then show the
    // password, and which variables of all three processes.
    for (variable, value, argument, words, variables) in [
        ("TENURE_CONFIG", config, None, 0, &[][..]),
        ("TENURE_CONFIG", config, Some(&url), 1, &[]),
        ("TENURE_URL", &*url, None, 0, &["TENURE_URL"]),
    ] {
        let mut command = place.tenure(&["run", "x"]);
        command.env_remove("TENURE_URL").env(variable, value);
        command.args(argument.map(|url| format!("--url={url}")));
        // Without `exec`: a process that is about to become another shows no variables.
        command.args(["-c", "echo $$; while :; do sleep 0.05; done"]);
        let mut running = Running::start(command);
        let child = pid(&running.line());
        let everybody = [running.pid(), running.guardian(), child];
        let shown = everybody.map(|process| leaks(process, "cmdline").len());
        assert_eq!(shown, [words, 0, 0]);
        for process in everybody {
            assert_eq!(leaks(process, "environ"), variables);
        }
        running.signal(Signal::TERM);
        running.ends();
    }
}

/// The words or variables of a process that hold the canary, by name.
fn leaks(process: Pid, of: &str) -> Vec<String> {
    let path = format!("/proc/{}/{of}", process.as_raw_nonzero());
    let text = String::from_utf8_lossy(&std::fs::read(path).expect("a process")).into_owned();
    assert!(!text.is_empty(), "{process:?} shows no {of}, so it proves nothing");
    let words = text.split('\0').filter(|word| word.contains(CANARY));
    words.map(|word| word.split('=').next().unwrap_or_default().to_owned()).collect()
}

fn verbose<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    ["-v"].into_iter().chain(arguments.iter().copied()).collect()
}

fn silent_about_the_canary(output: &Output) -> String {
    let said = stdout(output) + &stderr(output);
    assert!(!said.contains(CANARY), "{said}");
    said
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().expect("a number")).expect("a process")
}

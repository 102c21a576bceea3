//! The command on an etcd cluster: who is let in, members that die under it, a backup that is
//! restored. What works on every store is in `shared.rs`.

mod common;

use std::process::Output;

use common::{Place, Running, alive, stderr, stdout};
use rustix::process::Signal;
use servers::{Etcd, eventually};

/// Never to be seen, except where the user put it.
const CANARY: &str = "c4n4ry";

/// One line for every command that talks to the store. The last one leaves a lock behind.
const COMMANDS: &[&[&str]] = &[
    &["-v", "run", "x", "--", "touch", "ran"],
    &["-v", "hold", "x", "--max-hold", "10ms"],
    &["-v", "wait", "x"],
    &["-v", "ls"],
    &["-v", "show", "x"],
    &["-v", "sessions"],
    &["-v", "watch", "--for", "10ms"],
    &["-v", "force-release", "x", "--fence", "1", "--reason", "test"],
    &["-v", "doctor"],
    &["-v", "acquire", "x"],
];

/// Says when it was told to stop, and does.
const OBEDIENT: &str = "trap 'echo told > log; exit' TERM; echo $$; while :; do sleep 0.05; done";

fn silent_about_the_canary(output: &Output) -> String {
    let said = stdout(output) + &stderr(output);
    assert!(!said.contains(CANARY), "{said}");
    said
}

/// The URL of a cluster with TLS, for a user.
fn url(etcd: &Etcd, login: &str, password: &str) -> String {
    let made = etcd.certificates();
    let (ca, cert, key) = (made.ca(), made.client_cert(), made.client_key());
    let url = if password.is_empty() {
        etcd.url().replace("://", &format!("://{login}@"))
    } else {
        etcd.url_as(login, password)
    };
    format!("{url}?ca={}&cert={}&key={}", ca.display(), cert.display(), key.display())
}

#[test]
fn every_command_works_with_certificates_and_a_password_that_are_never_shown() {
    let etcd = Etcd::builder().tls().root_password(CANARY).start();
    let (right, file) = (url(&etcd, "root", CANARY), url(&etcd, "root", ""));
    let mut place = Place::in_cluster(etcd);
    let password = place.write("password", &format!("{CANARY}\n"));
    for url in [right, format!("{file}&password_file={}", password.display())] {
        place = place.reached_by(url);
        for arguments in COMMANDS {
            let output = place.run(arguments);
            silent_about_the_canary(&output);
            let fails = matches!(arguments[1], "show" | "force-release" | "hold");
            assert_eq!(output.status.success(), !fails, "{arguments:?}: {output:?}");
        }
        let held = place.says_json(&["show", "x", "--json"]);
        let fence = held["holders"][0]["fence"].to_string();
        place.says(&["force-release", "x", "--fence", &fence, "--reason", "done"]);
    }
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let etcd = Etcd::builder().tls().root_password("right").start();
    let url = url(&etcd, "root", CANARY);
    let place = Place::in_cluster(etcd).reached_by(url);
    for arguments in COMMANDS {
        let output = place.run(arguments);
        let code = match arguments[1] {
            "run" => 125,
            "doctor" => 1,
            _ => 2,
        };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let said = silent_about_the_canary(&output);
        assert!(said.contains("check user and password"), "{said}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_user_needs_the_right_to_the_prefix_and_nothing_else() {
    let etcd = Etcd::builder().root_password("r00t").start();
    for words in [
        &["user", "add", "worker:pw"][..],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "mine"],
        &["user", "grant-role", "worker", "locks"],
    ] {
        etcd.ctl(words).unwrap();
    }
    let url = etcd.url_as("worker", "pw");
    let place = Place::in_cluster(etcd).reached_by(format!("{url}/mine"));
    for arguments in COMMANDS {
        let fails = matches!(arguments[1], "show" | "force-release" | "hold");
        let output = place.run(arguments);
        assert_eq!(output.status.success(), !fails, "{arguments:?}: {output:?}");
    }
    let place = place.reached_by(format!("{url}/theirs"));
    let output = place.run(&["ls"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("the role's right to the prefix"), "{output:?}");
}

#[test]
fn a_cluster_that_is_not_there_gives_69_and_says_where_it_should_be() {
    let place = Place::etcd();
    let address = format!("127.0.0.1:{}", place.cluster().port(0));
    place.lose_store();
    for arguments in COMMANDS {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {output:?}");
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("majority") && said.contains(&address), "{said}");
    }
    assert!(!place.file("ran").exists());
}

#[test]
fn a_command_goes_on_while_its_leader_dies_and_the_next_one_gets_the_lock() {
    let place = Place::in_cluster(Etcd::start_three());
    let script = "echo in; while ! [ -e go ]; do sleep 0.05; done";
    let mut first = place.start(&["run", "x", "--lease", "15s", "-c", script]);
    assert_eq!(first.line(), "in");
    let mut second = place.start(&["run", "x", "--lease", "15s", "-c", "echo next"]);
    place.wait_for_line("x", 1);
    let etcd = place.cluster();
    etcd.kill(etcd.leader());
    eventually("the rest answers", || place.run(&["ls"]).status.success());
    assert_eq!(place.code(&["run", "x", "-n", "--", "true"]), 75, "it is still held");
    place.write("go", "");
    assert_eq!(first.ends(), 0);
    assert_eq!(second.line(), "next");
    assert_eq!(second.ends(), 0);
}

#[test]
fn a_command_is_told_and_gone_before_others_can_have_the_lock_of_a_silent_cluster() {
    let place = Place::etcd();
    let mut first = place.start(&["run", "x", "--lease", "4s", "-c", OBEDIENT]);
    let child = first.line();
    let check = format!("kill -0 {child} 2>/dev/null && echo alive || echo gone");
    let mut second = place.start(&["run", "x", "-c", &check]);
    place.wait_for_line("x", 1);
    place.cluster().stop(0);
    assert_eq!(first.ends(), 123);
    assert_eq!(place.read("log"), "told\n");
    assert!(!alive(&child));
    place.cluster().cont(0);
    assert_eq!(second.line(), "gone");
    assert_eq!(second.ends(), 0);
}

/// `etcdctl lock CMD` does not look after its session while the command runs.
#[test]
fn a_command_whose_lease_was_revoked_is_stopped() {
    let place = Place::etcd();
    let mut command = place.tenure(&["run", "x", "--lease", "3s", "-c", OBEDIENT]);
    command.stderr(std::fs::File::create(place.file("errors")).unwrap());
    let mut holder = Running::start(command);
    let child = holder.line();
    let leases = place.cluster().ctl(&["lease", "list"]).unwrap();
    for lease in leases.lines().skip(1) {
        place.cluster().ctl(&["lease", "revoke", lease]).unwrap();
    }
    assert_eq!(holder.ends(), 123);
    assert_eq!(place.read("log"), "told\n");
    assert!(!alive(&child));
    let said = place.read("errors");
    assert!(said.starts_with("tenure: lost x: ") && said.contains("no longer knows"), "{said}");
}

#[test]
fn a_restored_backup_is_refused_until_it_is_accepted() {
    let place = Place::etcd();
    assert_eq!(place.code(&["run", "x", "--", "true"]), 0);
    let backup = place.cluster().snapshot();
    let mut holder = place.start(&["run", "y", "--lease", "3s", "-c", OBEDIENT]);
    holder.line();
    place.cluster().restore(&backup);
    assert_eq!(holder.ends(), 123, "what it held is not there any more");
    let output = place.run(&["run", "x", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("restored=accept"), "{output:?}");
    assert!(!place.file("ran").exists());
    let accepting = format!("{}?restored=accept", place.url());
    assert_eq!(place.code(&["run", "x", "--url", &accepting, "--", "true"]), 0);
    assert_eq!(
        place.code(&["run", "x", "--", "true"]),
        0,
        "the restored store was accepted for all clients"
    );
}

#[test]
fn sessions_shows_who_holds_and_who_waits_in_which_process() {
    let place = Place::etcd();
    let holder = place.held("x");
    let waiter = place.start(&["run", "x", "--", "true"]);
    place.wait_for_line("x", 1);
    let said = place.says(&["sessions"]);
    for process in [&holder, &waiter] {
        assert!(said.contains(&format!(":{}", process.child.id())), "{said}");
    }
    holder.signal(Signal::TERM);
}

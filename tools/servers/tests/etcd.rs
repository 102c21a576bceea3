//! An etcd of one's own: that it starts, survives the loss of a member, and dies when it should.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use servers::{Direction, Etcd, eventually};

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_member_keeps_what_it_was_told_through_a_kill() {
    let etcd = Etcd::start();
    assert!(etcd.url().starts_with("etcd://127.0.0.1:"));
    etcd.ctl(&["put", "a", "b"]).unwrap();
    let before = etcd.pid(0);
    etcd.restart(0);
    etcd.wait_until_healthy();
    assert!(!lives(before) && lives(etcd.pid(0)));
    assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]).unwrap(), "b\n");
}

#[test]
fn a_dropped_cluster_is_gone_with_its_files() {
    let etcd = Etcd::start();
    let (pid, dir) = (etcd.pid(0), etcd.dir().to_owned());
    drop(etcd);
    assert!(!lives(pid) && !dir.exists());
}

#[test]
fn three_members_elect_another_leader_when_theirs_is_gone() {
    let etcd = Etcd::start_three();
    assert_eq!(etcd.members(), 3);
    let first = etcd.leader();
    etcd.kill(first);
    eventually("another one leads", || etcd.leader() != first);
    etcd.restart(first);
    etcd.wait_until_healthy();
    let second = etcd.leader();
    etcd.stop(second);
    eventually("a third one leads", || {
        (0..3).any(|at| at != second && etcd.metric(at, "etcd_server_is_leader") > 0.0)
    });
    etcd.cont(second);
    etcd.wait_until_healthy();
}

#[test]
fn a_cluster_with_users_and_tls_lets_nobody_else_in() {
    let etcd = Etcd::builder().tls().root_password("secret").start();
    assert!(etcd.url_as("root", "secret").starts_with("etcds://root:secret@localhost:"));
    assert!(etcd.certificates().ca().exists());
    etcd.ctl(&["put", "a", "b"]).unwrap();
    assert_eq!(etcd.ctl(&["--user", "root:wrong", "get", "a"]).unwrap_or_default(), "");
}

#[test]
fn a_restore_brings_the_backup_back_with_an_older_revision() {
    let etcd = Etcd::start();
    etcd.ctl(&["put", "a", "1"]).unwrap();
    let backup = etcd.snapshot();
    etcd.ctl(&["put", "a", "2"]).unwrap();
    etcd.restore(&backup);
    assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]).unwrap(), "1\n");
    assert!(etcd.metric(0, "etcd_debugging_mvcc_keys_total") > 0.0);
}

#[test]
fn a_cluster_that_cannot_start_says_why() {
    let error = Etcd::builder().arg("--no-such-thing").try_start().unwrap_err();
    assert!(error.contains("no-such-thing"), "{error}");
}

/// Which year the member takes this for, as its answers to HTTP say.
fn year(etcd: &Etcd) -> u32 {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port(0))).unwrap();
    stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let date = text.lines().find_map(|line| line.strip_prefix("Date: ")).expect("a date");
    date.split(' ').nth(3).and_then(|year| year.parse().ok()).expect("a year")
}

#[test]
fn the_wall_clock_of_a_member_is_moved_while_it_runs_and_right_again_after_a_restart() {
    let etcd = Etcd::start();
    let now = year(&etcd);
    etcd.step_clock(0, Duration::from_secs(5 * 366 * 86_400), Direction::Forward);
    assert_eq!(year(&etcd), now + 5);
    etcd.step_clock(0, Duration::from_secs(8 * 366 * 86_400), Direction::Back);
    assert!([now - 3, now - 4].contains(&year(&etcd)), "{}", year(&etcd));
    etcd.ctl(&["put", "a", "b"]).unwrap();
    etcd.restart(0);
    etcd.wait_until_healthy();
    assert_eq!(year(&etcd), now);
}

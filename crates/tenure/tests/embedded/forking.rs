//! Children of a process that has the store open: with `exec` and without. Knows descriptors and
//! process numbers.
#![allow(unsafe_code, reason = "fork has no safe wrapper; each use is argued")]

use std::os::fd::BorrowedFd;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, WaitOptions, test_kill_process, waitpid};
use tenure::block_on;

use crate::host::Host;
use crate::worker::{Worker, say};

/// A child that shares everything with its parent and lives until the test lets it go.
pub(crate) fn beget() {
    let child = fork(|| {
        let mut byte = [0_u8; 1];
        // SAFETY: reads into memory of this function; the input is open all along.
        while unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } > 0 {}
    });
    say(&format!("begot {child}"));
}

/// Another program that inherits every descriptor of this process.
pub(crate) fn exec() {
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open {
        // SAFETY: borrowed for one call; one that was closed meanwhile only gives an error.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let _ = fcntl_setfd(descriptor, FdFlags::empty());
    }
    #[allow(clippy::zombie_processes, reason = "this process is killed before its child ends")]
    let child = Command::new("cat").spawn().unwrap();
    say(&format!("begot {}", child.id()));
}

/// A child that goes on with what it inherited as if it were its own.
pub(crate) fn meddle(worker: &mut Worker, name: &str) {
    let child = fork(|| {
        let tenure = worker.tenure().clone();
        let claimed = block_on(tenure.mutex("other").unwrap().try_lock());
        let error = claimed.expect_err("it may not claim");
        say(&format!("child {:?}: {error}", error.kind()));
        let guard = worker.guards.remove(name).unwrap();
        let released = block_on(guard.release());
        say(&format!("child {}", if released.is_err() { "cannot release" } else { "released" }));
        block_on(tenure.close());
        drop(tenure);
        worker.session = None;
        say("child leaves");
    });
    waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap();
    say("its child is gone");
}

/// Forks without `exec`. The child does its work and ends without running anything else.
fn fork(work: impl FnOnce()) -> i32 {
    // SAFETY: the other threads of this process are idle while a test gives an order, so that none
    // of them holds a lock that the child could wait for.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child at once, which is all it is for.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    child
}

fn lives(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    test_kill_process(pid).is_ok()
}

#[track_caller]
fn a_killed_holder_with_a_child(kind: &str) {
    let host = Host::new();
    let (mut holder, mut waiter) = (host.worker(), host.worker());
    let fence = holder.take("a");
    let child = holder.ask(&format!("fork {kind}"), "begot");
    waiter.wait_for("a");
    holder.kill();
    let next: u64 = waiter.hear("held").parse().unwrap();
    assert!(next > fence);
    assert!(lives(&child), "the child lives on");
}

#[test]
fn a_killed_holder_is_succeeded_though_its_forked_child_lives_on() {
    a_killed_holder_with_a_child("beget");
}

#[test]
fn a_killed_holder_is_succeeded_though_a_program_inherited_its_descriptors() {
    a_killed_holder_with_a_child("exec");
}

#[test]
fn a_forked_child_is_told_to_leave_its_parents_locks_alone() {
    let host = Host::new();
    let (mut parent, mut other) = (host.worker(), host.worker());
    let fence = parent.take("a");
    parent.say("fork meddle a");
    let error = parent.hear("child");
    assert!(error.starts_with("Closed") && error.contains("forked"), "{error}");
    assert_eq!(parent.hear("child"), "cannot release");
    assert_eq!(parent.hear("child"), "leaves");
    parent.hear("its child is gone");
    // The parent noticed nothing, and is still seen to live.
    assert_eq!(parent.ask("fence a", "fence"), fence.to_string());
    other.ask("try a", "busy");
    other.wait_for("a");
    parent.ask("release a", "released");
    other.hear("held");
}

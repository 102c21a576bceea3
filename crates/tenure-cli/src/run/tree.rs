//! The descendants of a process, read from `/proc`.
//!
//! A sub-reaper inherits the orphans below it, whatever sessions and groups they moved to. So the
//! tree below it is complete, and it is gone exactly when the sub-reaper has no children left.

use std::collections::BTreeMap;
use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// All processes below `root`.
pub(crate) fn below(root: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, parent) in parents() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut next = vec![root.as_raw()];
    while let Some(parent) = next.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        next.extend(&below);
        found.extend(below.into_iter().map(Pid::from_raw));
    }
    found
}

/// Kills our own children, and lets those that this orphans come to us. To be repeated until
/// nothing is left. A child's number is not used again before we reap it, so that no stranger can
/// be hit however fast the tree forks.
pub(crate) fn kill_children() {
    let me = Pid::this().as_raw();
    for pid in children_of(me).unwrap_or_else(|| all_children_of(me)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// One of our own children that ended, stopped or went on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaped {
    /// This is what happened.
    Child(WaitStatus),
    /// Nothing happened that was not reported before.
    Nothing,
    /// There are no children left, so there is no tree left.
    NoChildren,
}

/// The next thing that happened to a child.
pub(crate) fn reap() -> Reaped {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
    loop {
        return match waitpid(None, Some(flags)) {
            Ok(WaitStatus::StillAlive) => Reaped::Nothing,
            Ok(status) => Reaped::Child(status),
            Err(Errno::EINTR) => continue,
            Err(_) => Reaped::NoChildren,
        };
    }
}

/// The children of a process as the kernel lists them, if it does.
fn children_of(pid: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("children")).ok()?;
        found.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Some(found)
}

/// The same by asking every process for its parent.
fn all_children_of(parent: i32) -> Vec<i32> {
    parents().into_iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid).collect()
}

/// Every process with its parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|pid: i32| Some((pid, parent_of(pid)?))).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may contain anything, brackets too.
    let after = &stat[stat.rfind(')')? + 1..];
    after.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_and_grandchildren_are_found() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & sleep 60 & echo ready; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let id = i32::try_from(shell.id()).unwrap();
        assert_eq!(below(Pid::from_raw(id)).len(), 2);
        assert!(below(Pid::this()).contains(&Pid::from_raw(id)));
        assert_eq!(children_of(id).unwrap_or_else(|| all_children_of(id)).len(), 2);
        for pid in below(Pid::from_raw(id)) {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
    }
}

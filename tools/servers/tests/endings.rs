//! What is left when a process that had servers ends: nothing, however it ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use servers::eventually;

/// A process with a Redis of its own.
struct Other {
    process: Child,
    server: u32,
    dir: PathBuf,
}

impl Other {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redis-alone"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let [_url, pid, dir] = words[..] else { panic!("not what it should say: {line:?}") };
        Self { process, server: pid.parse().unwrap(), dir: dir.into() }
    }

    fn is_gone(&self) -> bool {
        // The parent of the directory is that of all servers of the process.
        !runs(self.server) && !self.dir.parent().unwrap().exists()
    }
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_process_that_ends_leaves_neither_server_nor_files() {
    let mut other = Other::start();
    assert!(runs(other.server) && other.dir.exists());
    drop(other.process.stdin.take());
    assert!(other.process.wait().unwrap().success());
    eventually("server and files are gone", || other.is_gone());
}

#[test]
fn a_process_that_is_killed_leaves_neither_server_nor_files() {
    let mut other = Other::start();
    assert!(runs(other.server) && other.dir.exists());
    other.process.kill().unwrap();
    other.process.wait().unwrap();
    eventually("server and files are gone", || other.is_gone());
}

#[test]
fn without_redis_it_says_what_to_install() {
    // Everything else is there.
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools-without-redis");
    let _ = std::fs::remove_dir_all(&tools);
    std::fs::create_dir_all(&tools).unwrap();
    for tool in ["setsid", "setpriv"] {
        std::os::unix::fs::symlink(Path::new("/usr/bin").join(tool), tools.join(tool)).unwrap();
    }
    let mut process = Command::new(env!("CARGO_BIN_EXE_redis-alone"));
    let output = process.env("PATH", &tools).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`redis-server` is missing"), "{said}");
    assert!(said.contains("apt-get install redis-server"), "{said}");
    std::fs::remove_dir_all(&tools).unwrap();
}

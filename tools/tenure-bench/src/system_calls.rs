//! Counts the system calls of this process, and the bytes that they moved through sockets, with
//! `strace`: it attaches to every thread, writes a line for each call, and is interrupted after the
//! work. `None` where it is not installed or may not attach; times are never measured meanwhile.
//!
//! A call that is interrupted by another thread's has two lines, the second of which says
//! `resumed`: it counts once, and its result is in the second.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemCalls {
    pub(crate) made: u64,
    /// Sent and received.
    pub(crate) bytes: u64,
}

/// The calls that move bytes through a socket, as the standard library makes them.
const TRANSFERS: [&str; 6] = ["sendto", "recvfrom", "sendmsg", "recvmsg", "writev", "readv"];

/// How long `strace` may take to attach, or to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs work and returns what it called, if that can be counted.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Option<SystemCalls>) {
    let Some(trace) = Trace::attach() else { return (work(), None) };
    let output = work();
    (output, trace.finish())
}

struct Trace {
    directory: TempDir,
    tracer: Child,
}

impl Trace {
    fn attach() -> Option<Self> {
        let directory = TempDir::new().ok()?;
        let tracer = Command::new("strace")
            .args(["-f", "-qq", "-s", "0", "-p", &std::process::id().to_string(), "-o"])
            .arg(directory.path().join("calls"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut trace = Self { directory, tracer };
        let until = Instant::now() + PATIENCE;
        while !is_traced() {
            let ended = !matches!(trace.tracer.try_wait(), Ok(None));
            if ended || Instant::now() > until {
                trace.end();
                return None;
            }
            sleep(Duration::from_millis(1));
        }
        Some(trace)
    }

    fn finish(mut self) -> Option<SystemCalls> {
        let pid = rustix::process::Pid::from_child(&self.tracer);
        // Interrupted, it detaches and writes what it has.
        rustix::process::kill_process(pid, rustix::process::Signal::INT).ok()?;
        let until = Instant::now() + PATIENCE;
        while let Ok(None) = self.tracer.try_wait() {
            if Instant::now() > until {
                self.end();
                return None;
            }
            sleep(Duration::from_millis(1));
        }
        let text = fs::read_to_string(self.directory.path().join("calls")).ok()?;
        Some(SystemCalls::parse(&text))
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.tracer.kill();
        let _ = self.tracer.wait();
    }
}

/// Whether every thread of this process has a tracer.
fn is_traced() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    threads.flatten().all(|thread| {
        // A thread that has just ended has no status any more.
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        !status.lines().any(|line| line == "TracerPid:\t0")
    })
}

impl SystemCalls {
    /// Reads the lines of `strace -f`: the thread, then the call and what it returned.
    fn parse(text: &str) -> Self {
        let mut counted = Self::default();
        for line in text.lines() {
            let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
            let resumed = call.strip_prefix("<... ");
            let name: &str = resumed.unwrap_or(call);
            let name = name.split(['(', ' ']).next().unwrap_or_default();
            if name.is_empty() || name.starts_with(['+', '-']) {
                continue;
            }
            counted.made += u64::from(resumed.is_none());
            if TRANSFERS.contains(&name)
                && let Some((_, result)) = call.rsplit_once(" = ")
            {
                // An error is negative, and moved nothing.
                let moved = result.split(' ').next().and_then(|result| result.parse().ok());
                counted.bytes += moved.unwrap_or(0_u64);
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_counts_once_and_only_sockets_move_bytes() {
        let text = "\
100 sendto(9, \"\"..., 310, MSG_NOSIGNAL, NULL, 0) = 310
101 epoll_wait(3,  <unfinished ...>
100 recvfrom(9,  <unfinished ...>
101 <... epoll_wait resumed>[{events=EPOLLIN}], 1024, -1) = 1
100 <... recvfrom resumed>\"\"..., 8192, 0, NULL, NULL) = 25
100 recvfrom(9, 0x7f, 8192, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
100 write(5, \"\"..., 8) = 8
100 +++ exited with 0 +++
";
        assert_eq!(SystemCalls::parse(text), SystemCalls { made: 5, bytes: 335 });
    }

    #[test]
    fn what_this_process_calls_is_counted_where_strace_may_attach() {
        let look = || (0..100).filter(|_| fs::metadata("/").is_ok()).count();
        let (looked, calls) = counted(look);
        assert_eq!(looked, 100);
        assert!(calls.is_none_or(|calls| calls.made >= 100), "{calls:?}");
    }
}

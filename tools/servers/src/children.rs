//! Child processes of tests: default signal dispositions, and a time limit on waiting for one.
//!
//! A signal that a process ignores stays ignored in every program it executes. So under `nohup`, or
//! in the background of a shell without job control, the children of a test would ignore HUP, INT
//! or QUIT, and a test that sends one would wait for ever. `exec` resets a *caught* signal to its
//! default, though: a handler that does nothing leaves this process as deaf as before, and gives
//! its children the default.

use std::io::{self, Read};
use std::process::{Child, Output};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Once};
use std::time::Duration;

use signal_hook::consts::{FORBIDDEN, SIGPIPE};

use crate::patience::within;

/// Makes every signal that this process ignores have its default disposition in the programs it
/// starts from now on. This process goes on ignoring it.
///
/// # Panics
/// When the system does not tell which signals are ignored.
pub fn reset_signals_of_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        for signal in ignored_signals(&status) {
            // The flag is never read: the handler only has to be one.
            let handler = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
            handler.unwrap_or_else(|error| panic!("no handler for signal {signal}: {error}"));
        }
    });
}

/// The ignored signals in a `/proc/PID/status`, without those that may not be caught and SIGPIPE,
/// which Rust ignores itself and resets in every child.
fn ignored_signals(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.expect("a mask of ignored signals");
    let ignored = (1..=31).filter(|signal| mask & (1 << (signal - 1)) != 0);
    ignored.filter(|signal| *signal != SIGPIPE && !FORBIDDEN.contains(signal)).collect()
}

/// Waits until a child has ended, and returns what it wrote to its pipes. A child that does not
/// end within the limit is killed.
///
/// # Errors
/// When it did not end within the limit, or a process that it started keeps its output open.
pub fn output_within(mut child: Child, limit: Duration) -> io::Result<Output> {
    drop(child.stdin.take());
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let mut status = None;
    let ended = within(limit, || {
        status = child.try_wait().transpose();
        status.is_some()
    });
    if !ended {
        child.kill()?;
        status = Some(child.wait());
    }
    let Some(status) = status.transpose()? else { unreachable!("ended, or killed and waited for") };
    if !ended {
        let error = format!("killed, because it did not end within {} s", limit.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, error));
    }
    let text = |pipe: Option<Receiver<Vec<u8>>>| match pipe.map(|pipe| pipe.recv_timeout(limit)) {
        None => Ok(Vec::new()),
        Some(Ok(bytes)) => Ok(bytes),
        Some(Err(_)) => {
            let error = "it ended, but a process that it started keeps its output open";
            Err(io::Error::new(io::ErrorKind::TimedOut, error))
        }
    };
    Ok(Output { status, stdout: text(out)?, stderr: text(err)? })
}

/// Reads a pipe to its end on a thread of its own, so that the child never blocks on a full pipe.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Option<Receiver<Vec<u8>>> {
    let mut pipe = pipe?;
    let (sender, bytes) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is kept. If the receiver is gone, its limit has passed.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{ignored_signals, output_within};
    use std::io::ErrorKind;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        // HUP, INT, QUIT, KILL and PIPE.
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000001107\n"), [1, 2, 3]);
        assert_eq!(ignored_signals("SigIgn:\t0000000000000000\n"), [0; 0]);
    }

    #[test]
    fn a_child_that_hangs_is_killed_and_reported() {
        let hanging = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = hanging.id();
        let error = output_within(hanging, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_child_that_fills_its_pipes_is_read() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 3"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = output_within(child, Duration::from_secs(30)).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((output.stdout.len(), output.stderr.len()), (300_000, 300_000));
    }
}

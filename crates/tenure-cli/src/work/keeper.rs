//! The job keeper: a process that runs one command and ends its whole tree in time.
//!
//! On its standard input it gets the length of the payload, an instant, the payload, and then more
//! instants: until when the worker's hold may be trusted, in nanoseconds of `CLOCK_BOOTTIME`. It
//! kills the tree when the last instant passes, less a margin, and when its input ends. It is a
//! sub-reaper, so nothing below it escapes, and it exits only when it has no children left; until
//! then its lock on the session's liveness file keeps the job with this worker.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, fcntl_lock};

use crate::failure;
use crate::run::tree::{self, Reaped};

/// How the keeper is called: nothing that looks for `tenure` by its name finds it too.
pub(crate) const ARGV0: &str = "tenure-job-keeper";

/// How long killing a tree may take: so much earlier it begins.
pub(super) const MARGIN: u64 = 50_000_000;
/// How often the end of the command is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// The whole life of a keeper. The arguments are the liveness file, `--` and the command.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let liveness = arguments.next().unwrap_or_default();
    let command: Vec<OsString> = arguments.skip_while(|word| word != "--").skip(1).collect();
    match keep(&liveness, &command) {
        Ok(code) => code,
        Err(error) => {
            let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            eprintln!("tenure: cannot run {program}: {error}");
            if error.kind() == std::io::ErrorKind::NotFound {
                failure::NOT_FOUND
            } else {
                failure::OWN
            }
        }
    }
}

fn keep(liveness: &OsStr, command: &[OsString]) -> std::io::Result<u8> {
    let mut stdin = RawInput;
    let (length, until) = (read_u64(&mut stdin)?, read_u64(&mut stdin)?);
    set_child_subreaper(true)?;
    set_name(c"tenure-job")?;
    // Held until the end of this process, which is after the end of the tree.
    let _alive = if liveness.is_empty() { None } else { Some(lock(liveness)?) };
    let mut payload = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    stdin.read_exact(&mut payload)?;
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut child =
        Command::new(program).args(arguments).process_group(0).stdin(Stdio::piped()).spawn()?;
    if let Some(mut to) = child.stdin.take() {
        // A command that does not read its input is none of our business.
        std::thread::spawn(move || drop(to.write_all(&payload)));
    }
    let child = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    Ok(watch(child, until))
}

fn lock(path: &OsStr) -> std::io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
    Ok(file)
}

/// Waits for the end of the command, and ends its tree when it must.
fn watch(child: Pid, mut until: u64) -> u8 {
    let mut code = None;
    let mut ending = false;
    loop {
        loop {
            match tree::reap() {
                Reaped::Child(status) => {
                    if status.pid() == Some(child)
                        && let Some(ended) = exit_code(status)
                    {
                        code = Some(ended);
                        // What the command has left behind ends with it.
                        ending = true;
                    }
                }
                Reaped::Nothing => break,
                Reaped::NoChildren => return code.unwrap_or(failure::OWN),
            }
        }
        if ending || boot_nanos().saturating_add(MARGIN) >= until {
            ending = true;
            tree::kill_children();
        }
        if let Some(news) = next_instant(ending) {
            match news {
                Some(instant) => until = until.max(instant),
                None => ending = true,
            }
        }
    }
}

/// Waits a moment for the next instant. `Some(None)` is the end of the input.
#[expect(clippy::option_option, reason = "no news, the end, or an instant")]
fn next_instant(ending: bool) -> Option<Option<u64>> {
    if ending {
        std::thread::sleep(LOOK);
        return None;
    }
    let timeout = Timespec::try_from(LOOK).ok();
    let mut fds = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) if ready > 0 => Some(read_u64(&mut RawInput).ok()),
        _ => None,
    }
}

fn exit_code(status: WaitStatus) -> Option<u8> {
    match status {
        WaitStatus::Exited(_, code) => Some(u8::try_from(code & 0xff).unwrap_or(failure::OWN)),
        WaitStatus::Signaled(_, signal, _) => {
            Some(failure::SIGNAL + u8::try_from(signal as i32).unwrap_or_default())
        }
        _ => None,
    }
}

/// Standard input without a buffer: what is in a buffer cannot be polled.
struct RawInput;

impl Read for RawInput {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), to)?)
    }
}

fn read_u64(from: &mut impl Read) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The time since boot, suspension included, in nanoseconds.
pub(super) fn boot_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

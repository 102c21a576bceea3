//! The command itself: its environment, its process group, its start, its end. Knows how to start
//! one, not when.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tenure::{Error, LockStatus, Owner};

use super::front::environment;
use super::nesting;
use super::words::Request;
use crate::failure::{self, Failure};
use crate::wanted::Kind;

/// Names what the command's ancestors and the command hold, one a line.
const HELD: &str = "TENURE_HELD";

/// Starts the command as if we were not there: its standard input is the one `tenure run` had, no
/// signal is blocked that was not, and what was ignored still is.
pub(super) fn start(
    command: &[OsString],
    request: &Request,
    stdin: &OwnedFd,
    words: &[(&'static str, String)],
) -> Result<Pid, Failure> {
    let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    spawn(command, request, stdin, words).map_err(|errno| {
        let code = match errno {
            Errno::ENOENT => failure::NOT_FOUND,
            _ => failure::NOT_EXECUTABLE,
        };
        Failure::new(code, format!("cannot run {program}: {}", errno.desc()))
    })
}

fn spawn(
    command: &[OsString],
    request: &Request,
    stdin: &OwnedFd,
    words: &[(&'static str, String)],
) -> nix::Result<Pid> {
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(stdin.as_raw_fd(), 0)?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
    )?;
    attributes.set_pgroup(Pid::from_raw(request.group.unwrap_or(0)))?;
    let blocked = request.blocked.iter().filter_map(|number| Signal::try_from(*number).ok());
    attributes.set_sigmask(&blocked.collect::<SigSet>())?;
    // Rust programs ignore SIGPIPE; others expect to end by it.
    attributes.set_sigdefault(&[Signal::SIGPIPE].into_iter().collect::<SigSet>())?;
    let arguments = strings(command)?;
    let program = arguments.first().ok_or(Errno::ENOENT)?;
    let mut variables = environment();
    let ours = |line: &CString| {
        let name = line.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        words.iter().any(|(ours, _)| ours.as_bytes() == name)
    };
    variables.retain(|line| !ours(line));
    for (name, value) in words {
        variables.push(CString::new(format!("{name}={value}")).map_err(|_| Errno::EINVAL)?);
    }
    match posix_spawnp(program, &actions, &attributes, &arguments, &variables) {
        // A script without its first line is run by the shell, as `execvp` has always done.
        Err(Errno::ENOEXEC) => {
            let shell = c"/bin/sh".to_owned();
            let arguments: Vec<CString> = [&shell].into_iter().chain(&arguments).cloned().collect();
            posix_spawnp(&shell, &actions, &attributes, &arguments, &variables)
        }
        started => started,
    }
}

fn strings(words: &[OsString]) -> nix::Result<Vec<CString>> {
    let string = |word: &OsString| CString::new(word.as_bytes()).map_err(|_| Errno::EINVAL);
    words.iter().map(string).collect()
}

/// What the command finds in its environment. Set last, so that nesting shows the innermost.
pub(super) fn words(
    request: &Request,
    held: &LockStatus,
    owner: &Owner,
) -> Result<Vec<(&'static str, String)>, Error> {
    let wanted = &request.wanted;
    let mut names: Vec<String> =
        std::env::var(HELD).unwrap_or_default().lines().map(Into::into).collect();
    // An election is not a lock that a nested command could take.
    for name in held.names().filter(|name| !name.is_reserved()) {
        if !names.iter().any(|other| other == name.as_str()) {
            names.push(name.to_string());
        }
    }
    let mut fences = Vec::new();
    for name in held.names() {
        fences.push(format!("{} {}", held.fence_of(name.as_str())?, name.user_part()));
    }
    let mut words = vec![
        ("TENURE_NAME", wanted.name().to_owned()),
        ("TENURE_NAMESPACE", request.settings.namespace.clone()),
        ("TENURE_FENCE", held.fence()?.to_string()),
        ("TENURE_FENCES", fences.join("\n")),
        // The beginning, as `tenure show` has it: the whole id would be a right to release.
        ("TENURE_LEASE_ID", held.claim_id().to_string()),
        ("TENURE_MODE", wanted.kind.word().to_owned()),
        ("TENURE_LEASE_MS", wanted.lease.as_millis().to_string()),
        (HELD, names.join("\n")),
        // With what is held here, which the order checker of a nested command counts.
        ("TENURE_OWNER", owner.to_env_value()),
        nesting::for_child(wanted.waiting_parents),
    ];
    if wanted.kind == Kind::Leader {
        words.push(("TENURE_TERM", held.fence()?.to_string()));
    }
    Ok(words)
}

/// The exit code of a command that ended so.
pub(super) fn exit_code(status: WaitStatus) -> u8 {
    match status {
        WaitStatus::Exited(_, code) => u8::try_from(code & 0xff).unwrap_or(failure::OWN),
        WaitStatus::Signaled(_, signal, _) => {
            failure::SIGNAL + u8::try_from(signal as i32).unwrap_or_default()
        }
        _ => failure::OWN,
    }
}

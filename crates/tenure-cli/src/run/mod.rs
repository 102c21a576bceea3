//! `tenure run`: two processes that watch over one command, and over each other.
//!
//! ```text
//! shell -> tenure run (front) -> guardian -> command -> whatever it starts
//!          signals, Ctrl-Z,      session, keeper, lock, sub-reaper,
//!          exit code             waits for the command, stops it in time
//! ```
//!
//! The front is the process that people know: they signal, suspend and kill it. The guardian holds
//! the lock, so that a suspended front loses nothing. If the front is gone, the guardian ends the
//! command's whole tree and only then gives the lock back. If the guardian is gone, the front ends
//! the tree. Both hold a lock on the session's liveness file meanwhile. Each is a sub-reaper, so
//! that nothing below it can escape by moving to another group or session.

mod child;
mod elect;
mod front;
mod guardian;
mod margins;
mod nesting;
mod supervise;
pub(crate) mod tree;
mod words;

use std::ffi::OsString;
use std::path::Path;

pub(crate) use self::guardian::{ARGV0, main as guardian_main};
use self::words::Rules;
use crate::args::{RunArgs, Shared};
use crate::failure::Failure;
use crate::settings::Settings;
use crate::wanted::Wanted;

/// Runs a command under a lock. The answer is the exit code.
pub(crate) fn run(shared: &Shared, args: &RunArgs) -> Result<u8, Failure> {
    let (settings, config) = Settings::new(shared).map_err(Failure::of_run)?;
    let mut wanted = Wanted::new(&args.lock, args.max_hold, &config).map_err(Failure::of_run)?;
    if args.elect {
        wanted = wanted.leadership(args.value.as_ref()).map_err(Failure::of_run)?;
    }
    let settings = settings.asking_replicas(&args.lock).map_err(Failure::of_run)?;
    let settings = settings.waiting(wanted.patience);
    let command = match &args.shell {
        Some(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
        None => args.command.clone(),
    };
    wanted.label = wanted.label.or_else(|| label_of(args));
    wanted.waiting_parents = nesting::waiting_parents();
    let rules = Rules {
        on_lost: args.on_lost,
        signal: args.signal as i32,
        kill_after: args.kill_after,
        lost_exit_code: args.lost_exit_code,
        hold_group: args.hold_group,
        once: args.once || !args.elect,
    };
    front::run(settings, wanted, rules, &command).map_err(Failure::of_run)
}

/// The name of the program, without its arguments: those may be secret.
fn label_of(args: &RunArgs) -> Option<String> {
    let first = |text: &OsString| text.to_string_lossy().split_whitespace().next().map(Into::into);
    let program: OsString = match &args.shell {
        Some(text) => first(text)?,
        None => args.command.first()?.clone(),
    };
    let name = Path::new(&program).file_name()?.to_string_lossy().into_owned();
    let shown = tenure::contract::Label::try_from(name.as_str()).is_ok();
    shown.then_some(name)
}

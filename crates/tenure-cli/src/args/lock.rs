//! The arguments of commands that take a lock: which, of what kind, for how long, and what then.
#![expect(clippy::doc_markdown, reason = "the help shows these words as they stand")]

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::values::{duration, signal};

/// Which lock, of what kind, and how patiently.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("kind").args(["shared", "exclusive", "slots"])))]
pub(crate) struct LockArgs {
    /// The lock
    pub(crate) name: String,
    /// Give up at once if it is taken
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most this long; 0 is --no-wait [default: for ever]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Take it shared, as a reader: any number hold at once, beside no exclusive holder
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Take it exclusively: the default, and what --shared excludes
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,
    /// One of N permits: at most N hold at once
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Another lock of the same kind, taken in the same step: all or nothing
    #[arg(long, value_name = "NAME", conflicts_with = "slots")]
    pub(crate) also: Vec<String>,
    /// How long it lives without a renewal [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, alias = "ttl")]
    pub(crate) lease: Option<Duration>,
    /// Keep it closed this long after a holder's lease ran out [default: not at all]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,
    /// Hold it only once so many replicas of the store have it; otherwise it is given back
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<u32>,
    /// How long the replicas have for that, at most 1.5s [default: 500ms]
    #[arg(long, value_name = "DUR", value_parser = duration, requires = "replicas")]
    pub(crate) replicas_within: Option<Duration>,
    /// Lease, wait, max hold and lock delay by name: financial, cache, batch, or one of your own
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// A label shown in `ls`, `show` and error messages [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Who gives way in a deadlock: the lowest is refused, from -100 to 100
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) victim_priority: i8,
    /// The exit code if the lock is not obtained
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
}

/// `tenure run`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").args(["shell", "command"]).required(true)))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// NAME is an election: run the command whenever this candidate leads, until tenure is stopped
    #[arg(long, conflicts_with_all = ["shared", "exclusive", "slots", "also", "no_wait"])]
    pub(crate) elect: bool,
    /// With --elect: end when the command ends, or when the leadership is lost
    #[arg(long, requires = "elect")]
    pub(crate) once: bool,
    /// With --elect: what `tenure leader` and observers see of this leader
    #[arg(long, value_name = "TEXT", requires = "elect")]
    pub(crate) value: Option<String>,
    /// Stop the command after this long and exit with 124
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Run this through /bin/sh -c
    #[arg(short = 'c', value_name = "STRING")]
    pub(crate) shell: Option<OsString>,
    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "WHAT", value_enum, default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// The signal that asks the command to stop
    #[arg(long, value_name = "SIG", value_parser = signal, default_value = "TERM")]
    pub(crate) signal: Signal,
    /// How long after that signal the command and all it started are killed
    #[arg(short, long, value_name = "DUR", value_parser = duration, default_value = "5s")]
    pub(crate) kill_after: Duration,
    /// The exit code if the lock is lost
    #[arg(long, value_name = "N", default_value_t = 123)]
    pub(crate) lost_exit_code: u8,
    /// Hold the lock until everything that the command started has ended too
    #[arg(long)]
    pub(crate) hold_group: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum OnLost {
    /// --signal, then KILL: before the lock can have another holder, where that is possible
    Term,
    /// KILL
    Kill,
    /// Let it run, and say so
    Ignore,
}

/// `tenure hold`.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// End after this long and exit with 124
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
}

/// `tenure acquire`.
#[derive(Args, Debug)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Print shell lines that set TENURE_HANDLE, TENURE_FENCE and TENURE_OWNER
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
}

/// `tenure renew` and `tenure release`.
#[derive(Args, Debug)]
pub(crate) struct HandleArgs {
    /// What `tenure acquire` printed
    #[arg(env = "TENURE_HANDLE", hide_env_values = true)]
    pub(crate) handle: String,
}

//! The arguments of commands that inspect, wait until a lock is free, or release by force.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values::duration;

/// `tenure ls`.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names that match: `*` stands for any text, `?` for one character
    pub(crate) pattern: Option<String>,
    /// Only locks that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// Only locks with waiters
    #[arg(long)]
    pub(crate) waiting: bool,
    /// Also what tenure keeps for itself, such as the slots of elections
    #[arg(long)]
    pub(crate) all: bool,
    /// Only locks of this kind
    #[arg(long, value_enum)]
    pub(crate) kind: Option<KindArg>,
    /// In which order
    #[arg(long, value_enum, default_value = "name")]
    pub(crate) sort: SortArg,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// One exclusive holder, or many shared ones
    Lock,
    /// Several permits
    Semaphore,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// By name
    Name,
    /// Held longest first
    Age,
    /// Most waiters first
    Waiting,
}

/// `tenure show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The lock
    pub(crate) name: String,
}

/// `tenure leader`.
#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    /// The election
    pub(crate) name: String,
    /// Print every change, until a signal comes
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `tenure wait`.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The lock
    pub(crate) name: String,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

/// `tenure watch`.
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Only names that match: `*` stands for any text, `?` for one character
    pub(crate) pattern: Option<String>,
    /// How often to look
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "200ms")]
    pub(crate) interval: Duration,
    /// End after this long
    #[arg(long = "for", value_name = "DUR", value_parser = duration)]
    pub(crate) long: Option<Duration>,
}

/// `tenure graph`.
#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    /// Only what is connected with this lock
    pub(crate) name: Option<String>,
    /// In which form
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: GraphFormat,
    /// Exit with 1 if there is a deadlock
    #[arg(long)]
    pub(crate) check: bool,
}

/// The form of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Deadlocks as sentences, then trees of waiters
    Text,
    /// For Graphviz
    Dot,
    /// For Mermaid
    Mermaid,
    /// Nodes, edges and deadlocks
    Json,
    /// A drawing
    Svg,
}

/// `tenure deadlocks`.
#[derive(Args, Debug)]
pub(crate) struct DeadlocksArgs {
    /// Print every new one, until a signal comes
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `tenure sessions`.
#[derive(Args, Debug)]
pub(crate) struct SessionsArgs {
    /// Only sessions whose id begins like this
    pub(crate) id: Option<String>,
}

/// `tenure force-release`.
#[derive(Args, Debug)]
pub(crate) struct ForceReleaseArgs {
    /// The lock
    pub(crate) name: String,
    /// The fence of the grant to end, as `tenure show` prints it
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    /// Why: shown to the holder in its error
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Do not ask, on a terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `tenure raise-fences`.
#[derive(Args, Debug)]
pub(crate) struct RaiseFencesArgs {
    /// The number that all later fences shall be above [default: change nothing, and print the
    /// highest fence so far]
    #[arg(long, value_name = "N")]
    pub(crate) to: Option<u64>,
}

/// `tenure migrate`.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    /// Print the statements, and do nothing
    #[arg(long)]
    pub(crate) print: bool,
}

/// `tenure man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Write one page for each command into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

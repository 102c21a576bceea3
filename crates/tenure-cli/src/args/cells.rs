//! The arguments of `tenure cells`: versioned values beside the locks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::HELP;
use super::values::duration;

/// `tenure cells`.
#[derive(Args, Debug)]
pub(crate) struct CellsArgs {
    #[command(subcommand)]
    pub(crate) command: CellsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CellsCommand {
    /// Print the value of a cell. Exit code 1 if it has none
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells get config:mail
  tenure cells get config:mail --json       with its version and fence"
    )]
    Get(CellGetArgs),
    /// Write a cell. Exit code 1 if its condition does not hold
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells put config:mail on
  tenure cells put config:mail < settings.json       from standard input
  tenure cells put leader host-7 --if-absent --ttl 30s
  tenure cells put counter 8 --if-version 1041       only over what was read
  tenure run reports -- sh -c 'tenure cells put reports:latest march --fence $TENURE_FENCE'",
        after_help = "\
Prints the new version. Exit codes: 0 written; 1 the condition does not hold, and nothing was
written; 69 the store cannot be reached."
    )]
    Put(CellPutArgs),
    /// Replace the value of a cell by what a command makes of it
    #[command(
        help_template = HELP,
        override_usage = "tenure cells update [OPTIONS] <NAME> -- <CMD>...",
        before_help = "\
Examples:
  tenure cells update visits -- sh -c 'read n; echo $((n + 1))'
  tenure cells update hosts -- sh -c 'cat; echo host-7'
  tenure cells update settings --wait 5s -- jq '.mail = true'",
        after_help = "\
The command gets the value on standard input (nothing if there is none) and prints the new one. It
may run several times, if others write in between, and must do nothing else. Prints the new version.

Exit codes: 0 written; 75 others wrote in between each time; 69 the store cannot be reached; that of
the command if it fails, and nothing was written; 126 it cannot be executed; 127 it was not found."
    )]
    Update(CellUpdateArgs),
    /// Remove a cell. Exit code 1 if its condition does not hold
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells rm config:mail
  tenure cells rm counter --if-version 1041"
    )]
    Rm(CellRmArgs),
    /// List cells
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells ls
  tenure cells ls 'config:*' --json"
    )]
    Ls(CellLsArgs),
    /// Print the value of a cell, or of all cells with a prefix, now and whenever it changes
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells watch config:mail
  tenure cells watch --prefix config: --json | jq .     one JSON object per line",
        after_help = "\
Changes in quick succession may be merged into the last one, which is never missed. `gap` says
that the connection was lost for a while: what has changed meanwhile follows."
    )]
    Watch(CellWatchArgs),
}

/// `tenure cells get`.
#[derive(Args, Debug)]
pub(crate) struct CellGetArgs {
    /// The cell
    pub(crate) name: String,
}

/// `tenure cells put`.
#[derive(Args, Debug)]
pub(crate) struct CellPutArgs {
    /// The cell
    pub(crate) name: String,
    /// The value [default: standard input, to its end]
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: Option<String>,
    /// Read the value from a file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) condition: CellCondition,
    /// Only if the cell has no value
    #[arg(long, conflicts_with_all = ["if_version", "fence"])]
    pub(crate) if_absent: bool,
    /// Forget the value after this long
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

/// `tenure cells update`.
#[derive(Args, Debug)]
pub(crate) struct CellUpdateArgs {
    /// The cell
    pub(crate) name: String,
    /// Give up after this long [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tenure cells rm`.
#[derive(Args, Debug)]
pub(crate) struct CellRmArgs {
    /// The cell
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) condition: CellCondition,
}

/// On what condition a cell is written.
#[derive(Args, Debug)]
pub(crate) struct CellCondition {
    /// Only if the cell has this version
    #[arg(long, value_name = "N", conflicts_with = "fence")]
    pub(crate) if_version: Option<u64>,
    /// Only if no larger fence has written the cell
    #[arg(long, value_name = "N")]
    pub(crate) fence: Option<u64>,
}

/// `tenure cells ls`.
#[derive(Args, Debug)]
pub(crate) struct CellLsArgs {
    /// Only names that match: `*` stands for any text, `?` for one character
    pub(crate) pattern: Option<String>,
    /// Also cells that tenure keeps for itself, such as the values of elections
    #[arg(long)]
    pub(crate) all: bool,
}

/// `tenure cells watch`.
#[derive(Args, Debug)]
pub(crate) struct CellWatchArgs {
    /// The cell
    #[arg(required_unless_present = "prefix")]
    pub(crate) name: Option<String>,
    /// All cells whose names begin with this text
    #[arg(long, value_name = "TEXT", conflicts_with = "name")]
    pub(crate) prefix: Option<String>,
    /// End after this long
    #[arg(long = "for", value_name = "DUR", value_parser = duration)]
    pub(crate) long: Option<Duration>,
}

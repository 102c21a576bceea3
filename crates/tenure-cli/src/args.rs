//! The arguments of every command, and their help. Knows words, not what they do.

use clap::{Args, Parser, Subcommand};

/// Examples first: most readers look for the line they can copy.
const HELP: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// Locks across processes and hosts, with fencing, fair queues and early notice of loss
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    help_template = HELP,
    before_help = "\
Examples:
  tenure promises                  what each built-in engine promises
  tenure check-name account:17     whether a text can be the name of a lock
  tenure version --json            for scripts",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the version and the engines that are built in
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure version\n  tenure version --json"
    )]
    Version(Shown),
    /// Print what each built-in engine promises
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure promises\n  tenure promises --json",
        after_help = "\
fencing       strict: fences always grow; clock-bounded: after the store lost its
              memory they grow as far as clocks agree
queue         first come, first served across processes
read-write    many readers or one writer
semaphores    several permits
sets          several names in one atomic step
wake          push: the store tells a waiter; poll: the waiter asks again
survives      what a held lock survives
drift         how much clocks may drift apart, in percent of the lease"
    )]
    Promises(Shown),
    /// Check whether a text can be the name of a lock: exit code 0 or 1
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure check-name account:17
  tenure check-name \"$NAME\" || exit 1"
    )]
    CheckName {
        /// The text to check
        #[arg(allow_hyphen_values = true)]
        name: String,
    },
}

/// How an answer is shown.
#[derive(Args, Debug)]
pub(crate) struct Shown {
    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

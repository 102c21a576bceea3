//! The arguments of `tenure order`: the order in which services take locks.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::HELP;

/// `tenure order`.
#[derive(Args, Debug)]
pub(crate) struct OrderArgs {
    #[command(subcommand)]
    pub(crate) command: OrderCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OrderCommand {
    /// Print the classes of locks in the order in which they are taken, and who takes them
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure order show\n  tenure order show billing.order --json"
    )]
    Show(OrderFiles),
    /// Print the learned edges as a file that the other commands read
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure order export > billing.order"
    )]
    Export(OrderFiles),
    /// Look for cycles, over the edges of all files together. Exit code 1 if there is one
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure order check billing.order reports.order
  tenure order check --declared order.txt --silenced order.silenced",
        after_help = "\
A cycle is a deadlock that has not happened yet. One in which a wait has a time limit is printed,
but is no failure: it ends by itself. A warning on standard error says that there were no edges,
as after tests without TENURE_ORDER. Exit codes: 0 none; 1 a cycle, names taken in contradicting
orders, or an edge against the declared order; 69 the store cannot be reached."
    )]
    Check(OrderCheckArgs),
    /// Print which edges are new and which are gone. Exit code 1 if there are any
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure order diff main.order branch.order"
    )]
    Diff(OrderDiffArgs),
    /// Draw the graph
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure order graph --format dot | dot -Tsvg > order.svg
  tenure order graph *.order --format mermaid"
    )]
    Graph(OrderGraphArgs),
}

/// Where the edges come from.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OrderFiles {
    /// Files of `tenure order export` [default: the edges in the store]
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Leave out the edges in this file, each of which has a reason
    #[arg(long, value_name = "FILE")]
    pub(crate) silenced: Option<PathBuf>,
}

/// `tenure order check`.
#[derive(Args, Debug)]
pub(crate) struct OrderCheckArgs {
    #[command(flatten)]
    pub(crate) from: OrderFiles,
    /// Refuse edges against the order in this file: one class per line, the first first
    #[arg(long, value_name = "FILE")]
    pub(crate) declared: Option<PathBuf>,
}

/// `tenure order diff`.
#[derive(Args, Debug)]
pub(crate) struct OrderDiffArgs {
    /// The older file
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// The newer file
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
}

/// `tenure order graph`.
#[derive(Args, Debug)]
pub(crate) struct OrderGraphArgs {
    #[command(flatten)]
    pub(crate) from: OrderFiles,
    /// How it is drawn
    #[arg(long, value_name = "FORM", value_enum, default_value = "text")]
    pub(crate) format: OrderForm,
}

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderForm {
    /// One line per edge
    Text,
    /// Graphviz
    Dot,
    /// Mermaid
    Mermaid,
    /// One JSON object
    Json,
}

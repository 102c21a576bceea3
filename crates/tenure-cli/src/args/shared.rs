//! The arguments that every command takes: which store, which namespace, how to show answers.
#![expect(clippy::doc_markdown, reason = "the help shows these words as they stand")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tenure::OrderMode;

use super::values::duration;

/// What every command takes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Shared {
    /// The store: embedded: (default; this host, no server), redis://HOST, rediss://HOST (TLS),
    /// redis+unix:///PATH, redis+sentinel://HOST,HOST/PRIMARY, redis+cluster://HOST,
    /// redlock://HOST,HOST,HOST, etcd://HOST,HOST, postgres://USER@HOST/DATABASE, memory:
    // Its value is never shown: it may hold a password.
    #[arg(short, long, global = true, value_name = "URL", env = "TENURE_URL")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) url: Option<String>,
    /// Keeps the locks of one application or environment apart
    #[arg(long, global = true, value_name = "NS", env = "TENURE_NAMESPACE")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) namespace: Option<String>,
    /// The config file [default: ~/.config/tenure/config.toml]
    #[arg(long, global = true, value_name = "FILE", env = "TENURE_CONFIG")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) config: Option<PathBuf>,
    /// The profile of the config file to use
    #[arg(long, global = true, value_name = "NAME", env = "TENURE_PROFILE")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) profile: Option<String>,
    /// The longest lease of the namespace; all its clients must agree [default: 60s]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration)]
    #[arg(help_heading = "Store")]
    pub(crate) max_lease: Option<Duration>,
    /// The time limit of one call to the store [default: 2s]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration)]
    #[arg(help_heading = "Store")]
    pub(crate) op_timeout: Option<Duration>,
    /// How long the end may wait for the store to confirm that a lock was given back [default: 3s]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration)]
    #[arg(help_heading = "Store")]
    pub(crate) close_timeout: Option<Duration>,
    /// What to do about deadlocks [default: break]
    #[arg(long, global = true, value_name = "MODE", value_enum, env = "TENURE_DEADLOCKS")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) deadlocks: Option<DeadlocksMode>,
    /// What to do about a lock that is taken against the order of locks: off, warn or deny
    /// [default: off]
    #[arg(long, global = true, value_name = "MODE", env = "TENURE_ORDER")]
    #[arg(hide_env_values = true, help_heading = "Store")]
    pub(crate) order: Option<OrderMode>,
    /// How answers are shown [default: table]
    #[arg(short, long, global = true, value_name = "FORM", value_enum)]
    #[arg(help_heading = "Output")]
    pub(crate) output: Option<OutputArg>,
    /// Print JSON: short for --output json
    #[arg(long, global = true, conflicts_with = "output", help_heading = "Output")]
    pub(crate) json: bool,
    /// When to use colour; NO_COLOR is heeded
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    #[arg(help_heading = "Output")]
    pub(crate) color: ColorArg,
    /// Say nothing while waiting and nothing if a lock is not obtained: the exit code tells
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Say more: how long it waited, which store
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) verbose: bool,
}

/// What is done about deadlocks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum DeadlocksMode {
    /// Nothing
    Off,
    /// They are reported; no wait of this command is refused
    Observe,
    /// One wait of each is refused, where the store can do that safely
    Break,
}

/// How answers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputArg {
    /// Columns for people
    Table,
    /// The same with more columns
    Wide,
    /// One line per row, fields separated by tabs, no heading
    Plain,
    /// One JSON object
    Json,
    /// One JSON object per row
    Ndjson,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Shared {
    pub(crate) fn form(&self) -> OutputArg {
        if self.json { OutputArg::Json } else { self.output.unwrap_or(OutputArg::Table) }
    }
}

//! The arguments of `tenure push`, `tenure work` and `tenure jobs`: queues of jobs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::HELP;
use super::values::duration;

/// `tenure push`.
#[derive(Args, Debug)]
pub(crate) struct PushArgs {
    /// The queue
    pub(crate) queue: String,
    /// The payload [default: standard input, to its end]
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
    /// Read the payload from a file
    #[arg(long, value_name = "FILE", conflicts_with = "payload")]
    pub(crate) file: Option<PathBuf>,
    /// One job for each line of standard input
    #[arg(long, conflicts_with_all = ["payload", "file", "key"])]
    pub(crate) lines: bool,
    /// 0 to 9, larger first
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) priority: u8,
    /// Begin no earlier than after this long
    #[arg(long = "in", value_name = "DUR", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Begin no earlier than at this time: 2026-11-18T06:00:00Z
    #[arg(
        long,
        value_name = "TIME",
        value_parser = humantime::parse_rfc3339_weak,
        conflicts_with = "delay"
    )]
    pub(crate) at: Option<std::time::SystemTime>,
    /// At most one job with this key waits
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// What happens to a second job with the key
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value_t = KeyArg::Started,
        requires = "key"
    )]
    pub(crate) unique: KeyArg,
    /// Jobs of one lane run one at a time, or as many as --lane-limit says
    #[arg(long, value_name = "LANE")]
    pub(crate) lane: Option<String>,
    /// How many jobs of the lane run at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "lane")]
    pub(crate) lane_limit: u32,
    /// How many attempts may fail before the job is dead
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) max_attempts: u32,
    /// The longest pause after the first attempt; it doubles with each attempt
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "1s")]
    pub(crate) back_off: Duration,
    /// The longest pause between two attempts
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "1h")]
    pub(crate) max_back_off: Duration,
}

/// What happens to a second job with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyArg {
    /// Refused while the first one waits
    Started,
    /// Refused until the first one is done
    Done,
    /// Takes the place of the first one if that waits
    Replace,
}

/// `tenure work`.
#[derive(Args, Debug)]
pub(crate) struct WorkArgs {
    /// The queue
    pub(crate) queue: String,
    /// How many jobs run at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) slots: usize,
    /// How long jobs stay with this worker if its host is cut off from the store
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) lease: Option<Duration>,
    /// After exit code 75, the next attempt begins after this long
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "60s")]
    pub(crate) later: Duration,
    /// How long running commands have when the worker is stopped
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "10s")]
    pub(crate) grace: Duration,
    /// Exit when no job is ready, blocked or running
    #[arg(long)]
    pub(crate) drain: bool,
    /// Wait for the disk before a job begins in the place of one that is done: what is done never
    /// runs again, not even after a loss of power
    #[arg(long)]
    pub(crate) durably: bool,
    /// A label shown in `ls`, `show` and error messages
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// The command, with the payload on its standard input
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tenure jobs`.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) command: JobsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List queues with their counts
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure jobs queues\n  tenure jobs queues --json"
    )]
    Queues,
    /// List the jobs of a queue
    #[command(
        visible_alias = "ls",
        help_template = HELP,
        before_help = "\
Examples:
  tenure jobs list mail
  tenure jobs list mail --state running --json"
    )]
    List(JobListArgs),
    /// Show one job in full: payload, progress, the errors of its attempts. Exit code 1 if unknown
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure jobs show mail 17\n  tenure jobs show mail 17 --json"
    )]
    Show(JobArgs),
    /// List dead jobs: those whose attempts are used up
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs dead mail")]
    Dead(QueueArgs),
    /// Make a dead job ready, with all its attempts. Exit code 1 if it is not dead
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs retry mail 17")]
    Retry(JobArgs),
    /// Remove a job that waits; tell the worker of one that runs
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs cancel mail 17")]
    Cancel(JobArgs),
    /// Remove a job that is dead or done
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs delete mail 17")]
    Delete(JobArgs),
    /// Hand out no job until `tenure jobs resume`
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs pause mail")]
    Pause(QueueArgs),
    /// Hand out jobs again
    #[command(help_template = HELP, before_help = "Examples:\n  tenure jobs resume mail")]
    Resume(QueueArgs),
    /// Change the settings that the store keeps for a queue
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure jobs set mail --keep-dead 7d --keep-done 1h --aging 10s"
    )]
    Set(QueueSetArgs),
    /// Jobs that a queue gets again and again, by a cron expression
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure jobs cron add report nightly '30 3 * * *' --zone Europe/Berlin 'all accounts'
  tenure jobs cron list report
  tenure jobs cron remove report nightly"
    )]
    Cron(CronArgs),
}

/// `tenure jobs cron`.
#[derive(Args, Debug)]
pub(crate) struct CronArgs {
    #[command(subcommand)]
    pub(crate) command: CronCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CronCommand {
    /// Add a recurring job, or change the one of this name
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure jobs cron add report nightly '30 3 * * *' 'all accounts'
  tenure jobs cron add sync often '*/10 * * * * *' --lane sync"
    )]
    Add(CronAddArgs),
    /// List the recurring jobs of a queue, with the next run of each
    #[command(
        visible_alias = "ls",
        help_template = HELP,
        before_help = "\
Examples:
  tenure jobs cron list report
  tenure jobs cron list report --json"
    )]
    List(QueueArgs),
    /// Remove a recurring job, and its run that waits. Exit code 1 if there is none of this name
    #[command(
        visible_alias = "rm",
        help_template = HELP,
        before_help = "Examples:\n  tenure jobs cron remove report nightly"
    )]
    Remove(CronNameArgs),
}

/// A recurring job.
#[derive(Args, Debug)]
pub(crate) struct CronNameArgs {
    /// The queue
    pub(crate) queue: String,
    /// The name of the recurring job
    pub(crate) name: String,
}

/// `tenure jobs cron add`.
#[derive(Args, Debug)]
pub(crate) struct CronAddArgs {
    #[command(flatten)]
    pub(crate) of: CronNameArgs,
    /// Minute, hour, day of the month, month, day of the week; seconds may stand before them
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: String,
    /// The payload of each run
    #[arg(default_value = "", allow_hyphen_values = true)]
    pub(crate) payload: String,
    /// The time zone of the expression, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) zone: String,
    /// 0 to 9, larger first
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) priority: u8,
    /// Runs of one lane do not overlap, or as many as --lane-limit says do
    #[arg(long, value_name = "LANE")]
    pub(crate) lane: Option<String>,
    /// How many jobs of the lane run at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "lane")]
    pub(crate) lane_limit: u32,
    /// How many attempts of a run may fail before it is dead
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) max_attempts: u32,
}

/// A queue.
#[derive(Args, Debug)]
pub(crate) struct QueueArgs {
    /// The queue
    pub(crate) queue: String,
}

/// A job.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// The queue
    pub(crate) queue: String,
    /// The number of the job
    pub(crate) id: u64,
}

/// `tenure jobs list`.
#[derive(Args, Debug)]
pub(crate) struct JobListArgs {
    /// The queue
    pub(crate) queue: String,
    /// Only jobs of this state
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) state: Option<StateArg>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) limit: usize,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    /// Due later
    Scheduled,
    /// Its lane is full
    Blocked,
    /// Can be claimed
    Ready,
    /// In the hands of a worker
    Running,
    /// Failed for good
    Dead,
    /// Complete, and kept
    Done,
}

/// `tenure jobs set`.
#[derive(Args, Debug)]
pub(crate) struct QueueSetArgs {
    /// The queue
    pub(crate) queue: String,
    /// How long dead jobs are kept [default: 30 days]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) keep_dead: Option<Duration>,
    /// How long jobs that are done are kept [default: not at all]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) keep_done: Option<Duration>,
    /// What a step of priority is worth in waiting time; 0 for strict priorities
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) aging: Option<Duration>,
}

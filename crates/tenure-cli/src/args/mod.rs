//! The words of every command, and their help. Knows words, not what they do.

mod cells;
mod jobs;
mod lock;
mod looking;
mod order;
mod rate;
mod shared;
mod values;

use clap::{Parser, Subcommand};

pub(crate) use self::cells::{
    CellCondition, CellGetArgs, CellLsArgs, CellPutArgs, CellRmArgs, CellUpdateArgs, CellWatchArgs,
    CellsArgs, CellsCommand,
};
pub(crate) use self::jobs::{
    CronCommand, JobArgs, JobListArgs, JobsArgs, JobsCommand, KeyArg, PushArgs, QueueSetArgs,
    StateArg, WorkArgs,
};
pub(crate) use self::lock::{AcquireArgs, HandleArgs, HoldArgs, LockArgs, OnLost, RunArgs};
pub(crate) use self::looking::{
    DeadlocksArgs, ForceReleaseArgs, GraphArgs, GraphFormat, KindArg, LeaderArgs, LsArgs, ManArgs,
    MigrateArgs, RaiseFencesArgs, SessionsArgs, ShowArgs, SortArg, WaitArgs, WatchArgs,
};
pub(crate) use self::order::{OrderArgs, OrderCommand, OrderFiles, OrderForm};
pub(crate) use self::rate::RateArgs;
pub(crate) use self::shared::{ColorArg, DeadlocksMode, OutputArg, Shared};

/// Examples first: most readers look for the line they can copy.
pub(crate) const HELP: &str = "\
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
  tenure run reports -- make reports           hold a lock while a command runs
  tenure run deploy --no-wait -- ./deploy.sh   or exit with 75 if it is taken
  tenure run encode --slots 3 -- ffmpeg ...    at most three at once
  tenure ls                                    who holds, who waits
  tenure show deploy                           one lock in full",
    after_help = "\
Exit codes: 0 yes or done, 1 the answer is no, 2 a command that makes no sense, 69 the store
cannot be reached, 75 not obtained. `tenure run --help` has those of run.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) shared: Shared,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    #[command(
        help_template = HELP,
        override_usage = "tenure run [OPTIONS] <NAME> -- <CMD>...\n       \
                          tenure run [OPTIONS] <NAME> -c <STRING>",
        before_help = "\
Examples:
  tenure run reports -- make reports
  tenure run deploy --no-wait -- ./deploy.sh        exit with 75 if it is taken
  tenure run deploy --wait 5m --max-hold 1h -- ./deploy.sh
  tenure run encode --slots 3 -- ffmpeg -i in.mov out.mp4
  tenure run config --shared -- ./read-config       many readers ...
  tenure run config --exclusive -- ./write-config   ... or one writer
  tenure run account:1 --also account:2 -- ./transfer
  tenure run reports -c 'make reports | tee log'    through /bin/sh
  tenure run --elect scheduler -- ./scheduler       whenever it leads, one on all hosts",
        after_help = "\
Exit codes: the command's own; 128+N if signal N ended it; 75 (or -E) the lock was not obtained,
or refused to break a deadlock, and the command never ran; 69 the store cannot be reached; 123 the
lock was lost and the command was stopped; 124 --max-hold passed; 125 tenure itself failed; 126 the
command cannot be executed; 127 it was not found.

The command finds TENURE_NAME, TENURE_FENCE, TENURE_MODE, TENURE_NAMESPACE, TENURE_LEASE_ID,
TENURE_LEASE_MS, TENURE_HELD and TENURE_OWNER in its environment. A `tenure run` inside it may
enter what the outer one holds.

With --elect the command starts when this candidate is elected, and finds the term in TENURE_TERM.
It is stopped before another candidate can lead. Then, or when it ends by itself, the candidate
waits for its next turn: until INT, TERM or QUIT stops tenure, or for one turn with --once."
    )]
    Run(RunArgs),
    /// Hold a lock until a signal comes: no command, no end of its own
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure hold maintenance                 until Ctrl-C or `kill`
  tenure hold maintenance --json          prints the grant, then holds",
        after_help = "\
Exit codes: 0 after INT, TERM or HUP; 75 (or -E) not obtained; 69 the store cannot be reached, or
did not confirm that the lock was given back; 123 the lock was lost; 124 --max-hold passed; 128+N
if signal N ended it before it held."
    )]
    Hold(HoldArgs),
    /// Take a lock that outlives this command, and print a handle to it
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  handle=$(tenure acquire deploy --lease 60s) || exit
  tenure renew \"$handle\" || exit         before every lease ends
  tenure release \"$handle\"
  eval \"$(tenure acquire deploy --export)\"   sets TENURE_HANDLE and TENURE_FENCE",
        after_help = "\
Nothing renews the lock by itself: it ends with its lease unless `tenure renew` comes in time.
The handle is the right to renew and release. Prefer `tenure run` where a command can be wrapped.

Exit codes: 0 it is yours; 75 (or -E) not obtained; 69 the store cannot be reached; 128+N if
signal N ended it."
    )]
    Acquire(AcquireArgs),
    /// Keep a lock of `tenure acquire` for another lease: exit code 0, or 1 if it is gone
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure renew \"$handle\" || exit 1"
    )]
    Renew(HandleArgs),
    /// Give a lock of `tenure acquire` back: exit code 0, or 1 if it was gone already
    #[command(help_template = HELP, before_help = "Examples:\n  tenure release \"$handle\"")]
    Release(HandleArgs),
    /// Wait until a lock is free, and take nothing
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure wait deploy
  tenure wait deploy --wait 10s || echo 'still deploying'",
        after_help = "Exit codes: 0 it is free; 75 it was not within --wait."
    )]
    Wait(WaitArgs),
    /// List locks: who holds, who waits
    #[command(
        visible_alias = "list",
        help_template = HELP,
        before_help = "\
Examples:
  tenure ls
  tenure ls 'account:*' --waiting
  tenure ls --sort age -o wide
  tenure ls --json"
    )]
    Ls(LsArgs),
    /// Show one lock: its holders, and its queue in order. Exit code 1 if it has neither
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure show deploy\n  tenure show deploy --json"
    )]
    Show(ShowArgs),
    /// Print who leads an election. Exit code 1 if there is no leader
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure leader scheduler
  tenure leader scheduler --json
  tenure leader scheduler --watch         every change, as it happens",
        after_help = "\
Exit codes: 0 there is a leader; 1 there is none, or none that has published its value yet; 69 the
store cannot be reached. With --watch the store tells of changes; nothing polls."
    )]
    Leader(LeaderArgs),
    /// Print what happens, as it happens
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure watch
  tenure watch 'account:*'
  tenure watch --json | jq .        one JSON object per line, also whenever it is piped",
        after_help = "\
Built from repeated inspection: a lock that is acquired and released between two inspections is
not seen. The locks themselves pay nothing for it."
    )]
    Watch(WatchArgs),
    /// Draw who waits for whom, deadlocks first
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure graph
  tenure graph account:1                      what is connected with one lock
  tenure graph --format dot | dot -Tpng > waits.png
  tenure graph --check || echo 'a deadlock'",
        after_help = "\
Exit codes: 0; with --check 1 if there is a deadlock; 69 the store cannot be reached."
    )]
    Graph(GraphArgs),
    /// Print deadlocks: owners that hold locks and wait for each other for ever
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure deadlocks
  tenure deadlocks --json
  tenure deadlocks --watch",
        after_help = "\
Refuses nothing. The sessions that wait break a deadlock themselves, after about a second, where
the engine can (`tenure promises`). Exit codes: 0 there is none; 1 there is one."
    )]
    Deadlocks(DeadlocksArgs),
    /// List the processes that hold or wait, and for what
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure sessions
  tenure sessions 3f9a
  tenure sessions --json"
    )]
    Sessions(SessionsArgs),
    /// Read, write, list and watch cells: versioned values beside the locks
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure cells put config:mail on
  tenure cells get config:mail
  tenure cells put leader host-7 --if-absent --ttl 30s
  tenure cells ls 'config:*'
  tenure cells watch --prefix config:",
        after_help = "\
A cell and a lock of one name are two things. Exit code 1 means no: no such cell, or a condition
that does not hold.",
        subcommand_required = true,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Cells(CellsArgs),
    /// Show, export, check, compare and draw the order in which services take locks
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure order show                       the order that services have learned
  tenure order export > billing.order     after a test run with TENURE_ORDER=warn
  tenure order check *.order              exit code 1 if they can deadlock together
  tenure order check *.order --declared order.txt --silenced order.silenced
  tenure order diff old.order new.order
  tenure order graph --format mermaid",
        after_help = "\
Without files, the edges are those that services have written to the store: see --order. A file
of a declared order has one class of names per line, the first to be taken first. A file of
silenced edges has lines of the form `held -> acquired : reason`.",
        subcommand_required = true,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Order(OrderArgs),
    /// Add a job to a queue, and print its number
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure push mail 'to: ann@example.org'
  tenure push mail < message.json                     from standard input
  tenure push mail --priority 9 --in 10m urgent
  tenure push report --key monthly --unique done ''   at most one until it is done
  tenure push sync --lane host-7 full                 one at a time in that lane
  printf 'a\\nb\\n' | tenure push mail --lines        a job for each line",
        after_help = "\
When it exits, the job is as durable as the store. Exit codes: 0 added; 1 a job with the key is
there already: its number is printed, and nothing was added; 69 the store cannot be reached."
    )]
    Push(PushArgs),
    /// Run a command for each job of a queue
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure work mail --slots 4 -- ./send-mail
  tenure work mail --drain -- sh -c 'cat; echo job $TENURE_JOB attempt $TENURE_ATTEMPT'",
        after_help = "\
The command gets the payload on standard input, and TENURE_QUEUE, TENURE_JOB, TENURE_ATTEMPT and
TENURE_FENCE in its environment. Its exit code says what became of the job: 0 done; 75 later, which
does not count as an attempt; any other has failed, and is tried again after a pause until its
attempts are used up.

If the worker dies, is stopped, or loses the store for a lease, the command and all it has started
are killed before the job can go to another worker. INT, TERM and HUP stop the worker: commands that
run have --grace to finish, the rest is given back.

Exit codes: 0 stopped by a signal or --drain; 69 the store cannot be reached."
    )]
    Work(WorkArgs),
    /// Show and change the jobs of queues
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure jobs queues
  tenure jobs list mail
  tenure jobs show mail 17
  tenure jobs dead mail
  tenure jobs retry mail 17",
        after_help = "Exit code 1 means no: no such job, or one in another state.",
        subcommand_required = true,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Jobs(JobsArgs),
    /// Take permits of a rate: at most so many in every window of time
    #[command(
        help_template = HELP,
        override_usage = "tenure rate [OPTIONS] <NAME> --limit <N/DUR> [-- <CMD>...]",
        before_help = "\
Examples:
  tenure rate api --limit 100/1s || echo 'too many'
  tenure rate mail --limit 10/1m --limit 500/1day --wait 2m -- ./send-mail
  tenure rate tokens --limit 100000/1m --cost 1200 --json
  tenure rate api --limit 100/1s --peek             how many are left
  tenure rate api --reset                           forget what was taken",
        after_help = "\
A limit holds in every window of its length, across all processes and hosts that use the store.
All limits are checked and counted in one step. With --wait the permits are reserved for the
earliest instant at which they fit, in the order of the requests.

Exit codes: 0 taken, or that of the command; 75 refused, and nothing was taken: how long to wait is
said in words and, with --json, as retry_after_ms; 1 the rate is in use with other windows; 69 the
store cannot be reached; 126 the command cannot be executed; 127 it was not found."
    )]
    Rate(RateArgs),
    /// Release by force exactly one grant; its holder learns the reason
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure show deploy                                       see the fence
  tenure force-release deploy --fence 1763258112345678 --reason 'host is gone'",
        after_help = "\
Exit code 1 if no holder has that fence: then the lock has changed hands, and nothing was
released."
    )]
    ForceRelease(ForceReleaseArgs),
    /// Raise the fences of the namespace, for a service that moves here from another store
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure raise-fences --url redis://old                    print how far fences have got there
  tenure raise-fences --url embedded: --to 1763258112345678",
        after_help = "\
Every later grant has a fence above the number, whatever its name; who holds keeps the fence it
has. On some stores this holds for all namespaces of the store.

Exit codes: 0 done; 1 fences may have reached the number already, nothing was changed; 2 the
number is out of range, or the store has no floor of fences; 69 the store cannot be reached."
    )]
    RaiseFences(RaiseFencesArgs),
    /// Check configuration, store and clock, and say what is wrong
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure doctor
  tenure doctor --url redis://127.0.0.1
  tenure doctor --json",
        after_help = "\
Exit code 0 if nothing is bad (notes are not), 69 if the store cannot be reached, otherwise 1."
    )]
    Doctor,
    /// Make the schema that locks in PostgreSQL need, or bring it to the newest version
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure migrate --url postgres://admin@host/database
  tenure migrate --url postgres://host/database --print | psql ...",
        after_help = "Exit codes: 0 done, or nothing to do; 69 the database cannot be reached."
    )]
    Migrate(MigrateArgs),
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
jobs          queues of jobs: tenure push, tenure work
wake          push: the store tells a waiter; poll: the waiter asks again
deadlocks     broken: one wait is refused; reported: none is; unseen: not looked for
survives      what a held lock survives
drift         how much clocks may drift apart, in percent of the lease"
    )]
    Promises,
    /// List the presets that `--preset` knows: the built-in ones and those of the config file
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure presets
  tenure presets --json
  tenure run reports --preset batch -- ./report",
        after_help = "\
A built-in preset whose lease is longer than --max-lease is shortened to it; the list says so."
    )]
    Presets,
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
    /// Print a completion script for a shell
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish"
    )]
    Completions {
        /// Which shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a directory
    #[command(
        help_template = HELP,
        before_help = "\
Examples:
  tenure man | man -l -
  tenure man --dir ~/.local/share/man/man1"
    )]
    Man(ManArgs),
    /// Print the version and the engines that are built in
    #[command(
        help_template = HELP,
        before_help = "Examples:\n  tenure version\n  tenure version --json"
    )]
    Version,
}

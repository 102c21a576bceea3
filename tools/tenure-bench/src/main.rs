//! Measures Tenure and prints one figure per line. Parses, runs, exits.
//!
//! Times differ from machine to machine, so what counts is the ratio to a reference of the same
//! run, and counts that no machine changes.

mod benches;
mod engines;
mod figure;
mod heap;
mod progress;
mod run;
mod stats;
mod system_calls;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::benches::jobs::Peers;
use crate::benches::processes::Worker;
use crate::figure::{Figure, Layout};
use crate::run::{Bench, Run, Store};

/// Measures Tenure: one figure per line, with its ratio to a reference of the same run.
#[derive(Debug, Parser)]
#[command(
    help_template = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}",
    before_help = "Examples:\n  \
        tenure-bench cells\n  \
        tenure-bench command\n  \
        tenure-bench election\n  \
        tenure-bench embedded\n  \
        tenure-bench etcd\n  \
        tenure-bench jobs\n  \
        tenure-bench jobs --peers /tmp/peers\n  \
        tenure-bench looking\n  \
        tenure-bench memory\n  \
        tenure-bench memory --only handoff_1024\n  \
        tenure-bench memory --quick --json\n  \
        tenure-bench order\n  \
        tenure-bench postgres\n  \
        tenure-bench rates\n  \
        tenure-bench redis\n  \
        tenure-bench redlock\n  \
        tenure-bench updates"
)]
struct Arguments {
    #[command(subcommand)]
    engine: Engine,
}

/// What is measured.
#[derive(Debug, Subcommand)]
enum Engine {
    /// Cells on every engine with a store of its own
    Cells(Options),
    /// The command `tenure run`, beside `flock`
    Command(Options),
    /// Elections: fail-over and observers, on every engine that has values
    Election(Options),
    /// The embedded engine, in directories of its own
    Embedded(Options),
    /// The etcd engine on a cluster of its own, beside two transactions written by hand
    Etcd(Options),
    /// Queues of jobs, beside a batch written by hand and other job queues
    Jobs(JobsOptions),
    /// What looking at locks costs the store and the locks
    Looking(Options),
    /// The memory engine, in this process
    Memory(Options),
    /// The order checker: what it adds to a lock, in this process
    Order(Options),
    /// The PostgreSQL engine on servers of its own, beside what is written by hand
    Postgres(Options),
    /// Rates, beside a bare GCRA script, a bare upsert function, a lock and `governor`
    Rates(Options),
    /// The Redis engine on a server of its own, beside what is written by hand and `rslock`
    Redis(Options),
    /// The quorum engine on nodes of its own, beside what is written by hand and `rslock`
    Redlock(Options),
    /// Updates of cells without a lock, beside get and put and a naive loop
    Updates(Options),
    /// What other processes of a benchmark do
    #[command(subcommand, hide = true)]
    Worker(Worker),
}

/// How it is measured and shown, the same for every engine.
#[derive(Args, Debug)]
struct Options {
    /// Small counts: shows that everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
    /// Run this benchmark alone
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// The same, and where the peers are.
#[derive(Args, Debug)]
struct JobsOptions {
    #[command(flatten)]
    options: Options,
    /// The directory into which `peers/peers.sh` has installed other job queues
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { engine } = Arguments::parse();
    let done = match engine {
        Engine::Cells(options) => measure(&options, Store::Remote, benches::cells::benches()),
        Engine::Jobs(options) => measure_jobs(&options),
        Engine::Looking(options) => measure(&options, Store::Remote, benches::looking::benches()),
        Engine::Command(options) => measure(&options, Store::Local, benches::command::benches()),
        Engine::Election(options) => measure(&options, Store::Local, benches::election::benches()),
        Engine::Embedded(options) => measure(&options, Store::Local, engines::embedded::benches()),
        Engine::Etcd(options) => measure(&options, Store::Remote, engines::etcd::benches()),
        Engine::Worker(worker) => worker.work().map_err(|error| error.to_string()),
        Engine::Memory(options) => measure(&options, Store::Local, engines::memory::benches()),
        Engine::Order(options) => measure(&options, Store::Local, benches::order::benches()),
        Engine::Postgres(options) => measure(&options, Store::Remote, engines::postgres::benches()),
        Engine::Redis(options) => measure(&options, Store::Remote, engines::redis::benches()),
        Engine::Rates(options) => measure(&options, Store::Remote, benches::rates::benches()),
        Engine::Updates(options) => measure(&options, Store::Remote, benches::updates::benches()),
        Engine::Redlock(options) => measure(&options, Store::Remote, engines::redlock::benches()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("tenure-bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Says which peers take part, and measures.
fn measure_jobs(JobsOptions { options, peers }: &JobsOptions) -> Result<(), String> {
    let peers = Peers::find(peers.as_deref());
    let layout = layout(options);
    for peer in peers.versions() {
        layout.peer(&mut io::stdout().lock(), peer).map_err(|error| error.to_string())?;
    }
    measure(options, Store::Remote, benches::jobs::benches(&peers))
}

/// Runs what was asked for and shows each figure as soon as it is known.
fn measure(options: &Options, store: Store, mut benches: Vec<Bench>) -> Result<(), String> {
    let names: Vec<&str> = benches.iter().flat_map(|bench| bench.names).copied().collect();
    if let Some(only) = &options.only {
        if !names.contains(&only.as_str()) {
            return Err(format!("no benchmark {only:?}; there are {}", names.join(", ")));
        }
        benches.retain(|bench| bench.names.contains(&only.as_str()));
    }
    let run = Run::new(options.quick, benches.len(), store).map_err(|error| error.to_string())?;
    let layout = layout(options);
    show(&run, || layout.head(&mut io::stdout().lock()))?;
    let wanted = |figure: &Figure| {
        options.only.as_ref().is_none_or(|only| {
            // Beside one of several peers.
            *only == figure.bench || figure.bench.starts_with(&format!("{only}_vs_"))
        })
    };
    for bench in benches {
        run.progress.begin(bench.names);
        let figures = (bench.measure)(&run).map_err(|error| error.to_string())?;
        for figure in figures.iter().filter(|figure| wanted(figure)) {
            show(&run, || layout.line(&mut io::stdout().lock(), figure))?;
        }
    }
    run.progress.end();
    Ok(())
}

fn layout(options: &Options) -> Layout {
    if options.json { Layout::Json } else { Layout::Table }
}

fn show(run: &Run, write: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
    run.progress.aside(write).map_err(|error| format!("cannot write: {error}"))
}

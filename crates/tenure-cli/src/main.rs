//! The `tenure` command. Parses, runs, exits.
//!
//! Exit codes are in `failure.rs`, and in the help of each command.

mod args;
mod asking;
mod commands;
mod config;
mod ending;
mod failure;
mod handle;
mod interrupts;
mod output;
mod reactor;
mod run;
mod settings;
mod signals;
mod waiting_line;
mod wanted;
mod work;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Arguments, ColorArg, Command, RunArgs, Shared};
use crate::failure::Failure;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|word| word == run::ARGV0) {
        return ExitCode::from(run::guardian_main(words));
    }
    if std::env::args_os().next().is_some_and(|word| word == work::ARGV0) {
        return ExitCode::from(work::keeper_main(words));
    }
    if let Some(Line { shared, run }) = Line::of_run() {
        return exit(run::run(&shared, &run));
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return misunderstood(&error),
    };
    if let ColorArg::Always | ColorArg::Never = arguments.shared.color {
        let always = arguments.shared.color == ColorArg::Always;
        let choice =
            if always { anstream::ColorChoice::Always } else { anstream::ColorChoice::Never };
        choice.write_global();
    }
    let done = match &arguments.command {
        Command::Run(run) => run::run(&arguments.shared, run),
        Command::Work(args) => work::run(&arguments.shared, args),
        command => {
            let mut out = io::BufWriter::new(anstream::stdout().lock());
            let done = commands::run(&arguments.shared, command, &mut out);
            done.and_then(|code| Ok(out.flush().map(|()| code)?))
        }
    };
    exit(done)
}

fn exit(done: Result<u8, Failure>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        // The reader has closed the pipe, as `head` does when it has seen enough.
        Err(failure) if failure.broken_pipe => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.code)
        }
    }
}

/// A whole line that begins with `tenure run`: most are, and it is read without the words of all
/// the other commands, which is half of the time it takes.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    shared: Shared,
    #[command(flatten)]
    run: RunArgs,
}

impl Line {
    /// None if it is another command, or if it is not understood: then the whole is asked, which
    /// explains itself better.
    fn of_run() -> Option<Self> {
        let mut words = std::env::args_os().skip(1).peekable();
        let is_run = words.peek().is_some_and(|word| word == "run");
        is_run.then(|| Self::try_parse_from(words).ok())?
    }
}

/// Shows help, or says what makes no sense. A mistake in `tenure run` exits with 125, so that it
/// cannot be taken for the command's own 2.
fn misunderstood(error: &clap::Error) -> ExitCode {
    // If even this cannot be written, the exit code still tells.
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let lenient = Arguments::command().ignore_errors(true).try_get_matches();
    let runs = lenient.is_ok_and(|matches| matches.subcommand_name() == Some("run"));
    ExitCode::from(if runs { failure::OWN } else { failure::USAGE })
}

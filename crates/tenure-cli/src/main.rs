//! The `tenure` command. Parses, runs, exits.
//!
//! Exit codes: 0 for yes and done, 1 for no and failure, 2 for a command that makes no sense.

mod args;
mod commands;
mod promises;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;
use crate::commands::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let done = commands::run(&arguments.command, &mut out);
    match done.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough, as `head` does.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("tenure: {failure}");
            ExitCode::FAILURE
        }
    }
}

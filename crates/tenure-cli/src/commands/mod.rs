//! What each command does, except `run`. Knows the library, not the terminal: output goes where it
//! is told.

mod acquire;
mod cells;
mod doctor;
mod force_release;
mod graph;
mod handles;
mod hold;
mod jobs;
mod leader;
mod looking;
mod migrate;
mod order;
mod paper;
mod presets;
mod promises;
mod raise_fences;
mod rate;
mod waiting;
mod watch;

use std::io::Write;

use tenure::Name;

use crate::args::{Command, Shared};
use crate::failure::{self, Failure};
use crate::settings::Settings;

/// Does what a command says. The answer is the exit code.
pub(crate) fn run(shared: &Shared, command: &Command, out: &mut impl Write) -> Result<u8, Failure> {
    let form = shared.form();
    // Some need no store, and must work whatever the config file says.
    match command {
        Command::Version => return paper::version(form, out),
        Command::Promises => return promises::show(form, out),
        Command::Completions { shell } => return paper::completions(*shell, out),
        Command::Man(args) => return paper::man(args, out),
        Command::CheckName { name } => {
            let checked = Name::try_from(name.as_str());
            return match checked {
                Ok(_) => Ok(0),
                Err(error) => Err(Failure::new(failure::NO, error.to_string())),
            };
        }
        Command::Doctor => return doctor::run(shared, out),
        _ => {}
    }
    let (settings, config) = Settings::new(shared)?;
    match command {
        Command::Hold(args) => {
            let conflict = args.lock.conflict_exit_code;
            hold::run(&settings, &config, args, form, out)
                .map_err(|why| why.conflict(conflict, shared.quiet))
        }
        Command::Acquire(args) => {
            let conflict = args.lock.conflict_exit_code;
            acquire::run(&settings, &config, args, form, out)
                .map_err(|why| why.conflict(conflict, shared.quiet))
        }
        Command::Renew(args) => handles::renew(settings, &args.handle, shared, out),
        Command::Release(args) => handles::release(settings, &args.handle, shared, out),
        Command::Wait(args) => waiting::run(&settings, args),
        Command::Cells(args) => cells::run(&settings, args, form, out),
        Command::Push(args) => jobs::push(&settings, args, form, out),
        Command::Jobs(args) => jobs::run(&settings, args, form, out),
        Command::Order(args) => order::run(&settings, args, form, out),
        Command::Rate(args) => rate::run(&settings, args, form, out),
        Command::Presets => presets::show(&config, form, out),
        Command::Ls(args) => looking::ls(&settings, args, form, out),
        Command::Show(args) => looking::show(&settings, args, form, out),
        Command::Graph(args) => graph::graph(&settings, args, form, out),
        Command::Deadlocks(args) => graph::deadlocks(&settings, args, form, out),
        Command::Sessions(args) => looking::sessions(&settings, args, form, out),
        Command::Leader(args) => leader::run(&settings, args, form, out),
        Command::Watch(args) => watch::run(&settings, args, form, out),
        Command::Migrate(args) => migrate::run(&settings, args, out),
        Command::RaiseFences(args) => raise_fences::run(&settings, args, form, out),
        Command::ForceRelease(args) => force_release::run(&settings, args, form, out),
        _ => Ok(0),
    }
}

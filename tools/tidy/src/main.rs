//! The commands of `tidy`. Parses the arguments and exits; the house rules themselves are tests.

use std::process::ExitCode;

use tidy::dialect::Count;
use tidy::mutants::{self, Options, Work};
use tidy::tree::{root, text_files};

const USAGE: &str = "\
Usage: cargo run -p tidy -- mutants [lua|sql|etcd|redlock|embedded]... [OPTIONS]
       cargo run -p tidy -- words

mutants changes the code of engines, one mistake at a time, and runs their tests against each.
words counts the words of the library's comments, those of stories and those of the field.

Options of mutants:
  --list         print the mutants, run none
  --scores       print how many were judged and caught so far, run none
  --only WHAT    run mutants by their numbers (7, or m7 for a mechanical one), or all whose file
                 or description contains WHAT; commas between several
  --sample N     how many mechanical mutants of Lua and SQL to run (40)
  --jobs N       how many mutants run at a time (2)
  --suites N     run what is about the mutant's file and no more than the N narrowest suites;
                 who survives is then not kept
  --survivors    run those again that survived the last time
  --fresh        forget the results of earlier runs
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["words"] {
        return count_words();
    }
    let options = match arguments.split_first() {
        Some((command, rest)) if command == "mutants" => parse(rest),
        Some((help, _)) if help == "--help" || help == "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => Err("no command".to_owned()),
    };
    let outcome = match options {
        Ok(options) => mutants::run(&options).map_err(|error| error.to_string()),
        Err(why) => Err(format!("{why}\n\n{USAGE}")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("tidy: {why}");
            ExitCode::from(2)
        }
    }
}

/// Prints how the comments of the library are worded.
fn count_words() -> ExitCode {
    let files = match text_files(&root()) {
        Ok(files) => files,
        Err(why) => {
            eprintln!("tidy: the workspace cannot be read: {why}");
            return ExitCode::from(2);
        }
    };
    let mut count = Count::default();
    let library = |path: &str| path.starts_with("crates/tenure/src/");
    for file in files.iter().filter(|file| file.is_rust() && library(&file.path)) {
        count.add(&file.text);
    }
    print!("{count}");
    ExitCode::SUCCESS
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--list" => options.work = Work::List,
            "--scores" => options.work = Work::Scores,
            "--fresh" => options.fresh = true,
            "--survivors" => options.survivors = true,
            "--only" => options.only = Some(value()?.clone()),
            "--sample" => options.sample = number(value()?)?,
            "--suites" => options.suites = number(value()?)?,
            "--jobs" => options.jobs = number(value()?)?.max(1),
            name => options
                .engines
                .push(mutants::engine(name).ok_or_else(|| format!("unknown argument {name:?}"))?),
        }
    }
    Ok(options)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

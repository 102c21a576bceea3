//! `tenure cells`: versioned values beside the locks, read, written, listed and watched.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::process::Stdio;
use std::time::{Instant, SystemTime};

use tenure::{
    CellRange, Error, ErrorKind, Expect, Fence, Name, Pattern, Put, PutVerdict, Tenure, Version,
    WriteId, limits,
};

use crate::args::{
    CellCondition, CellGetArgs, CellLsArgs, CellPutArgs, CellRmArgs, CellUpdateArgs, CellWatchArgs,
    CellsArgs, CellsCommand, OutputArg,
};
use crate::failure::{self, Failure};
use crate::output::{self, CellEvent, CellRow};
use crate::settings::Settings;

/// `tenure cells`.
pub(super) fn run(
    settings: &Settings,
    args: &CellsArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    match &args.command {
        CellsCommand::Get(args) => get(settings, args, form, out),
        CellsCommand::Put(args) => put(settings, args, form, out),
        CellsCommand::Update(args) => update(settings, args, form, out),
        CellsCommand::Rm(args) => remove(settings, args, form, out),
        CellsCommand::Ls(args) => list(settings, args, form, out),
        CellsCommand::Watch(args) => watch(settings, args, form, out),
    }
}

fn get(
    settings: &Settings,
    args: &CellGetArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    let cell = settings.session(|tenure| Ok(tenure.cells().blocking_get(&name)?))?;
    let Some(cell) = cell else {
        return Err(Failure::new(failure::NO, format!("{name}: no such cell")));
    };
    match form {
        OutputArg::Json | OutputArg::Ndjson => output::json(&CellRow::new(&name, &cell), out)?,
        // The bytes as they are, past what strips colours; a terminal gets its prompt on a line of
        // its own.
        _ => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&cell.value)?;
            if stdout.is_terminal() && !cell.value.ends_with(b"\n") {
                stdout.write_all(b"\n")?;
            }
            stdout.flush()?;
        }
    }
    Ok(0)
}

fn put(
    settings: &Settings,
    args: &CellPutArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    let expect = if args.if_absent { Expect::Absent } else { args.condition.expect() };
    let mut put = Put::new(name.clone(), value(args)?).expect(expect).id(WriteId::new());
    put.time_to_live = args.ttl;
    let verdict = settings.session(|tenure| Ok(tenure.cells().blocking_put(&put)?))?;
    written(&name, expect, verdict, form, out)
}

/// The value to write: an argument, a file, or standard input. Reads no more than fits.
fn value(args: &CellPutArgs) -> Result<Vec<u8>, Failure> {
    if let Some(value) = &args.value {
        return Ok(value.clone().into_bytes());
    }
    let unreadable = |from: &str, error: io::Error| Failure::usage(format!("{from}: {error}"));
    let mut value = Vec::new();
    let most = limits::CELL_BYTES as u64 + 1;
    if let Some(path) = &args.file {
        let from = path.display().to_string();
        let file = std::fs::File::open(path).map_err(|error| unreadable(&from, error))?;
        file.take(most).read_to_end(&mut value).map_err(|error| unreadable(&from, error))?;
    } else {
        let stdin = io::stdin().lock();
        let read = stdin.take(most).read_to_end(&mut value);
        read.map_err(|error| unreadable("standard input", error))?;
    }
    Ok(value)
}

fn update(
    settings: &Settings,
    args: &CellUpdateArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    // Why the command failed: the update ends with an error, but the exit code is the command's.
    let mut failed: Option<Failure> = None;
    let updated = settings.session(|tenure| {
        let cell = tenure.cell(&args.name)?;
        let cell = args.wait.map_or(cell.clone(), |wait| cell.timeout(wait));
        let update = cell.update_async(|old| {
            let new = filter(&args.command, &old.unwrap_or_default()).map_err(|why| {
                let error = Error::new(ErrorKind::Conflict, why.message.clone());
                failed = Some(why);
                error
            });
            std::future::ready(new.map(Some))
        });
        Ok(tenure::block_on(update))
    })?;
    match (updated, failed) {
        (_, Some(why)) => Err(why),
        (Ok(updated), None) => {
            let version = updated.version.unwrap_or(Version(0));
            written(&name, Expect::Anything, PutVerdict::Done(version), form, out)
        }
        (Err(error), None) => {
            let taken = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::TimedOut);
            let why = Failure::from(error);
            Err(if taken { Failure::new(failure::NOT_OBTAINED, why.message) } else { why })
        }
    }
}

/// Runs a command with this standard input. Returns what it prints.
fn filter(command: &[OsString], input: &[u8]) -> Result<Vec<u8>, Failure> {
    let (program, arguments) = command.split_first().ok_or_else(|| Failure::usage("no command"))?;
    let shown = program.display();
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let code = if missing { failure::NOT_FOUND } else { failure::NOT_EXECUTABLE };
        Failure::new(code, format!("{shown}: {error}"))
    })?;
    let unread = |error: io::Error| Failure::new(failure::NO, format!("{shown}: {error}"));
    let mut stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that does not read its input to the end is as good as one that does.
            let _ = stdin.as_mut().map(|stdin| stdin.write_all(input));
        });
        child.wait_with_output()
    });
    let output = output.map_err(unread)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    let why = format!("not written: {shown} failed: {}", output.status);
    Err(Failure::new(code.unwrap_or(failure::NO), why))
}

fn remove(
    settings: &Settings,
    args: &CellRmArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = Name::try_from(args.name.as_str())?;
    let expect = args.condition.expect();
    let verdict =
        settings.session(|tenure| Ok(tenure.cells().blocking_remove(&name, expect)?))?;
    written(&name, expect, verdict, form, out)
}

impl CellCondition {
    fn expect(&self) -> Expect {
        match (self.if_version, self.fence) {
            (Some(version), _) => Expect::Version(Version(version)),
            (None, Some(fence)) => Expect::Fence(Fence::new(fence)),
            (None, None) => Expect::Anything,
        }
    }
}

/// Prints the version that was written, or says why nothing was.
fn written(
    name: &Name,
    expect: Expect,
    verdict: PutVerdict,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let present = match verdict {
        PutVerdict::Done(version) => {
            match form {
                OutputArg::Json | OutputArg::Ndjson => {
                    output::json(&std::collections::BTreeMap::from([("version", version.0)]), out)?;
                }
                _ => writeln!(out, "{}", version.0)?,
            }
            return Ok(0);
        }
        PutVerdict::Stale(seen) => {
            let given = match expect {
                Expect::Fence(fence) => format!("fence {fence} is stale: "),
                _ => String::new(),
            };
            let why = format!("{name}: not written: {given}fence {seen} has written the cell");
            return Err(Failure::new(failure::NO, why));
        }
        PutVerdict::Refused(present) => present,
    };
    let why = match (expect, present) {
        (Expect::Version(_), Some(cell)) => format!("it has version {} now", cell.version.0),
        (Expect::Version(_), None) => "it has no value now".to_owned(),
        (_, Some(cell)) => format!("it has a value, of version {}", cell.version.0),
        (_, None) => "it has no value".to_owned(),
    };
    Err(Failure::new(failure::NO, format!("{name}: not written: {why}")))
}

fn list(
    settings: &Settings,
    args: &CellLsArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let pattern = args.pattern.as_deref().map_or_else(Pattern::all, Pattern::new);
    let rows = settings.session(|tenure| Ok(all(tenure, &pattern, args.all)?))?;
    if rows.is_empty() && matches!(form, OutputArg::Table | OutputArg::Wide) {
        if !settings.quiet {
            eprintln!("no cells");
        }
        return Ok(0);
    }
    output::list(form, "cells", &rows, out)?;
    Ok(0)
}

/// All cells that match, page after page.
fn all(tenure: &Tenure, pattern: &Pattern, reserved: bool) -> Result<Vec<CellRow>, Error> {
    let cells = tenure.cells();
    let mut rows = Vec::new();
    let mut after: Option<Name> = None;
    loop {
        let page = tenure::block_on(async {
            if reserved {
                cells.list_all(pattern, after.as_ref(), limits::PAGE).await
            } else {
                cells.list(pattern, after.as_ref(), limits::PAGE).await
            }
        })?;
        rows.extend(page.iter().map(|(name, cell)| CellRow::new(name, cell)));
        if page.len() < limits::PAGE {
            return Ok(rows);
        }
        after = page.into_iter().next_back().map(|(name, _)| name);
    }
}

fn watch(
    settings: &Settings,
    args: &CellWatchArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let range = match (&args.name, &args.prefix) {
        (Some(name), _) => CellRange::One(Name::try_from(name.as_str())?),
        (None, prefix) => CellRange::prefix(prefix.as_deref().unwrap_or_default())?,
    };
    let people = form == OutputArg::Plain
        || (form != OutputArg::Json && form != OutputArg::Ndjson && io::stdout().is_terminal());
    let end = args.long.map(|long| Instant::now() + long);
    settings.session(|tenure| {
        let mut watch = tenure.cells().blocking_watch(range)?;
        // The present state of one cell is printed however short the time is.
        let mut awaited = matches!(watch.range(), CellRange::One(_));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let change = match left {
                Some(left) if !awaited => watch.blocking_next_within(left)?,
                _ => Some(watch.blocking_next()?),
            };
            awaited = false;
            let Some(change) = change else { return Ok(0) };
            let event = CellEvent::new(&change, SystemTime::now());
            if people {
                event.line(out)?;
            } else {
                output::json(&event, out)?;
            }
            out.flush()?;
        }
    })
}

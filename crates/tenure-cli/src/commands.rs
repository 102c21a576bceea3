//! What each command does. Knows the library, not the terminal: output goes where it is told.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use tenure::engine::built_in;
use tenure::{Error, Name};

use crate::args::{Command, Shown};
use crate::promises;

/// Grows when a field of `--json` output changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<(), Failure> {
    match command {
        Command::Version(shown) => version(shown, out),
        Command::Promises(shown) => list_promises(shown, out),
        Command::CheckName { name } => {
            Name::try_from(name.as_str())?;
            Ok(())
        }
    }
}

fn version(shown: &Shown, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Version<'a> {
        version: &'a str,
        engines: Vec<&'a str>,
    }
    let engines = built_in().iter().map(|promises| promises.engine).collect();
    let version = Version { version: env!("CARGO_PKG_VERSION"), engines };
    if shown.json {
        return json(&version, out);
    }
    writeln!(out, "tenure {}", version.version)?;
    writeln!(out, "engines: {}", version.engines.join(", "))?;
    Ok(())
}

fn list_promises(shown: &Shown, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct List<'a> {
        engines: Vec<promises::Row<'a>>,
    }
    let engines: Vec<_> = built_in().into_iter().map(promises::Row::new).collect();
    if shown.json {
        return json(&List { engines }, out);
    }
    out.write_all(promises::table(&engines).as_bytes())?;
    Ok(())
}

/// Writes an answer as one line of JSON that begins with the version of its shape.
fn json(answer: &impl Serialize, out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        answer: &'a T,
    }
    let versioned = Versioned { schema_version: SCHEMA_VERSION, answer };
    let text = serde_json::to_string(&versioned).map_err(io::Error::from)?;
    writeln!(out, "{text}")?;
    Ok(())
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library says no.
    Library(Error),
    /// The output could not be written.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write: {error}"),
        }
    }
}

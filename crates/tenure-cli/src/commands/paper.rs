//! `version`, `completions` and `man`: the commands that need no store.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;
use serde::Serialize;
use tenure::engine::built_in;

use crate::args::{Arguments, ManArgs, OutputArg};
use crate::failure::{self, Failure};
use crate::output;

/// `tenure version`.
pub(super) fn version(form: OutputArg, out: &mut impl Write) -> Result<u8, Failure> {
    #[derive(Serialize)]
    struct Version<'a> {
        version: &'a str,
        engines: Vec<&'a str>,
    }
    let engines = built_in().iter().map(|promises| promises.engine).collect();
    let version = Version { version: env!("CARGO_PKG_VERSION"), engines };
    if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        output::json(&version, out)?;
        return Ok(0);
    }
    writeln!(out, "tenure {}", version.version)?;
    writeln!(out, "engines: {}", version.engines.join(", "))?;
    Ok(0)
}

/// `tenure completions`.
pub(super) fn completions(
    shell: clap_complete::Shell,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tenure", &mut script);
    out.write_all(&script)?;
    Ok(0)
}

/// `tenure man`.
pub(super) fn man(args: &ManArgs, out: &mut impl Write) -> Result<u8, Failure> {
    let mut command = Arguments::command();
    command.build();
    let Some(dir) = &args.dir else {
        Man::new(command).render(out)?;
        return Ok(0);
    };
    let written = || -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        clap_mangen::generate_to(command, dir)
    };
    written().map_err(|error| {
        let message = format!("cannot write manual pages to {}: {error}", dir.display());
        Failure::new(failure::NO, message)
    })?;
    Ok(0)
}

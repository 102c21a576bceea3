//! `tenure raise-fences`: lifts the fences of a namespace above those of the store that a service
//! moves from, or tells how far they have got.

use std::io::Write;

use serde::Serialize;

use crate::args::{OutputArg, RaiseFencesArgs};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Raises the fences, if a number is given, and prints how far they have got.
pub(super) fn run(
    settings: &Settings,
    args: &RaiseFencesArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    #[derive(Serialize)]
    struct Fences {
        highest: u64,
        raised: bool,
    }
    let highest = settings.session(|tenure| {
        if let Some(to) = args.to {
            tenure::block_on(tenure.raise_fences(to))?;
        }
        Ok(tenure::block_on(tenure.highest_fence())?.get())
    })?;
    let raised = args.to.is_some();
    match (form, args.to) {
        (OutputArg::Json | OutputArg::Ndjson, _) => output::json(&Fences { highest, raised }, out)?,
        (OutputArg::Plain, _) | (_, None) => writeln!(out, "{highest}")?,
        (_, Some(to)) => writeln!(out, "every later grant has a fence above {to}")?,
    }
    Ok(0)
}

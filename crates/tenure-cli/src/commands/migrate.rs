//! `tenure migrate`: makes the schema of a PostgreSQL store. Knows which stores have one.

use std::io::Write;

use tenure::engine::postgres;

use crate::args::MigrateArgs;
use crate::failure::Failure;
use crate::settings::Settings;

/// Brings the schema in, or prints how.
pub(super) fn run(
    settings: &Settings,
    args: &MigrateArgs,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    if !matches!(settings.scheme(), "postgres" | "postgresql") {
        let what = format!("a store of {}: URLs has no schema", settings.scheme());
        return Err(Failure::usage(format!("{what}; name one with --url postgres://...")));
    }
    if args.print {
        write!(out, "{}", postgres::statements(&settings.url)?)?;
    } else {
        tenure::block_on(postgres::migrate(&settings.url))?;
    }
    Ok(0)
}

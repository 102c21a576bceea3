//! How answers are shown: columns for people, tabs or JSON for programs. Knows forms, not answers.

mod cells;
mod deadlocks;
mod jobs;
mod order;
mod views;

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use comfy_table::{Table, presets};
use serde::Serialize;

pub(crate) use self::cells::{CellEvent, CellRow, hex};
pub(crate) use self::deadlocks::DeadlockRow;
pub(crate) use self::jobs::{JobRow, QueueRow, RecurringRow};
pub(crate) use self::order::{EdgeJson, GraphJson, ReportJson};
pub(crate) use self::views::{About, HolderRow, LockEvent, LockRow, SessionRow, kind_of, millis};
use crate::args::OutputArg;

/// Grows when a field of `--json` output changes its meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Headings and the like.
pub(crate) const STRONG: Style = Style::new().bold();
/// All is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Something to look at.
pub(crate) const CAREFUL: Style = AnsiColor::Yellow.on_default();
/// Something is wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// One row of a list.
pub(crate) trait Row: Serialize {
    /// The headings of the columns; those after `NARROW` are for wide tables alone.
    const HEAD: &'static [&'static str];
    /// How many columns an ordinary table has.
    const NARROW: usize;

    /// The cells, as many as there are headings.
    fn cells(&self) -> Vec<String>;
}

/// Shows a list in the form that was asked for. `key` names it in JSON.
pub(crate) fn list<R: Row>(
    form: OutputArg,
    key: &'static str,
    rows: &[R],
    out: &mut impl Write,
) -> io::Result<()> {
    match form {
        OutputArg::Json => json(&std::collections::BTreeMap::from([(key, rows)]), out),
        OutputArg::Ndjson => rows.iter().try_for_each(|row| json(row, out)),
        OutputArg::Plain => {
            rows.iter().try_for_each(|row| writeln!(out, "{}", row.cells().join("\t")))
        }
        OutputArg::Table => table(R::HEAD, R::NARROW, rows.iter().map(Row::cells), out),
        OutputArg::Wide => table(R::HEAD, R::HEAD.len(), rows.iter().map(Row::cells), out),
    }
}

/// Writes columns under headings.
pub(crate) fn table(
    head: &[&str],
    columns: usize,
    rows: impl Iterator<Item = Vec<String>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().take(columns));
    for cells in rows {
        table.add_row(cells.into_iter().take(columns));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for (at, line) in table.lines().enumerate() {
        let line = line.trim_end();
        match at {
            0 => writeln!(out, "{STRONG}{line}{STRONG:#}")?,
            _ => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

/// Writes an answer as one line of JSON that begins with the version of its shape.
pub(crate) fn json(answer: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        answer: &'a T,
    }
    let versioned = Versioned { schema_version: SCHEMA_VERSION, answer };
    let text = serde_json::to_string(&versioned)?;
    writeln!(out, "{text}")
}

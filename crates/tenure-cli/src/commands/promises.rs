//! What the built-in engines promise, as rows of a table. Knows words and columns, not engines.

use std::fmt::Debug;
use std::io::Write;

use serde::Serialize;
use tenure::Promises;
use tenure::engine::built_in;

use crate::args::OutputArg;
use crate::failure::Failure;
use crate::output;

/// `tenure promises`.
pub(super) fn show(form: OutputArg, out: &mut impl Write) -> Result<u8, Failure> {
    #[derive(Serialize)]
    struct List<'a> {
        engines: Vec<Row<'a>>,
    }
    let engines: Vec<_> = built_in().into_iter().map(Row::new).collect();
    if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        output::json(&List { engines }, out)?;
    } else {
        out.write_all(table(&engines).as_bytes())?;
    }
    Ok(0)
}

/// The promises of one engine, in words. The field names are those of the library.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "a promise is given or not")]
struct Row<'a> {
    engine: &'a str,
    fencing: String,
    fencing_rests_on: &'a str,
    fence_floor: bool,
    queue: bool,
    sharing: bool,
    counting: bool,
    atomic_sets: bool,
    cells: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    lists_rest_on: &'a str,
    jobs: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    lacks_jobs_because: &'a str,
    deadlocks: String,
    rates: bool,
    no_rates_because: &'a str,
    wake: String,
    survives: Vec<String>,
    replicas: bool,
    drift_percent: u32,
}

impl<'a> Row<'a> {
    fn new(promises: &'a Promises) -> Self {
        Self {
            engine: promises.engine,
            fencing: word(promises.fencing),
            fencing_rests_on: promises.fencing_rests_on,
            fence_floor: promises.fence_floor,
            queue: promises.queue,
            sharing: promises.sharing,
            counting: promises.counting,
            atomic_sets: promises.atomic_sets,
            cells: promises.cells,
            lists_rest_on: promises.lists_rest_on,
            jobs: promises.jobs,
            lacks_jobs_because: promises.lacks_jobs_because,
            deadlocks: word(promises.deadlocks),
            rates: promises.rates,
            no_rates_because: promises.no_rates_because,
            wake: word(promises.wake),
            survives: promises.survives.iter().map(word).collect(),
            replicas: promises.replicas,
            drift_percent: promises.drift_percent,
        }
    }

    /// The cells, in the order of [`HEAD`].
    fn cells(&self) -> [String; HEAD.len()] {
        let answer = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let survives =
            if self.survives.is_empty() { "-".to_owned() } else { self.survives.join(" ") };
        [
            self.engine.to_owned(),
            self.fencing.clone(),
            answer(self.queue),
            answer(self.sharing),
            answer(self.counting),
            answer(self.atomic_sets),
            answer(self.jobs),
            self.deadlocks.clone(),
            answer(self.rates),
            self.wake.clone(),
            survives,
            answer(self.replicas),
            format!("{}%", self.drift_percent),
        ]
    }
}

const HEAD: [&str; 13] = [
    "engine",
    "fencing",
    "queue",
    "read-write",
    "semaphores",
    "sets",
    "jobs",
    "deadlocks",
    "rates",
    "wake",
    "survives",
    "replicas",
    "drift",
];

/// What a yes in that column is for.
const REPLICAS: &str = "
What replicas are for: with --replicas N a lock is held only once N of them have it, so that a
fail-over to one of these does not forget it. They do not make fences strict.
";

/// The rows for people: a table, and below it what is too long for a column.
fn table(rows: &[Row<'_>]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; HEAD.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let padded = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let padded: Vec<String> = padded.collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text.push_str("\nWhat the fences rest on:\n");
    for Row { engine, fencing_rests_on, .. } in rows {
        let width = widths[0];
        text.extend(["  ", &format!("{engine:<width$}"), "  ", fencing_rests_on, "\n"]);
    }
    text.push_str("\nWhat lists of cells rest on:\n");
    for Row { engine, lists_rest_on, .. } in rows.iter().filter(|row| row.cells) {
        let width = widths[0];
        text.extend(["  ", &format!("{engine:<width$}"), "  ", lists_rest_on, "\n"]);
    }
    text.push_str("\nWithout rates:\n");
    for Row { engine, no_rates_because, .. } in rows.iter().filter(|row| !row.rates) {
        let width = widths[0];
        text.extend(["  ", &format!("{engine:<width$}"), "  ", no_rates_because, "\n"]);
    }
    text.push_str(REPLICAS);
    text
}

/// The name of a value, as a word: `ClockBounded` is `clock-bounded`.
fn word(value: impl Debug) -> String {
    let mut word = String::new();
    for char in format!("{value:?}").chars() {
        if char.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(char.to_lowercase());
    }
    word
}

#[cfg(test)]
mod tests {
    use tenure::contract::{Fencing, Survives, Wake};
    use tenure::engine::memory;

    use super::*;

    #[test]
    fn every_promise_has_a_word() {
        assert_eq!(word(Fencing::Strict), "strict");
        assert_eq!(word(Fencing::ClockBounded), "clock-bounded");
        assert_eq!(word(Wake::Poll), "poll");
        assert_eq!(word(Survives::StoreRestart), "store-restart");
    }

    #[test]
    fn columns_stay_in_line_whatever_stands_in_them() {
        let mut strong = memory::PROMISES;
        strong.engine = "a-store-with-a-long-name";
        strong.survives = &[Survives::ClientCrash, Survives::PowerLoss];
        let rows = [Row::new(&memory::PROMISES), Row::new(&strong)];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        let drift = lines[0].find("drift").unwrap();
        assert_eq!(lines[1].find("0%"), Some(drift), "{text}");
        assert!(lines[2].contains("client-crash power-loss"), "{text}");
    }
}

//! `tenure leader`: who leads an election, once or at every change.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure::contract::{Shape, short};
use tenure::{Leader, Observed};

use crate::args::{LeaderArgs, OutputArg};
use crate::failure::{self, Failure};
use crate::output::{self, About, HolderRow, STRONG};
use crate::settings::Settings;

/// An election, as it is printed.
#[derive(Debug, Serialize)]
struct ElectionRow<'a> {
    name: &'a str,
    /// Only with `--watch`: when it was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    leader: Option<LeaderRow>,
}

/// A leader, as it is printed.
#[derive(Debug, Serialize)]
struct LeaderRow {
    #[serde(flatten)]
    about: About,
    term: u64,
    since: String,
    led_for_ms: u64,
    expires_in_ms: u64,
    /// None if it is not text.
    value: Option<String>,
    /// The bytes in hexadecimal, only if they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

impl LeaderRow {
    fn new(leader: &Leader) -> Self {
        let HolderRow { about, since, held_for_ms: led_for_ms, expires_in_ms, .. } =
            HolderRow::new(Shape::Lock, &leader.holder);
        let value = String::from_utf8(leader.value.clone()).ok();
        let hex = || output::hex(&leader.value);
        let value_hex = value.is_none().then(hex);
        let term = leader.term.get();
        Self { about, term, since, led_for_ms, expires_in_ms, value, value_hex }
    }

    /// The value for people: nothing in it moves the cursor.
    fn shown(&self) -> String {
        match (&self.value, &self.value_hex) {
            (Some(text), _) if text.is_empty() => "-".to_owned(),
            (Some(text), _) => text.escape_debug().to_string(),
            (None, hex) => format!("0x{}", hex.as_deref().unwrap_or_default()),
        }
    }
}

/// Asks once, or observes.
pub(super) fn run(
    settings: &Settings,
    args: &LeaderArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = args.name.as_str();
    settings.session(|tenure| {
        let election = tenure.election(name)?;
        if !args.watch {
            let leader = election.blocking_leader()?.as_ref().map(LeaderRow::new);
            let row = ElectionRow { name, at: None, leader };
            // A program reads the answer, and `null` is one.
            let is_json = matches!(form, OutputArg::Json | OutputArg::Ndjson);
            if row.leader.is_some() || is_json {
                print(&row, form, out)?;
                return Ok(if row.leader.is_some() { 0 } else { failure::NO });
            }
            return Err(Failure::new(failure::NO, format!("{name}: no leader")));
        }
        let mut observer = election.blocking_observe()?;
        loop {
            let leader = match observer.blocking_next()? {
                Observed::Leader(leader) => Some(LeaderRow::new(&leader)),
                Observed::Vacant => None,
            };
            let at = Some(humantime::format_rfc3339_millis(SystemTime::now()).to_string());
            print(&ElectionRow { name, at, leader }, form, out)?;
            out.flush()?;
        }
    })
}

fn print(row: &ElectionRow<'_>, form: OutputArg, out: &mut impl Write) -> io::Result<()> {
    let name = row.name;
    match (form, &row.leader) {
        (OutputArg::Json | OutputArg::Ndjson, _) => output::json(row, out),
        (OutputArg::Plain, Some(leader)) => {
            let (who, value) = (leader.about.short(), leader.shown());
            writeln!(out, "{name}\t{}\t{who}\t{}\t{value}", leader.term, leader.since)
        }
        (OutputArg::Plain, None) => writeln!(out, "{name}\t-\t-\t-\t-"),
        (_, leader) => {
            let time = row.at.as_ref().and_then(|at| at.get(11..23));
            let time = time.map(|time| format!("{time}  ")).unwrap_or_default();
            write!(out, "{time}{STRONG}{name}{STRONG:#}  ")?;
            match leader {
                None => writeln!(out, "no leader"),
                Some(leader) => {
                    let led_for = short(Duration::from_millis(leader.led_for_ms));
                    let (who, term) = (leader.about.short(), leader.term);
                    write!(out, "{who}  leads for {led_for}, since {}", leader.since)?;
                    writeln!(out, "  term {term}  value {}", leader.shown())
                }
            }
        }
    }
}

//! `tenure graph` and `tenure deadlocks`: owners and slots as a picture of which owner waits for
//! which.
//!
//! Two kinds of nodes: an owner and a slot. An owner that waits has an edge to the slot, a slot
//! that is held has an edge to the owner. So the picture is exact for permits and readers too.
//! Whether there is a deadlock is not read from the picture: the library's solver says it.

mod picture;
mod render;
mod svg;
mod text;

use std::io::Write;
use std::time::{Duration, Instant};

use tenure::deadlock::Deadlock;
use tenure::{Name, Page, Query, Snapshot, Tenure};

use self::picture::Picture;
use crate::args::{DeadlocksArgs, GraphArgs, GraphFormat, OutputArg};
use crate::failure::{self, Failure};
use crate::output::{self, DeadlockRow};
use crate::settings::Settings;

/// How often `tenure deadlocks --watch` looks at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many times as long as a look took, the next one waits at least: 5 % of the store's time.
const PAUSE: u32 = 20;

/// `tenure graph`.
pub(super) fn graph(
    settings: &Settings,
    args: &GraphArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(Name::try_from).transpose()?;
    let (seen, deadlocks) = settings.session(|tenure| {
        let deadlocks = tenure.blocking_deadlocks()?;
        Ok((contended(tenure, name.as_ref())?, deadlocks))
    })?;
    let picture = Picture::new(&seen, name.as_ref(), &deadlocks);
    let json = matches!(form, OutputArg::Json | OutputArg::Ndjson);
    match if json { GraphFormat::Json } else { args.format } {
        GraphFormat::Json => output::json(&picture, out)?,
        GraphFormat::Text => text::write(&picture, out)?,
        GraphFormat::Dot => render::dot(&picture, out)?,
        GraphFormat::Mermaid => render::mermaid(&picture, out)?,
        GraphFormat::Svg => svg::write(&picture, out)?,
    }
    let found = args.check && !picture.deadlocks.is_empty();
    Ok(if found { failure::NO } else { 0 })
}

/// `tenure deadlocks`.
pub(super) fn deadlocks(
    settings: &Settings,
    args: &DeadlocksArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    settings.session(|tenure| {
        let mut told: Vec<Deadlock> = Vec::new();
        loop {
            let began = Instant::now();
            let found = tenure.blocking_deadlocks()?;
            let took = began.elapsed();
            for deadlock in &found {
                if !told.iter().any(|known| known.same_waits(deadlock)) {
                    tell(deadlock, form, out)?;
                }
            }
            out.flush()?;
            if !args.watch {
                return Ok(if found.is_empty() { 0 } else { failure::NO });
            }
            told = found;
            std::thread::sleep(pause(took));
        }
    })
}

/// How long to wait after a look that took so long.
fn pause(took: Duration) -> Duration {
    INTERVAL.max(took * PAUSE)
}

/// Prints one deadlock.
fn tell(deadlock: &Deadlock, form: OutputArg, out: &mut impl Write) -> Result<(), Failure> {
    if matches!(form, OutputArg::Json | OutputArg::Ndjson) {
        output::json(&DeadlockRow::new(deadlock), out)?;
        return Ok(());
    }
    writeln!(out, "deadlock of {}: {}", deadlock.members.len(), deadlock.words())?;
    if let Some(advice) = deadlock.advice() {
        writeln!(out, "  not broken: {advice}")?;
    }
    Ok(())
}

/// All slots with a queue, and the named one if it has none.
fn contended(tenure: &Tenure, name: Option<&Name>) -> Result<Snapshot, Failure> {
    let mut whole = Snapshot::default();
    let mut page = Page { contended: true, ..Page::default() };
    loop {
        let seen = tenure.blocking_inspect(&Query::Page(page.clone()))?;
        whole.slots.extend(seen.slots);
        page.after = seen.more_after;
        if page.after.is_none() {
            break;
        }
    }
    if let Some(name) = name.filter(|name| !whole.slots.iter().any(|slot| slot.name == **name)) {
        whole.slots.extend(tenure.blocking_inspect(&Query::Slot(name.clone()))?.slots);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_looked_at_less_often() {
        for (took, expected) in [(1, 1_000), (50, 1_000), (51, 1_020), (3_000, 60_000)] {
            let (took, expected) = (Duration::from_millis(took), Duration::from_millis(expected));
            assert_eq!(pause(took), expected, "{took:?}");
        }
    }
}

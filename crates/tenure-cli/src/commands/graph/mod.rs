//! `tenure graph` and `tenure deadlocks`: owners and slots as a picture of which owner waits for
//! which.
//!
//! Two kinds of nodes: an owner and a slot. An owner that waits has an edge to the slot, a slot
//! that
//! is held has an edge to the owner. So the picture is exact for permits and readers too. Whether
//! there is a deadlock is not read from the picture: the library's solver says it.

mod picture;
mod render;
mod svg;
mod text;

use std::io::Write;
use std::time::Duration;

use serde::Serialize;
use tenure::contract::short;
use tenure::deadlock::Deadlock;
use tenure::{Name, Page, Query, Snapshot, Tenure};

use self::picture::Picture;
use crate::args::{DeadlocksArgs, GraphArgs, GraphFormat, OutputArg};
use crate::failure::{self, Failure};
use crate::output;
use crate::settings::Settings;

/// How often `tenure deadlocks --watch` looks.
const INTERVAL: Duration = Duration::from_secs(1);

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
            let found = tenure.blocking_deadlocks()?;
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
            std::thread::sleep(INTERVAL);
        }
    })
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

/// One deadlock in JSON.
#[derive(Debug, Serialize)]
pub(super) struct DeadlockRow {
    members: Vec<MemberRow>,
    /// The member that is refused to break it, by its place in `members`.
    victim: Option<usize>,
    by_task: bool,
    by_nesting: bool,
    words: String,
}

#[derive(Debug, Serialize)]
struct MemberRow {
    owner: String,
    holder: String,
    holds: Vec<String>,
    waits_for: Option<String>,
    waited: Option<String>,
}

impl DeadlockRow {
    fn new(deadlock: &Deadlock) -> Self {
        let member = |member: &tenure::deadlock::DeadlockMember| MemberRow {
            owner: member.owner.to_string(),
            holder: member.about.to_string(),
            holds: member.holds.iter().map(|hold| hold.name.shown().into_owned()).collect(),
            waits_for: member.wait.as_ref().map(|wait| wait.name.shown().into_owned()),
            waited: member.wait.as_ref().map(|wait| short(wait.waited_for)),
        };
        Self {
            members: deadlock.members.iter().map(member).collect(),
            victim: deadlock.victim,
            by_task: deadlock.by_task,
            by_nesting: deadlock.by_nesting,
            words: deadlock.words(),
        }
    }
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

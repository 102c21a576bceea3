//! Locks, holders, waiters and sessions as rows and as JSON. Knows fields, not their origin.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure::contract::{self, HolderView, SessionView, Shape, SlotView, WaiterView, short};
use tenure::limits;

use super::Row;

/// One lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockRow {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// How many permits; only for semaphores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permits: Option<u32>,
    pub(crate) holders: Vec<HolderRow>,
    pub(crate) queue: Vec<WaiterRow>,
    /// How much longer the lock stays closed after a crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) closed_for_ms: Option<u64>,
}

/// One holder of a lock.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HolderRow {
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) mode: &'static str,
    pub(crate) fence: u64,
    /// A part of a set whose other parts are still waited for.
    pub(crate) reserved: bool,
    pub(crate) since: String,
    pub(crate) held_for_ms: u64,
    pub(crate) expires_in_ms: u64,
}

/// One waiter for a lock.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WaiterRow {
    /// Counted from 1.
    pub(crate) place: usize,
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) mode: &'static str,
    /// Stands ahead of the queue, because it or an ancestor holds the lock.
    pub(crate) ahead: bool,
    pub(crate) since: String,
    pub(crate) waited_for_ms: u64,
    pub(crate) expires_in_ms: u64,
}

/// Who holds or waits. Ids are their beginnings: a whole claim id would be a right to release.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) label: Option<String>,
    /// Where in the code.
    pub(crate) code: Option<String>,
    pub(crate) claim: String,
    pub(crate) owner: String,
    /// None for a detached claim.
    pub(crate) session: Option<String>,
}

/// One process that holds or waits.
#[derive(Debug, Serialize)]
pub(crate) struct SessionRow {
    /// None for detached claims.
    pub(crate) session: Option<String>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) holds: Vec<String>,
    pub(crate) waits: Vec<String>,
}

impl LockRow {
    pub(crate) fn new(slot: &SlotView) -> Self {
        let permits = match slot.shape {
            Shape::Semaphore(permits) => Some(permits),
            Shape::Lock => None,
        };
        let shape = slot.shape;
        let waiters = slot.queue.iter().enumerate();
        Self {
            name: slot.name.shown().into_owned(),
            kind: kind_of(shape),
            permits,
            holders: slot.holders.iter().map(|holder| HolderRow::new(shape, holder)).collect(),
            queue: waiters.map(|(at, one)| WaiterRow::new(shape, at + 1, one)).collect(),
            closed_for_ms: slot.closed_for.map(millis),
        }
    }
}

impl Row for LockRow {
    const HEAD: &'static [&'static str] =
        &["NAME", "KIND", "MODE", "HOLDER", "HELD", "WAITING", "FENCE", "LEASE", "CODE"];
    const NARROW: usize = 7;

    fn cells(&self) -> Vec<String> {
        let first = self.holders.first();
        let of = |value: fn(&HolderRow) -> String| first.map_or_else(|| "-".to_owned(), value);
        let more = self.holders.len().saturating_sub(1);
        let more = if more > 0 { format!(" +{more}") } else { String::new() };
        let kind = match self.permits {
            Some(permits) => format!("{} {}/{permits}", self.kind, self.holders.len()),
            None => self.kind.to_owned(),
        };
        vec![
            self.name.clone(),
            kind,
            of(|holder| holder.mode.to_owned()),
            of(|holder| holder.about.short()) + &more,
            of(|holder| ago(holder.held_for_ms)),
            self.queue.len().to_string(),
            of(|holder| holder.fence.to_string()),
            of(|holder| ago(holder.expires_in_ms)),
            of(|holder| holder.about.code.clone().unwrap_or_else(|| "-".to_owned())),
        ]
    }
}

impl HolderRow {
    pub(crate) fn new(shape: Shape, view: &HolderView) -> Self {
        Self {
            about: About::new(&view.about, view.claim, view.lineage.owner(), view.session),
            mode: mode_of(shape, view.weight),
            fence: view.fence.get(),
            reserved: view.reserved,
            since: since(view.held_for),
            held_for_ms: millis(view.held_for),
            expires_in_ms: millis(view.expires_in),
        }
    }
}

impl WaiterRow {
    fn new(shape: Shape, place: usize, view: &WaiterView) -> Self {
        Self {
            place,
            about: About::new(&view.about, view.claim, view.lineage.owner(), view.session),
            mode: mode_of(shape, view.weight),
            ahead: view.ahead,
            since: since(view.waited_for),
            waited_for_ms: millis(view.waited_for),
            expires_in_ms: millis(view.expires_in),
        }
    }
}

impl About {
    fn new(
        about: &contract::About,
        claim: contract::ClaimId,
        owner: contract::OwnerId,
        session: Option<contract::SessionId>,
    ) -> Self {
        Self {
            host: about.host.to_string(),
            pid: about.pid,
            label: about.label.as_ref().map(ToString::to_string),
            code: about.place.as_ref().map(ToString::to_string),
            claim: claim.to_string(),
            owner: owner.to_string(),
            session: session.map(|session| session.to_string()),
        }
    }

    /// Host, process and label.
    pub(crate) fn short(&self) -> String {
        let label = self.label.as_ref().map(|label| format!(" '{label}'")).unwrap_or_default();
        format!("{}:{}{label}", self.host, self.pid)
    }
}

impl SessionRow {
    pub(crate) fn new(view: &SessionView) -> Self {
        let names =
            |names: &[tenure::Name]| names.iter().map(|name| name.shown().into_owned()).collect();
        Self {
            session: view.session.map(|session| session.to_string()),
            host: view.host.clone(),
            pid: view.pid,
            holds: names(&view.holds),
            waits: names(&view.waits),
        }
    }
}

impl Row for SessionRow {
    const HEAD: &'static [&'static str] = &["SESSION", "PROCESS", "HOLDS", "WAITS FOR"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        let join = |names: &[String]| {
            if names.is_empty() { "-".to_owned() } else { names.join(", ") }
        };
        vec![
            self.session.clone().unwrap_or_else(|| "detached".to_owned()),
            format!("{}:{}", self.host, self.pid),
            join(&self.holds),
            join(&self.waits),
        ]
    }
}

/// The kind of a lock, as one word.
pub(crate) fn kind_of(shape: Shape) -> &'static str {
    match shape {
        Shape::Lock => "lock",
        Shape::Semaphore(_) => "semaphore",
    }
}

/// The mode of a hold or a wait, as one word.
fn mode_of(shape: Shape, weight: u32) -> &'static str {
    match shape {
        Shape::Lock if weight < limits::FULL_WEIGHT => "shared",
        Shape::Lock => "exclusive",
        Shape::Semaphore(_) => "permit",
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The time of day that long ago, in UTC.
fn since(ago: Duration) -> String {
    let then = SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_millis(then).to_string()
}

/// Milliseconds as people say them.
fn ago(millis: u64) -> String {
    short(Duration::from_millis(millis))
}

/// One thing that happened.
#[derive(Debug, Serialize)]
pub(crate) struct LockEvent {
    pub(crate) at: String,
    /// `granted`, `ended`, `queued`, `left`; `holds` and `waits` for what stood at the beginning.
    pub(crate) event: &'static str,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    #[serde(flatten)]
    pub(crate) about: About,
}

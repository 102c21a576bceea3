//! What was recorded: who did what when. Knows text and clocks, and judges nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::contract::{Claim, ClaimId, Fence, Name, OwnerId, Patience, Shape};
use crate::primitives::LockStatus;
use crate::session::{Event, Witness};
use crate::time::{Clock, Tick};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When, on a clock that all processes of the run share.
    pub at: Tick,
    /// To which claim.
    pub claim: ClaimId,
    /// What.
    pub what: What,
}

/// What happened to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is about to be sent.
    Sent {
        /// Its owner, then its ancestors.
        lineage: Vec<OwnerId>,
        /// What it asks for.
        parts: Vec<(Name, Shape, u32)>,
        /// Its lease.
        lease: Duration,
        /// Whether it waits.
        waits: bool,
        /// It takes the place of another claim of its owner.
        replaces: bool,
    },
    /// The answer was: it waits.
    Queued,
    /// Its holder learned that it holds, with these fences, to be trusted until then.
    Granted(Vec<Fence>, Tick),
    /// Its holder learned that it may be trusted until then.
    Renewed(Tick),
    /// The claim was refused.
    Refused,
    /// Its holder was told that it is lost.
    Lost,
    /// Its holder let go.
    Released,
    /// Its caller gave up waiting.
    Withdrawn,
    /// Its holder did something that must not overlap, presenting this fence.
    Used(Fence),
}

/// Everything that happened in a run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(Vec<HistoryEntry>);

impl History {
    /// The history of these entries, put in the order of their time.
    #[must_use]
    pub fn new(mut entries: Vec<HistoryEntry>) -> Self {
        // Stable: what one recorder saw at one instant stays in its order.
        entries.sort_by_key(|entry| entry.at);
        Self(entries)
    }

    /// The entries, by time.
    #[must_use]
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.0
    }

    /// One history of several processes.
    #[must_use]
    pub fn merge(histories: impl IntoIterator<Item = Self>) -> Self {
        Self::new(histories.into_iter().flat_map(|history| history.0).collect())
    }
}

/// Writes down what sessions do.
#[derive(Debug)]
pub struct Recorder {
    clock: Arc<dyn Clock>,
    entries: Mutex<Vec<HistoryEntry>>,
}

impl Recorder {
    /// A recorder on this clock. All recorders of a run must share it.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, entries: Mutex::default() })
    }

    /// Notes that a holder acts now. Returns whether it may: its lock was not lost.
    pub fn used(&self, held: &LockStatus) -> bool {
        // The clock is read before the check: a lock that is held when it is checked was held at
        // this instant too. Read afterwards, a loss that was noted between the two, while this
        // thread was stopped, would make a rightful use look late.
        let at = self.clock.now();
        let Ok(fence) = held.fence() else { return false };
        let used = HistoryEntry { at, claim: held.claim_id(), what: What::Used(fence) };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(used);
        true
    }

    /// What was recorded so far.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Witness for Recorder {
    fn on_event(&self, claim: &Arc<Claim>, at: Tick, event: &Event) {
        let what = match event {
            Event::Sent => What::Sent {
                lineage: claim.lineage.all().collect(),
                parts: claim
                    .parts
                    .as_slice()
                    .iter()
                    .map(|part| (part.name().clone(), part.shape(), part.weight()))
                    .collect(),
                lease: claim.lease,
                waits: claim.patience == Patience::Wait,
                replaces: claim.replaces.is_some(),
            },
            Event::Queued { .. } => What::Queued,
            Event::Granted { fences, safe_until } => {
                What::Granted(fences.as_slice().to_vec(), *safe_until)
            }
            Event::Renewed { safe_until, .. } => What::Renewed(*safe_until),
            Event::Refused { .. } => What::Refused,
            Event::Lost { .. } => What::Lost,
            Event::Released => What::Released,
            Event::Withdrawn { .. } => What::Withdrawn,
            Event::Deadlock { .. } | Event::WaitsForItself { .. } => return,
        };
        let entry = HistoryEntry { at, claim: claim.id, what };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

impl fmt::Display for HistoryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at.as_nanos(), self.claim.to_hex())?;
        match &self.what {
            What::Sent { lineage, parts, lease, waits, replaces } => {
                let owners: Vec<_> = lineage.iter().map(|owner| owner.to_hex()).collect();
                let patience = if *waits { "wait" } else { "try" };
                let replaces = if *replaces { "replaces" } else { "new" };
                write!(f, "sent {} {} {patience} {replaces}", owners.join("/"), lease.as_nanos())?;
                for (name, shape, weight) in parts {
                    let shape = match shape {
                        Shape::Lock => "lock".to_owned(),
                        Shape::Semaphore(permits) => permits.to_string(),
                    };
                    f.write_str(" ")?;
                    name.as_str().bytes().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                    write!(f, ":{shape}:{weight}")?;
                }
                Ok(())
            }
            What::Queued => f.write_str("queued"),
            What::Granted(fences, until) => {
                let fences: Vec<_> = fences.iter().map(ToString::to_string).collect();
                write!(f, "granted {} {}", fences.join(","), until.as_nanos())
            }
            What::Renewed(until) => write!(f, "renewed {}", until.as_nanos()),
            What::Refused => f.write_str("refused"),
            What::Lost => f.write_str("lost"),
            What::Released => f.write_str("released"),
            What::Withdrawn => f.write_str("withdrawn"),
            What::Used(fence) => write!(f, "used {fence}"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl FromStr for History {
    type Err = String;

    /// Reads what `Display` wrote, one entry a line; a last line that was cut off is passed over,
    /// as a killed process leaves it.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let entries = whole
            .lines()
            .map(|line| entry(line).ok_or_else(|| format!("not an entry of a history: {line:?}")));
        entries.collect::<Result<Vec<_>, _>>().map(Self::new)
    }
}

fn entry(line: &str) -> Option<HistoryEntry> {
    let words: Vec<&str> = line.split(' ').collect();
    let [at, claim, ref what @ ..] = *words.as_slice() else { return None };
    let what = match *what {
        ["sent", owners, lease, patience, replaces, ref parts @ ..] => What::Sent {
            lineage: owners.split('/').map(|id| id.parse().ok()).collect::<Option<_>>()?,
            parts: parts.iter().map(|text| part(text)).collect::<Option<_>>()?,
            lease: Duration::from_nanos(lease.parse().ok()?),
            waits: patience == "wait",
            replaces: replaces == "replaces",
        },
        ["queued"] => What::Queued,
        ["granted", fences, until] => {
            let fences = fences.split(',').map(|f| f.parse().ok().map(Fence::new));
            What::Granted(fences.collect::<Option<_>>()?, tick(until)?)
        }
        ["renewed", until] => What::Renewed(tick(until)?),
        ["refused"] => What::Refused,
        ["lost"] => What::Lost,
        ["released"] => What::Released,
        ["withdrawn"] => What::Withdrawn,
        ["used", fence] => What::Used(Fence::new(fence.parse().ok()?)),
        _ => return None,
    };
    Some(HistoryEntry { at: tick(at)?, claim: claim.parse().ok()?, what })
}

fn part(text: &str) -> Option<(Name, Shape, u32)> {
    let mut words = text.split(':');
    let (name, shape, weight) = (words.next()?, words.next()?, words.next()?);
    let bytes =
        (0..name.len()).step_by(2).map(|at| u8::from_str_radix(name.get(at..at + 2)?, 16).ok());
    let name = String::from_utf8(bytes.collect::<Option<_>>()?).ok()?;
    let shape = match shape {
        "lock" => Shape::Lock,
        permits => Shape::Semaphore(permits.parse().ok()?),
    };
    Some((name.parse().ok()?, shape, weight.parse().ok()?))
}

fn tick(text: &str) -> Option<Tick> {
    text.parse().ok().map(Tick::from_nanos)
}

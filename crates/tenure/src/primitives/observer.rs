//! Who leads, as others see it.
//!
//! The cell of an election has the record of the last leader that published; the slot has the claim
//! that holds. A leader is shown only if both agree: the record was read, and *then* the slot was
//! held by the claim of the record. A lost claim never holds again, so its leader led all the time
//! from its first record on, and the value is its own. Hence a value of an earlier term is never
//! shown as that of a later leader, and a record that a paused leader left behind shows no leader.
//!
//! An [`Observer`] hears by push of every change of the cell: a win, a `publish`, a `resign`.
//! A leader that ends without a word (its process died, its guard was dropped) writes nothing; so
//! the slot is inspected again when the lease of the leader would end without a renewal. A leader
//! renews at a third of its lease, which makes that one look per observer in two thirds of a lease
//! at most. While there is no leader, nothing is asked at all: the record of a claim that does not
//! hold will never count again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::term::no_values;
use super::term_record::TermRecord;
use crate::contract::{
    Cell, CellRange, Cells, Error, ErrorKind, Fence, HolderView, Name, Query, SlotView, Verb,
};
use crate::session::{CellChange, CellWatch, Core, Session, block_on, sleep_until, within};
use crate::time::Tick;

/// The shortest time between two looks at a slot whose leader should have expired.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The number of its term: its fence.
    pub term: Fence,
    /// The value that it has published. Empty where the engine has no cells.
    pub value: Vec<u8>,
    /// The claim that leads: since when, from which process, under which label.
    pub holder: HolderView,
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}, ", self.holder.about, crate::contract::short(self.holder.held_for))?;
        write!(f, "term {}", self.term)
    }
}

/// What an [`Observer`] sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one is returned at a time, and none is stored")]
pub enum Observed {
    /// This leader, with the value that it has published.
    Leader(Leader),
    /// There is no leader, or none that has published yet.
    Vacant,
}

/// A stream of leaders. Made by [`Election::observe`](crate::Election::observe).
///
/// It begins with the present state. A term is never followed by a smaller one; terms and values in
/// quick succession may be merged into the last one, which is never missed. While the store is away
/// the observer goes on trying, and shows nothing new.
pub struct Observer {
    session: Session,
    watch: CellWatch,
    record: Option<TermRecord>,
    /// The slot has to be looked at.
    due: bool,
    /// When the slot has to be looked at if nothing is heard until then.
    check_at: Tick,
    /// What was returned last: the record of a leader, or none. Absent before the first.
    shown: Option<Shown>,
    /// The largest term that was returned.
    highest: Fence,
    failures: u32,
}

/// The record of the leader that was returned, or none.
#[derive(PartialEq)]
struct Shown(Option<TermRecord>);

impl Observer {
    pub(super) async fn begin(session: Session, slot: Name) -> Result<Self, Error> {
        if !session.core().engine().promises().cells {
            return Err(no_values(session.core()).on(&slot));
        }
        let watch = CellWatch::begin(session.clone(), CellRange::One(slot)).await?;
        Ok(Self {
            session,
            watch,
            record: None,
            due: false,
            check_at: Tick::NEVER,
            shown: None,
            highest: Fence::new(0),
            failures: 0,
        })
    }

    /// Returns the present leader at the first call, then waits for the next change: another
    /// leader, another value, or none.
    ///
    /// # Errors
    /// `Closed` after [`Tenure::close`](crate::Tenure::close); `Corrupt` if the leader's record
    /// cannot be read. A store that is away is no error: the observer goes on when it is back.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change: the next call returns it.
    pub async fn next(&mut self) -> Result<Observed, Error> {
        let core = Arc::clone(self.session.core());
        loop {
            if !self.due {
                match within(&core, self.check_at, self.watch.next()).await {
                    Some(change) => self.note(change?)?,
                    None => self.due = true,
                }
                continue;
            }
            match self.look(&core).await {
                Ok(leader) => {
                    (self.due, self.failures) = (false, 0);
                    if let Some(observed) = self.compare(leader) {
                        return Ok(observed);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.failures = self.failures.saturating_add(1);
                    sleep_until(&core, core.now() + core.pause(self.failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The blocking form of [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn blocking_next(&mut self) -> Result<Observed, Error> {
        block_on(self.next())
    }

    fn note(&mut self, change: CellChange) -> Result<(), Error> {
        // Set first: if the record cannot be read, the next call fails as well.
        self.due = true;
        match change {
            CellChange::Put(name, cell) => self.record = Some(decode(&cell, &name)?),
            CellChange::Removed(_) => self.record = None,
            // The claim of a record that is known already may have gone.
            CellChange::Gap => {}
        }
        Ok(())
    }

    /// Finds out whether the claim of the record holds, and when to look again.
    async fn look(&mut self, core: &Core) -> Result<Option<HolderView>, Error> {
        let Some(record) = &self.record else {
            self.check_at = Tick::NEVER;
            return Ok(None);
        };
        let CellRange::One(slot) = self.watch.range() else { return Ok(None) };
        let holder = find_holder(core, slot).await?.filter(|holder| record.is_of(holder));
        self.check_at = holder
            .as_ref()
            .map_or(Tick::NEVER, |holder| core.now() + holder.expires_in.max(LOOK_AGAIN));
        Ok(holder)
    }

    /// Returns what differs from what was returned last.
    fn compare(&mut self, holder: Option<HolderView>) -> Option<Observed> {
        let record = self.record.clone();
        // Smaller terms come only from a store that has lost its memory and whose clock is behind.
        let leads = record.zip(holder).filter(|(record, _)| record.term >= self.highest);
        let now = leads.as_ref().map(|(record, _)| record.clone());
        let now = Some(Shown(now));
        if self.shown == now {
            return None;
        }
        self.shown = now;
        Some(match leads {
            None => Observed::Vacant,
            Some((TermRecord { term, value, .. }, holder)) => {
                self.highest = term;
                Observed::Leader(Leader { term, value, holder })
            }
        })
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(self.watch.range()).finish()
    }
}

/// Asks once who leads.
pub(super) async fn ask_leader(core: &Core, slot: &Name) -> Result<Option<Leader>, Error> {
    if !core.engine().promises().cells {
        let holder = find_holder(core, slot).await?;
        let leader = |holder: HolderView| Leader { term: holder.fence, value: vec![], holder };
        return Ok(holder.map(leader));
    }
    let mut record = read_record(core, slot).await?;
    loop {
        let Some(holder) = find_holder(core, slot).await? else { return Ok(None) };
        match record {
            Some(record) if record.is_of(&holder) => {
                return Ok(Some(Leader { term: record.term, value: record.value, holder }));
            }
            // The next leader holds: it may have published since the cell was read.
            before => {
                record = read_record(core, slot).await?;
                if record == before {
                    return Ok(None);
                }
            }
        }
    }
}

/// Reads the slot of an election, with the call limit of the session.
pub(super) async fn read_slot(core: &Core, slot: &Name) -> Result<Option<SlotView>, Error> {
    let query = Query::Slot(slot.clone());
    let seen = core.limited(Verb::Inspect, || core.engine().inspect(&query)).await;
    let seen = seen.map_err(|error| error.on(slot))?;
    Ok(seen.slots.into_iter().find(|view| view.name == *slot))
}

async fn find_holder(core: &Core, slot: &Name) -> Result<Option<HolderView>, Error> {
    Ok(read_slot(core, slot).await?.and_then(|view| view.holders.into_iter().next()))
}

async fn read_record(core: &Core, slot: &Name) -> Result<Option<TermRecord>, Error> {
    let cell = core.get(slot).await.map_err(|error| error.on(slot))?;
    cell.map(|cell| decode(&cell, slot)).transpose()
}

fn decode(cell: &Cell, slot: &Name) -> Result<TermRecord, Error> {
    TermRecord::decode(&cell.value, slot)
}

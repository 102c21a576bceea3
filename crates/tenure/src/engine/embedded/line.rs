//! The line before a slot, as the store keeps it: a short one in the slot's own row, a long one in
//! rows of its own. Knows which it is, not who may come in.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use super::codec::LineHead;
use super::guard::Counters;
use super::long::LongLine;
use super::short::ShortLine;
use super::txn::Txn;
use crate::contract::{ClaimId, OwnerId, SessionId};
use crate::ledger::seam::{Line, Ticket};
use crate::time::Tick;

/// The longest line that stands in its slot's row. Next to nothing in the project's own tests, so
/// that they see both kinds.
const SHORT: usize = if cfg!(feature = "seeded-bugs") { 3 } else { 24 };

/// The line before a slot.
pub(super) struct Rows<'t, 'e> {
    txn: &'t Txn<'e>,
    counters: &'t Counters,
    kept: Kept<'t, 'e>,
}

enum Kept<'t, 'e> {
    Short(ShortLine<'t, 'e>),
    Long(LongLine<'t, 'e>),
}

/// A ticket, or a hold, that is looked at.
pub(super) enum Seen<'a, T = Ticket> {
    Here(&'a T),
    Read(Box<T>),
}

impl<T> Seen<'_, T> {
    pub(super) fn read(row: T) -> Self {
        Self::Read(Box::new(row))
    }
}

impl Seen<'_> {
    pub(super) fn into_ticket(self) -> Ticket {
        match self {
            Self::Here(ticket) => ticket.clone(),
            Self::Read(ticket) => *ticket,
        }
    }
}

impl<T> Deref for Seen<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Here(row) => row,
            Self::Read(row) => row,
        }
    }
}

impl<'t, 'e> Rows<'t, 'e> {
    /// A line with nobody in it.
    pub(super) fn empty(txn: &'t Txn<'e>, counters: &'t Counters) -> Self {
        Self { txn, counters, kept: Kept::Short(ShortLine::new(txn)) }
    }

    /// The line of which a slot's row says this; `short` is what stands in the row itself.
    pub(super) fn new(
        txn: &'t Txn<'e>,
        counters: &'t Counters,
        head: LineHead,
        short: &[&[u8]],
    ) -> Self {
        let kept = match head.id {
            0 => Kept::Short(ShortLine::read(txn, short)),
            _ => Kept::Long(LongLine::new(txn, head)),
        };
        Self { txn, counters, kept }
    }

    pub(super) fn head(&self) -> LineHead {
        match &self.kept {
            Kept::Short(_) => LineHead::default(),
            Kept::Long(long) => long.head(),
        }
    }

    /// The tickets that stand in the slot's row.
    pub(super) fn short(&self) -> impl Iterator<Item = &[u8]> {
        let short = match &self.kept {
            Kept::Short(short) => Some(short.bytes()),
            Kept::Long(_) => None,
        };
        short.into_iter().flatten()
    }

    /// Gives every ticket a row of its own.
    fn lengthen(&mut self) {
        let Kept::Short(short) = &self.kept else { return };
        let id = self.counters.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        let mut long = LongLine::new(self.txn, LineHead { id, ..LineHead::default() });
        for ticket in short.iter() {
            long.push(ticket.clone(), ticket.kin);
        }
        self.kept = Kept::Long(long);
    }
}

/// The same call on whichever it is.
macro_rules! either {
    ($line:expr, $kept:ident => $call:expr) => {
        match $line {
            Kept::Short($kept) => $call,
            Kept::Long($kept) => $call,
        }
    };
}

/// The tickets of whichever it is.
macro_rules! tickets {
    ($line:expr, $kept:ident => $call:expr) => {{
        let (short, long) = match $line {
            Kept::Short($kept) => (Some($call.map(Seen::Here)), None),
            Kept::Long($kept) => (None, Some($call)),
        };
        short.into_iter().flatten().chain(long.into_iter().flatten())
    }};
}

impl Line for Rows<'_, '_> {
    type Seen<'a>
        = Seen<'a>
    where
        Self: 'a;

    fn len(&self) -> usize {
        match &self.kept {
            Kept::Short(short) => short.len(),
            Kept::Long(long) => long.head().len as usize,
        }
    }

    fn get(&self, id: ClaimId) -> Option<Seen<'_>> {
        match &self.kept {
            Kept::Short(short) => short.get(id).map(Seen::Here),
            Kept::Long(long) => long.get(id),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Seen<'_>> {
        tickets!(&self.kept, kept => kept.iter())
    }

    fn ahead(&self) -> impl Iterator<Item = Seen<'_>> {
        tickets!(&self.kept, kept => kept.ahead())
    }

    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = Seen<'_>> {
        tickets!(&self.kept, kept => kept.kin_of(owner))
    }

    fn before(&self, id: ClaimId) -> impl Iterator<Item = Seen<'_>> {
        tickets!(&self.kept, kept => kept.before(id))
    }

    fn sessions_before(&self, id: ClaimId, nearest: usize) -> Vec<Option<SessionId>> {
        match &self.kept {
            Kept::Short(short) => short.sessions_before(id, nearest),
            Kept::Long(long) => {
                long.before(id).take(nearest).map(|ticket| ticket.claim.session).collect()
            }
        }
    }

    fn place(&self, id: ClaimId) -> Option<usize> {
        either!(&self.kept, kept => kept.place(id))
    }

    fn push(&mut self, ticket: Ticket, kin: u32) {
        if matches!(&self.kept, Kept::Short(short) if short.len() >= SHORT) {
            self.lengthen();
        }
        either!(&mut self.kept, kept => kept.push(ticket, kin));
    }

    fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let removed = either!(&mut self.kept, kept => kept.remove(id));
        if matches!(&self.kept, Kept::Long(long) if long.head().len == 0) {
            self.kept = Kept::Short(ShortLine::new(self.txn));
        }
        removed
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) {
        either!(&mut self.kept, kept => kept.renew(id, expires));
    }

    fn dead(&self, now: Tick) -> Option<ClaimId> {
        either!(&self.kept, kept => kept.dead(now))
    }

    fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        either!(&mut self.kept, kept => kept.owner_holds(owner, holds));
    }
}

//! The line before a slot, as the store keeps it: a short one in the slot's own row, a long one in
//! rows of its own. Knows which it is, not who may come in.

mod long;
mod short;

use std::ops::Deref;
use std::sync::atomic::Ordering;

use self::long::LongQueue;
use self::short::ShortQueue;
use super::codec::QueueHead;
use super::gate::Counters;
use super::txn::Txn;
use crate::contract::{ClaimId, OwnerId, SessionId};
use crate::ledger::seam::{Line, Ticket};
use crate::time::Tick;

/// The longest line that stands in its slot's row. Next to nothing in the project's own tests, so
/// that they see both kinds.
const SHORT: usize = if cfg!(feature = "seeded-bugs") { 3 } else { 24 };

/// The line before a slot.
pub(super) struct StoredQueue<'t, 'e> {
    txn: &'t Txn<'e>,
    counters: &'t Counters,
    form: QueueForm<'t, 'e>,
}

enum QueueForm<'t, 'e> {
    Short(ShortQueue<'t, 'e>),
    Long(LongQueue<'t, 'e>),
}

/// A ticket, or a hold, that is looked at.
pub(super) enum RowRef<'a, T = Ticket> {
    Cached(&'a T),
    Decoded(Box<T>),
}

impl<T> RowRef<'_, T> {
    pub(super) fn decoded(row: T) -> Self {
        Self::Decoded(Box::new(row))
    }
}

impl RowRef<'_> {
    pub(super) fn into_ticket(self) -> Ticket {
        match self {
            Self::Cached(ticket) => ticket.clone(),
            Self::Decoded(ticket) => *ticket,
        }
    }
}

impl<T> Deref for RowRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Cached(row) => row,
            Self::Decoded(row) => row,
        }
    }
}

impl<'t, 'e> StoredQueue<'t, 'e> {
    /// A line with nobody in it.
    pub(super) fn empty(txn: &'t Txn<'e>, counters: &'t Counters) -> Self {
        Self { txn, counters, form: QueueForm::Short(ShortQueue::new(txn)) }
    }

    /// The line of which a slot's row says this; `short` is what stands in the row itself.
    pub(super) fn new(
        txn: &'t Txn<'e>,
        counters: &'t Counters,
        head: QueueHead,
        short: &[&[u8]],
    ) -> Self {
        let form = match head.id {
            0 => QueueForm::Short(ShortQueue::read(txn, short)),
            _ => QueueForm::Long(LongQueue::new(txn, head)),
        };
        Self { txn, counters, form }
    }

    pub(super) fn head(&self) -> QueueHead {
        match &self.form {
            QueueForm::Short(_) => QueueHead::default(),
            QueueForm::Long(long) => long.head(),
        }
    }

    /// The tickets that stand in the slot's row.
    pub(super) fn short(&self) -> impl Iterator<Item = &[u8]> {
        let short = match &self.form {
            QueueForm::Short(short) => Some(short.bytes()),
            QueueForm::Long(_) => None,
        };
        short.into_iter().flatten()
    }

    /// Gives every ticket a row of its own.
    fn lengthen(&mut self) {
        let QueueForm::Short(short) = &self.form else { return };
        let id = self.counters.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        let mut long = LongQueue::new(self.txn, QueueHead { id, ..QueueHead::default() });
        for ticket in short.iter() {
            long.push(ticket.clone(), ticket.kin);
        }
        self.form = QueueForm::Long(long);
    }
}

/// The same call on whichever it is.
macro_rules! either {
    ($line:expr, $kept:ident => $call:expr) => {
        match $line {
            QueueForm::Short($kept) => $call,
            QueueForm::Long($kept) => $call,
        }
    };
}

/// The tickets of whichever it is.
macro_rules! tickets {
    ($line:expr, $kept:ident => $call:expr) => {{
        let (short, long) = match $line {
            QueueForm::Short($kept) => (Some($call.map(RowRef::Cached)), None),
            QueueForm::Long($kept) => (None, Some($call)),
        };
        short.into_iter().flatten().chain(long.into_iter().flatten())
    }};
}

impl Line for StoredQueue<'_, '_> {
    type Seen<'a>
        = RowRef<'a>
    where
        Self: 'a;

    fn len(&self) -> usize {
        match &self.form {
            QueueForm::Short(short) => short.len(),
            QueueForm::Long(long) => long.head().len as usize,
        }
    }

    fn get(&self, id: ClaimId) -> Option<RowRef<'_>> {
        match &self.form {
            QueueForm::Short(short) => short.get(id).map(RowRef::Cached),
            QueueForm::Long(long) => long.get(id),
        }
    }

    fn iter(&self) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, kept => kept.iter())
    }

    fn ahead(&self) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, kept => kept.ahead())
    }

    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, kept => kept.kin_of(owner))
    }

    fn before(&self, id: ClaimId) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, kept => kept.before(id))
    }

    fn sessions_before(&self, id: ClaimId, nearest: usize) -> Vec<Option<SessionId>> {
        match &self.form {
            QueueForm::Short(short) => short.sessions_before(id, nearest),
            QueueForm::Long(long) => {
                long.before(id).take(nearest).map(|ticket| ticket.claim.session).collect()
            }
        }
    }

    fn place(&self, id: ClaimId) -> Option<usize> {
        either!(&self.form, kept => kept.place(id))
    }

    fn push(&mut self, ticket: Ticket, kin: u32) {
        if matches!(&self.form, QueueForm::Short(short) if short.len() >= SHORT) {
            self.lengthen();
        }
        either!(&mut self.form, kept => kept.push(ticket, kin));
    }

    fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let removed = either!(&mut self.form, kept => kept.remove(id));
        if matches!(&self.form, QueueForm::Long(long) if long.head().len == 0) {
            self.form = QueueForm::Short(ShortQueue::new(self.txn));
        }
        removed
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) {
        either!(&mut self.form, kept => kept.renew(id, expires));
    }

    fn dead(&self, now: Tick) -> Option<ClaimId> {
        either!(&self.form, kept => kept.dead(now))
    }

    fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        either!(&mut self.form, kept => kept.owner_holds(owner, holds));
    }
}

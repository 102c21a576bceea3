//! The queue of a slot, as the store keeps it: a short one in the slot's own row (`short.rs`), a
//! long one in rows of its own with indexes (`long.rs`).
//!
//! A queue becomes long when one more ticket would exceed `Sizes::short_queue`, and short again
//! when its last ticket has left. In between its form does not change, so that a queue around the
//! limit is not rewritten again and again. The slot's row has the [`QueueHead`], whose id is 0 for
//! a short queue. Admission rules are the ledger's: this file implements its trait [`Line`].

mod long;
mod short;

use std::ops::Deref;
use std::sync::atomic::Ordering;

use self::long::LongQueue;
use self::short::ShortQueue;
use super::codec::QueueHead;
use super::slots::RowContext;
use crate::contract::{ClaimId, OwnerId, SessionId};
use crate::engine::common::paths;
use crate::ledger::seam::{Line, Ticket};
use crate::time::Tick;

/// The queue of a slot within one transaction.
pub(super) struct StoredQueue<'t, 'e> {
    context: RowContext<'t, 'e>,
    form: QueueForm<'t, 'e>,
}

enum QueueForm<'t, 'e> {
    Short(ShortQueue<'t, 'e>),
    Long(LongQueue<'t, 'e>),
}

/// A ticket or a hold that was read: from the cached slot, or decoded from a row of its own.
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
    /// Makes an empty queue.
    pub(super) fn empty(context: RowContext<'t, 'e>) -> Self {
        Self { context, form: QueueForm::Short(ShortQueue::new(context.txn)) }
    }

    /// Makes the queue that a slot's row describes; `short` are the tickets in the row itself.
    pub(super) fn new(context: RowContext<'t, 'e>, head: QueueHead, short: &[&[u8]]) -> Self {
        let form = match head.id {
            0 => QueueForm::Short(ShortQueue::read(context.txn, short)),
            _ => QueueForm::Long(LongQueue::new(context, head)),
        };
        Self { context, form }
    }

    pub(super) fn head(&self) -> QueueHead {
        match &self.form {
            QueueForm::Short(_) => QueueHead::default(),
            QueueForm::Long(long) => long.head(),
        }
    }

    /// Returns the tickets that are queue in the slot's row.
    pub(super) fn short(&self) -> impl Iterator<Item = &[u8]> {
        let short = match &self.form {
            QueueForm::Short(short) => Some(short.bytes()),
            QueueForm::Long(_) => None,
        };
        short.into_iter().flatten()
    }

    /// Moves every ticket into a row of its own.
    fn lengthen(&mut self) {
        let QueueForm::Short(short) = &self.form else { return };
        let id = self.context.counters.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        let mut long = LongQueue::new(self.context, QueueHead { id, ..QueueHead::default() });
        for ticket in short.iter() {
            long.push(ticket.clone(), ticket.kin);
        }
        self.form = QueueForm::Long(long);
        paths::take("embedded queue: becomes long");
    }
}

impl QueueForm<'_, '_> {
    /// Counts the path that either form takes.
    fn take(&self, short: &'static str, long: &'static str) {
        paths::take(match self {
            Self::Short(_) => short,
            Self::Long(_) => long,
        });
    }
}

/// Calls the same method on either form.
macro_rules! either {
    ($line:expr, $queue:ident => $call:expr) => {
        match $line {
            QueueForm::Short($queue) => $call,
            QueueForm::Long($queue) => $call,
        }
    };
}

/// Chains the tickets of either form into one iterator type.
macro_rules! tickets {
    ($line:expr, $queue:ident => $call:expr) => {{
        let (short, long) = match $line {
            QueueForm::Short($queue) => (Some($call.map(RowRef::Cached)), None),
            QueueForm::Long($queue) => (None, Some($call)),
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
        tickets!(&self.form, queue => queue.iter())
    }

    fn ahead(&self) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, queue => queue.ahead())
    }

    fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, queue => queue.kin_of(owner))
    }

    fn before(&self, id: ClaimId) -> impl Iterator<Item = RowRef<'_>> {
        tickets!(&self.form, queue => queue.before(id))
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
        either!(&self.form, queue => queue.place(id))
    }

    fn push(&mut self, ticket: Ticket, kin: u32) {
        let most = self.context.sizes.short_queue;
        if matches!(&self.form, QueueForm::Short(short) if short.len() >= most) {
            self.lengthen();
        }
        self.form.take("embedded queue: push, short", "embedded queue: push, long");
        either!(&mut self.form, queue => queue.push(ticket, kin));
    }

    fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        self.form.take("embedded queue: remove, short", "embedded queue: remove, long");
        let removed = either!(&mut self.form, queue => queue.remove(id));
        if matches!(&self.form, QueueForm::Long(long) if long.head().len == 0) {
            paths::take("embedded queue: becomes short");
            self.form = QueueForm::Short(ShortQueue::new(self.context.txn));
        }
        removed
    }

    fn renew(&mut self, id: ClaimId, expires: Tick) {
        self.form.take("embedded queue: renew, short", "embedded queue: renew, long");
        either!(&mut self.form, queue => queue.renew(id, expires));
    }

    fn dead(&self, now: Tick) -> Option<ClaimId> {
        let dead = either!(&self.form, queue => queue.dead(now));
        if dead.is_some() {
            self.form.take("embedded queue: dead, short", "embedded queue: dead, long");
        }
        dead
    }

    fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        either!(&mut self.form, queue => queue.owner_holds(owner, holds));
    }
}

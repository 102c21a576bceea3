//! A long queue: one row for each ticket, and index rows that find it by claim, by expiry and by
//! owner, so that a step costs the same whether 100 or 10,000 wait.
//!
//! ```text
//! L queue ahead?0:1 arrival -> ticket         the order in which they are served
//! C queue claim             -> ahead?, arrival
//! X queue expires arrival   -> claim
//! K queue owner arrival     -> claim          for the owner and each of its ancestors
//! B queue ahead?0:1 block   -> how many tickets have an arrival number in this block
//! ```
//!
//! The rows of a ticket are written and deleted together. The `B` rows make `place` cheap: whole
//! blocks are summed up, and only the tickets of the last block are counted one by one.

use super::super::codec::{self, Damaged, QueueHead, Writer};
use super::super::slots::RowContext;
use super::super::txn::{Key, Txn};
use super::RowRef;
use crate::contract::{Arrival, ClaimId, OwnerId};
use crate::ledger::seam::Ticket;
use crate::time::Tick;

/// A long queue within one transaction.
pub(super) struct LongQueue<'t, 'e> {
    txn: &'t Txn<'e>,
    head: QueueHead,
    block_bits: u32,
}

impl<'t, 'e> LongQueue<'t, 'e> {
    pub(super) fn new(context: RowContext<'t, 'e>, head: QueueHead) -> Self {
        Self { txn: context.txn, head, block_bits: context.sizes.block_bits }
    }

    pub(super) fn head(&self) -> QueueHead {
        self.head
    }

    fn key(&self, kind: u8) -> Key {
        let mut key = Key::new();
        key.push(kind);
        key.extend_from_slice(&self.head.id.to_be_bytes());
        key
    }

    fn order_key(&self, ahead: bool, arrival: Arrival) -> Key {
        let mut key = self.class_key(ahead);
        key.extend_from_slice(&arrival.0.to_be_bytes());
        key
    }

    fn class_key(&self, ahead: bool) -> Key {
        let mut key = self.key(b'L');
        key.push(u8::from(!ahead));
        key
    }

    fn block_key(&self, ahead: bool, block: u64) -> Key {
        let mut key = self.key(b'B');
        key.push(u8::from(!ahead));
        key.extend_from_slice(&block.to_be_bytes());
        key
    }

    /// Adds a ticket to the count of its block, or removes it.
    fn count(&self, ticket: &Ticket, more: bool) {
        let key = self.block_key(ticket.ahead(), ticket.arrival.0 >> self.block_bits);
        let count = self.txn.get(&key, "a count of tickets", read_count).unwrap_or(0);
        match if more { count + 1 } else { count.saturating_sub(1) } {
            0 => self.txn.delete(&key),
            count => self.txn.put(&key, &count.to_le_bytes()),
        }
    }

    fn claim_key(&self, id: ClaimId) -> Key {
        let mut key = self.key(b'C');
        key.extend_from_slice(&id.as_u128().to_be_bytes());
        key
    }

    fn expiry_key(&self, expires: Tick, arrival: Arrival) -> Key {
        let mut key = self.key(b'X');
        key.extend_from_slice(&expires.as_nanos().to_be_bytes());
        key.extend_from_slice(&arrival.0.to_be_bytes());
        key
    }

    fn owner_key(&self, owner: OwnerId) -> Key {
        let mut key = self.key(b'K');
        key.extend_from_slice(&owner.as_u128().to_be_bytes());
        key
    }

    fn kin_key(&self, owner: OwnerId, arrival: Arrival) -> Key {
        let mut key = self.owner_key(owner);
        key.extend_from_slice(&arrival.0.to_be_bytes());
        key
    }

    /// Returns whether a claim's ticket is ahead of the queue, and its arrival.
    fn position(&self, id: ClaimId) -> Option<(bool, Arrival)> {
        if self.head.len == 0 {
            return None;
        }
        self.txn.get(&self.claim_key(id), "a waiting claim", |bytes| {
            let mut reader = codec::Reader::new(bytes);
            let (ahead, arrival) = (reader.u8()? == 0, Arrival(reader.u64()?));
            reader.end()?;
            Ok((ahead, arrival))
        })
    }

    fn ticket(&self, ahead: bool, arrival: Arrival) -> Option<Ticket> {
        self.txn.get(&self.order_key(ahead, arrival), "a ticket", codec::read_ticket)
    }

    fn find(&self, id: ClaimId) -> Option<Ticket> {
        let (ahead, arrival) = self.position(id)?;
        self.ticket(ahead, arrival)
    }

    /// Returns the tickets under keys that begin with `prefix`, in order.
    fn walk(&self, prefix: Key) -> impl Iterator<Item = RowRef<'_>> {
        let mut at: Option<Key> = None;
        std::iter::from_fn(move || {
            let read = |key: &[u8], value: &[u8]| (Key::from(key), codec::read_ticket(value));
            let (key, ticket) = match &at {
                None => self.txn.from(&prefix, &prefix, read)?,
                Some(at) => self.txn.after(at, &prefix, read)?,
            };
            at = Some(key);
            self.txn.checked("a ticket", ticket).map(RowRef::decoded)
        })
    }

    fn write_ticket(&self, ticket: &Ticket) {
        let mut writer = Writer::default();
        codec::write_ticket(&mut writer, ticket);
        self.txn.put(&self.order_key(ticket.ahead(), ticket.arrival), writer.bytes());
    }

    fn write(&self, ticket: &Ticket) {
        self.write_ticket(ticket);
        let mut position = Writer::default();
        position.u8(u8::from(!ticket.ahead()));
        position.u64(ticket.arrival.0);
        self.txn.put(&self.claim_key(ticket.claim.id), position.bytes());
    }

    fn write_expiry(&self, ticket: &Ticket) {
        let id = ticket.claim.id.as_u128().to_be_bytes();
        self.txn.put(&self.expiry_key(ticket.expires, ticket.arrival), &id);
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<RowRef<'_>> {
        self.find(id).map(RowRef::decoded)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RowRef<'_>> {
        // Tickets ahead of the queue sort before the others.
        let any = (self.head.len > 0).then(|| self.walk(self.key(b'L')));
        any.into_iter().flatten()
    }

    pub(super) fn ahead(&self) -> impl Iterator<Item = RowRef<'_>> {
        let any = (self.head.ahead > 0).then(|| self.walk(self.class_key(true)));
        any.into_iter().flatten()
    }

    pub(super) fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = RowRef<'_>> {
        let prefix = (self.head.len > 0).then(|| self.owner_key(owner));
        let mut at: Option<Key> = None;
        std::iter::from_fn(move || {
            let prefix = prefix.as_ref()?;
            let read = |key: &[u8], value: &[u8]| (Key::from(key), read_id(value));
            let (key, id) = match &at {
                None => self.txn.from(prefix, prefix, read)?,
                Some(at) => self.txn.after(at, prefix, read)?,
            };
            at = Some(key);
            self.find(self.txn.checked("a ticket's owner", id)?).map(RowRef::decoded)
        })
    }

    pub(super) fn before(&self, id: ClaimId) -> impl Iterator<Item = RowRef<'_>> {
        let prefix = self.key(b'L');
        let mut at = self.position(id).map(|(ahead, arrival)| self.order_key(ahead, arrival));
        std::iter::from_fn(move || {
            let read = |key: &[u8], value: &[u8]| (Key::from(key), codec::read_ticket(value));
            let (key, ticket) = self.txn.before(at.as_ref()?, &prefix, read)?;
            at = Some(key);
            self.txn.checked("a ticket", ticket).map(RowRef::decoded)
        })
    }

    pub(super) fn place(&self, id: ClaimId) -> Option<usize> {
        let (ahead, arrival) = self.position(id)?;
        let block = arrival.0 >> self.block_bits;
        let mut before = if ahead { 0 } else { self.head.ahead as usize };
        // Whole blocks first, then the tickets of its own block.
        let mut prefix = self.key(b'B');
        prefix.push(u8::from(!ahead));
        let mut at = prefix.clone();
        let end = self.block_key(ahead, block);
        while let Some((key, count)) =
            self.txn.after(&at, &prefix, |key, value| (Key::from(key), read_count(value)))
        {
            if key >= end {
                break;
            }
            before += self.txn.checked("a count of tickets", count)? as usize;
            at = key;
        }
        let from = self.order_key(ahead, Arrival(block << self.block_bits));
        Some(before + self.txn.count(&from, &self.order_key(ahead, arrival)) + 1)
    }

    pub(super) fn push(&mut self, mut ticket: Ticket, kin: u32) {
        ticket.kin = kin;
        self.count(&ticket, true);
        self.write(&ticket);
        self.write_expiry(&ticket);
        let id = ticket.claim.id.as_u128().to_be_bytes();
        for owner in ticket.claim.lineage.all() {
            self.txn.put(&self.kin_key(owner, ticket.arrival), &id);
        }
        self.head.len += 1;
        self.head.ahead += u32::from(ticket.ahead());
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let ticket = self.find(id)?;
        self.count(&ticket, false);
        self.txn.delete(&self.order_key(ticket.ahead(), ticket.arrival));
        self.txn.delete(&self.claim_key(id));
        self.txn.delete(&self.expiry_key(ticket.expires, ticket.arrival));
        for owner in ticket.claim.lineage.all() {
            self.txn.delete(&self.kin_key(owner, ticket.arrival));
        }
        self.head.len = self.head.len.saturating_sub(1);
        self.head.ahead = self.head.ahead.saturating_sub(u32::from(ticket.ahead()));
        Some(ticket)
    }

    pub(super) fn renew(&mut self, id: ClaimId, expires: Tick) {
        let Some(mut ticket) = self.find(id) else { return };
        self.txn.delete(&self.expiry_key(ticket.expires, ticket.arrival));
        ticket.expires = expires;
        self.write_ticket(&ticket);
        self.write_expiry(&ticket);
    }

    pub(super) fn dead(&self, now: Tick) -> Option<ClaimId> {
        if self.head.len == 0 {
            return None;
        }
        let prefix = self.key(b'X');
        let (expires, id) = self.txn.from(&prefix, &prefix, |key, value| {
            let expires = key.get(prefix.len()..).and_then(|rest| rest.first_chunk::<8>());
            (expires.map(|bytes| Tick::from_nanos(u64::from_be_bytes(*bytes))), read_id(value))
        })?;
        let expires = self.txn.checked("a ticket's expiry", expires.ok_or(Damaged))?;
        let id = self.txn.checked("a ticket's expiry", id)?;
        (expires <= now).then_some(id)
    }

    pub(super) fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        let kin: Vec<Ticket> = self.kin_of(owner).map(RowRef::into_ticket).collect();
        for mut ticket in kin {
            let was_ahead = ticket.ahead();
            let old_key = self.order_key(was_ahead, ticket.arrival);
            self.count(&ticket, false);
            ticket.kin = if holds { ticket.kin + 1 } else { ticket.kin.saturating_sub(1) };
            match (was_ahead, ticket.ahead()) {
                (false, true) => self.head.ahead += 1,
                (true, false) => self.head.ahead = self.head.ahead.saturating_sub(1),
                _ => {}
            }
            if was_ahead != ticket.ahead() {
                self.txn.delete(&old_key);
            }
            self.count(&ticket, true);
            self.write(&ticket);
        }
    }
}

fn read_count(bytes: &[u8]) -> Result<u32, Damaged> {
    bytes.try_into().map(u32::from_le_bytes).map_err(|_| Damaged)
}

fn read_id(bytes: &[u8]) -> Result<ClaimId, Damaged> {
    let bytes = bytes.try_into().map_err(|_| Damaged)?;
    Ok(ClaimId::from_u128(u128::from_be_bytes(bytes)))
}

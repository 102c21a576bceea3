//! A short queue: its tickets are encoded one after the other in the slot's row.
//!
//! Most steps need one ticket, or none. So a ticket is decoded when it is asked for; what is read
//! of every ticket are the few facts at fixed places that find it and order it ([`TicketFacts`]).
//! The tickets are kept in the order in which they are served: those ahead of the queue first, then
//! by arrival.

use std::cell::OnceCell;
use std::ops::Range;

use super::super::codec::{self, TicketFacts, Writer};
use super::super::txn::Txn;
use crate::contract::{ClaimId, OwnerId, SessionId};
use crate::ledger::seam::Ticket;
use crate::time::Tick;

/// A short queue within one transaction.
pub(super) struct ShortQueue<'t, 'e> {
    txn: &'t Txn<'e>,
    /// The row that was read. A copy: LMDB may move the row when the transaction writes.
    row: Vec<u8>,
    tickets: Vec<QueuedTicket>,
}

struct QueuedTicket {
    facts: TicketFacts,
    bytes: TicketBytes,
    /// Decoded when it is first asked for.
    ticket: OnceCell<Ticket>,
}

/// The encoded ticket.
enum TicketBytes {
    /// A range of the row that was read.
    InRow(Range<usize>),
    /// Encoded in this step.
    New(Vec<u8>),
}

impl<'t, 'e> ShortQueue<'t, 'e> {
    pub(super) fn new(txn: &'t Txn<'e>) -> Self {
        Self { txn, row: Vec::new(), tickets: Vec::new() }
    }

    pub(super) fn read(txn: &'t Txn<'e>, encoded: &[&[u8]]) -> Self {
        let mut queue = Self::new(txn);
        queue.row.reserve_exact(encoded.iter().map(|ticket| ticket.len()).sum());
        // One more is likely to be pushed.
        queue.tickets.reserve_exact(encoded.len() + 1);
        for bytes in encoded {
            let Some(facts) = txn.checked("a ticket", codec::ticket_facts(bytes)) else { break };
            let from = queue.row.len();
            queue.row.extend_from_slice(bytes);
            let bytes = TicketBytes::InRow(from..queue.row.len());
            queue.tickets.push(QueuedTicket { facts, bytes, ticket: OnceCell::new() });
        }
        queue
    }

    pub(super) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.tickets.iter().map(|queued| self.bytes_of(queued))
    }

    fn bytes_of<'a>(&'a self, queued: &'a QueuedTicket) -> &'a [u8] {
        match &queued.bytes {
            TicketBytes::InRow(range) => &self.row[range.clone()],
            TicketBytes::New(bytes) => bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tickets.len()
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Ticket> {
        self.decoded(&self.tickets[self.position(id)?])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.tickets.iter().filter_map(|queued| self.decoded(queued))
    }

    pub(super) fn ahead(&self) -> impl Iterator<Item = &Ticket> {
        let ahead = self.tickets.iter().take_while(|queued| queued.facts.kin > 0);
        ahead.filter_map(|queued| self.decoded(queued))
    }

    pub(super) fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = &Ticket> {
        let kin = |queued: &&QueuedTicket| codec::is_kin(self.bytes_of(queued), owner);
        let mut kin: Vec<&QueuedTicket> = self.tickets.iter().filter(kin).collect();
        kin.sort_by_key(|queued| queued.facts.arrival);
        kin.into_iter().filter_map(|queued| self.decoded(queued))
    }

    pub(super) fn before(&self, id: ClaimId) -> impl Iterator<Item = &Ticket> {
        let before = &self.tickets[..self.position(id).unwrap_or(0)];
        before.iter().rev().filter_map(|queued| self.decoded(queued))
    }

    /// Reads the sessions without decoding the tickets.
    pub(super) fn sessions_before(&self, id: ClaimId, nearest: usize) -> Vec<Option<SessionId>> {
        let before = &self.tickets[..self.position(id).unwrap_or(0)];
        let nearest = before.iter().rev().take(nearest);
        nearest.map(|queued| codec::session_of(self.bytes_of(queued))).collect()
    }

    pub(super) fn place(&self, id: ClaimId) -> Option<usize> {
        self.position(id).map(|at| at + 1)
    }

    pub(super) fn push(&mut self, mut ticket: Ticket, kin: u32) {
        ticket.kin = kin;
        self.insert(ticket);
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let at = self.position(id)?;
        self.decoded(&self.tickets[at])?;
        self.tickets.remove(at).ticket.into_inner()
    }

    pub(super) fn renew(&mut self, id: ClaimId, expires: Tick) {
        if let Some(mut ticket) = self.remove(id) {
            ticket.expires = expires;
            self.insert(ticket);
        }
    }

    pub(super) fn dead(&self, now: Tick) -> Option<ClaimId> {
        if self.txn.has_failed() {
            return None;
        }
        let first = self.tickets.iter().min_by_key(|queued| queued.facts.expires)?;
        (first.facts.expires <= now).then_some(first.facts.claim)
    }

    pub(super) fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        let kin: Vec<ClaimId> = self.kin_of(owner).map(|ticket| ticket.claim.id).collect();
        for id in kin {
            let Some(mut ticket) = self.remove(id) else { continue };
            ticket.kin = if holds { ticket.kin + 1 } else { ticket.kin.saturating_sub(1) };
            self.insert(ticket);
        }
    }

    /// Encodes a ticket and inserts it at its place in the order.
    fn insert(&mut self, ticket: Ticket) {
        let mut writer = Writer::default();
        codec::write_ticket(&mut writer, &ticket);
        let facts = TicketFacts {
            claim: ticket.claim.id,
            arrival: ticket.arrival,
            expires: ticket.expires,
            kin: ticket.kin,
        };
        let at = self.tickets.partition_point(|queued| queued.facts.order() < facts.order());
        let (bytes, ticket) = (TicketBytes::New(writer.bytes().to_vec()), OnceCell::from(ticket));
        self.tickets.insert(at, QueuedTicket { facts, bytes, ticket });
    }

    fn position(&self, id: ClaimId) -> Option<usize> {
        self.tickets.iter().position(|queued| queued.facts.claim == id)
    }

    fn decoded<'a>(&'a self, queued: &'a QueuedTicket) -> Option<&'a Ticket> {
        if queued.ticket.get().is_none() {
            let ticket = self.txn.checked("a ticket", codec::read_ticket(self.bytes_of(queued)))?;
            let _ = queued.ticket.set(ticket);
        }
        queued.ticket.get()
    }
}

//! A short line: its tickets as bytes, one after the other in the slot's row, each read only when
//! somebody looks at it. Knows where the few facts stand that find a ticket.

use std::cell::OnceCell;
use std::ops::Range;

use super::super::codec::{self, TicketFacts, Writer};
use super::super::txn::Txn;
use crate::contract::{ClaimId, OwnerId, SessionId};
use crate::ledger::seam::Ticket;
use crate::time::Tick;

/// A short line.
pub(super) struct ShortQueue<'t, 'e> {
    txn: &'t Txn<'e>,
    /// The row that was read, copied once: the store may move it when it writes.
    row: Vec<u8>,
    /// In the order in which they are served: those ahead, then the others, each by arrival.
    seats: Vec<Seat>,
}

struct Seat {
    facts: TicketFacts,
    bytes: Stands,
    ticket: OnceCell<Ticket>,
}

/// Where a ticket's bytes are.
enum Stands {
    /// In the row that was read.
    There(Range<usize>),
    /// Written since.
    Here(Vec<u8>),
}

impl<'t, 'e> ShortQueue<'t, 'e> {
    pub(super) fn new(txn: &'t Txn<'e>) -> Self {
        Self { txn, row: Vec::new(), seats: Vec::new() }
    }

    pub(super) fn read(txn: &'t Txn<'e>, tickets: &[&[u8]]) -> Self {
        let mut line = Self::new(txn);
        line.row.reserve_exact(tickets.iter().map(|ticket| ticket.len()).sum());
        // One more is likely to come.
        line.seats.reserve_exact(tickets.len() + 1);
        for bytes in tickets {
            let Some(facts) = txn.checked("a ticket", codec::ticket_facts(bytes)) else { break };
            let from = line.row.len();
            line.row.extend_from_slice(bytes);
            let bytes = Stands::There(from..line.row.len());
            line.seats.push(Seat { facts, bytes, ticket: OnceCell::new() });
        }
        line
    }

    pub(super) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.seats.iter().map(|seat| self.bytes_of(seat))
    }

    fn bytes_of<'a>(&'a self, seat: &'a Seat) -> &'a [u8] {
        match &seat.bytes {
            Stands::There(range) => &self.row[range.clone()],
            Stands::Here(bytes) => bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<&Ticket> {
        self.look(&self.seats[self.position(id)?])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.seats.iter().filter_map(|seat| self.look(seat))
    }

    pub(super) fn ahead(&self) -> impl Iterator<Item = &Ticket> {
        let ahead = self.seats.iter().take_while(|seat| seat.facts.kin > 0);
        ahead.filter_map(|seat| self.look(seat))
    }

    pub(super) fn kin_of(&self, owner: OwnerId) -> impl Iterator<Item = &Ticket> {
        let kin = |seat: &&Seat| codec::is_kin(self.bytes_of(seat), owner);
        let mut kin: Vec<&Seat> = self.seats.iter().filter(kin).collect();
        kin.sort_by_key(|seat| seat.facts.arrival);
        kin.into_iter().filter_map(|seat| self.look(seat))
    }

    pub(super) fn before(&self, id: ClaimId) -> impl Iterator<Item = &Ticket> {
        let before = &self.seats[..self.position(id).unwrap_or(0)];
        before.iter().rev().filter_map(|seat| self.look(seat))
    }

    /// Without reading the tickets whole.
    pub(super) fn sessions_before(&self, id: ClaimId, nearest: usize) -> Vec<Option<SessionId>> {
        let before = &self.seats[..self.position(id).unwrap_or(0)];
        let nearest = before.iter().rev().take(nearest);
        nearest.map(|seat| codec::session_of(self.bytes_of(seat))).collect()
    }

    pub(super) fn place(&self, id: ClaimId) -> Option<usize> {
        self.position(id).map(|at| at + 1)
    }

    pub(super) fn push(&mut self, mut ticket: Ticket, kin: u32) {
        ticket.kin = kin;
        self.seat(ticket);
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Ticket> {
        let at = self.position(id)?;
        self.look(&self.seats[at])?;
        self.seats.remove(at).ticket.into_inner()
    }

    pub(super) fn renew(&mut self, id: ClaimId, expires: Tick) {
        if let Some(mut ticket) = self.remove(id) {
            ticket.expires = expires;
            self.seat(ticket);
        }
    }

    pub(super) fn dead(&self, now: Tick) -> Option<ClaimId> {
        if self.txn.troubled() {
            return None;
        }
        let first = self.seats.iter().min_by_key(|seat| seat.facts.expires)?;
        (first.facts.expires <= now).then_some(first.facts.claim)
    }

    pub(super) fn owner_holds(&mut self, owner: OwnerId, holds: bool) {
        let kin: Vec<ClaimId> = self.kin_of(owner).map(|ticket| ticket.claim.id).collect();
        for id in kin {
            let Some(mut ticket) = self.remove(id) else { continue };
            ticket.kin = if holds { ticket.kin + 1 } else { ticket.kin.saturating_sub(1) };
            self.seat(ticket);
        }
    }

    /// Puts a ticket where it belongs.
    fn seat(&mut self, ticket: Ticket) {
        let mut writer = Writer::default();
        codec::write_ticket(&mut writer, &ticket);
        let facts = TicketFacts {
            claim: ticket.claim.id,
            arrival: ticket.arrival,
            expires: ticket.expires,
            kin: ticket.kin,
        };
        let at = self.seats.partition_point(|seat| seat.facts.order() < facts.order());
        let (bytes, ticket) = (Stands::Here(writer.bytes().to_vec()), OnceCell::from(ticket));
        self.seats.insert(at, Seat { facts, bytes, ticket });
    }

    fn position(&self, id: ClaimId) -> Option<usize> {
        self.seats.iter().position(|seat| seat.facts.claim == id)
    }

    fn look<'a>(&'a self, seat: &'a Seat) -> Option<&'a Ticket> {
        if seat.ticket.get().is_none() {
            let ticket = self.txn.checked("a ticket", codec::read_ticket(self.bytes_of(seat)))?;
            let _ = seat.ticket.set(ticket);
        }
        seat.ticket.get()
    }
}

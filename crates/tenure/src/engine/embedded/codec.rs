//! Encodes and decodes claims, slots, tickets, tombstones and signals.
//!
//! Every read is checked: bytes that are not ours give [`Damaged`], never a panic. A change of any
//! of these formats changes the format number of the file set.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::contract::{
    About, Arrival, Claim, ClaimId, Conduct, Fence, Grant, Label, Lineage, Loss, Name, OwnerId,
    Part, Parts, Patience, Place, SessionId, Shape, Signal,
};
pub(super) use crate::ledger::bytes::{Damaged, Read, Reader, Writer};
use crate::ledger::seam::{Group, Hold, Holders as _, Holds, Ticket, Tomb};
use crate::limits;
use crate::time::Tick;

/// The row of a slot. A long queue and many holders have rows of their own.
pub(super) struct SlotRow<'a> {
    pub(super) shape: Shape,
    pub(super) closed_until: Tick,
    pub(super) last_fence: u64,
    pub(super) groups: Vec<Group>,
    pub(super) holds: HoldersRow,
    pub(super) queue: QueueHead,
    /// The tickets of a short queue.
    pub(super) short: SmallVec<[&'a [u8]; 4]>,
}

/// What a slot's row says of its queue. Empty for a short queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueHead {
    /// The number in the keys of its rows; 0 for a short queue.
    pub(super) id: u64,
    /// How many wait.
    pub(super) len: u32,
    /// How many of them are ahead of the queue.
    pub(super) ahead: u32,
}

/// The holders, as a slot's row has them.
pub(super) enum HoldersRow {
    /// A few: all of them.
    Few(Holds),
    /// Many, which have rows of their own.
    Many(HoldersHead),
}

/// What a slot's row says of many holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldersHead {
    /// The number in the keys of their rows.
    pub(super) id: u64,
    pub(super) len: u32,
    /// The number of the next holder; numbers only grow.
    pub(super) next: u64,
    /// What all weigh together.
    pub(super) weight: u64,
    /// How many of them would leave a lock delay behind.
    pub(super) delays: u32,
}

pub(super) fn write_slot<'a>(
    writer: &mut Writer,
    (shape, closed_until, last_fence): (Shape, Tick, u64),
    groups: &[Group],
    holds: Result<&Holds, HoldersHead>,
    queue: QueueHead,
    short: impl Iterator<Item = &'a [u8]>,
) {
    write_shape(writer, shape);
    writer.tick(closed_until);
    writer.u64(last_fence);
    writer.u64(queue.id);
    writer.u32(queue.len);
    writer.u32(queue.ahead);
    writer.count(groups.len());
    for group in groups {
        writer.u64(group.key);
        writer.u64(group.fence.get());
        writer.u8(u8::from(group.spent));
        writer.count(group.members);
    }
    match holds {
        Ok(holds) => {
            writer.u8(0);
            writer.count(holds.len());
            for hold in holds.iter() {
                write_hold(writer, hold);
            }
        }
        Err(head) => {
            writer.u8(1);
            writer.u64(head.id);
            writer.u32(head.len);
            writer.u64(head.next);
            writer.u64(head.weight);
            writer.u32(head.delays);
        }
    }
    for ticket in short {
        writer.raw(ticket);
    }
}

pub(super) fn write_hold(writer: &mut Writer, hold: &Hold) {
    write_claim(writer, &hold.claim);
    writer.u32(hold.weight);
    writer.u64(hold.fence.get());
    writer.option(hold.group, Writer::u64);
    writer.u64(hold.arrival.0);
    writer.tick(hold.since);
    writer.tick(hold.expires);
    writer.u8(u8::from(hold.reserved));
}

/// Decodes a hold that has a row of its own.
pub(super) fn read_hold(bytes: &[u8]) -> Read<Hold> {
    let mut reader = Reader::new(bytes);
    let hold = read_next_hold(&mut reader)?;
    reader.end()?;
    Ok(hold)
}

fn read_next_hold(reader: &mut Reader<'_>) -> Read<Hold> {
    Ok(Hold {
        claim: read_claim(reader)?,
        weight: reader.u32()?,
        fence: Fence::new(reader.u64()?),
        group: reader.option(Reader::u64)?,
        arrival: Arrival(reader.u64()?),
        since: reader.tick()?,
        expires: reader.tick()?,
        reserved: reader.u8()? != 0,
    })
}

fn read_holds(reader: &mut Reader<'_>, additive: bool) -> Read<HoldersRow> {
    match reader.u8()? {
        0 => {
            let mut holds = Holds::new(additive);
            for _ in 0..reader.count(limits::HOLDERS)? {
                holds.insert(read_next_hold(reader)?);
            }
            Ok(HoldersRow::Few(holds))
        }
        1 => Ok(HoldersRow::Many(HoldersHead {
            id: reader.u64()?,
            len: reader.u32()?,
            next: reader.u64()?,
            weight: reader.u64()?,
            delays: reader.u32()?,
        })),
        _ => Err(Damaged),
    }
}

pub(super) fn read_slot(bytes: &[u8]) -> Read<SlotRow<'_>> {
    let mut reader = Reader::new(bytes);
    let shape = read_shape(&mut reader)?;
    let closed_until = reader.tick()?;
    let last_fence = reader.u64()?;
    let queue = QueueHead { id: reader.u64()?, len: reader.u32()?, ahead: reader.u32()? };
    let mut groups = Vec::new();
    for _ in 0..reader.count(limits::HOLDERS)? {
        groups.push(Group {
            key: reader.u64()?,
            fence: Fence::new(reader.u64()?),
            spent: reader.u8()? != 0,
            members: reader.u32()? as usize,
        });
    }
    let holds = read_holds(&mut reader, !shape.reentrant())?;
    let mut short = SmallVec::new();
    while !reader.is_empty() {
        short.push(reader.raw()?);
    }
    Ok(SlotRow { shape, closed_until, last_fence, groups, holds, queue, short })
}

/// The fields that find and order a ticket, read without decoding all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TicketFacts {
    pub(super) claim: ClaimId,
    pub(super) arrival: Arrival,
    pub(super) expires: Tick,
    pub(super) kin: u32,
}

impl TicketFacts {
    /// The order in which tickets are served: those ahead of the queue first, then by arrival.
    pub(super) fn order(self) -> (bool, Arrival) {
        (self.kin == 0, self.arrival)
    }
}

/// The length of a ticket's last fields: arrival, since, expires, kin.
const TICKET_TAIL: usize = 8 + 8 + 8 + 4;

pub(super) fn ticket_facts(bytes: &[u8]) -> Read<TicketFacts> {
    let claim = ClaimId::from_u128(Reader::new(bytes).id()?);
    let at = bytes.len().checked_sub(TICKET_TAIL).ok_or(Damaged)?;
    let mut tail = Reader::new(&bytes[at..]);
    let arrival = Arrival(tail.u64()?);
    let _since = tail.u64()?;
    Ok(TicketFacts { claim, arrival, expires: tail.tick()?, kin: tail.u32()? })
}

/// Returns the session of an encoded ticket, if it has one.
pub(super) fn session_of(ticket: &[u8]) -> Option<SessionId> {
    let mut reader = Reader::new(ticket);
    let _claim = reader.id().ok()?;
    reader.option(Reader::id).ok()?.map(SessionId::from_u128)
}

/// Returns whether an encoded ticket is of this owner or of a descendant.
pub(super) fn is_kin(ticket: &[u8], owner: OwnerId) -> bool {
    let mut reader = Reader::new(ticket);
    let mut look = || -> Read<bool> {
        let _claim = reader.id()?;
        let _session = reader.option(Reader::id)?;
        if reader.id()? == owner.as_u128() {
            return Ok(true);
        }
        for _ in 0..reader.count(limits::ANCESTORS)? {
            if reader.id()? == owner.as_u128() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    // A ticket that cannot be read is reported as damage when it is decoded.
    look().unwrap_or(true)
}

pub(super) fn write_ticket(writer: &mut Writer, ticket: &Ticket) {
    write_claim(writer, &ticket.claim);
    writer.u32(ticket.weight);
    writer.u64(ticket.arrival.0);
    writer.tick(ticket.since);
    writer.tick(ticket.expires);
    writer.u32(ticket.kin);
}

pub(super) fn read_ticket(bytes: &[u8]) -> Read<Ticket> {
    let mut reader = Reader::new(bytes);
    let claim = read_claim(&mut reader)?;
    let weight = reader.u32()?;
    let arrival = Arrival(reader.u64()?);
    let (since, expires) = (reader.tick()?, reader.tick()?);
    let kin = reader.u32()?;
    reader.end()?;
    Ok(Ticket { claim, weight, arrival, since, expires, kin })
}

pub(super) fn write_tomb(writer: &mut Writer, tomb: &Tomb) {
    writer.tick(tomb.until);
    writer.option(tomb.reason.as_deref(), Writer::text);
}

pub(super) fn read_tomb(bytes: &[u8]) -> Read<Tomb> {
    let mut reader = Reader::new(bytes);
    let until = reader.tick()?;
    let reason = reader.option(Reader::text)?.map(Arc::from);
    reader.end()?;
    Ok(Tomb { until, reason })
}

fn write_claim(writer: &mut Writer, claim: &Claim) {
    writer.id(claim.id.as_u128());
    writer.option(claim.session.map(SessionId::as_u128), Writer::id);
    writer.id(claim.lineage.owner().as_u128());
    writer.count(claim.lineage.ancestors().len());
    for ancestor in claim.lineage.ancestors() {
        writer.id(ancestor.as_u128());
    }
    writer.count(claim.parts.as_slice().len());
    for part in claim.parts.as_slice() {
        writer.text(part.name().as_str());
        write_shape(writer, part.shape());
        writer.u32(part.weight());
    }
    writer.duration(claim.lease);
    writer.duration(claim.lock_delay);
    writer.u8(match claim.patience {
        Patience::Try => 0,
        Patience::Wait => 1,
    });
    writer.option(claim.replaces.map(ClaimId::as_u128), Writer::id);
    write_about(writer, &claim.about);
}

fn read_claim(reader: &mut Reader<'_>) -> Read<Arc<Claim>> {
    let id = ClaimId::from_u128(reader.id()?);
    let session = reader.option(Reader::id)?.map(SessionId::from_u128);
    let owner = OwnerId::from_u128(reader.id()?);
    let mut ancestors = SmallVec::<[OwnerId; 4]>::new();
    for _ in 0..reader.count(limits::ANCESTORS)? {
        ancestors.push(OwnerId::from_u128(reader.id()?));
    }
    let lineage = match ancestors.as_slice() {
        [] => Lineage::root(owner),
        ancestors => Lineage::nested(owner, ancestors).map_err(|_| Damaged)?,
    };
    let parts = read_parts(reader)?;
    let (lease, lock_delay) = (reader.duration()?, reader.duration()?);
    let patience = match reader.u8()? {
        0 => Patience::Try,
        1 => Patience::Wait,
        _ => return Err(Damaged),
    };
    let replaces = reader.option(Reader::id)?.map(ClaimId::from_u128);
    let about = read_about(reader)?;
    let claim = Claim { id, session, lineage, parts, lease, lock_delay, patience, replaces, about };
    Ok(Arc::new(claim))
}

fn read_parts(reader: &mut Reader<'_>) -> Read<Parts> {
    let count = reader.count(limits::SET_NAMES)?;
    let mut parts = SmallVec::<[Part; 1]>::new();
    for _ in 0..count {
        let name = Name::from_store(reader.text()?).map_err(|_| Damaged)?;
        let shape = read_shape(reader)?;
        let part = match (shape, reader.u32()?) {
            (Shape::Lock, 1) => Part::read(name),
            (Shape::Lock, limits::FULL_WEIGHT) => Part::write(name),
            (Shape::Semaphore(capacity), permits) => {
                Part::permits(name, permits, capacity).map_err(|_| Damaged)?
            }
            _ => return Err(Damaged),
        };
        parts.push(part);
    }
    match (parts.pop(), parts.is_empty()) {
        (Some(only), true) => Ok(Parts::one(only)),
        (Some(last), false) => Parts::set(parts.into_iter().chain([last])).map_err(|_| Damaged),
        (None, _) => Err(Damaged),
    }
}

fn write_about(writer: &mut Writer, about: &About) {
    writer.text(&about.host);
    writer.u32(about.pid);
    match &about.place {
        None => writer.u8(0),
        Some(Place::Told(text)) => {
            writer.u8(1);
            writer.text(text);
        }
        // Encoded as text: it is read more often than written.
        Some(here @ Place::Here(_)) => {
            writer.u8(1);
            writer.text(&here.to_string());
        }
    }
    writer.option(about.label.as_ref().map(Label::as_str), Writer::text);
    writer.u32(about.conduct.to_code());
}

fn read_about(reader: &mut Reader<'_>) -> Read<About> {
    let host = Arc::from(reader.text()?);
    let pid = reader.u32()?;
    let place = match reader.u8()? {
        0 => None,
        1 => Some(Place::Told(Arc::from(reader.text()?))),
        _ => return Err(Damaged),
    };
    let label = match reader.option(Reader::text)? {
        Some(text) => Some(Label::try_from(text).map_err(|_| Damaged)?),
        None => None,
    };
    let conduct = Conduct::from_code(reader.u32()?);
    Ok(About { host, pid, place, label, conduct })
}

fn write_shape(writer: &mut Writer, shape: Shape) {
    match shape {
        Shape::Lock => writer.u8(0),
        Shape::Semaphore(permits) => {
            writer.u8(1);
            writer.u32(permits);
        }
    }
}

fn read_shape(reader: &mut Reader<'_>) -> Read<Shape> {
    match reader.u8()? {
        0 => Ok(Shape::Lock),
        1 => Ok(Shape::Semaphore(reader.u32()?)),
        _ => Err(Damaged),
    }
}

/// A datagram that carries no signal: it interrupts a blocking receive.
pub(super) const INTERRUPT: &[u8] = &[0];

/// Encodes a signal as a datagram. `None` for signals that never leave a process.
pub(super) fn write_signal(writer: &mut Writer, signal: &Signal) -> Option<()> {
    match signal {
        Signal::Granted { claim, grant } => {
            writer.u8(1);
            writer.id(claim.as_u128());
            writer.u64(grant.arrival.0);
            for fence in grant.fences.as_slice() {
                writer.u64(fence.get());
            }
        }
        Signal::Ended { claim, loss: Loss::Deadlock { words } } => {
            writer.u8(4);
            writer.id(claim.as_u128());
            writer.text(words);
        }
        Signal::Ended { claim, loss: Loss::Evicted { reason } } => {
            writer.u8(2);
            writer.id(claim.as_u128());
            writer.text(reason);
        }
        Signal::Resync => writer.u8(3),
        Signal::Jobs { queue } => {
            writer.u8(5);
            writer.text(queue.as_str());
        }
        _ => return None,
    }
    Some(())
}

pub(super) fn read_signal(bytes: &[u8]) -> Read<Signal> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        1 => {
            let claim = ClaimId::from_u128(reader.id()?);
            let arrival = Arrival(reader.u64()?);
            let mut fences = SmallVec::<[Fence; 1]>::new();
            while !reader.is_empty() {
                fences.push(Fence::new(reader.u64()?));
            }
            let grant = Grant { fences: fences.into_iter().collect(), arrival };
            Ok(Signal::Granted { claim, grant })
        }
        2 => {
            let claim = ClaimId::from_u128(reader.id()?);
            let reason = Arc::from(reader.text()?);
            Ok(Signal::Ended { claim, loss: Loss::Evicted { reason } })
        }
        3 => Ok(Signal::Resync),
        4 => {
            let claim = ClaimId::from_u128(reader.id()?);
            let words = Arc::from(reader.text()?);
            Ok(Signal::Ended { claim, loss: Loss::Deadlock { words } })
        }
        5 => Ok(Signal::Jobs { queue: Name::from_store(reader.text()?).map_err(|_| Damaged)? }),
        _ => Err(Damaged),
    }
}

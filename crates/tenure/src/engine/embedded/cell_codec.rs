//! Encodes writes of cells and their replies for `handover.rs`, changed names for the datagrams of
//! `cell_watches.rs`, and the row that tells what was written for other processes.

use super::cell_rows::{WriteOutcome, WriteRequest};
use super::codec::{Damaged, Read, Reader, Writer};
use super::handover::REPLY;
use crate::contract::{
    Batch, Cell, CellAction, CellPart, CellRange, Conflict, ConflictCause, Expect, Fence, Name,
    Namespace, Version, WriteId,
};
use crate::limits;
use crate::time::Tick;

/// What a committer replies to a write that was handed over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandoverReply {
    Outcome(WriteOutcome),
    /// Nothing was written. The owner has to commit it itself: to get an error of its own, or a
    /// reply that is too long for the slot.
    Alone,
    /// The committer ran into an error, and it may have been written all the same.
    Unknown,
}

/// What a commit has written for a request of another process: a version for each write of the
/// request, 0 for one that was not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommittedRequest {
    pub(super) id: u64,
    pub(super) versions: Vec<u64>,
}

/// A datagram to a watching process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CellSignal {
    Changed(Namespace, Vec<Name>),
    /// Changes may have been missed.
    Gap,
}

/// The most requests in one slot: so many short replies have space.
pub(super) const MOST_REQUESTS: usize = REPLY / SHORT_REPLY;
/// The length of a reply with a version. Longer ones may be replaced by [`HandoverReply::Alone`].
const SHORT_REPLY: usize = 9;

pub(super) fn write_request(writer: &mut Writer, request: &WriteRequest) {
    writer.text(request.namespace.as_str());
    writer.duration(request.keep);
    writer.tick(request.queued_at);
    writer.option(request.batch.id, |writer, id| writer.id(id.as_u128()));
    writer.duration(request.batch.age);
    writer.count(request.batch.parts.len());
    for part in &request.batch.parts {
        writer.text(part.name.as_str());
        let (kind, operand) = match part.expect {
            Expect::Anything => (0, 0),
            Expect::Absent => (1, 0),
            Expect::Version(version) => (2, version.0),
            Expect::Fence(fence) => (3, fence.get()),
        };
        writer.u8(kind);
        writer.u64(operand);
        match &part.action {
            CellAction::Check => writer.u8(0),
            CellAction::Remove => writer.u8(1),
            CellAction::Put { value, time_to_live } => {
                writer.u8(2);
                writer.raw(value);
                writer.option(*time_to_live, Writer::duration);
            }
        }
    }
}

/// Decodes all requests of a slot.
pub(super) fn read_requests(bytes: &[u8]) -> Read<Vec<WriteRequest>> {
    let mut reader = Reader::new(bytes);
    let mut requests = Vec::new();
    while !reader.is_empty() {
        let namespace = read_namespace(&mut reader)?;
        let (keep, queued_at) = (reader.duration()?, reader.tick()?);
        let id = reader.option(Reader::id)?;
        let id = id.map(|id| WriteId::from_parts(id, Tick::ZERO));
        let age = reader.duration()?;
        let mut parts = Vec::new();
        for _ in 0..reader.count(limits::CELL_PARTS)? {
            parts.push(read_part(&mut reader)?);
        }
        let batch = Batch { parts, id, age };
        batch.check_limits().map_err(|_| Damaged)?;
        requests.push(WriteRequest { namespace, batch, keep, queued_at });
    }
    if requests.len() > MOST_REQUESTS { Err(Damaged) } else { Ok(requests) }
}

fn read_part(reader: &mut Reader<'_>) -> Read<CellPart> {
    let name = read_name(reader)?;
    let (kind, operand) = (reader.u8()?, reader.u64()?);
    let expect = match kind {
        0 => Expect::Anything,
        1 => Expect::Absent,
        2 => Expect::Version(Version(operand)),
        3 => Expect::Fence(Fence::new(operand)),
        _ => return Err(Damaged),
    };
    let action = match reader.u8()? {
        0 => CellAction::Check,
        1 => CellAction::Remove,
        2 => {
            let value = reader.raw()?.to_vec();
            CellAction::Put { value, time_to_live: reader.option(Reader::duration)? }
        }
        _ => return Err(Damaged),
    };
    Ok(CellPart { name, expect, action })
}

/// Encodes the replies to all requests of a slot in at most [`REPLY`] bytes. Refusals that have no
/// space are replaced: the owner gets them when it commits the write itself.
pub(super) fn write_replies(replies: &[HandoverReply]) -> Writer {
    let mut writer = Writer::default();
    for (at, reply) in replies.iter().enumerate() {
        let mut one = Writer::default();
        write_reply(&mut one, reply);
        // What may not be replaced is short, and there is space for that many short replies.
        let later = (replies.len() - at - 1) * SHORT_REPLY;
        if writer.bytes().len() + one.bytes().len() + later > REPLY {
            one = Writer::default();
            write_reply(&mut one, &HandoverReply::Alone);
        }
        writer.append(one.bytes());
    }
    writer
}

fn write_reply(writer: &mut Writer, reply: &HandoverReply) {
    match reply {
        HandoverReply::Alone => writer.u8(0),
        HandoverReply::Outcome(WriteOutcome::Done(version)) => {
            writer.u8(1);
            writer.u64(version.0);
        }
        HandoverReply::Outcome(WriteOutcome::Refused(conflicts)) => {
            writer.u8(2);
            writer.count(conflicts.len());
            for conflict in conflicts {
                write_conflict(writer, conflict);
            }
        }
        HandoverReply::Outcome(WriteOutcome::Forgotten(name)) => {
            writer.u8(3);
            writer.text(name.as_str());
        }
        HandoverReply::Outcome(WriteOutcome::Damaged(name)) => {
            writer.u8(4);
            writer.text(name.as_str());
        }
        HandoverReply::Unknown => writer.u8(5),
    }
}

pub(super) fn read_replies(bytes: &[u8]) -> Read<Vec<HandoverReply>> {
    let mut reader = Reader::new(bytes);
    let mut replies = Vec::new();
    while !reader.is_empty() {
        replies.push(match reader.u8()? {
            0 => HandoverReply::Alone,
            1 => HandoverReply::Outcome(WriteOutcome::Done(Version(reader.u64()?))),
            2 => {
                let count = reader.count(limits::CELL_PARTS)?;
                let conflicts = (0..count).map(|_| read_conflict(&mut reader));
                HandoverReply::Outcome(WriteOutcome::Refused(conflicts.collect::<Read<_>>()?))
            }
            3 => HandoverReply::Outcome(WriteOutcome::Forgotten(read_name(&mut reader)?)),
            4 => HandoverReply::Outcome(WriteOutcome::Damaged(read_name(&mut reader)?)),
            5 => HandoverReply::Unknown,
            _ => return Err(Damaged),
        });
    }
    Ok(replies)
}

fn write_conflict(writer: &mut Writer, conflict: &Conflict) {
    writer.text(conflict.name.as_str());
    match &conflict.cause {
        ConflictCause::Stale(fence) => {
            writer.u8(0);
            writer.u64(fence.get());
        }
        ConflictCause::Changed(cell) => {
            writer.u8(1);
            writer.option(cell.as_ref(), |writer, cell| {
                writer.raw(&cell.value);
                writer.u64(cell.version.0);
                writer.option(cell.fence.map(Fence::get), Writer::u64);
                writer.option(cell.expires_in, Writer::duration);
            });
        }
    }
}

fn read_conflict(reader: &mut Reader<'_>) -> Read<Conflict> {
    let name = read_name(reader)?;
    let cause = match reader.u8()? {
        0 => ConflictCause::Stale(Fence::new(reader.u64()?)),
        1 => ConflictCause::Changed(reader.option(|reader| {
            Ok(Cell {
                value: reader.raw()?.to_vec(),
                version: Version(reader.u64()?),
                fence: reader.option(Reader::u64)?.map(Fence::new),
                expires_in: reader.option(Reader::duration)?,
            })
        })?),
        _ => return Err(Damaged),
    };
    Ok(Conflict { name, cause })
}

pub(super) fn write_committed(committed: &[CommittedRequest]) -> Writer {
    let mut writer = Writer::default();
    for request in committed {
        writer.u64(request.id);
        writer.count(request.versions.len());
        request.versions.iter().for_each(|version| writer.u64(*version));
    }
    writer
}

pub(super) fn read_committed(bytes: &[u8]) -> Read<Vec<CommittedRequest>> {
    let mut reader = Reader::new(bytes);
    let mut committed = Vec::new();
    while !reader.is_empty() {
        let id = reader.u64()?;
        let versions =
            (0..reader.count(MOST_REQUESTS)?).map(|_| reader.u64()).collect::<Read<_>>()?;
        committed.push(CommittedRequest { id, versions });
    }
    Ok(committed)
}

pub(super) fn write_cell_signal(signal: &CellSignal) -> Writer {
    let mut writer = Writer::default();
    match signal {
        CellSignal::Gap => writer.u8(0),
        CellSignal::Changed(namespace, names) => {
            writer.u8(1);
            writer.text(namespace.as_str());
            for name in names {
                writer.text(name.as_str());
            }
        }
    }
    writer
}

pub(super) fn read_cell_signal(bytes: &[u8]) -> Read<CellSignal> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        0 => reader.end().map(|()| CellSignal::Gap),
        1 => {
            let namespace = read_namespace(&mut reader)?;
            let mut names = Vec::new();
            while !reader.is_empty() {
                names.push(read_name(&mut reader)?);
            }
            Ok(CellSignal::Changed(namespace, names))
        }
        _ => Err(Damaged),
    }
}

pub(super) fn write_ranges(ranges: &[(Namespace, CellRange)]) -> Writer {
    let mut writer = Writer::default();
    for (namespace, range) in ranges {
        writer.text(namespace.as_str());
        let (kind, text) = match range {
            CellRange::One(name) => (0, name.as_str()),
            CellRange::Prefix(prefix) => (1, prefix.as_str()),
        };
        writer.u8(kind);
        writer.text(text);
    }
    writer
}

pub(super) fn read_ranges(bytes: &[u8]) -> Read<Vec<(Namespace, CellRange)>> {
    let mut reader = Reader::new(bytes);
    let mut ranges = Vec::new();
    while !reader.is_empty() {
        let namespace = read_namespace(&mut reader)?;
        let range = match reader.u8()? {
            0 => CellRange::One(read_name(&mut reader)?),
            1 => CellRange::Prefix(reader.text()?.to_owned()),
            _ => return Err(Damaged),
        };
        ranges.push((namespace, range));
    }
    Ok(ranges)
}

fn read_name(reader: &mut Reader<'_>) -> Read<Name> {
    Name::from_store(reader.text()?).map_err(|_| Damaged)
}

fn read_namespace(reader: &mut Reader<'_>) -> Read<Namespace> {
    Namespace::try_from(reader.text()?).map_err(|_| Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn conflict(bytes: usize) -> Conflict {
        let cell = Cell {
            value: vec![7; bytes],
            version: Version(3),
            fence: Some(Fence::new(4)),
            expires_in: None,
        };
        Conflict { name: name("c"), cause: ConflictCause::Changed(Some(cell)) }
    }

    #[test]
    fn replies_come_back_as_they_were() {
        let stale = Conflict { name: name("s"), cause: ConflictCause::Stale(Fence::new(9)) };
        let outcomes = [
            WriteOutcome::Done(Version(1)),
            WriteOutcome::Refused(vec![conflict(10), stale]),
            WriteOutcome::Forgotten(name("f")),
            WriteOutcome::Damaged(name("d")),
        ];
        let mut replies: Vec<_> = outcomes.into_iter().map(HandoverReply::Outcome).collect();
        replies.extend([HandoverReply::Alone, HandoverReply::Unknown]);
        assert_eq!(read_replies(write_replies(&replies).bytes()).unwrap(), replies);
        assert_eq!(read_replies(&[9]), Err(Damaged));
    }

    /// A refusal can have 8 MiB of values; a version must never be lost for want of space.
    #[test]
    fn refusals_without_space_are_replaced_and_versions_are_not() {
        let done = |version| HandoverReply::Outcome(WriteOutcome::Done(Version(version)));
        let refused = || HandoverReply::Outcome(WriteOutcome::Refused(vec![conflict(REPLY)]));
        let mut replies = vec![refused()];
        replies.extend((1..MOST_REQUESTS as u64).map(done));
        let encoded = write_replies(&replies);
        assert!(encoded.bytes().len() <= REPLY);
        let read = read_replies(encoded.bytes()).unwrap();
        assert_eq!((&read[0], &read[1..]), (&HandoverReply::Alone, &replies[1..]));
    }
}

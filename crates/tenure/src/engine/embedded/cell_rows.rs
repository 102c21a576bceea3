//! The rows of cells in the synced environment, and one write over them within a transaction.
//!
//! ```text
//! W                 -> the last version of any cell
//! M, N namespace    -> the last number of a namespace; the number of this one
//! V number name     -> a cell: version, fence, expiry, value
//! I number name     -> the ids of the last writes to the cell
//! ```
//!
//! The rules are those of `ledger::cells`: this file reads what they judge and writes what they
//! decide. A write that is refused changes no row at all, the number of a new namespace included.
//!
//! A value expires by the boot-time clock in the boot in which it was written, and by the wall
//! clock after that, because the boot-time clock begins anew. Ids of writes count for one boot: the
//! processes that could repeat them end with it.
//!
//! The fence of a cell is kept when its value is removed or expires, so that a writer with an older
//! fence is refused then too. Every write checks a few rows, in turn over all of them, and deletes
//! those that say nothing any more.
//!
//! A row that cannot be decoded fails the write to its cell and no other. A plain write without an
//! id and without a condition replaces it: what the row said is lost by then anyway.

use std::time::Duration;

use super::codec::{Damaged, Read, Reader, Writer};
use super::txn::{Key, Txn};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, Conflict, Error, ErrorKind, Expect, Fence,
    Name, Namespace, Version, write_forgotten,
};
use crate::ledger::cells::{CellState, Judgement, LogEntry, WriteLog, judge};
use crate::limits;
use crate::time::{Clock, Tick};

/// How many rows of each kind a write checks for being needed no more.
const SWEPT: usize = 4;

/// A batch, and what the process that commits it has to know.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) namespace: Namespace,
    pub(super) batch: Batch,
    /// For how long the ids of writes are kept.
    pub(super) keep: Duration,
    /// When the age of the batch was right.
    pub(super) queued_at: Tick,
}

/// The reply to a [`WriteRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Done(Version),
    Refused(Vec<Conflict>),
    /// Whether it was written before cannot be told any more.
    Forgotten(Name),
    /// The row of this cell cannot be decoded.
    Damaged(Name),
}

/// A write that was judged.
pub(super) struct Judged {
    pub(super) outcome: WriteOutcome,
    /// It changes rows: not a refusal, and not a repeat.
    pub(super) wrote: bool,
}

/// The time of a read or a write, by both clocks.
#[derive(Clone, Copy)]
pub(super) struct CellTime {
    boot: u64,
    tick: Tick,
    wall_micros: u64,
}

/// When a value expires, by both clocks.
#[derive(Clone, Copy)]
struct CellExpiry {
    boot: u64,
    tick: Tick,
    wall_micros: u64,
}

/// The row of a cell.
struct CellRow<'a> {
    value: Option<&'a [u8]>,
    version: Version,
    /// Kept when the value is gone: a stale writer must be refused after a removal too.
    fence: Option<Fence>,
    expires: Option<CellExpiry>,
}

/// The row of the ids that wrote a cell.
struct LogRow {
    boot: u64,
    keep: Duration,
    log: WriteLog,
}

/// Where the next sweep goes on.
#[derive(Debug, Default)]
pub(super) struct SweepCursor {
    cells: Key,
    logs: Key,
}

/// A cell of a batch before the batch is judged.
struct PartState {
    cell: CellState,
    /// The log cannot be decoded, and is written anew.
    log_was_damaged: bool,
}

/// Judges a write and, if nothing is against it, makes it.
pub(super) fn write(
    txn: &Txn<'_>,
    request: &WriteRequest,
    now: CellTime,
    sweep: &mut SweepCursor,
) -> Judged {
    let mut batch = request.batch.clone();
    // The time in a queue counts.
    batch.age += now.tick.since(request.queued_at);
    let number = txn.get(&namespace_key(&request.namespace), "a namespace", read_number);
    let mut states = Vec::with_capacity(batch.parts.len());
    let mut resets = Vec::new();
    for part in &batch.parts {
        match number.map_or(Ok(PartState::empty()), |number| read(txn, number, &batch, part, now)) {
            Ok(state) => {
                resets.push(state.log_was_damaged);
                states.push(state.cell);
            }
            Err(Damaged) => return Judged::unwritten(WriteOutcome::Damaged(part.name.clone())),
        }
    }
    let fences = match judge(&batch, &states, now.micros(), request.keep) {
        Judgement::Write(fences) => fences,
        Judgement::Repeat(version) => return Judged::unwritten(WriteOutcome::Done(version)),
        Judgement::Refused(conflicts) => {
            return Judged::unwritten(WriteOutcome::Refused(conflicts));
        }
        Judgement::Forgotten(name) => return Judged::unwritten(WriteOutcome::Forgotten(name)),
    };
    if !batch.parts.iter().any(CellPart::writes) {
        // Conditions alone: all hold, and there is nothing to write.
        return Judged::unwritten(WriteOutcome::Done(Version(last_version(txn))));
    }
    let number = number.unwrap_or_else(|| new_number(txn, &request.namespace));
    let version = Version(last_version(txn) + 1);
    txn.put(b"W", &version.0.to_le_bytes());
    for (((part, state), fence), reset) in batch.parts.iter().zip(states).zip(fences).zip(resets) {
        let mut log = state.log;
        if let Some(id) = batch.id.filter(|_| part.writes()) {
            let entry = LogEntry { id: id.as_u128(), version, at_micros: now.micros() };
            log.record(entry, request.keep);
        }
        if part.writes() && (batch.id.is_some() || reset) {
            let row = LogRow { boot: now.boot, keep: request.keep, log };
            txn.put(&cell_key(b'I', number, &part.name), row.write().bytes());
        }
        write_part(txn, number, part, version, fence, now);
    }
    sweep_rows(txn, sweep, now);
    Judged { outcome: WriteOutcome::Done(version), wrote: true }
}

fn write_part(
    txn: &Txn<'_>,
    number: [u8; 4],
    part: &CellPart,
    version: Version,
    fence: Option<Fence>,
    now: CellTime,
) {
    let key = cell_key(b'V', number, &part.name);
    let (value, time) = match &part.action {
        CellAction::Check => return,
        CellAction::Remove => (None, None),
        CellAction::Put { value, time_to_live } => (Some(value.as_slice()), *time_to_live),
    };
    if value.is_none() && fence.is_none() {
        txn.delete(&key);
    } else {
        let row = CellRow { value, version, fence, expires: time.map(|time| now.expires(time)) };
        txn.put(&key, row.write().bytes());
    }
}

/// Reads what is in a cell of a batch.
fn read(
    txn: &Txn<'_>,
    number: [u8; 4],
    batch: &Batch,
    part: &CellPart,
    now: CellTime,
) -> Read<PartState> {
    // Replaces whatever is there, so that it need not be known.
    let replaces = batch.id.is_none() && part.expect == Expect::Anything && part.writes();
    let row = |bytes: &[u8]| Ok(CellRow::read(bytes).map(|row| (row.cell(now), row.fence)));
    let row = txn.get(&cell_key(b'V', number, &part.name), "a cell", row);
    let (present, fence) = match row {
        None => (None, None),
        Some(Ok(row)) => row,
        Some(Err(Damaged)) if replaces => (None, None),
        Some(Err(Damaged)) => return Err(Damaged),
    };
    let log = |bytes: &[u8]| Ok(LogRow::read(bytes));
    let log = txn.get(&cell_key(b'I', number, &part.name), "ids of writes", log);
    let (log, log_was_damaged) = match log {
        Some(Ok(row)) if row.boot == now.boot => (row.log, false),
        None | Some(Ok(_)) => (WriteLog::default(), false),
        Some(Err(Damaged)) if batch.id.is_some() => return Err(Damaged),
        // Ids from before this write are not known any more.
        Some(Err(Damaged)) => {
            (WriteLog { dropped_micros: now.micros(), ..WriteLog::default() }, true)
        }
    };
    Ok(PartState { cell: CellState { present, fence, log }, log_was_damaged })
}

/// Deletes rows that say nothing any more among the next few of each kind.
fn sweep_rows(txn: &Txn<'_>, cursor: &mut SweepCursor, now: CellTime) {
    sweep_kind(txn, b'V', &mut cursor.cells, |bytes| {
        CellRow::read(bytes).is_ok_and(|row| row.fence.is_none() && !row.lives(now))
    });
    sweep_kind(txn, b'I', &mut cursor.logs, |bytes| {
        LogRow::read(bytes).is_ok_and(|row| !row.is_needed(now))
    });
}

fn sweep_kind(txn: &Txn<'_>, kind: u8, at: &mut Key, ended: impl Fn(&[u8]) -> bool) {
    for _ in 0..SWEPT {
        let row = |key: &[u8], value: &[u8]| (Key::from(key), ended(value));
        if at.is_empty() {
            at.push(kind);
        }
        let Some((key, ended)) = txn.after(at, &[kind], row) else {
            // After the last row the sweep begins anew.
            at.clear();
            return;
        };
        if ended {
            txn.delete(&key);
        }
        *at = key;
    }
}

fn last_version(txn: &Txn<'_>) -> u64 {
    txn.get(b"W", "the last version", |bytes| Reader::new(bytes).u64()).unwrap_or(0)
}

/// Returns the number of a namespace, which is assigned if it has none.
pub(super) fn number_of(txn: &Txn<'_>, namespace: &Namespace) -> [u8; 4] {
    let number = txn.get(&namespace_key(namespace), "a namespace", read_number);
    number.unwrap_or_else(|| new_number(txn, namespace))
}

/// Assigns the next number to a namespace.
fn new_number(txn: &Txn<'_>, namespace: &Namespace) -> [u8; 4] {
    let last = txn.get(b"M", "the last namespace", |bytes| Reader::new(bytes).u32());
    let number = last.unwrap_or(0) + 1;
    txn.put(b"M", &number.to_le_bytes());
    txn.put(&namespace_key(namespace), &number.to_be_bytes());
    number.to_be_bytes()
}

pub(super) fn read_number(bytes: &[u8]) -> Read<[u8; 4]> {
    bytes.try_into().map_err(|_| Damaged)
}

/// Decodes a cell; `None` if it has no value now.
pub(super) fn read_cell(bytes: &[u8], now: CellTime) -> Read<Option<Cell>> {
    CellRow::read(bytes).map(|row| row.cell(now))
}

pub(super) fn namespace_key(namespace: &Namespace) -> Key {
    let mut key = Key::new();
    key.push(b'N');
    key.extend_from_slice(namespace.as_str().as_bytes());
    key
}

/// Returns what the keys of all cells of a namespace begin with.
pub(super) fn cells_key(kind: u8, number: [u8; 4]) -> Key {
    let mut key = Key::new();
    key.push(kind);
    key.extend_from_slice(&number);
    key
}

pub(super) fn cell_key(kind: u8, number: [u8; 4], name: &Name) -> Key {
    let mut key = cells_key(kind, number);
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

/// Returns the first half of a boot id as a number.
pub(super) fn boot_number(boot: &str) -> u64 {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

pub(super) fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "a cell cannot be decoded: its row is damaged")
        .with_help("write the cell anew, without a condition and without an id")
}

impl WriteOutcome {
    pub(super) fn into_result(self) -> Result<BatchVerdict, Error> {
        match self {
            Self::Done(version) => Ok(BatchVerdict::Done(version)),
            Self::Refused(conflicts) => Ok(BatchVerdict::Refused(conflicts)),
            Self::Forgotten(name) => Err(write_forgotten(&name)),
            Self::Damaged(name) => Err(damaged().on(&name)),
        }
    }
}

impl Judged {
    fn unwritten(outcome: WriteOutcome) -> Self {
        Self { outcome, wrote: false }
    }
}

impl PartState {
    fn empty() -> Self {
        Self { cell: CellState::default(), log_was_damaged: false }
    }
}

impl CellTime {
    pub(super) fn of(clock: &dyn Clock, boot: u64) -> Self {
        Self { boot, tick: clock.now(), wall_micros: clock.wall_micros() }
    }

    fn micros(self) -> u64 {
        self.tick.as_nanos() / 1_000
    }

    fn expires(self, time: Duration) -> CellExpiry {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        CellExpiry {
            boot: self.boot,
            tick: self.tick + time,
            wall_micros: self.wall_micros.saturating_add(micros),
        }
    }

    fn left(self, expires: CellExpiry) -> Duration {
        if expires.boot == self.boot {
            return expires.tick.since(self.tick);
        }
        Duration::from_micros(expires.wall_micros.saturating_sub(self.wall_micros))
    }
}

impl<'a> CellRow<'a> {
    fn cell(&self, now: CellTime) -> Option<Cell> {
        let value = self.value.filter(|_| self.lives(now))?.to_vec();
        let expires_in = self.expires.map(|expires| now.left(expires));
        Some(Cell { value, version: self.version, fence: self.fence, expires_in })
    }

    /// Returns whether there is a value that has not expired.
    fn lives(&self, now: CellTime) -> bool {
        let expires_in = self.expires.map(|expires| now.left(expires));
        self.value.is_some() && expires_in.is_none_or(|left| !left.is_zero())
    }

    fn write(&self) -> Writer {
        let mut writer = Writer::with_capacity(self.value.map_or(0, |value| value.len() + 64));
        writer.u64(self.version.0);
        writer.option(self.fence.map(Fence::get), Writer::u64);
        writer.option(self.expires, |writer, expires| {
            writer.u64(expires.boot);
            writer.u64(expires.tick.as_nanos());
            writer.u64(expires.wall_micros);
        });
        writer.option(self.value, Writer::raw);
        writer
    }

    fn read(bytes: &'a [u8]) -> Read<Self> {
        let mut reader = Reader::new(bytes);
        let version = Version(reader.u64()?);
        let fence = reader.option(Reader::u64)?.map(Fence::new);
        let expires = reader.option(|reader| {
            let (boot, tick) = (reader.u64()?, Tick::from_nanos(reader.u64()?));
            Ok(CellExpiry { boot, tick, wall_micros: reader.u64()? })
        })?;
        let value = reader.option(Reader::raw)?;
        reader.end()?;
        Ok(Self { value, version, fence, expires })
    }
}

impl LogRow {
    fn is_needed(&self, now: CellTime) -> bool {
        self.boot == now.boot && self.log.is_needed(now.micros(), self.keep)
    }

    fn write(&self) -> Writer {
        let mut writer = Writer::default();
        writer.u64(self.boot);
        writer.duration(self.keep);
        writer.u64(self.log.dropped_micros);
        writer.count(self.log.entries.len());
        for entry in &self.log.entries {
            writer.id(entry.id);
            writer.u64(entry.version.0);
            writer.u64(entry.at_micros);
        }
        writer
    }

    fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader::new(bytes);
        let (boot, keep) = (reader.u64()?, reader.duration()?);
        let mut log = WriteLog { dropped_micros: reader.u64()?, ..WriteLog::default() };
        for _ in 0..reader.count(limits::WRITE_IDS)? {
            let (id, version) = (reader.id()?, Version(reader.u64()?));
            log.entries.push_back(LogEntry { id, version, at_micros: reader.u64()? });
        }
        reader.end()?;
        Ok(Self { boot, keep, log })
    }
}

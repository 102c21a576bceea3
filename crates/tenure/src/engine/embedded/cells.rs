//! Cells in the synced environment: versioned values with compare-and-set, which outlive a reboot.
//!
//! A read is a read transaction on the caller's thread. A write is one synced transaction on the
//! worker thread for the disk: it compares, assigns the next version, writes, and deletes a few
//! expired values. The fence of a cell is kept when its value is removed or expires, so that a
//! writer with an older fence is refused then too.
//!
//! A value expires by the boot-time clock in the boot in which it was written, and by the wall
//! clock after that, because the boot-time clock begins anew.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::codec::{Damaged, Reader, Writer};
use super::sessions::Sessions;
use super::txn::{Key, Txn};
use crate::contract::{
    Cell, Cells, Error, ErrorKind, Expect, Fence, Name, Namespace, Pattern, Pending, Put,
    PutVerdict, Verb, Version,
};
use crate::limits;
use crate::time::{Clock, Tick};

/// How many values a write checks for being expired.
const CLEARED: usize = 4;

/// The cells of one namespace.
pub(super) struct EmbeddedCells {
    sessions: Arc<Sessions>,
    clock: Arc<dyn Clock>,
    namespace: Namespace,
    /// The first half of the boot id.
    boot: u64,
}

/// The row of a cell.
struct CellRow {
    value: Option<Vec<u8>>,
    version: Version,
    /// Kept when the value is gone: a stale writer must be refused after a removal too.
    fence: Option<Fence>,
    expires: Option<CellExpiry>,
}

/// When a value expires, by both clocks.
#[derive(Clone, Copy)]
struct CellExpiry {
    boot: u64,
    tick: Tick,
    wall_micros: u64,
}

/// The time of a read or a write, by both clocks.
#[derive(Clone, Copy)]
struct CellTime {
    boot: u64,
    tick: Tick,
    wall_micros: u64,
}

/// A write; a removal if there is no value.
struct CellChange {
    name: Name,
    value: Option<Vec<u8>>,
    expect: Expect,
    time_to_live: Option<Duration>,
}

impl EmbeddedCells {
    pub(super) fn new(
        sessions: Arc<Sessions>,
        clock: Arc<dyn Clock>,
        namespace: Namespace,
        boot: &str,
    ) -> Self {
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        let boot = u64::from_str_radix(&digits, 16).unwrap_or(0);
        Self { sessions, clock, namespace, boot }
    }

    fn now(&self) -> CellTime {
        let (tick, wall_micros) = (self.clock.now(), self.clock.wall_micros());
        CellTime { boot: self.boot, tick, wall_micros }
    }

    async fn change(&self, change: CellChange) -> Result<PutVerdict, Error> {
        let (sessions, namespace) = (Arc::clone(&self.sessions), self.namespace.clone());
        let now = self.now();
        let changed = self.sessions.disk_worker().run(move || {
            let store = sessions.store();
            let durable = store.durable()?;
            durable.write(store.gate(), |txn| write(txn, &namespace, change, now))
        });
        changed.await.map_err(|error| error.during(Verb::Cell))
    }

    fn read_list(
        &self,
        pattern: &Pattern,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        let now = self.now();
        let limit = limit.clamp(1, limits::PAGE);
        let listed = self.sessions.store().durable()?.read(|txn, table| {
            let Some(number) = table.get(txn, &namespace_key(&self.namespace))? else {
                return Ok(Ok(Vec::new()));
            };
            let prefix = cells_key(number);
            let mut start = prefix.clone();
            start.extend_from_slice(after.map_or("", Name::as_str).as_bytes());
            let range = (Bound::Excluded(start.as_slice()), Bound::Unbounded);
            let mut found = Vec::new();
            for row in table.range(txn, &range)? {
                let (key, value) = row?;
                let Some(name) = key.strip_prefix(prefix.as_slice()) else { break };
                let name =
                    std::str::from_utf8(name).ok().and_then(|text| Name::try_from(text).ok());
                let (Some(name), Ok(row)) = (name, CellRow::read(value)) else {
                    return Ok(Err(Damaged));
                };
                let Some(cell) = row.cell(now).filter(|_| pattern.matches(name.as_str())) else {
                    continue;
                };
                found.push((name, cell));
                if found.len() == limit {
                    break;
                }
            }
            Ok(Ok(found))
        });
        listed?.map_err(|Damaged| damaged())
    }
}

impl Cells for EmbeddedCells {
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>> {
        Box::pin(async move {
            let now = self.now();
            let read = self.sessions.store().durable()?.read(|txn, table| {
                let Some(number) = table.get(txn, &namespace_key(&self.namespace))? else {
                    return Ok(Ok(None));
                };
                let row = table.get(txn, &cell_key(number, name))?;
                Ok(row.map(CellRow::read).transpose())
            })?;
            let row = read.map_err(|Damaged| damaged().during(Verb::Cell).on(name))?;
            Ok(row.and_then(|row| row.cell(now)))
        })
    }

    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict> {
        Box::pin(async move {
            put.check()?;
            let (name, value) = (put.name.clone(), Some(put.value.clone()));
            let (expect, time_to_live) = (put.expect, put.time_to_live);
            self.change(CellChange { name, value, expect, time_to_live }).await
        })
    }

    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict> {
        let change = CellChange { name: name.clone(), value: None, expect, time_to_live: None };
        Box::pin(self.change(change))
    }

    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>> {
        Box::pin(async move {
            let listed = self.read_list(pattern, after, limit);
            listed.map_err(|error| error.during(Verb::Cell))
        })
    }
}

fn write(txn: &Txn<'_>, namespace: &Namespace, change: CellChange, now: CellTime) -> PutVerdict {
    let key = cell_key(&number_of(txn, namespace), &change.name);
    let row = txn.get(&key, "a cell", CellRow::read);
    let present = row.as_ref().and_then(|row| row.cell(now));
    let fence = match change.expect.judge(present, row.and_then(|row| row.fence)) {
        Ok(fence) => fence,
        Err(refused) => return refused,
    };
    let version = Version(next_version(txn));
    let expires = change.time_to_live.map(|time| now.expires(time));
    if change.value.is_none() && fence.is_none() {
        txn.delete(&key);
    } else {
        let row = CellRow { value: change.value, version, fence, expires };
        txn.put(&key, row.write().bytes());
    }
    clear_expired(txn, &key, now);
    PutVerdict::Done(version)
}

/// Deletes expired values among the next few after this key, unless they have a fence to keep.
fn clear_expired(txn: &Txn<'_>, from: &[u8], now: CellTime) {
    let mut at = Key::from(from);
    for _ in 0..CLEARED {
        let row = |key: &[u8], value: &[u8]| (Key::from(key), CellRow::read(value));
        let Some((key, row)) = txn.after(&at, b"V", row) else { return };
        if let Ok(row) = row
            && row.expires.is_some()
            && row.fence.is_none()
            && row.cell(now).is_none()
        {
            txn.delete(&key);
        }
        at = key;
    }
}

fn next_version(txn: &Txn<'_>) -> u64 {
    let version = txn.get(b"W", "the last version", |bytes| Reader::new(bytes).u64());
    let version = version.unwrap_or(0) + 1;
    txn.put(b"W", &version.to_le_bytes());
    version
}

/// Returns the number of the namespace, which is assigned at its first write.
fn number_of(txn: &Txn<'_>, namespace: &Namespace) -> [u8; 4] {
    let key = namespace_key(namespace);
    let read = |bytes: &[u8]| bytes.try_into().map_err(|_| Damaged);
    if let Some(number) = txn.get(&key, "a namespace", read) {
        return number;
    }
    let last = txn.get(b"M", "the last namespace", |bytes| Reader::new(bytes).u32());
    let number = last.unwrap_or(0) + 1;
    txn.put(b"M", &number.to_le_bytes());
    txn.put(&key, &number.to_be_bytes());
    number.to_be_bytes()
}

fn namespace_key(namespace: &Namespace) -> Key {
    let mut key = Key::new();
    key.push(b'N');
    key.extend_from_slice(namespace.as_str().as_bytes());
    key
}

fn cells_key(number: &[u8]) -> Key {
    let mut key = Key::new();
    key.push(b'V');
    key.extend_from_slice(number);
    key
}

fn cell_key(number: &[u8], name: &Name) -> Key {
    let mut key = cells_key(number);
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "a cell cannot be decoded: its row is damaged")
        .with_help("write the cell anew")
}

impl CellTime {
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

impl CellRow {
    fn cell(&self, now: CellTime) -> Option<Cell> {
        let expires_in = self.expires.map(|expires| now.left(expires));
        let lives = expires_in.is_none_or(|left| !left.is_zero());
        let value = self.value.as_ref().filter(|_| lives)?;
        Some(Cell { value: value.clone(), version: self.version, fence: self.fence, expires_in })
    }

    fn write(&self) -> Writer {
        let mut writer = Writer::default();
        writer.u64(self.version.0);
        writer.option(self.fence.map(Fence::get), Writer::u64);
        writer.option(self.expires, |writer, expires| {
            writer.u64(expires.boot);
            writer.u64(expires.tick.as_nanos());
            writer.u64(expires.wall_micros);
        });
        writer.option(self.value.as_deref(), Writer::raw);
        writer
    }

    fn read(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes);
        let version = Version(reader.u64()?);
        let fence = reader.option(Reader::u64)?.map(Fence::new);
        let expires = reader.option(|reader| {
            let (boot, tick) = (reader.u64()?, Tick::from_nanos(reader.u64()?));
            Ok(CellExpiry { boot, tick, wall_micros: reader.u64()? })
        })?;
        let value = reader.option(Reader::raw)?.map(<[u8]>::to_vec);
        reader.end()?;
        Ok(Self { value, version, fence, expires })
    }
}

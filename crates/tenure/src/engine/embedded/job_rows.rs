//! The rows of job queues: those of the lock environment, which a reboot ends, and the records of
//! the synced environment, which outlive it.
//!
//! ```text
//! lock environment                                   synced environment
//! J namespace queue 0 ...  -> rows of the rules      J namespace queue 0 R id -> record of a job
//! J namespace queue 0 V id -> reply to a push        J namespace queue 0 P id -> payload
//! J namespace queue 0 V 0  -> restored up to         J namespace queue 0 N    -> last number
//! Z namespace queue 0 id   -> nothing: the record    J namespace queue 0 S    -> settings
//!                             of the job is behind
//! ```
//!
//! A record is written when the job is pushed, and again when its lasting facts change. Its number
//! is given out inside the synced transaction, so records appear in the order of their numbers, and
//! the lock environment needs to know only up to which number it has taken jobs in.
//!
//! Records are written behind the rows, by any process, and several may do so at once. A record has
//! the generation of the row it was written from; an older one never replaces a newer one, and a
//! record that is gone is never written again.

use super::cell_rows::{namespace_key, read_number};
use super::codec::{Damaged, Read, Reader, Writer};
use super::store::Store;
use super::txn::{Key, LmdbTable, Txn};
use crate::contract::{Error, ErrorKind, JobId, Name, Namespace, NewJob, Pushed};
use crate::ledger::jobs::{JobRow, JobRows, QueueRow};

type ReadTxn<'a> = heed::RoTxn<'a, heed::WithoutTls>;

/// How many records are taken in or written in one step.
pub(super) const PER_STEP: usize = 1_000;

/// The rows of one queue in the lock environment.
pub(super) struct QueueRows<'t, 'e> {
    txn: &'t Txn<'e>,
    prefix: Key,
}

/// A job whose record is behind.
#[derive(Clone, Debug)]
pub(super) struct BehindRecord {
    pub(super) queue: Name,
    pub(super) id: u64,
    /// The row; `None` if the job is gone. For the settings (id 0), the queue.
    pub(super) row: Option<JobRow>,
    pub(super) settings: Option<QueueRow>,
}

impl<'t, 'e> QueueRows<'t, 'e> {
    pub(super) fn new(txn: &'t Txn<'e>, namespace: u32, queue: &Name) -> Self {
        Self { txn, prefix: queue_key(b'J', namespace.to_be_bytes(), queue) }
    }

    fn key(&self, key: &[u8]) -> Key {
        let mut full = self.prefix.clone();
        full.extend_from_slice(key);
        full
    }

    /// Up to which number jobs are restored after a reboot; `None` before that has begun.
    pub(super) fn restored_until(&self) -> Option<u64> {
        let read = |bytes: &[u8]| read_u64(bytes);
        self.txn.get(&self.key(&verdict_key(0)), "the restored jobs of a queue", read)
    }

    pub(super) fn set_restored_until(&mut self, number: u64) {
        self.txn.put(&self.key(&verdict_key(0)), &number.to_be_bytes());
    }

    /// Keeps the reply to a push for the process that made it.
    pub(super) fn keep_reply(&mut self, id: JobId, pushed: Pushed) {
        let mut to = Writer::default();
        write_pushed(&mut to, pushed);
        self.txn.put(&self.key(&verdict_key(id.0)), to.bytes());
    }

    /// Takes the reply to a push that another process has taken in.
    pub(super) fn take_reply(&mut self, id: JobId) -> Option<Pushed> {
        let key = self.key(&verdict_key(id.0));
        let pushed = self.txn.get(&key, "the reply to a push", read_pushed)?;
        self.txn.delete(&key);
        Some(pushed)
    }

    /// Removes replies whose processes have died.
    pub(super) fn sweep_replies(&mut self, before: u64) {
        let (first, prefix) = (self.key(&verdict_key(1)), self.key(b"V"));
        let found = self.txn.from(&first, &prefix, |key, _| Key::from_slice(key));
        if let Some(key) = found
            && key.last_chunk().is_some_and(|id| u64::from_be_bytes(*id) < before)
        {
            self.txn.delete(&key);
        }
    }
}

impl JobRows for QueueRows<'_, '_> {
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.txn.get(&self.key(key), "a job", |bytes| Ok(bytes.to_vec()))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.txn.put(&self.key(key), value);
    }

    fn remove(&mut self, key: &[u8]) {
        self.txn.delete(&self.key(key));
    }

    fn next(&self, key: &[u8], including: bool, prefix: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let (key, prefix, begin) = (self.key(key), self.key(prefix), self.prefix.len());
        let read = |key: &[u8], value: &[u8]| (key[begin..].to_vec(), value.to_vec());
        if including {
            self.txn.from(&key, &prefix, read)
        } else {
            self.txn.after(&key, &prefix, read)
        }
    }

    fn damaged(&self, what: &'static str) {
        self.txn.checked::<()>(what, Err(Damaged));
    }
}

/// Marks records as behind: id 0 stands for the settings.
pub(super) fn mark_behind(txn: &Txn<'_>, namespace: u32, queue: &Name, ids: &[u64]) {
    let prefix = queue_key(b'Z', namespace.to_be_bytes(), queue);
    for id in ids {
        txn.put(&with_number(&prefix, *id), &[]);
    }
}

/// Reads which records of a namespace are behind, and what to write.
pub(super) fn read_behind(txn: &Txn<'_>, namespace: u32) -> Vec<BehindRecord> {
    let mut prefix = Key::from_slice(b"Z");
    prefix.extend_from_slice(&namespace.to_be_bytes());
    let (mut found, mut at) = (Vec::new(), prefix.clone());
    while found.len() < PER_STEP
        && let Some(key) = txn.after(&at, &prefix, |key, _| Key::from_slice(key))
    {
        if let Some(record) = read_one_behind(txn, namespace, &key[prefix.len()..]) {
            found.push(record);
        }
        at = key;
    }
    found
}

fn read_one_behind(txn: &Txn<'_>, namespace: u32, rest: &[u8]) -> Option<BehindRecord> {
    let (name, id) = rest.split_at_checked(rest.len().checked_sub(9)?)?;
    let name = std::str::from_utf8(name).ok().and_then(|name| Name::from_store(name).ok());
    let queue = txn.checked("a queue of jobs", name.ok_or(Damaged))?;
    let id = u64::from_be_bytes(*id.last_chunk()?);
    let rows = QueueRows::new(txn, namespace, &queue);
    if id == 0 {
        let settings = txn.get(&rows.key(b"Q"), "a queue of jobs", QueueRow::decode);
        return Some(BehindRecord { queue, id, row: None, settings });
    }
    let key = rows.key(&crate::ledger::jobs::row::job_key(JobId(id)));
    let row = txn.get(&key, "a job", JobRow::decode);
    Some(BehindRecord { queue, id, row, settings: None })
}

/// Notes that records are written, unless their jobs have changed meanwhile.
pub(super) fn clear_behind(txn: &Txn<'_>, namespace: u32, written: &[BehindRecord]) {
    for record in written {
        let prefix = queue_key(b'Z', namespace.to_be_bytes(), &record.queue);
        let key = with_number(&prefix, record.id);
        let now = read_one_behind(txn, namespace, &key[5..]);
        let generation = |record: &BehindRecord| {
            let row = record.row.as_ref().map(|row| row.generation);
            (row, record.settings.map(|queue| queue.generation))
        };
        if now.is_some_and(|now| generation(&now) == generation(record)) {
            txn.delete(&key);
        }
    }
}

/// Writes records, in a synced transaction.
pub(super) fn write_behind(txn: &Txn<'_>, namespace: [u8; 4], records: &[BehindRecord]) {
    for record in records {
        let prefix = queue_key(b'J', namespace, &record.queue);
        if let Some(settings) = &record.settings {
            let key = with_letter(&prefix, b'S');
            let kept = txn.get(&key, "the settings of a queue", QueueRow::decode);
            if kept.is_none_or(|kept| kept.generation < settings.generation) {
                txn.put(&key, settings.encode().bytes());
            }
            continue;
        }
        let key = with_number(&with_letter(&prefix, b'R'), record.id);
        let kept = txn.get(&key, "a job", JobRow::decode);
        match (&record.row, kept) {
            (Some(row), Some(kept)) if kept.generation < row.generation => {
                txn.put(&key, row.encode().bytes());
            }
            (None, Some(_)) if record.id != 0 => {
                txn.delete(&key);
                txn.delete(&with_number(&with_letter(&prefix, b'P'), record.id));
            }
            _ => {}
        }
    }
}

/// Adds records of new jobs, in a synced transaction. Returns their numbers.
pub(super) fn write_new(
    txn: &Txn<'_>,
    namespace: [u8; 4],
    queue: &Name,
    jobs: &[NewJob],
    now: u64,
) -> Vec<JobId> {
    let prefix = queue_key(b'J', namespace, queue);
    let last_key = with_letter(&prefix, b'N');
    let mut last = txn.get(&last_key, "the last number of a queue", read_u64).unwrap_or(0);
    let mut ids = Vec::with_capacity(jobs.len());
    for job in jobs {
        last += 1;
        let row = JobRow::of_new(JobId(last), job, now);
        txn.put(&with_number(&with_letter(&prefix, b'R'), last), row.encode().bytes());
        txn.put(&with_number(&with_letter(&prefix, b'P'), last), &job.payload);
        ids.push(JobId(last));
    }
    txn.put(&last_key, &last.to_be_bytes());
    ids
}

/// The records of one queue in the synced environment.
pub(super) struct QueueRecords<'a> {
    pub(super) store: &'a Store,
    pub(super) namespace: &'a Namespace,
    pub(super) queue: &'a Name,
}

impl QueueRecords<'_> {
    /// Runs a read with the prefix of the queue's keys; `None` if the namespace has no records.
    fn read<T>(
        &self,
        read: impl FnOnce(&ReadTxn<'_>, LmdbTable, Key) -> heed::Result<Read<T>>,
    ) -> Result<Option<T>, Error> {
        let result = self.store.read_durable(|txn, table| {
            let Some(number) = table.get(txn, &namespace_key(self.namespace))? else {
                return Ok(Ok(None));
            };
            let Ok(number) = read_number(number) else { return Ok(Err(Damaged)) };
            Ok(read(txn, table, queue_key(b'J', number, self.queue))?.map(Some))
        });
        result?.map_err(|Damaged| damaged().on(self.queue))
    }

    /// The number of the last job that was pushed.
    pub(super) fn last_number(&self) -> Result<u64, Error> {
        let last = self.read(|txn, table, prefix| {
            Ok(table.get(txn, &with_letter(&prefix, b'N'))?.map_or(Ok(0), read_u64))
        });
        Ok(last?.unwrap_or(0))
    }

    pub(super) fn settings(&self) -> Result<Option<QueueRow>, Error> {
        let kept = self.read(|txn, table, prefix| {
            Ok(table.get(txn, &with_letter(&prefix, b'S'))?.map(QueueRow::decode).transpose())
        });
        Ok(kept?.flatten())
    }

    pub(super) fn payload(&self, id: JobId) -> Result<Option<Vec<u8>>, Error> {
        let found = self.read(|txn, table, prefix| {
            let key = with_number(&with_letter(&prefix, b'P'), id.0);
            Ok(Ok(table.get(txn, &key)?.map(<[u8]>::to_vec)))
        });
        Ok(found?.flatten())
    }

    /// The first records after a number.
    pub(super) fn after(&self, number: u64) -> Result<Vec<JobRow>, Error> {
        let found = self.read(|txn, table, prefix| {
            let records = with_letter(&prefix, b'R');
            let from = with_number(&records, number);
            let range = (std::ops::Bound::Excluded(&*from), std::ops::Bound::Unbounded);
            let mut rows = Vec::new();
            for row in table.range(txn, &range)? {
                let (key, value) = row?;
                if !key.starts_with(&records) || rows.len() == PER_STEP {
                    break;
                }
                match JobRow::decode(value) {
                    Ok(row) => rows.push(row),
                    Err(Damaged) => return Ok(Err(Damaged)),
                }
            }
            Ok(Ok(rows))
        });
        Ok(found?.unwrap_or_default())
    }
}

/// The queues of a namespace that have records.
pub(super) fn queue_names(store: &Store, namespace: &Namespace) -> Result<Vec<Name>, Error> {
    let names = store.read_durable(|txn, table| {
        let Some(number) = table.get(txn, &namespace_key(namespace))? else {
            return Ok(Some(Vec::new()));
        };
        let mut prefix = Key::from_slice(b"J");
        prefix.extend_from_slice(number);
        let (mut names, mut at) = (Vec::new(), prefix.clone());
        while let Some((key, _)) = table.get_greater_than(txn, &at)?
            && key.starts_with(&prefix)
        {
            let rest = &key[prefix.len()..];
            let Some(end) = rest.iter().position(|byte| *byte == 0) else { return Ok(None) };
            let name = std::str::from_utf8(&rest[..end]).ok();
            let Some(name) = name.and_then(|name| Name::from_store(name).ok()) else {
                return Ok(None);
            };
            at = Key::from_slice(&key[..=prefix.len() + end]);
            at.push(0xff);
            names.push(name);
        }
        Ok(Some(names))
    });
    names?.ok_or_else(damaged)
}

/// The error for records that cannot be decoded.
fn damaged() -> Error {
    let what = "the jobs of this queue cannot be read: damaged, or written by another version";
    Error::new(ErrorKind::Corrupt, what).with_help(
        "use the version that wrote them; or restore the directory `durable` of the store",
    )
}

fn queue_key(kind: u8, namespace: [u8; 4], queue: &Name) -> Key {
    let mut key = Key::new();
    key.push(kind);
    key.extend_from_slice(&namespace);
    key.extend_from_slice(queue.as_str().as_bytes());
    key.push(0);
    key
}

fn with_letter(prefix: &Key, letter: u8) -> Key {
    let mut key = prefix.clone();
    key.push(letter);
    key
}

fn with_number(prefix: &Key, number: u64) -> Key {
    let mut key = prefix.clone();
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn verdict_key(id: u64) -> [u8; 9] {
    let mut key = [b'V'; 9];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

fn read_u64(bytes: &[u8]) -> Read<u64> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| Damaged)
}

fn write_pushed(to: &mut Writer, pushed: Pushed) {
    let (code, id, other) = match pushed {
        Pushed::New(id) => (0, id, JobId(0)),
        Pushed::Exists(id) => (1, id, JobId(0)),
        Pushed::Replaced { id, instead_of } => (2, id, instead_of),
    };
    to.u8(code);
    to.u64(id.0);
    to.u64(other.0);
}

fn read_pushed(bytes: &[u8]) -> Read<Pushed> {
    let mut from = Reader::new(bytes);
    let (code, id, other) = (from.u8()?, JobId(from.u64()?), JobId(from.u64()?));
    from.end()?;
    match code {
        0 => Ok(Pushed::New(id)),
        1 => Ok(Pushed::Exists(id)),
        2 => Ok(Pushed::Replaced { id, instead_of: other }),
        _ => Err(Damaged),
    }
}

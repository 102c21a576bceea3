//! Rates in the lock environment, which is not synced: a reboot forgets what was taken, also in
//! windows that are longer than the reboot takes. The rule is that of `ledger::rates`, on the clock
//! of steps (`CLOCK_BOOTTIME`): a wall clock that is stepped moves no window.
//!
//! ```text
//! R namespace name               -> head: when it ends, and of each limit the window and its log
//! P namespace name 0 limit instant -> permits of an entry that is not the newest of its log
//! ```
//!
//! Names contain no byte 0, so that no key of `P` begins with that of another name. An instant is
//! in its key with the highest byte first, so that entries are read oldest first.

use super::EmbeddedEngine;
use super::codec::{Damaged, Read, Reader, Writer};
use super::slots::SlotRows;
use super::store::StepKind;
use super::txn::{Key, Txn};
use crate::contract::{Name, Pending, Rates, Settle, Settled, Take, TakeVerdict, Verb};
use crate::ledger::rates::{LogHead, OlderEntries, RateEntry, RateLog, RateState};
use crate::ledger::{Ledger, Now};
use crate::limits;

/// How many rates a new one checks for being needed no more.
const SWEPT: usize = 2;

impl Rates for EmbeddedEngine {
    fn take<'a>(&'a self, take: &'a Take) -> Pending<'a, TakeVerdict> {
        Box::pin(async move {
            take.check()?;
            let taken = self.step(StepKind::MayGrow, take, |take, ledger, now| {
                RateRows::of(ledger).take(take, micros(now))
            });
            taken.await.map_err(|error| error.during(Verb::Rate).on(&take.name))
        })
    }

    fn settle<'a>(&'a self, settle: &'a Settle) -> Pending<'a, Settled> {
        Box::pin(async move {
            settle.check()?;
            let settled = self.step(StepKind::FreesSpace, settle, |settle, ledger, now| {
                RateRows::of(ledger).settle(settle, micros(now))
            });
            settled.await.map_err(|error| error.during(Verb::Rate).on(&settle.name))
        })
    }

    fn reset<'a>(&'a self, name: &'a Name) -> Pending<'a, ()> {
        Box::pin(async move {
            let reset = self.step(StepKind::FreesSpace, name, |name, ledger, _| {
                RateRows::of(ledger).remove(name.as_str().as_bytes());
            });
            reset.await.map_err(|error| error.during(Verb::Rate).on(name))
        })
    }
}

fn micros(now: Now) -> u64 {
    now.tick.as_nanos() / 1_000
}

/// The rates of one namespace within one transaction.
struct RateRows<'t, 'e> {
    txn: &'t Txn<'e>,
    namespace: u32,
}

/// The entries of one limit.
struct EntryRows<'t, 'e> {
    txn: &'t Txn<'e>,
    /// What the keys of all its entries begin with.
    prefix: Key,
}

impl<'t, 'e> RateRows<'t, 'e> {
    fn of(ledger: &mut Ledger<SlotRows<'t, 'e>>) -> Self {
        let (txn, namespace) = ledger.shelf().rows();
        Self { txn, namespace }
    }

    fn take(&self, take: &Take, now: u64) -> TakeVerdict {
        let name = take.name.as_str().as_bytes();
        let mut state = self.read(name);
        // A new log would find the entries of the old one.
        if state.take_if(|state| state.is_past(now)).is_some() {
            self.remove(name);
        }
        let is_new = state.is_none();
        let entries = |nth| self.entries(name, nth);
        let (verdict, changed) = RateState::take(&mut state, take, now, entries);
        if let Some(state) = state.filter(|_| changed) {
            self.write(name, &state);
            if is_new {
                self.sweep_after(name, now);
            }
        }
        verdict
    }

    fn settle(&self, settle: &Settle, now: u64) -> Settled {
        let name = settle.name.as_str().as_bytes();
        let Some(mut state) = self.read(name) else { return Settled::Past };
        let settled = state.settle(settle, now);
        if settled == Settled::Counted {
            self.write(name, &state);
        }
        settled
    }

    fn remove(&self, name: &[u8]) {
        self.txn.delete(&self.head_key(name));
        let prefix = self.entries_prefix(name);
        while let Some(key) = self.txn.from(&prefix, &prefix, |key, _| Key::from_slice(key)) {
            self.txn.delete(&key);
        }
    }

    /// Removes rates of which nothing counts any more, among the next few after a name.
    fn sweep_after(&self, name: &[u8], now: u64) {
        let (mut key, prefix) = (self.head_key(name), self.head_key(b""));
        for _ in 0..SWEPT {
            let next = self.txn.after(&key, &prefix, |key, row| (Key::from_slice(key), ends(row)));
            let Some((found, ends)) = next else { return };
            if ends.is_ok_and(|ends| ends <= now) {
                self.remove(&found[prefix.len()..]);
            }
            key = found;
        }
    }

    fn read(&self, name: &[u8]) -> Option<RateState<EntryRows<'t, 'e>>> {
        let key = self.head_key(name);
        self.txn.get(&key, "a rate", |row| read_state(row, |nth| self.entries(name, nth)))
    }

    fn write(&self, name: &[u8], state: &RateState<EntryRows<'t, 'e>>) {
        let mut writer = Writer::default();
        writer.u64(state.ends());
        match state {
            RateState::Pace { busy_until, seen } => {
                writer.u8(0);
                writer.u64(*busy_until);
                writer.u64(*seen);
            }
            RateState::Windows(windows, logs) => {
                writer.u8(u8::try_from(windows.len()).unwrap_or(u8::MAX));
                for (window, log) in windows.iter().zip(logs) {
                    writer.u64(*window);
                    let LogHead { used, count, seen, born, first, at, cost } = log.head;
                    for number in [used, count, seen, born, first, at, cost] {
                        writer.u64(number);
                    }
                }
            }
        }
        self.txn.put(&self.head_key(name), writer.bytes());
    }

    fn entries(&self, name: &[u8], nth: usize) -> EntryRows<'t, 'e> {
        let mut prefix = self.entries_prefix(name);
        prefix.push(u8::try_from(nth).unwrap_or(u8::MAX));
        EntryRows { txn: self.txn, prefix }
    }

    fn head_key(&self, name: &[u8]) -> Key {
        self.key(b'R', name)
    }

    fn entries_prefix(&self, name: &[u8]) -> Key {
        let mut key = self.key(b'P', name);
        key.push(0);
        key
    }

    fn key(&self, kind: u8, name: &[u8]) -> Key {
        let mut key = Key::new();
        key.push(kind);
        key.extend_from_slice(&self.namespace.to_be_bytes());
        key.extend_from_slice(name);
        key
    }
}

impl EntryRows<'_, '_> {
    fn key(&self, at: u64) -> Key {
        let mut key = self.prefix.clone();
        key.extend_from_slice(&at.to_be_bytes());
        key
    }

    fn put(&self, (at, permits): RateEntry) {
        self.txn.put(&self.key(at), &permits.to_le_bytes());
    }
}

impl OlderEntries for EntryRows<'_, '_> {
    fn visit(&self, each: &mut dyn FnMut(RateEntry) -> bool) {
        let read = |key: &[u8], row: &[u8]| read_entry(&key[self.prefix.len()..], row);
        let mut next = self.txn.from(&self.prefix, &self.prefix, read);
        while let Some(found) = next {
            let Some(entry) = self.txn.checked("an entry of a rate", found) else { return };
            if !each(entry) {
                return;
            }
            next = self.txn.after(&self.key(entry.0), &self.prefix, read);
        }
    }

    fn remove_until(&mut self, at: u64) {
        let last = self.key(at);
        loop {
            let key = self.txn.from(&self.prefix, &self.prefix, |key, _| Key::from_slice(key));
            match key.filter(|key| *key <= last) {
                Some(key) => self.txn.delete(&key),
                None => return,
            }
        }
    }

    fn push(&mut self, entry: RateEntry) {
        self.put(entry);
    }

    fn set(&mut self, entry: RateEntry) {
        self.put(entry);
    }
}

fn read_entry(at: &[u8], permits: &[u8]) -> Read<RateEntry> {
    let at = at.try_into().map_err(|_| Damaged)?;
    let permits = permits.try_into().map_err(|_| Damaged)?;
    Ok((u64::from_be_bytes(at), u64::from_le_bytes(permits)))
}

/// When nothing of a rate counts any more.
fn ends(row: &[u8]) -> Read<u64> {
    Reader::new(row).u64()
}

fn read_state<E>(row: &[u8], mut entries: impl FnMut(usize) -> E) -> Read<RateState<E>> {
    let mut reader = Reader::new(row);
    reader.u64()?;
    let count = usize::from(reader.u8()?);
    if count > limits::RATE_LIMITS {
        return Err(Damaged);
    }
    if count == 0 {
        let state = RateState::Pace { busy_until: reader.u64()?, seen: reader.u64()? };
        return reader.end().map(|()| state);
    }
    let (mut windows, mut logs) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for nth in 0..count {
        windows.push(reader.u64()?);
        let mut next = || reader.u64();
        let head = LogHead {
            used: next()?,
            count: next()?,
            seen: next()?,
            born: next()?,
            first: next()?,
            at: next()?,
            cost: next()?,
        };
        logs.push(RateLog { head, older: entries(nth) });
    }
    reader.end().map(|()| RateState::Windows(windows, logs))
}

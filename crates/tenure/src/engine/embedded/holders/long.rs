//! Many holders of one slot: one row for each hold, and index rows that find it by claim, by expiry
//! and by owner, so that a step reads only the holds that it asks for.
//!
//! ```text
//! H holders number               -> hold      in the order of the grants
//! D holders claim                -> number
//! E holders expires number       -> claim
//! O holders owner weight number  -> nothing
//! ```
//!
//! The heaviest hold of an owner, the latest among equals, is the last of its `O` rows. How many
//! holders there are and what they weigh together is kept in the slot's row ([`HoldersHead`]), so
//! that admission reads no hold at all. The rows of a hold are written and deleted together.

use super::super::codec::{self, Damaged, HoldersHead, Writer};
use super::super::txn::{Key, Txn};
use crate::contract::{ClaimId, Fence, OwnerId};
use crate::ledger::seam::Hold;
use crate::time::Tick;

/// Many holders within one transaction.
pub(super) struct LongHolders<'t, 'e> {
    txn: &'t Txn<'e>,
    head: HoldersHead,
    /// The weights of one owner's claims add up.
    additive: bool,
}

impl<'t, 'e> LongHolders<'t, 'e> {
    pub(super) fn new(txn: &'t Txn<'e>, head: HoldersHead, additive: bool) -> Self {
        Self { txn, head, additive }
    }

    pub(super) fn head(&self) -> HoldersHead {
        self.head
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Hold> {
        let prefix = self.key(b'H');
        let mut at: Option<Key> = None;
        std::iter::from_fn(move || {
            let read = |key: &[u8], value: &[u8]| (Key::from(key), codec::read_hold(value));
            let (key, hold) = match &at {
                None => self.txn.from(&prefix, &prefix, read)?,
                Some(at) => self.txn.after(at, &prefix, read)?,
            };
            at = Some(key);
            self.txn.checked("a holder", hold)
        })
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<Hold> {
        self.hold(self.number_of(id)?)
    }

    pub(super) fn heaviest_of(&self, owner: OwnerId) -> Option<Hold> {
        let (_, number) = self.heaviest(owner)?;
        self.hold(number)
    }

    /// Returns the weight of an owner's heaviest hold, which is in its key.
    pub(super) fn owner_weight(&self, owner: OwnerId) -> u64 {
        self.heaviest(owner).map_or(0, |(weight, _)| u64::from(weight))
    }

    pub(super) fn first_end(&self, delayed: bool) -> Option<Tick> {
        if delayed && self.head.delays > 0 {
            return self.iter().map(|hold| hold.expires + hold.delay()).min();
        }
        self.first_expiry().map(|(expires, _)| expires)
    }

    pub(super) fn insert(&mut self, hold: &Hold) {
        let (number, owner) = (self.head.next, hold.owner());
        let before = if self.additive { 0 } else { self.owner_weight(owner) };
        self.head.weight += u64::from(hold.weight).saturating_sub(before);
        self.head.delays += u32::from(!hold.claim.lock_delay.is_zero());
        self.head.next += 1;
        self.head.len += 1;
        self.write(number, hold);
        self.txn.put(&self.claim_key(hold.claim.id), &number.to_be_bytes());
        self.write_expiry(number, hold);
        self.txn.put(&self.weight_key(owner, hold.weight, number), &[]);
    }

    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Hold> {
        let number = self.number_of(id)?;
        let hold = self.hold(number)?;
        self.txn.delete(&self.hold_key(number));
        self.txn.delete(&self.claim_key(id));
        self.txn.delete(&self.expiry_key(hold.expires, number));
        self.txn.delete(&self.weight_key(hold.owner(), hold.weight, number));
        let after = if self.additive { 0 } else { self.owner_weight(hold.owner()) };
        let freed = u64::from(hold.weight).saturating_sub(after);
        self.head.weight = self.head.weight.saturating_sub(freed);
        let delays = u32::from(!hold.claim.lock_delay.is_zero());
        self.head.delays = self.head.delays.saturating_sub(delays);
        self.head.len = self.head.len.saturating_sub(1);
        Some(hold)
    }

    pub(super) fn change(&mut self, id: ClaimId, change: impl FnOnce(&mut Hold)) {
        let Some(number) = self.number_of(id) else { return };
        let Some(mut hold) = self.hold(number) else { return };
        change(&mut hold);
        self.write(number, &hold);
    }

    pub(super) fn renew(&mut self, id: ClaimId, expires: Tick) -> Option<(Fence, Option<u64>)> {
        let number = self.number_of(id)?;
        let mut hold = self.hold(number)?;
        self.txn.delete(&self.expiry_key(hold.expires, number));
        hold.expires = expires;
        self.write(number, &hold);
        self.write_expiry(number, &hold);
        Some((hold.fence, hold.group))
    }

    pub(super) fn dead(&self, now: Tick) -> Option<ClaimId> {
        self.first_expiry().filter(|(expires, _)| *expires <= now).map(|(_, id)| id)
    }

    /// Returns the hold that expires first, and when.
    fn first_expiry(&self) -> Option<(Tick, ClaimId)> {
        let prefix = self.key(b'E');
        let first = self.txn.from(&prefix, &prefix, |key, value| {
            let expires = key.get(prefix.len()..).and_then(|rest| rest.first_chunk::<8>());
            let expires = expires.map(|bytes| Tick::from_nanos(u64::from_be_bytes(*bytes)));
            let id = value.try_into().map(u128::from_be_bytes).ok();
            Some((expires?, ClaimId::from_u128(id?)))
        });
        self.txn.checked("the expiry of a holder", first?.ok_or(Damaged))
    }

    /// Returns weight and number of an owner's heaviest hold, the latest among equals.
    fn heaviest(&self, owner: OwnerId) -> Option<(u32, u64)> {
        let prefix = self.owner_key(owner);
        let mut end = prefix.clone();
        // Greater than any key with this prefix: one byte longer than weight and number, all 0xff.
        end.extend_from_slice(&[0xff; 13]);
        let last = self.txn.before(&end, &prefix, |key, _| {
            let rest = key.get(prefix.len()..)?;
            let (weight, number) = (rest.first_chunk::<4>()?, rest.get(4..)?.first_chunk::<8>()?);
            Some((u32::from_be_bytes(*weight), u64::from_be_bytes(*number)))
        });
        self.txn.checked("the weight of a holder", last?.ok_or(Damaged))
    }

    fn number_of(&self, id: ClaimId) -> Option<u64> {
        self.txn.get(&self.claim_key(id), "a holding claim", |bytes| {
            bytes.try_into().map(u64::from_be_bytes).map_err(|_| Damaged)
        })
    }

    fn hold(&self, number: u64) -> Option<Hold> {
        self.txn.get(&self.hold_key(number), "a holder", codec::read_hold)
    }

    fn write(&self, number: u64, hold: &Hold) {
        let mut writer = Writer::default();
        codec::write_hold(&mut writer, hold);
        self.txn.put(&self.hold_key(number), writer.bytes());
    }

    fn write_expiry(&self, number: u64, hold: &Hold) {
        let id = hold.claim.id.as_u128().to_be_bytes();
        self.txn.put(&self.expiry_key(hold.expires, number), &id);
    }

    fn key(&self, kind: u8) -> Key {
        let mut key = Key::new();
        key.push(kind);
        key.extend_from_slice(&self.head.id.to_be_bytes());
        key
    }

    fn hold_key(&self, number: u64) -> Key {
        let mut key = self.key(b'H');
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    fn claim_key(&self, id: ClaimId) -> Key {
        let mut key = self.key(b'D');
        key.extend_from_slice(&id.as_u128().to_be_bytes());
        key
    }

    fn expiry_key(&self, expires: Tick, number: u64) -> Key {
        let mut key = self.key(b'E');
        key.extend_from_slice(&expires.as_nanos().to_be_bytes());
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    fn owner_key(&self, owner: OwnerId) -> Key {
        let mut key = self.key(b'O');
        key.extend_from_slice(&owner.as_u128().to_be_bytes());
        key
    }

    fn weight_key(&self, owner: OwnerId, weight: u32, number: u64) -> Key {
        let mut key = self.owner_key(owner);
        key.extend_from_slice(&weight.to_be_bytes());
        key.extend_from_slice(&number.to_be_bytes());
        key
    }
}

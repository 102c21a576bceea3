//! One claim to make or to give back, packed for its script. Knows what each script is told, not
//! how it is called.

use std::cell::RefCell;

use super::codec::{plain_lease, push_claim, push_reference};
use super::keys::Keys;
use super::pack::push_word;
use crate::contract::{Claim, Parts, Release};

/// A verb of which several calls may go as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    Claim,
    Release,
}

/// One claim to make or to give back: its slots, and what the script is told of it, in one piece of
/// memory.
#[derive(Debug)]
pub(super) struct Item {
    packed: Vec<u8>,
    /// Where the slots end and the words begin.
    middle: usize,
    slots: usize,
    /// Nothing of it needs the long way, as far as we know.
    plain: bool,
    /// For how many milliseconds a claim's key is kept; 0 where it cannot stand alone there.
    keep: u64,
}

thread_local! {
    /// Where words are written before their length is known.
    static WORD: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Item {
    /// A claim to make.
    pub(super) fn claim(claim: &Claim, keys: &Keys) -> Self {
        let keep = plain_lease(claim).unwrap_or(0);
        let mut item = Self::at(&claim.parts, keys, keep > 0);
        item.keep = keep;
        item.word(|text| push_claim(text, claim, keys));
        item
    }

    /// A claim to give back, or to withdraw.
    pub(super) fn release(release: &Release, keys: &Keys) -> Self {
        let mut item = Self::at(&release.claim.parts, keys, !release.uncertain);
        item.word(|text| {
            push_reference(text, &release.claim);
            if release.uncertain {
                text.push_str(" 1");
            }
        });
        item
    }

    fn at(parts: &Parts, keys: &Keys, plain: bool) -> Self {
        let slots = parts.as_slice().len();
        let packed = Vec::with_capacity(64 * slots + 384);
        let mut item = Self { packed, middle: 0, slots, plain, keep: 0 };
        for name in parts.names() {
            item.word(|text| keys.push_slot(text, name));
        }
        item.middle = item.packed.len();
        item
    }

    fn word(&mut self, write: impl FnOnce(&mut String)) {
        WORD.with_borrow_mut(|word| {
            word.clear();
            write(word);
            push_word(&mut self.packed, word.as_bytes());
        });
    }

    /// Whether it may take the short way by itself.
    pub(super) fn is_short(&self) -> bool {
        self.plain && self.slots == 1
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// For how many milliseconds a claim's key is kept; 0 where it cannot stand alone.
    pub(super) fn keep(&self) -> u64 {
        self.keep
    }

    pub(super) fn packed_slots(&self) -> &[u8] {
        &self.packed[..self.middle]
    }

    pub(super) fn packed_text(&self) -> &[u8] {
        &self.packed[self.middle..]
    }

    /// How many bytes it is.
    pub(super) fn len(&self) -> usize {
        self.packed.len()
    }
}

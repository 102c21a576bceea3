//! One claim to make or to give back, packed for its script. Knows what each script is told, not
//! how it is called.

use std::cell::RefCell;

use super::codec::{plain_lease, push_claim, push_number, push_reference};
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
    words: usize,
    /// Nothing of it needs the long way, as far as we know.
    plain: bool,
}

thread_local! {
    /// Where words are written before their length is known.
    static WORD: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Item {
    /// A claim to make.
    pub(super) fn claim(claim: &Claim, keys: &Keys) -> Self {
        let lease = plain_lease(claim);
        let mut item = Self::at(&claim.parts, keys, 2, lease.is_some());
        item.word(|text| {
            if let Some(lease) = lease {
                push_number(text, lease, 1);
            }
        });
        item.word(|text| push_claim(text, claim, keys));
        item
    }

    /// A claim to give back, or to withdraw.
    pub(super) fn release(release: &Release, keys: &Keys) -> Self {
        let mut item = Self::at(&release.claim.parts, keys, 1, !release.uncertain);
        item.word(|text| {
            push_reference(text, &release.claim);
            if release.uncertain {
                text.push_str(" 1");
            }
        });
        item
    }

    fn at(parts: &Parts, keys: &Keys, words: usize, plain: bool) -> Self {
        let slots = parts.as_slice().len();
        let packed = Vec::with_capacity(64 * slots + 384);
        let mut item = Self { packed, middle: 0, slots, words, plain };
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

    pub(super) fn words(&self) -> usize {
        self.words
    }

    pub(super) fn packed_slots(&self) -> &[u8] {
        &self.packed[..self.middle]
    }

    pub(super) fn packed_words(&self) -> &[u8] {
        &self.packed[self.middle..]
    }

    /// How many bytes it is.
    pub(super) fn len(&self) -> usize {
        self.packed.len()
    }
}

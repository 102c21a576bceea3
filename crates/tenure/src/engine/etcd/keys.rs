//! The layout of keys.
//!
//! ```text
//! PREFIX ⇥ NAMESPACE ⇥ s ⇥ NAME ⇥ d TAG      a lock delay, closes the slot when its hold is gone
//!                                 h TAG      a hold; its creation revision is the fence
//!                                 k TAG      a ticket that may have precedence
//!                                 w TAG      a plain ticket, queued by creation revision
//!                      q ⇥ NAME ⇥ TAG        a mark beside each ticket: the slot has a queue
//!                      t ⇥ CLAIM             a tombstone
//!                      i ⇥ SESSION ⇥ CLAIM   an eviction notice for the claim's session
//!                      c ⇥ NAME              a cell
//!                      f ⇥ NAME              the largest fence that wrote the cell
//!                      o ⇥ NAME ⇥ ID         a write of the cell with an id; created by that write
//!                      versions              written to draw a new version
//!                      terms                 what all clients agree on
//! ```
//!
//! Names have no control characters, so a tab ends them, and keys sort as names do. The kinds sort
//! so that everything that decides whether the queue may move (`d`, `h`, `k`) is one range, without
//! the plain tickets: a grant compares that range as a whole.
//!
//! The marks are an index of the slots that have a queue. A mark is on the lease of its ticket, and
//! written and deleted in the same transactions, so it needs no comparison of its own.

use std::io::Write;

use crate::contract::{ClaimId, MARKER_KIND, Name, Namespace, SessionId, WriteId};

/// The kind of a key of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KeyKind {
    /// A lock delay.
    Delay,
    /// A hold.
    Hold,
    /// A ticket of a claim that has kin or ancestors, or replaces another claim.
    Kin,
    /// Any other ticket.
    Wait,
}

impl KeyKind {
    pub(super) const ALL: [Self; 4] = [Self::Delay, Self::Hold, Self::Kin, Self::Wait];

    const fn byte(self) -> u8 {
        match self {
            Self::Delay => b'd',
            Self::Hold => b'h',
            Self::Kin => b'k',
            Self::Wait => b'w',
        }
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }
}

/// The suffix of a claim's keys in a slot. A small number, which later claims use again: deleted
/// keys stay in etcd's index until it is compacted, and every read of a slot walks over them. With
/// a key of its own for each claim, a lock would get slower with each use.
///
/// A number belongs to one claim in a slot from its first key there (delay, hold or ticket) until
/// its last one is deleted. Every transaction that takes a number compares that it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tag {
    /// A number that no other claim has in the slot.
    Number(u32),
    /// The claim's own id: for large sets, and for sets that got no number in a few attempts.
    Claim(ClaimId),
}

impl Tag {
    /// The tag of a claim that finds its slots empty.
    pub(super) const FIRST: Self = Self::Number(0);

    /// Writes the text of the tag into a buffer, and returns it.
    fn write_to(self, buffer: &mut [u8; TAG_BYTES]) -> &[u8] {
        let mut rest = &mut buffer[..];
        let written = match self {
            Self::Number(number) => write!(rest, "{number}"),
            Self::Claim(id) => write!(rest, "{:032x}", id.as_u128()),
        };
        debug_assert!(written.is_ok(), "the longest text is an id");
        let left = rest.len();
        &buffer[..TAG_BYTES - left]
    }

    fn parse(text: &str) -> Option<Self> {
        let tag = match text.parse() {
            Ok(number) if text.len() <= 10 => Self::Number(number),
            _ => Self::Claim(text.parse().ok()?),
        };
        (tag.write_to(&mut [0; TAG_BYTES]) == text.as_bytes()).then_some(tag)
    }
}

/// The longest text of a tag, and the digits of an id.
const TAG_BYTES: usize = 32;

/// A range of keys, without `to`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Range {
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
}

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    root: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: &str, namespace: &Namespace) -> Self {
        Self { root: format!("{prefix}\t{}\t", namespace.as_str()).into_bytes() }
    }

    /// The key of a claim's hold, ticket or delay in a slot.
    pub(super) fn claim(&self, name: &Name, kind: KeyKind, tag: Tag) -> Vec<u8> {
        let mut digits = [0; TAG_BYTES];
        let name = name.as_str().as_bytes();
        self.key(b's', &[name, &[b'\t', kind.byte()], tag.write_to(&mut digits)])
    }

    /// All keys of a slot.
    pub(super) fn slot(&self, name: &Name) -> Range {
        prefix_range(self.slot_root(name))
    }

    /// All keys of one kind in a slot.
    pub(super) fn kind(&self, name: &Name, kind: KeyKind) -> Range {
        prefix_range(self.key(b's', &[name.as_str().as_bytes(), &[b'\t', kind.byte()]]))
    }

    /// The keys that decide whether the queue may move: lock delays, holds, and tickets that may
    /// have precedence.
    pub(super) fn deciding(&self, name: &Name) -> Range {
        let text = name.as_str().as_bytes();
        let to = self.key(b's', &[text, &[b'\t', KeyKind::Wait.byte()]]);
        Range { from: self.slot_root(name), to }
    }

    /// The mark beside a ticket.
    pub(super) fn mark(&self, name: &Name, tag: Tag) -> Vec<u8> {
        let mut digits = [0; TAG_BYTES];
        self.key(b'q', &[name.as_str().as_bytes(), b"\t", tag.write_to(&mut digits)])
    }

    /// The marks of slots whose names begin with a text.
    pub(super) fn marks(&self, prefix: &str) -> Range {
        prefix_range(self.key(b'q', &[prefix.as_bytes()]))
    }

    /// The first key behind the marks of a slot.
    pub(super) fn behind_marks(&self, name: &Name) -> Vec<u8> {
        prefix_range(self.key(b'q', &[name.as_str().as_bytes(), b"\t"])).to
    }

    /// The slot that a mark is of.
    pub(super) fn marked_slot(&self, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(&*self.section(b'q'))?;
        let (name, _) = std::str::from_utf8(rest).ok()?.split_once('\t')?;
        Name::from_store(name).ok()
    }

    /// All slots.
    pub(super) fn all_slots(&self) -> Range {
        prefix_range(self.section(b's'))
    }

    /// The slots of markers: of owners with another flow of control.
    pub(super) fn markers(&self) -> Range {
        self.slots(&Name::reserved_prefix(MARKER_KIND))
    }

    /// The slots whose names begin with a text.
    pub(super) fn slots(&self, prefix: &str) -> Range {
        prefix_range(self.key(b's', &[prefix.as_bytes()]))
    }

    /// Parses a key of a slot.
    pub(super) fn parse(&self, key: &[u8]) -> Option<(Name, KeyKind, Tag)> {
        let rest = key.strip_prefix(&*self.section(b's'))?;
        let tab = rest.iter().position(|byte| *byte == b'\t')?;
        let name = Name::from_store(std::str::from_utf8(&rest[..tab]).ok()?).ok()?;
        let (letter, tag) = rest[tab + 1..].split_first()?;
        Some((name, KeyKind::of(*letter)?, Tag::parse(std::str::from_utf8(tag).ok()?)?))
    }

    /// The slot in whose range a key is, even if the rest of the key is malformed.
    pub(super) fn slot_of(&self, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(&*self.section(b's'))?;
        let text = rest.split(|byte| *byte == b'\t').next()?;
        Name::from_store(std::str::from_utf8(text).ok()?).ok()
    }

    pub(super) fn tombstone(&self, id: ClaimId) -> Vec<u8> {
        let mut digits = [0; TAG_BYTES];
        self.key(b't', &[Tag::Claim(id).write_to(&mut digits)])
    }

    /// The eviction notices of a session.
    pub(super) fn notices(&self, session: SessionId) -> Range {
        let mut root = self.section(b'i');
        root.extend_from_slice(session.to_hex().as_bytes());
        root.push(b'\t');
        prefix_range(root)
    }

    /// The eviction notice of a claim.
    pub(super) fn notice(&self, session: SessionId, id: ClaimId) -> Vec<u8> {
        let mut key = self.notices(session).from;
        key.extend_from_slice(id.to_hex().as_bytes());
        key
    }

    /// Parses the key of an eviction notice.
    pub(super) fn parse_notice(&self, key: &[u8]) -> Option<(SessionId, ClaimId)> {
        let rest = key.strip_prefix(&*self.section(b'i'))?;
        let (session, id) = std::str::from_utf8(rest).ok()?.split_once('\t')?;
        Some((session.parse().ok()?, id.parse().ok()?))
    }

    pub(super) fn cell(&self, name: &Name) -> Vec<u8> {
        self.key(b'c', &[name.as_str().as_bytes()])
    }

    /// The cells whose names begin with a text.
    pub(super) fn cells(&self, prefix: &str) -> Range {
        prefix_range(self.key(b'c', &[prefix.as_bytes()]))
    }

    /// One cell, as a range.
    pub(super) fn one_cell(&self, name: &Name) -> Range {
        let from = self.cell(name);
        Range { to: [&*from, &[0]].concat(), from }
    }

    /// The fences of the cells in a range.
    pub(super) fn fences_of(&self, cells: &Range) -> Range {
        let at = self.root.len();
        let moved = |key: &[u8]| {
            let mut key = key.to_vec();
            key[at] = b'f';
            key
        };
        Range { from: moved(&cells.from), to: moved(&cells.to) }
    }

    pub(super) fn cell_fence_name(&self, key: &[u8]) -> Option<Name> {
        let text = key.strip_prefix(&*self.section(b'f'))?;
        Name::from_store(std::str::from_utf8(text).ok()?).ok()
    }

    /// What shows that a cell was written by the write with this id.
    pub(super) fn cell_write(&self, name: &Name, id: WriteId) -> Vec<u8> {
        let id = format!("\t{:032x}", id.as_u128());
        self.key(b'o', &[name.as_str().as_bytes(), id.as_bytes()])
    }

    pub(super) fn versions(&self) -> Vec<u8> {
        [&*self.root, b"versions"].concat()
    }

    pub(super) fn cell_name(&self, key: &[u8]) -> Option<Name> {
        let text = key.strip_prefix(&*self.section(b'c'))?;
        Name::from_store(std::str::from_utf8(text).ok()?).ok()
    }

    pub(super) fn cell_fence(&self, name: &Name) -> Vec<u8> {
        self.key(b'f', &[name.as_str().as_bytes()])
    }

    pub(super) fn terms(&self) -> Vec<u8> {
        [&*self.root, b"terms"].concat()
    }

    /// The key that every watch stream is opened with. Only the conformance suite writes it.
    pub(super) fn beacon(&self) -> Vec<u8> {
        [&*self.root, b"beacon"].concat()
    }

    fn section(&self, letter: u8) -> Vec<u8> {
        self.key(letter, &[])
    }

    fn slot_root(&self, name: &Name) -> Vec<u8> {
        self.key(b's', &[name.as_str().as_bytes(), b"\t"])
    }

    /// A key of a section, in one allocation: an uncontended lock makes eight of them.
    fn key(&self, letter: u8, parts: &[&[u8]]) -> Vec<u8> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut key = Vec::with_capacity(self.root.len() + 2 + bytes);
        key.extend_from_slice(&self.root);
        key.extend_from_slice(&[letter, b'\t']);
        for part in parts {
            key.extend_from_slice(part);
        }
        key
    }
}

/// All keys with a prefix. No prefix here ends in the byte 255, which could not be incremented.
pub(super) fn prefix_range(root: Vec<u8>) -> Range {
    let mut to = root.clone();
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    Range { from: root, to }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn keys() -> Keys {
        Keys::new("tenure", &Namespace::default())
    }

    #[test]
    fn keys_tell_what_they_are_of() {
        let (keys, id) = (keys(), ClaimId::new());
        for kind in KeyKind::ALL {
            for tag in [Tag::FIRST, Tag::Number(u32::MAX), Tag::Claim(id)] {
                let key = keys.claim(&name("a b/ü"), kind, tag);
                assert_eq!(keys.parse(&key), Some((name("a b/ü"), kind, tag)));
                assert_eq!(keys.slot_of(&key), Some(name("a b/ü")));
            }
        }
        let mark = keys.mark(&name("a b/ü"), Tag::FIRST);
        assert_eq!(keys.marked_slot(&mark), Some(name("a b/ü")));
        assert!(keys.marks("a ").from < mark && mark < keys.marks("a ").to);
        assert!(mark < keys.behind_marks(&name("a b/ü")) && mark > keys.behind_marks(&name("a")));
        let session = SessionId::new();
        assert_eq!(keys.parse_notice(&keys.notice(session, id)), Some((session, id)));
        assert_eq!(keys.cell_name(&keys.cell(&name("x"))), Some(name("x")));
        assert_eq!(keys.parse(&keys.cell(&name("x"))), None);
        for spoilt in ["", "00", "+1", "4294967296", "x"] {
            let key = [&*keys.kind(&name("a"), KeyKind::Hold).from, spoilt.as_bytes()].concat();
            assert_eq!(keys.parse(&key), None, "{spoilt}");
        }
    }

    #[test]
    fn names_that_begin_alike_do_not_meet_and_sort_as_names() {
        let keys = keys();
        let inside = |range: &Range, key: &[u8]| *range.from <= *key && key < &*range.to;
        let tag = Tag::Claim(ClaimId::new());
        for other in ["ab", "a b", "a/", "b", "A"] {
            let key = keys.claim(&name(other), KeyKind::Hold, tag);
            assert!(!inside(&keys.slot(&name("a")), &key), "{other}");
            assert_eq!(keys.slot(&name("a")).from < key, name("a") < name(other), "{other}");
        }
        let slot = keys.slot(&name("a"));
        let deciding = keys.deciding(&name("a"));
        for (kind, decides) in [(KeyKind::Delay, true), (KeyKind::Hold, true), (KeyKind::Kin, true)]
        {
            assert_eq!(inside(&deciding, &keys.claim(&name("a"), kind, tag)), decides);
        }
        let waits = keys.claim(&name("a"), KeyKind::Wait, tag);
        assert!(inside(&slot, &waits) && !inside(&deciding, &waits));
    }
}

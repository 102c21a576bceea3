//! The names of keys and channels in the store. `common/redis/keys.rs` has those that `redlock`
//! uses too, and how names are encoded.

use std::ops::Deref;

use super::names::NameSet;
use crate::contract::{Name, Namespace, SessionId};
use crate::engine::common::redis::keys::{NamespaceKeys, decode_name, encoded};

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(in crate::engine) struct RedisKeys {
    /// The keys that `redlock` uses too.
    shared: NamespaceKeys,
    /// The prefix of the keys of cells.
    cells: String,
    /// The prefix of the keys of rates.
    rates: String,
    /// The index of the names of cells that have a value, by name. Not in a cluster.
    pub(super) cell_index: String,
    /// The index of the names of slots that have waiters, by name. Not in a cluster.
    pub(super) contended_index: String,
    /// The index of the names of queues of jobs, by name. Not in a cluster.
    pub(super) queue_index: String,
    /// The channel on which the names of changed cells are published. Not in a cluster.
    pub(super) changes: String,
    /// The key of the largest number given out.
    pub(super) top: String,
    /// In a cluster all keys and channels of a name have its hash tag.
    by_name: bool,
}

impl RedisKeys {
    pub(in crate::engine) fn new(namespace: &Namespace) -> Self {
        let shared = NamespaceKeys::new(namespace);
        Self {
            cells: shared.key("cell:"),
            rates: shared.key("rate:"),
            cell_index: shared.key("cells"),
            contended_index: shared.key("contended"),
            queue_index: shared.key("queues"),
            changes: shared.key("changed"),
            top: shared.key("top"),
            shared,
            by_name: false,
        }
    }

    /// The keys and channels in a cluster.
    pub(super) fn in_cluster(namespace: &Namespace) -> Self {
        Self { by_name: true, ..Self::new(namespace) }
    }

    /// Returns true if names share no key (in a cluster): a call may then concern one name only.
    pub(super) fn are_by_name(&self) -> bool {
        self.by_name
    }

    /// Returns the key of the top from which the fences of a name grow.
    pub(super) fn top_of(&self, name: &Name) -> String {
        if self.by_name { self.slot(name) + ":top" } else { self.top.clone() }
    }

    /// Returns the key of a cell.
    pub(super) fn cell(&self, name: &Name) -> String {
        if self.by_name {
            // The mark of an update is beside the cell that it reserves.
            return match name.marked_cell() {
                Some(cell) => self.slot(&cell) + ":mark",
                None => self.slot(name) + ":cell",
            };
        }
        format!("{}{}", self.cells, encoded(name.as_str()))
    }

    /// Returns the first key of a rate; in its other keys another digit takes the place of the 0.
    pub(super) fn rate(&self, name: &Name) -> String {
        if self.by_name {
            return self.slot(name) + ":rate:0";
        }
        format!("{}{}:0", self.rates, encoded(name.as_str()))
    }

    /// Returns a pattern that matches one key of each name in a set that begins with `prefix`.
    pub(super) fn scan_pattern(&self, set: NameSet, prefix: &str) -> String {
        format!("{}{}*{}", self.locks, encoded(prefix), suffix(set))
    }

    /// Returns the name of a key that [`scan_pattern`](Self::scan_pattern) matches.
    pub(super) fn scanned_name(&self, set: NameSet, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(self.locks.as_bytes())?;
        decode_name(rest.strip_suffix(suffix(set).as_bytes())?)
    }

    /// Returns the channel on which the changes of a cell are published, in a cluster.
    pub(super) fn changes_of(&self, name: &Name) -> String {
        self.slot(name) + CHANGED
    }

    /// Parses a channel of `changes_of`.
    pub(super) fn parse_changes(&self, channel: &[u8]) -> Option<Name> {
        self.name_of(channel.strip_suffix(CHANGED.as_bytes())?)
    }

    /// Returns the channel of a session and a name, in a cluster.
    pub(super) fn channel_of(&self, name: &Name, session: SessionId) -> String {
        format!("{}:to:{}", self.slot(name), session.to_hex())
    }

    /// Parses a channel of `channel_of`.
    pub(super) fn parse_channel(&self, channel: &[u8]) -> Option<(Name, SessionId)> {
        let channel = std::str::from_utf8(channel).ok()?;
        // A name has no colon left in it.
        let (slot, session) = channel.rsplit_once(":to:")?;
        Some((self.name_of(slot.as_bytes())?, session.parse().ok()?))
    }
}

/// The keys that both engines over Redis use are keys of this one.
impl Deref for RedisKeys {
    type Target = NamespaceKeys;

    fn deref(&self) -> &NamespaceKeys {
        &self.shared
    }
}

/// What the channel of the changes of a cell has behind the slot key of its name, in a cluster.
const CHANGED: &str = ":changed";

/// What keys have behind the name by which a scan finds a set: every slot has its main key, every
/// queue its waiters by place, and in a cluster every cell and every queue of jobs its hash.
fn suffix(set: NameSet) -> &'static str {
    match set {
        NameSet::Locks => "}",
        NameSet::Contended => "}:l",
        NameSet::Cells => "}:cell",
        NameSet::Queues => "}:j:h",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(namespace: &str) -> RedisKeys {
        RedisKeys::new(&Namespace::try_from(namespace).unwrap())
    }

    /// The part of a key that decides its slot in a cluster.
    fn tag(key: &str) -> &str {
        let open = key.find('{').unwrap() + 1;
        &key[open..open + key[open..].find('}').unwrap()]
    }

    #[test]
    fn in_a_cluster_everything_of_a_name_has_its_tag() {
        let keys = RedisKeys::in_cluster(&Namespace::try_from("a/b").unwrap());
        let name = Name::try_from("x{y}:to:z").unwrap();
        let (slot, session) = (keys.slot(&name), SessionId::new());
        let channel = keys.channel_of(&name, session);
        for other in [&keys.top_of(&name), &keys.cell(&name), &keys.rate(&name), &channel] {
            assert_eq!(tag(other), tag(&slot));
            assert_eq!(keys.name_of(other.as_bytes()), None);
        }
        assert_eq!(keys.parse_channel(channel.as_bytes()), Some((name.clone(), session)));
        assert_eq!(keys.parse_changes(channel.as_bytes()), None);
        let changes = keys.changes_of(&name);
        assert_eq!(tag(&changes), tag(&slot));
        assert_eq!(keys.parse_changes(changes.as_bytes()), Some(name.clone()));
        assert_eq!(keys.parse_channel(changes.as_bytes()), None);
        let cell = keys.cell(&name);
        assert_eq!(keys.scanned_name(NameSet::Cells, cell.as_bytes()), Some(name.clone()));
        assert_eq!(keys.scanned_name(NameSet::Locks, cell.as_bytes()), None);
        assert_eq!(keys.scanned_name(NameSet::Locks, slot.as_bytes()), Some(name));
        assert_eq!(keys.parse_channel(keys.probe().as_bytes()), None);
    }

    proptest! {
        #[test]
        fn every_name_has_a_key_of_its_own_and_all_its_keys_one_tag(
            one in "[^\\p{C}]{1,40}", other in "[^\\p{C}]{1,40}",
        ) {
            let keys = keys("n{s}/*");
            let (Ok(one), Ok(other)) = (Name::try_from(&*one), Name::try_from(&*other)) else {
                return Ok(());
            };
            let (key, second) = (keys.slot(&one), keys.slot(&other));
            prop_assert_eq!(key == second, one == other);
            prop_assert_eq!(keys.name_of(key.as_bytes()), Some(one.clone()));
            prop_assert_eq!(keys.name_of(format!("{key}:s").as_bytes()), Some(one.clone()));
            let other = format!("{key}:d:0");
            prop_assert_eq!(tag(&key), tag(&other));
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';'));
            let scanned = keys.scanned_name(NameSet::Locks, key.as_bytes());
            prop_assert_eq!(scanned, Some(one));
        }
    }
}

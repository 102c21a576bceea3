//! The names of keys and channels in the store.
//!
//! Everything outside `A-Z a-z 0-9 - _ . ~` in a namespace or name is percent-encoded, so that no
//! two names share a key; the braces around them keep all keys of a name in one slot of a cluster.

use std::time::Duration;

use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode, utf8_percent_encode,
};

use super::names::NameSet;
use crate::contract::{Name, Namespace, SessionId};
use crate::engine::common::max_lease;

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(in crate::engine) struct RedisKeys {
    /// The prefix of the keys of locks.
    locks: String,
    /// The prefix of the keys of cells.
    cells: String,
    /// The prefix of the keys of rates.
    rates: String,
    /// The prefix of the channels of sessions. Scripts derive it from the name of the top, and so
    /// the keys of indexes and the channel of changes.
    channels: String,
    /// The index of the names of cells that have a value, by name. Not in a cluster.
    pub(super) cell_index: String,
    /// The index of the names of slots that have waiters, by name. Not in a cluster.
    pub(super) contended_index: String,
    /// The channel on which the names of changed cells are published. Not in a cluster.
    pub(super) changes: String,
    /// The key of the largest number given out.
    pub(super) top: String,
    /// The key of the terms that all clients have agreed on.
    pub(in crate::engine) terms: String,
    /// In a cluster all keys and channels of a name have its hash tag.
    by_name: bool,
}

impl RedisKeys {
    pub(in crate::engine) fn new(namespace: &Namespace) -> Self {
        let space = encoded(namespace.as_str()).to_string();
        Self {
            locks: format!("tenure:{{{space}/"),
            cells: format!("tenure:{{{space}}}:cell:"),
            rates: format!("tenure:{{{space}}}:rate:"),
            channels: format!("tenure:{{{space}}}:to:"),
            cell_index: format!("tenure:{{{space}}}:cells"),
            contended_index: format!("tenure:{{{space}}}:contended"),
            changes: format!("tenure:{{{space}}}:changed"),
            top: format!("tenure:{{{space}}}:top"),
            terms: format!("tenure:{{{space}}}:terms"),
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

    /// Returns the key of a lock, which is the prefix of its other keys.
    pub(in crate::engine) fn slot(&self, name: &Name) -> String {
        let mut key = String::with_capacity(self.locks.len() + name.as_str().len() + 1);
        self.push_slot(&mut key, name);
        key
    }

    /// Appends the slot key to `text`.
    pub(super) fn push_slot(&self, text: &mut String, name: &Name) {
        text.push_str(&self.locks);
        text.extend(encoded(name.as_str()));
        text.push('}');
    }

    /// Returns the name of the lock that a key belongs to, if it is one of a lock's two main keys.
    pub(in crate::engine) fn name_of(&self, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(self.locks.as_bytes())?;
        let rest = rest.strip_suffix(b":s").unwrap_or(rest);
        decode(rest.strip_suffix(b"}")?)
    }

    /// Returns the key of a cell.
    pub(super) fn cell(&self, name: &Name) -> String {
        if self.by_name {
            return self.slot(name) + ":cell";
        }
        format!("{}{}", self.cells, encoded(name.as_str()))
    }

    /// Returns the prefix of the keys of a rate.
    pub(super) fn rate(&self, name: &Name) -> String {
        if self.by_name {
            return self.slot(name) + ":rate";
        }
        format!("{}{}", self.rates, encoded(name.as_str()))
    }

    /// Returns a pattern that matches the keys of all locks. Encoded names contain no wildcard.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn all_locks(&self) -> String {
        format!("{}*", self.locks)
    }

    /// Returns a pattern that matches one key of each name in a set that begins with `prefix`.
    pub(super) fn scan_pattern(&self, set: NameSet, prefix: &str) -> String {
        format!("{}{}*{}", self.locks, encoded(prefix), suffix(set))
    }

    /// Returns the name of a key that [`scan_pattern`](Self::scan_pattern) matches.
    pub(super) fn scanned_name(&self, set: NameSet, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(self.locks.as_bytes())?;
        decode(rest.strip_suffix(suffix(set).as_bytes())?)
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

    /// Returns the channel of a session.
    pub(in crate::engine) fn channel(&self, session: SessionId) -> String {
        format!("{}{}", self.channels, session.to_hex())
    }

    /// Returns the prefix of the channels of clients, see `change_terms.lua`.
    pub(in crate::engine) fn clients(&self) -> String {
        format!("{}client:", self.channels.strip_suffix("to:").unwrap_or(&self.channels))
    }

    /// Returns the channel to which a client is subscribed that states this longest lease.
    pub(in crate::engine) fn client(&self, max_lease: Duration) -> String {
        let (host, pid) = max_lease::this_process();
        format!("{}{}:{}:{pid}", self.clients(), max_lease.as_micros(), encoded(&host))
    }

    /// Returns the host and process of a channel of `client`.
    pub(in crate::engine) fn client_of(&self, channel: &str) -> String {
        let rest = channel.strip_prefix(&self.clients()).unwrap_or(channel);
        // After the lease that the client states.
        let client = rest.split_once(':').map_or(rest, |(_, client)| client);
        percent_decode(client.as_bytes()).decode_utf8_lossy().into_owned()
    }

    /// Returns a channel on which nothing is published, to check the access list.
    pub(in crate::engine) fn probe(&self) -> String {
        format!("{}nobody", self.channels)
    }

    /// Returns the session of a channel.
    pub(in crate::engine) fn session_of(&self, channel: &[u8]) -> Option<SessionId> {
        let hex = channel.strip_prefix(self.channels.as_bytes())?;
        std::str::from_utf8(hex).ok()?.parse().ok()
    }
}

/// What the channel of the changes of a cell has behind the slot key of its name, in a cluster.
const CHANGED: &str = ":changed";

/// What keys have behind the name by which a scan finds a set: every slot has its main key, every
/// queue its waiters by place, and every cell, in a cluster, its hash.
fn suffix(set: NameSet) -> &'static str {
    match set {
        NameSet::Locks => "}",
        NameSet::Contended => "}:l",
        NameSet::Cells => "}:cell",
    }
}

/// Percent-encodes everything outside `A-Z a-z 0-9 - _ . ~`.
pub(super) fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ENCODED)
}

fn decode(text: &[u8]) -> Option<Name> {
    let text = percent_decode(text).decode_utf8().ok()?;
    Name::from_store(&text).ok()
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
    fn names_that_look_like_keys_do_not_meet() {
        let (a, b) = (keys("a"), keys("a:b"));
        let name = |text: &str| Name::try_from(text).unwrap();
        assert_ne!(a.slot(&name("b:c")), b.slot(&name("c")));
        assert_ne!(a.slot(&name("x:s")), a.slot(&name("x")) + ":s");
        assert_eq!(a.name_of(a.slot(&name("x}:s")).as_bytes()), Some(name("x}:s")));
        assert_eq!(a.name_of(b"tenure:{a/x}:l"), None);
        assert_eq!(a.name_of(b"tenure:{b/x}"), None);
        assert_eq!(a.name_of(b"tenure:{a/%ff}"), None);
    }

    #[test]
    fn a_channel_names_its_session() {
        let session = SessionId::new();
        let keys = keys("default");
        assert_eq!(keys.session_of(keys.channel(session).as_bytes()), Some(session));
        assert_eq!(keys.session_of(b"tenure:{default}:to:x"), None);
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

    #[test]
    fn a_client_is_named_by_its_channel_and_by_nothing_else_in_it() {
        let keys = keys("a/b");
        let channel = keys.client(Duration::from_secs(60));
        assert!(channel.starts_with("tenure:{a%2Fb}:client:60000000:"), "{channel}");
        assert_eq!(keys.session_of(channel.as_bytes()), None);
        let (host, pid) = max_lease::this_process();
        assert_eq!(keys.client_of(&channel), format!("{host}:{pid}"));
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

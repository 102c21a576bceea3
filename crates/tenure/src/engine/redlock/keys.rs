//! The keys and channels at a node.
//!
//! Keys of locks are those of the `redis` engine with a suffix, so the two never collide. The key
//! of the terms is the same: each engine refuses a namespace that the other has opened.

use crate::contract::{Name, Namespace, SessionId};
use crate::engine::common::redis::keys::NamespaceKeys;

/// The suffix of a lock's key.
const SUFFIX: &str = ":q";
/// The suffix of the channel on which the end of a hold is published.
const FREE: &str = ":free";

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(super) struct NodeKeys {
    shared: NamespaceKeys,
    /// The key of the node's own state: its run, quarantine and highest fence.
    pub(super) node: String,
}

impl NodeKeys {
    pub(super) fn new(namespace: &Namespace) -> Self {
        let shared = NamespaceKeys::new(namespace);
        let node = shared.key("node");
        Self { shared, node }
    }

    /// Returns the key of the terms: the same as that of the `redis` engine, so that no client
    /// takes one node for a whole store.
    pub(super) fn terms(&self) -> &str {
        &self.shared.terms
    }

    /// Returns the keys and channels that are the same in the `redis` engine.
    pub(super) fn shared(&self) -> &NamespaceKeys {
        &self.shared
    }

    /// Returns the key of a lock.
    pub(super) fn lock(&self, name: &Name) -> String {
        let mut key = self.shared.slot(name);
        key.push_str(SUFFIX);
        key
    }

    /// Returns the name of the lock with this key.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<Name> {
        self.shared.name_of(key.strip_suffix(SUFFIX.as_bytes())?)
    }

    /// Returns the pattern that matches the keys of all locks.
    pub(super) fn all_locks(&self) -> String {
        format!("{}{SUFFIX}", self.shared.all_locks())
    }

    /// Returns the channel on which the end of a hold is published.
    pub(super) fn free(&self, name: &Name) -> String {
        self.lock(name) + FREE
    }

    /// Returns the name of such a channel.
    pub(super) fn freed(&self, channel: &[u8]) -> Option<Name> {
        self.name_of(channel.strip_suffix(FREE.as_bytes())?)
    }

    /// Returns the channel of a session.
    pub(super) fn channel(&self, session: SessionId) -> String {
        self.shared.channel(session)
    }

    /// Returns a channel on which nothing is published, to check the access list.
    pub(super) fn probe(&self) -> String {
        self.shared.probe()
    }

    /// Returns the session of a channel.
    pub(super) fn session_of(&self, channel: &[u8]) -> Option<SessionId> {
        self.shared.session_of(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_channels_name_their_locks_and_never_those_of_the_plain_engine() {
        let namespace = Namespace::try_from("n s").unwrap();
        let (keys, plain) = (NodeKeys::new(&namespace), NamespaceKeys::new(&namespace));
        let name = Name::try_from("a:q").unwrap();
        assert_eq!(keys.name_of(keys.lock(&name).as_bytes()), Some(name.clone()));
        assert_eq!(keys.freed(keys.free(&name).as_bytes()), Some(name.clone()));
        assert_eq!(plain.name_of(keys.lock(&name).as_bytes()), None);
        assert_eq!(keys.name_of(plain.slot(&name).as_bytes()), None);
        assert_eq!(keys.name_of(format!("{}:w:1", keys.lock(&name)).as_bytes()), None);
        let session = SessionId::new();
        assert_eq!(keys.session_of(keys.channel(session).as_bytes()), Some(session));
    }
}

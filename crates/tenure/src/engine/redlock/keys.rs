//! How things are called at a node. Knows names of keys and channels, not what they hold.
//!
//! The names are those of the plain engine with a mark of their own behind: the two never meet, and
//! each refuses a namespace that the other has opened.

use crate::contract::{Name, Namespace, SessionId};
use crate::engine::redis::keys::RedisKeys as Plain;

/// What the key of a lock ends with.
const MARK: &str = ":q";
/// What the channel ends with on which the end of a hold is told.
const FREE: &str = ":free";

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    plain: Plain,
    /// What a node says of itself.
    pub(super) node: String,
}

impl Keys {
    pub(super) fn new(namespace: &Namespace) -> Self {
        let plain = Plain::new(namespace);
        let node = plain.terms.replace(":terms", ":node");
        Self { plain, node }
    }

    /// What all clients have agreed on: the same key as that of the plain engine, so that nobody
    /// takes one node of a set for a whole store.
    pub(super) fn terms(&self) -> &str {
        &self.plain.terms
    }

    /// The names that a plain engine uses, which are the same here for clients.
    pub(super) fn plain(&self) -> &Plain {
        &self.plain
    }

    /// The key of a lock.
    pub(super) fn lock(&self, name: &Name) -> String {
        let mut key = self.plain.slot(name);
        key.push_str(MARK);
        key
    }

    /// The name of the lock with this key.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<Name> {
        self.plain.name_of(key.strip_suffix(MARK.as_bytes())?)
    }

    /// What finds the keys of all locks.
    pub(super) fn all_locks(&self) -> String {
        format!("{}{MARK}", self.plain.all_locks())
    }

    /// The channel on which the end of a hold is told.
    pub(super) fn free(&self, name: &Name) -> String {
        self.lock(name) + FREE
    }

    /// The name whose hold has ended, as this channel tells.
    pub(super) fn freed(&self, channel: &[u8]) -> Option<Name> {
        self.name_of(channel.strip_suffix(FREE.as_bytes())?)
    }

    /// The channel of a session.
    pub(super) fn channel(&self, session: SessionId) -> String {
        self.plain.channel(session)
    }

    /// What the channel of a session begins with.
    pub(super) fn channels(&self) -> String {
        self.plain.probe().trim_end_matches("nobody").to_owned()
    }

    /// The session of a channel.
    pub(super) fn session_of(&self, channel: &[u8]) -> Option<SessionId> {
        self.plain.session_of(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_channels_name_their_locks_and_never_those_of_the_plain_engine() {
        let namespace = Namespace::try_from("n s").unwrap();
        let (keys, plain) = (Keys::new(&namespace), Plain::new(&namespace));
        let name = Name::try_from("a:q").unwrap();
        assert_eq!(keys.name_of(keys.lock(&name).as_bytes()), Some(name.clone()));
        assert_eq!(keys.freed(keys.free(&name).as_bytes()), Some(name.clone()));
        assert_eq!(plain.name_of(keys.lock(&name).as_bytes()), None);
        assert_eq!(keys.name_of(plain.slot(&name).as_bytes()), None);
        assert_eq!(keys.name_of(format!("{}:w:1", keys.lock(&name)).as_bytes()), None);
        let session = SessionId::new();
        assert_eq!(keys.channel(session), keys.channels() + &session.to_hex());
        assert_eq!(keys.session_of(keys.channel(session).as_bytes()), Some(session));
    }
}

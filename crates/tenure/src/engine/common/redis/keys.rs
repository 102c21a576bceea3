//! The names of keys and channels that both engines over Redis use.
//!
//! Everything outside `A-Z a-z 0-9 - _ . ~` in a namespace or name is percent-encoded, so that no
//! two names share a key; the braces around them keep all keys of a name in one slot of a cluster.

use std::time::Duration;

use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode, utf8_percent_encode,
};

use crate::contract::{Name, Namespace, SessionId};
use crate::engine::common::max_lease;

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The keys and channels of one namespace that are the same in both engines.
#[derive(Clone, Debug)]
pub(in crate::engine) struct NamespaceKeys {
    /// The prefix of the keys of locks.
    pub(in crate::engine) locks: String,
    /// The prefix of the keys that belong to no lock.
    prefix: String,
    /// The prefix of the channels of sessions. Scripts derive it from the name of the top, and so
    /// the keys of indexes and the channel of changes.
    pub(in crate::engine) channels: String,
    /// The key of the terms that all clients have agreed on.
    pub(in crate::engine) terms: String,
}

impl NamespaceKeys {
    pub(in crate::engine) fn new(namespace: &Namespace) -> Self {
        let space = encoded(namespace.as_str());
        let prefix = format!("tenure:{{{space}}}:");
        Self {
            locks: format!("tenure:{{{space}/"),
            channels: format!("{prefix}to:"),
            terms: format!("{prefix}terms"),
            prefix,
        }
    }

    /// Returns a key of the namespace that belongs to no lock.
    pub(in crate::engine) fn key(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    /// Returns the key of a lock, which is the prefix of its other keys.
    pub(in crate::engine) fn slot(&self, name: &Name) -> String {
        let mut key = String::with_capacity(self.locks.len() + name.as_str().len() + 1);
        self.push_slot(&mut key, name);
        key
    }

    /// Appends the slot key to `text`.
    pub(in crate::engine) fn push_slot(&self, text: &mut String, name: &Name) {
        text.push_str(&self.locks);
        text.extend(encoded(name.as_str()));
        text.push('}');
    }

    /// Returns the name of the lock that a key belongs to, if it is one of a lock's two main keys.
    pub(in crate::engine) fn name_of(&self, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(self.locks.as_bytes())?;
        let rest = rest.strip_suffix(b":s").unwrap_or(rest);
        decode_name(rest.strip_suffix(b"}")?)
    }

    /// Returns a pattern that matches the keys of all locks. Encoded names contain no wildcard.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn all_locks(&self) -> String {
        format!("{}*", self.locks)
    }

    /// Returns the channel of a session.
    pub(in crate::engine) fn channel(&self, session: SessionId) -> String {
        format!("{}{}", self.channels, session.to_hex())
    }

    /// Returns the prefix of the channels of clients, see `change_terms.lua`.
    pub(in crate::engine) fn clients(&self) -> String {
        self.key("client:")
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
        format!("{}probe", self.channels)
    }

    /// Returns the session of a channel.
    pub(in crate::engine) fn session_of(&self, channel: &[u8]) -> Option<SessionId> {
        let hex = channel.strip_prefix(self.channels.as_bytes())?;
        std::str::from_utf8(hex).ok()?.parse().ok()
    }
}

/// Percent-encodes everything outside `A-Z a-z 0-9 - _ . ~`.
pub(in crate::engine) fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ENCODED)
}

/// Decodes a name that [`encoded`] has encoded; `None` if it is not a name.
pub(in crate::engine) fn decode_name(text: &[u8]) -> Option<Name> {
    let text = percent_decode(text).decode_utf8().ok()?;
    Name::from_store(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(namespace: &str) -> NamespaceKeys {
        NamespaceKeys::new(&Namespace::try_from(namespace).unwrap())
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
        assert_eq!(keys.session_of(keys.probe().as_bytes()), None);
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
}

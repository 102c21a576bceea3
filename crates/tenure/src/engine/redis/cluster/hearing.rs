//! On which channels a cluster's sessions hear, and at which node each was asked for. Knows what is
//! subscribed, not how.
//!
//! A script may publish only in the slot of its keys. So a session has a channel for every name it
//! claims, and only so many of them: the one that was not used for longest goes, and whoever still
//! waits there learns of a grant when it renews.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::slots::Peer;
use crate::contract::{Name, SessionId};

/// Most channels at a time.
pub(super) const CHANNELS: usize = 4_096;

/// A session's hearing of a name.
pub(super) type Channel = (SessionId, Name);

/// All channels of an engine.
#[derive(Debug)]
pub(super) struct Hearing {
    most: usize,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    uses: u64,
    entries: HashMap<Channel, Entry>,
    /// The same by their last use.
    by_use: BTreeMap<u64, Channel>,
}

#[derive(Debug)]
struct Entry {
    used: u64,
    /// Where it was asked for; nowhere, if that came to nothing.
    at: Option<Peer>,
    /// The node has confirmed it.
    stands: bool,
}

/// What to do before a claim is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Subscribe.
    pub(super) subscribe: bool,
    /// Others may wait there, and have missed something.
    pub(super) again: bool,
    /// Send the claim behind the subscription, on the same connection: it is not confirmed yet.
    pub(super) behind: bool,
    /// Unsubscribe from this one, there.
    pub(super) leave: Option<(Channel, Peer)>,
}

impl Hearing {
    pub(super) fn new(most: usize) -> Self {
        Self { most, book: Mutex::default() }
    }

    /// A claim is about to be sent to a node.
    pub(super) fn wants(&self, channel: &Channel, at: &Peer) -> Wanted {
        let mut book = self.book();
        book.uses += 1;
        let used = book.uses;
        if let Some(entry) = book.entries.get_mut(channel) {
            let (before, again) = (entry.used, entry.at.as_ref() != Some(at));
            entry.used = used;
            if again {
                (entry.at, entry.stands) = (Some(at.clone()), false);
            }
            let behind = !entry.stands;
            book.by_use.remove(&before);
            book.by_use.insert(used, channel.clone());
            return Wanted { subscribe: again, again, behind, leave: None };
        }
        let leave = (book.entries.len() >= self.most).then(|| book.take_oldest()).flatten();
        book.entries.insert(channel.clone(), Entry { used, at: Some(at.clone()), stands: false });
        book.by_use.insert(used, channel.clone());
        Wanted { subscribe: true, again: false, behind: true, leave }
    }

    /// A node has confirmed a subscription.
    pub(super) fn confirmed(&self, channel: &Channel, at: &Peer) {
        if let Some(entry) = self.book().entries.get_mut(channel)
            && entry.at.as_ref() == Some(at)
        {
            entry.stands = true;
        }
    }

    /// A subscription came to nothing, or was ended by the node.
    pub(super) fn failed(&self, channel: &Channel, at: &Peer) -> bool {
        let mut book = self.book();
        let entry = book.entries.get_mut(channel).filter(|entry| entry.at.as_ref() == Some(at));
        entry.map(|entry| (entry.at, entry.stands) = (None, false)).is_some()
    }

    /// The connection to a node is a new one: nothing is subscribed there any more.
    pub(super) fn forget(&self, peer: &Peer) {
        for entry in self.book().entries.values_mut() {
            if entry.at.as_ref() == Some(peer) {
                (entry.at, entry.stands) = (None, false);
            }
        }
    }

    /// The channels that are not subscribed where they should be; from here on they count as asked
    /// for there. `keeper` says where, or nowhere if that is not known or cannot be reached.
    pub(super) fn astray(&self, keeper: impl Fn(&Name) -> Option<Peer>) -> Vec<(Channel, Peer)> {
        let mut astray = Vec::new();
        for (channel, entry) in &mut self.book().entries {
            let Some(peer) = keeper(&channel.1) else { continue };
            if entry.at.as_ref() != Some(&peer) {
                (entry.at, entry.stands) = (Some(peer.clone()), false);
                astray.push((channel.clone(), peer));
            }
        }
        astray
    }

    /// Forgets sessions that are gone; what they had subscribed, and where.
    pub(super) fn end(&self, sessions: &[SessionId]) -> Vec<(Channel, Peer)> {
        if sessions.is_empty() {
            return Vec::new();
        }
        let mut book = self.book();
        let theirs: Vec<Channel> = book
            .entries
            .keys()
            .filter(|(session, _)| sessions.contains(session))
            .cloned()
            .collect();
        theirs.into_iter().filter_map(|channel| book.take(&channel)).collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn take_oldest(&mut self) -> Option<(Channel, Peer)> {
        let channel = self.by_use.first_key_value()?.1.clone();
        self.take(&channel)
    }

    fn take(&mut self, channel: &Channel) -> Option<(Channel, Peer)> {
        let entry = self.entries.remove(channel)?;
        self.by_use.remove(&entry.used);
        Some((channel.clone(), entry.at?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> Peer {
        ("h".to_owned(), port)
    }

    fn channel(session: SessionId, name: &str) -> Channel {
        (session, Name::try_from(name).unwrap())
    }

    const NOTHING: Wanted = Wanted { subscribe: false, again: false, behind: false, leave: None };

    #[test]
    fn a_channel_is_asked_for_once_at_each_node_it_moves_to() {
        let (hearing, session) = (Hearing::new(9), SessionId::new());
        let a = channel(session, "a");
        let first = hearing.wants(&a, &peer(1));
        assert!(first.subscribe && first.behind && !first.again);
        let second = hearing.wants(&a, &peer(1));
        assert!(!second.subscribe && second.behind, "it is not confirmed yet");
        hearing.confirmed(&a, &peer(1));
        assert_eq!(hearing.wants(&a, &peer(1)), NOTHING);
        let moved = hearing.wants(&a, &peer(2));
        assert!(moved.subscribe && moved.again && moved.behind);
        hearing.confirmed(&a, &peer(1));
        assert!(hearing.wants(&a, &peer(2)).behind, "that was the node before");
        assert!(!hearing.failed(&a, &peer(1)), "that is not where it is");
        assert!(hearing.failed(&a, &peer(2)));
        assert!(hearing.wants(&a, &peer(2)).subscribe);
        hearing.forget(&peer(2));
        assert_eq!(hearing.astray(|_| None), []);
        assert_eq!(hearing.astray(|_| Some(peer(3))), [(a.clone(), peer(3))]);
        assert_eq!(hearing.astray(|_| Some(peer(3))), []);
        assert_eq!(hearing.end(&[SessionId::new()]), []);
        assert_eq!(hearing.end(&[session]), [(a, peer(3))]);
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes() {
        let (hearing, session) = (Hearing::new(2), SessionId::new());
        let [a, b, c] = ["a", "b", "c"].map(|name| channel(session, name));
        hearing.wants(&a, &peer(1));
        hearing.wants(&b, &peer(1));
        hearing.wants(&a, &peer(1));
        assert_eq!(hearing.wants(&c, &peer(1)).leave, Some((b.clone(), peer(1))));
        assert!(hearing.wants(&b, &peer(1)).subscribe);
        assert!(!hearing.wants(&c, &peer(1)).subscribe);
        let book = hearing.book();
        assert_eq!((book.entries.len(), book.by_use.len()), (2, 2));
    }
}

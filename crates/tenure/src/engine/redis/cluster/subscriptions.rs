//! Bookkeeping of a cluster's subscriptions: which channel was subscribed at which node, and
//! whether the node has confirmed it. Does no I/O; `signals.rs` does.
//!
//! A channel is *requested* at a node (`at`), then *confirmed*; a failed request, an unsubscribe by
//! the node and a new connection to the node all reset it. Replies name the node they are from, so
//! that a late reply of a node that the channel has left changes nothing. The number of channels is
//! limited: the least recently used one is unsubscribed, and a waiter there learns of its grant
//! when it renews.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::slots::NodeAddress;
use crate::contract::{Name, SessionId};

/// Most channels at a time.
pub(super) const MAX_CHANNELS: usize = 4_096;

/// What a channel of a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subscriber {
    /// The signals of a session.
    Session(SessionId),
    /// The changes of the cell.
    Changes,
}

/// A channel of a name.
pub(super) type Channel = (Subscriber, Name);

/// The subscriptions of an engine.
#[derive(Debug)]
pub(super) struct Subscriptions {
    most: usize,
    table: Mutex<SubscriptionTable>,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    uses: u64,
    entries: HashMap<Channel, ChannelSubscription>,
    /// The channels by their last use.
    by_use: BTreeMap<u64, Channel>,
}

#[derive(Debug)]
struct ChannelSubscription {
    used: u64,
    /// The node at which it was requested; none after a failure.
    at: Option<NodeAddress>,
    confirmed: bool,
}

/// What to do before a claim is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SubscribePlan {
    pub(super) subscribe: bool,
    /// It was subscribed elsewhere before: other waiters may have missed a message.
    pub(super) again: bool,
    /// The subscription is not confirmed yet: the claim has to follow it on the same connection.
    pub(super) claim_after: bool,
    /// The least recently used channel, which has to go, and its node.
    pub(super) unsubscribe: Option<(Channel, NodeAddress)>,
}

impl Subscriptions {
    pub(super) fn new(most: usize) -> Self {
        Self { most, table: Mutex::default() }
    }

    /// Returns what to do before a claim is sent to a node.
    pub(super) fn plan(&self, channel: &Channel, at: &NodeAddress) -> SubscribePlan {
        let mut table = self.table();
        table.uses += 1;
        let used = table.uses;
        if let Some(entry) = table.entries.get_mut(channel) {
            let (before, again) = (entry.used, entry.at.as_ref() != Some(at));
            entry.used = used;
            if again {
                (entry.at, entry.confirmed) = (Some(at.clone()), false);
            }
            let claim_after = !entry.confirmed;
            table.by_use.remove(&before);
            table.by_use.insert(used, channel.clone());
            return SubscribePlan { subscribe: again, again, claim_after, unsubscribe: None };
        }
        let unsubscribe = (table.entries.len() >= self.most).then(|| table.take_oldest()).flatten();
        table.entries.insert(
            channel.clone(),
            ChannelSubscription { used, at: Some(at.clone()), confirmed: false },
        );
        table.by_use.insert(used, channel.clone());
        SubscribePlan { subscribe: true, again: false, claim_after: true, unsubscribe }
    }

    /// A node has confirmed a subscription.
    pub(super) fn confirmed(&self, channel: &Channel, at: &NodeAddress) {
        if let Some(entry) = self.table().entries.get_mut(channel)
            && entry.at.as_ref() == Some(at)
        {
            entry.confirmed = true;
        }
    }

    /// A subscription failed or was ended by the node. Returns true if it was current.
    pub(super) fn failed(&self, channel: &Channel, at: &NodeAddress) -> bool {
        let mut table = self.table();
        let entry = table.entries.get_mut(channel).filter(|entry| entry.at.as_ref() == Some(at));
        entry.map(|entry| (entry.at, entry.confirmed) = (None, false)).is_some()
    }

    /// The connection to a node was made anew: nothing is subscribed there.
    pub(super) fn forget(&self, address: &NodeAddress) {
        for entry in self.table().entries.values_mut() {
            if entry.at.as_ref() == Some(address) {
                (entry.at, entry.confirmed) = (None, false);
            }
        }
    }

    /// Marks all channels that are not subscribed at their node as requested there, and returns
    /// them. `keeper` returns the node of a name; none if it is not known or not ready.
    pub(super) fn take_missing(
        &self,
        keeper: impl Fn(&Name) -> Option<NodeAddress>,
    ) -> Vec<(Channel, NodeAddress)> {
        let mut missing = Vec::new();
        for (channel, entry) in &mut self.table().entries {
            let Some(address) = keeper(&channel.1) else { continue };
            if entry.at.as_ref() != Some(&address) {
                (entry.at, entry.confirmed) = (Some(address.clone()), false);
                missing.push((channel.clone(), address));
            }
        }
        missing
    }

    /// Removes sessions that have ended. Returns their channels and nodes.
    pub(super) fn end(&self, sessions: &[SessionId]) -> Vec<(Channel, NodeAddress)> {
        if sessions.is_empty() {
            return Vec::new();
        }
        let mut table = self.table();
        let theirs: Vec<Channel> = table
            .entries
            .keys()
            .filter(|(subscriber, _)| match subscriber {
                Subscriber::Session(session) => sessions.contains(session),
                Subscriber::Changes => false,
            })
            .cloned()
            .collect();
        theirs.into_iter().filter_map(|channel| table.take(&channel)).collect()
    }

    /// Removes a channel. Returns it with its node.
    pub(super) fn remove(&self, channel: &Channel) -> Option<(Channel, NodeAddress)> {
        self.table().take(channel)
    }

    fn table(&self) -> MutexGuard<'_, SubscriptionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubscriptionTable {
    fn take_oldest(&mut self) -> Option<(Channel, NodeAddress)> {
        let channel = self.by_use.first_key_value()?.1.clone();
        self.take(&channel)
    }

    fn take(&mut self, channel: &Channel) -> Option<(Channel, NodeAddress)> {
        let entry = self.entries.remove(channel)?;
        self.by_use.remove(&entry.used);
        Some((channel.clone(), entry.at?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> NodeAddress {
        ("h".to_owned(), port)
    }

    fn channel(session: SessionId, name: &str) -> Channel {
        (Subscriber::Session(session), Name::try_from(name).unwrap())
    }

    const NOTHING: SubscribePlan =
        SubscribePlan { subscribe: false, again: false, claim_after: false, unsubscribe: None };

    #[test]
    fn a_channel_is_asked_for_once_at_each_node_it_moves_to() {
        let (subscriptions, session) = (Subscriptions::new(9), SessionId::new());
        let a = channel(session, "a");
        let first = subscriptions.plan(&a, &address(1));
        assert!(first.subscribe && first.claim_after && !first.again);
        let second = subscriptions.plan(&a, &address(1));
        assert!(!second.subscribe && second.claim_after, "it is not confirmed yet");
        subscriptions.confirmed(&a, &address(1));
        assert_eq!(subscriptions.plan(&a, &address(1)), NOTHING);
        let moved = subscriptions.plan(&a, &address(2));
        assert!(moved.subscribe && moved.again && moved.claim_after);
        subscriptions.confirmed(&a, &address(1));
        assert!(subscriptions.plan(&a, &address(2)).claim_after, "that was the node before");
        assert!(!subscriptions.failed(&a, &address(1)), "that is not where it is");
        assert!(subscriptions.failed(&a, &address(2)));
        assert!(subscriptions.plan(&a, &address(2)).subscribe);
        subscriptions.forget(&address(2));
        assert_eq!(subscriptions.take_missing(|_| None), []);
        assert_eq!(subscriptions.take_missing(|_| Some(address(3))), [(a.clone(), address(3))]);
        assert_eq!(subscriptions.take_missing(|_| Some(address(3))), []);
        assert_eq!(subscriptions.end(&[SessionId::new()]), []);
        assert_eq!(subscriptions.end(&[session]), [(a.clone(), address(3))]);
        let changes: Channel = (Subscriber::Changes, a.1);
        subscriptions.plan(&changes, &address(4));
        assert_eq!(subscriptions.end(&[session]), []);
        assert_eq!(subscriptions.remove(&changes), Some((changes.clone(), address(4))));
        assert_eq!(subscriptions.remove(&changes), None);
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes() {
        let (subscriptions, session) = (Subscriptions::new(2), SessionId::new());
        let [a, b, c] = ["a", "b", "c"].map(|name| channel(session, name));
        subscriptions.plan(&a, &address(1));
        subscriptions.plan(&b, &address(1));
        subscriptions.plan(&a, &address(1));
        assert_eq!(subscriptions.plan(&c, &address(1)).unsubscribe, Some((b.clone(), address(1))));
        assert!(subscriptions.plan(&b, &address(1)).subscribe);
        assert!(!subscriptions.plan(&c, &address(1)).subscribe);
        let table = subscriptions.table();
        assert_eq!((table.entries.len(), table.by_use.len()), (2, 2));
    }
}

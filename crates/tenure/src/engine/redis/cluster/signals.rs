//! Signals in a cluster: which channels are subscribed at which node.
//!
//! A script may publish only in the hash slot of its keys, so a session has one channel per name
//! that it claims. It is subscribed before the claim is sent, on the same connection until the node
//! has confirmed the subscription: the node handles both in order, so that no grant is published
//! too early. When a slot moves, or a connection is made anew, the task of `topology.rs` subscribes
//! again ([`ClusterInner::restore_subscriptions`]), and then all sessions resynchronize, because
//! messages may have been missed. `subscriptions.rs` is the bookkeeping.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use super::node::ClusterNode;
use super::slots::NodeAddress;
use super::subscriptions::{Channel, Subscriber, Subscriptions};
use super::{ClusterEngine, ClusterInner};
use crate::contract::{Name, SessionId, SignalListener};
use crate::engine::redis::client::{ReplyTo, RequestResult, pack};

impl ClusterEngine {
    /// Registers the listener of a session, and unsubscribes the channels of ended ones.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let ended = self.inner.listeners.remove_ended();
        let ended: Vec<SessionId> = ended.into_iter().map(|(session, ())| session).collect();
        self.inner.unsubscribe(self.inner.subscriptions.end(&ended));
        self.inner.listeners.insert(session, listener, ());
    }

    /// Subscribes a session to a name that it is about to claim, unless it is subscribed. Returns
    /// true if the claim has to follow on the same connection.
    pub(super) fn subscribe(&self, session: SessionId, name: &Name) -> bool {
        // Where no node keeps the slot, the claim fails too.
        let Ok(node) = self.inner.node_of(self.inner.slot(name)) else { return false };
        let channel: Channel = (Subscriber::Session(session), name.clone());
        let plan = self.inner.subscriptions.plan(&channel, &node.address);
        if plan.subscribe {
            let engine = self.inner.me.clone();
            self.inner.subscribe(&channel, &node, move |_| {
                if let Some(inner) = engine.upgrade().filter(|_| plan.again) {
                    inner.listeners.resync();
                }
            });
        }
        self.inner.unsubscribe(plan.unsubscribe);
        plan.claim_after
    }
}

impl ClusterInner {
    /// Returns the table of a channel.
    pub(super) fn table_of(&self, channel: &Channel) -> &Subscriptions {
        match channel.0 {
            Subscriber::Session(_) => &self.subscriptions,
            Subscriber::Changes => &self.changes.subscriptions,
        }
    }

    /// Returns the name of a channel.
    fn channel_name(&self, (subscriber, name): &Channel) -> String {
        match subscriber {
            Subscriber::Session(session) => self.keys.channel_of(name, *session),
            Subscriber::Changes => self.keys.changes_of(name),
        }
    }

    /// Parses the name of a channel.
    pub(super) fn parse_channel(&self, channel: &[u8]) -> Option<Channel> {
        if let Some((name, session)) = self.keys.parse_channel(channel) {
            return Some((Subscriber::Session(session), name));
        }
        self.keys.parse_changes(channel).map(|name| (Subscriber::Changes, name))
    }

    pub(super) fn unsubscribe(&self, channels: impl IntoIterator<Item = (Channel, NodeAddress)>) {
        for (channel, address) in channels {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let node = nodes.get(&address).cloned();
            drop(nodes);
            if let Some(node) = node {
                let packed = pack(&[b"SUNSUBSCRIBE", self.channel_name(&channel).as_bytes()]);
                node.connections.subscribed().send(&packed, ReplyTo::Many(Box::new(drop)));
            }
        }
    }

    /// Subscribes all channels that are not subscribed at the node that keeps their slot. When a
    /// node has confirmed all of its channels, sessions resynchronize and watchers get a gap.
    pub(super) fn restore_subscriptions(&self) {
        let ready = |name: &_| {
            let node = self.node_of(self.slot(name)).ok()?;
            // A node that is not ready yet wakes the task when it is.
            node.connections.subscribed().is_ready().then(|| node.address.clone())
        };
        let mut missing = self.subscriptions.take_missing(ready);
        missing.extend(self.changes.subscriptions.take_missing(ready));
        missing.sort_by(|(_, one), (_, other)| one.cmp(other));
        for channels in missing.chunk_by(|(_, one), (_, other)| one == other) {
            let Ok(node) = self.node(&channels[0].1) else { continue };
            let left = Arc::new(AtomicUsize::new(channels.len()));
            for (channel, _) in channels {
                let (left, engine) = (Arc::clone(&left), self.me.clone());
                self.subscribe(channel, &node, move |_| {
                    let is_last = left.fetch_sub(1, Ordering::SeqCst) == 1;
                    if let Some(inner) = engine.upgrade().filter(|_| is_last) {
                        inner.listeners.resync();
                        inner.changes.watchers.gap();
                    }
                });
            }
        }
    }

    /// Subscribes at a node. `done` receives the reply after the table knows of it.
    pub(super) fn subscribe(
        &self,
        channel: &Channel,
        node: &ClusterNode,
        done: impl FnOnce(RequestResult) + Send + 'static,
    ) {
        let (engine, at, address) = (self.me.clone(), channel.clone(), node.address.clone());
        let confirmed = move |result: RequestResult| {
            if let Some(inner) = engine.upgrade() {
                match &result {
                    Ok(_) => inner.table_of(&at).confirmed(&at, &address),
                    Err(error) => {
                        tracing::debug!(?error, name = %at.1, "subscription failed");
                        if inner.table_of(&at).failed(&at, &address) {
                            inner.request_refresh();
                        }
                    }
                }
            }
            done(result);
        };
        let packed = pack(&[b"SSUBSCRIBE", self.channel_name(channel).as_bytes()]);
        node.connections.subscribed().send(&packed, ReplyTo::Many(Box::new(confirmed)));
    }
}

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
use super::subscriptions::Channel;
use super::{ClusterEngine, ClusterInner};
use crate::contract::{Name, SessionId, SignalListener};
use crate::engine::redis::client::{ReplyTo, RequestResult, pack};

impl ClusterEngine {
    /// Registers the listener of a session, and unsubscribes the channels of ended ones.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let ended = self.inner.listeners.remove_ended();
        self.unsubscribe(self.inner.subscriptions.end(&ended));
        self.inner.listeners.insert(session, listener);
    }

    /// Subscribes a session to a name that it is about to claim, unless it is subscribed. Returns
    /// true if the claim has to follow on the same connection.
    pub(super) fn subscribe(&self, session: SessionId, name: &Name) -> bool {
        // Where no node keeps the slot, the claim fails too.
        let Ok(node) = self.inner.node_of(self.inner.slot(name)) else { return false };
        let channel: Channel = (session, name.clone());
        let plan = self.inner.subscriptions.plan(&channel, &node.address);
        if plan.subscribe {
            let left = plan.again.then(|| Arc::new(AtomicUsize::new(1)));
            self.inner.subscribe(&channel, &node, left);
        }
        self.unsubscribe(plan.unsubscribe);
        plan.claim_after
    }

    fn unsubscribe(&self, channels: impl IntoIterator<Item = (Channel, NodeAddress)>) {
        for ((session, name), address) in channels {
            let nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let node = nodes.get(&address).cloned();
            drop(nodes);
            if let Some(node) = node {
                let channel = self.inner.keys.channel_of(&name, session);
                let packed = pack(&[b"SUNSUBSCRIBE", channel.as_bytes()]);
                node.connections.subscribed().send(&packed, ReplyTo::Many(Box::new(drop)));
            }
        }
    }
}

impl ClusterInner {
    /// Subscribes all channels that are not subscribed at the node that keeps their slot. When a
    /// node has confirmed all of its channels, the sessions resynchronize.
    pub(super) fn restore_subscriptions(&self) {
        let ready = |name: &_| {
            let node = self.node_of(self.slot(name)).ok()?;
            // A node that is not ready yet wakes the task when it is.
            node.connections.subscribed().is_ready().then(|| node.address.clone())
        };
        let mut missing = self.subscriptions.take_missing(ready);
        missing.sort_by(|(_, one), (_, other)| one.cmp(other));
        for channels in missing.chunk_by(|(_, one), (_, other)| one == other) {
            let Ok(node) = self.node(&channels[0].1) else { continue };
            let left = Arc::new(AtomicUsize::new(channels.len()));
            for (channel, _) in channels {
                self.subscribe(channel, &node, Some(Arc::clone(&left)));
            }
        }
    }

    /// Subscribes at a node. `left` counts the subscriptions of a group: after the reply to the
    /// last one, all sessions resynchronize.
    fn subscribe(&self, channel: &Channel, node: &ClusterNode, left: Option<Arc<AtomicUsize>>) {
        let (engine, at, address) = (self.me.clone(), channel.clone(), node.address.clone());
        let confirmed = move |result: RequestResult| {
            let Some(inner) = engine.upgrade() else { return };
            match result {
                Ok(_) => inner.subscriptions.confirmed(&at, &address),
                Err(error) => {
                    tracing::debug!(?error, name = %at.1, "subscription failed");
                    if inner.subscriptions.failed(&at, &address) {
                        inner.request_refresh();
                    }
                }
            }
            if left.is_some_and(|left| left.fetch_sub(1, Ordering::SeqCst) == 1) {
                inner.listeners.resync();
            }
        };
        let name = self.keys.channel_of(&channel.1, channel.0);
        let packed = pack(&[b"SSUBSCRIBE", name.as_bytes()]);
        node.connections.subscribed().send(&packed, ReplyTo::Many(Box::new(confirmed)));
    }
}

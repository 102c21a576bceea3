//! Calls to the node that keeps a slot, with redirections and retries.
//!
//! A call is repeated only after an error that says it had no effect: an unknown script, `MOVED`
//! and `ASK`, a node that is not in charge or was not reached. After `MOVED` the map learns the new
//! keeper at once and is refreshed in the background; after an error without a destination the map
//! is refreshed first, and the call is repeated if another node keeps the slot by then. `ASK` sends
//! this one call elsewhere, with `ASKING` before it, and leaves the map alone. A slot whose calls
//! keep failing is *unstable*: it is being moved, and the session treats it as a partition of its
//! own until a call succeeds.

use std::sync::{Arc, PoisonError};

use super::ClusterInner;
use super::node::ClusterNode;
use super::slots::{NodeAddress, slot_of};
use super::topology::RefreshScope;
use crate::contract::{Error, ErrorKind, Name};
use crate::engine::redis::client::{PendingReply, RequestError, RequestResult, pack};
use crate::engine::redis::scripts::{LuaScript, pack_script};

/// How many times a call that had no effect is repeated: elsewhere, or with the text of its script.
pub(super) const MAX_RETRIES: usize = 4;

/// A script to run over keys of one slot.
pub(super) struct SlotRequest {
    pub(super) slot: u16,
    pub(super) script: &'static LuaScript,
    pub(super) top: String,
    pub(super) keys: Vec<String>,
    pub(super) items: Vec<Vec<u8>>,
    /// Sent on the subscribed connection, where it follows the subscription.
    pub(super) after_subscribe: bool,
}

/// A request that was sent.
pub(super) struct SentRequest {
    request: SlotRequest,
    reply: Result<(Arc<ClusterNode>, PendingReply), RequestError>,
}

impl ClusterInner {
    /// Builds the request for a script over the keys of a name.
    pub(super) fn request(
        &self,
        name: &Name,
        script: &'static LuaScript,
        items: &[&[u8]],
    ) -> SlotRequest {
        let (top, key) = (self.keys.top_of(name), self.keys.slot(name));
        let items = items.iter().map(|item| item.to_vec()).collect();
        let (slot, keys) = (slot_of(&key), vec![key]);
        SlotRequest { slot, script, top, keys, items, after_subscribe: false }
    }

    /// Sends a request now, whether or not its reply is awaited.
    pub(super) fn send(&self, request: SlotRequest) -> SentRequest {
        self.options.count_activity();
        let node = self.node_of(request.slot).map_err(RequestError::NotConnected);
        let reply = node.map(|node| self.send_to(node, &request, false, false));
        SentRequest { request, reply }
    }

    /// Waits for the reply, following redirections and retrying.
    pub(super) async fn wait(&self, sent: SentRequest) -> RequestResult {
        let SentRequest { request, reply } = sent;
        let (mut node, mut reply) = reply?;
        let (mut asking, mut by_text) = (false, false);
        for left in (0..=MAX_RETRIES).rev() {
            let error = match reply.await {
                Ok(value) => {
                    self.mark_stable(request.slot);
                    return Ok(value);
                }
                Err(error) => error,
            };
            if left == 0 {
                self.mark_unstable(request.slot);
                return Err(error);
            }
            if error.is_unknown_script() {
                // It was not run, so it may be sent again.
                by_text = true;
            } else if let Some(to) = error.redirection() {
                let host = if to.host.is_empty() { &node.address.0 } else { to.host };
                let address: NodeAddress = (host.to_owned(), to.port);
                asking = to.ask;
                if !asking {
                    self.moved(request.slot, &address);
                }
                node = self.node(&address).map_err(RequestError::NotConnected)?;
            } else {
                match self.other_keeper(&request, &node, &error).await {
                    Some(other) => (node, asking) = (other, false),
                    None => return Err(error),
                }
            }
            (node, reply) = self.send_to(node, &request, asking, by_text);
        }
        Err(RequestError::Closed)
    }

    /// Sends a request and waits for its reply.
    pub(super) async fn run(&self, request: SlotRequest) -> RequestResult {
        self.wait(self.send(request)).await
    }

    /// Refreshes the map after an error without effect. Returns the node that keeps the slot by
    /// now, if it is another one.
    async fn other_keeper(
        &self,
        request: &SlotRequest,
        node: &ClusterNode,
        error: &RequestError,
    ) -> Option<Arc<ClusterNode>> {
        if !error.is_from_wrong_node() {
            if matches!(error, RequestError::Server { .. }) {
                self.mark_unstable(request.slot);
            }
            return None;
        }
        if let Err(error) = self.refresh(RefreshScope::UntilSettled).await {
            tracing::debug!(%error, "cluster topology unknown");
        }
        self.request_refresh();
        self.node_of(request.slot).ok().filter(|other| other.address != node.address)
    }

    fn send_to(
        &self,
        node: Arc<ClusterNode>,
        request: &SlotRequest,
        asking: bool,
        by_text: bool,
    ) -> (Arc<ClusterNode>, PendingReply) {
        let script = request.script;
        let words = if by_text { ("EVAL", &*script.text) } else { ("EVALSHA", &*script.sha) };
        let items: Vec<&[u8]> = request.items.iter().map(Vec::as_slice).collect();
        let options = self.options.argument(false);
        let keys: Vec<&str> = request.keys.iter().map(String::as_str).collect();
        let packed = pack_script(words, &request.top, &keys, &options, &items);
        let connection = if request.after_subscribe {
            node.connections.subscribed()
        } else {
            node.connections.for_caller()
        };
        let reply = if asking {
            // The slot is being moved there: ASKING admits the next command only.
            connection.call_after(&pack(&[b"ASKING"]), &packed)
        } else {
            connection.call(&packed)
        };
        (node, reply)
    }

    /// Returns the cluster slot of a name.
    pub(super) fn slot(&self, name: &Name) -> u16 {
        slot_of(&self.keys.slot(name))
    }

    /// Returns the node that keeps a slot.
    pub(super) fn node_of(&self, slot: u16) -> Result<Arc<ClusterNode>, Error> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let keeper = map.keeper(slot).map(|keeper| keeper.address.clone());
        let Some(address) = keeper else {
            self.request_refresh();
            let membership = self.membership.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(membership.without_keeper(slot, map.uncovered()));
        };
        drop(map);
        self.node(&address)
    }

    /// Returns a node, and opens its connections when it is first used.
    pub(super) fn node(&self, address: &NodeAddress) -> Result<Arc<ClusterNode>, Error> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let location = self.location_of(address)?;
        let closed = || Error::new(ErrorKind::Closed, "the engine was closed");
        let engine = self.me.upgrade().ok_or_else(closed)?;
        let (callers, own) = (self.callers.as_ref(), self.own.handle());
        let node = Arc::new(ClusterNode::open(location, address.clone(), &engine, callers, own));
        nodes.insert(address.clone(), Arc::clone(&node));
        drop(nodes);
        Ok(node)
    }

    /// Returns all nodes that keep slots.
    pub(super) fn keepers(&self) -> Result<Vec<Arc<ClusterNode>>, Error> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let addresses: Vec<NodeAddress> = map.addresses().cloned().collect();
        drop(map);
        addresses.iter().map(|address| self.node(address)).collect()
    }

    fn moved(&self, slot: u16, to: &NodeAddress) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.moved(slot, to);
        drop(map);
        self.request_refresh();
    }

    /// Calls on the slot fail although its node replies.
    fn mark_unstable(&self, slot: u16) {
        self.unstable.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
    }

    fn mark_stable(&self, slot: u16) {
        let mut unstable = self.unstable.lock().unwrap_or_else(PoisonError::into_inner);
        if !unstable.is_empty() {
            unstable.remove(&slot);
        }
    }
}

//! Calls to whichever node keeps a name, followed to where the cluster sends them. Knows
//! redirections, not what is asked.

use std::sync::{Arc, PoisonError};

use super::Inner;
use super::node::Node;
use super::slots::{Peer, slot_of};
use super::survey::Asked;
use crate::contract::{Error, ErrorKind, Name};
use crate::engine::redis::errors::Trouble;
use crate::engine::redis::lane::script_call;
use crate::engine::redis::pack::pack;
use crate::engine::redis::scripts::Script;
use crate::engine::redis::wire::{Call, Outcome};

/// How often a call that had no effect is made again: elsewhere, or by the text of its script.
const REPEATS: usize = 4;

/// A script to run over keys of one slot.
pub(super) struct Order {
    pub(super) slot: u16,
    pub(super) script: &'static Script,
    pub(super) top: String,
    pub(super) key: String,
    pub(super) items: Vec<Vec<u8>>,
    /// Behind what was sent on the connection that hears.
    pub(super) behind: bool,
}

/// An order that was sent.
pub(super) struct Flight {
    order: Order,
    under_way: Result<(Arc<Node>, Call), Trouble>,
}

impl Inner {
    /// A script over the keys of a name.
    pub(super) fn order(&self, name: &Name, script: &'static Script, items: &[&[u8]]) -> Order {
        let (top, key) = (self.keys.top_of(name), self.keys.slot(name));
        let items = items.iter().map(|item| item.to_vec()).collect();
        Order { slot: slot_of(&key), script, top, key, items, behind: false }
    }

    /// Sends it now, whether or not the outcome is awaited.
    pub(super) fn send(&self, order: Order) -> Flight {
        self.manner.active();
        let node = self.node_of(order.slot).map_err(Trouble::NotConnected);
        let under_way = node.map(|node| self.send_to(node, &order, false, false));
        Flight { order, under_way }
    }

    /// Awaits the outcome, and follows the call to where it can be made.
    pub(super) async fn land(&self, flight: Flight) -> Outcome {
        let Flight { order, under_way } = flight;
        let (mut node, mut call) = under_way?;
        let (mut asking, mut by_text) = (false, false);
        for left in (0..=REPEATS).rev() {
            let trouble = match call.await {
                Ok(value) => {
                    self.calm(order.slot);
                    return Ok(value);
                }
                Err(trouble) => trouble,
            };
            if left == 0 {
                self.unrest(order.slot);
                return Err(trouble);
            }
            if trouble.is_unknown_script() {
                // It was not run, so it may be sent again.
                by_text = true;
            } else if let Some(to) = trouble.redirection() {
                let host = if to.host.is_empty() { &node.peer.0 } else { to.host };
                let peer: Peer = (host.to_owned(), to.port);
                asking = to.for_now;
                if !asking {
                    self.moved(order.slot, &peer);
                }
                node = self.node(&peer).map_err(Trouble::NotConnected)?;
            } else {
                match self.another(&order, &node, &trouble).await {
                    Some(other) => (node, asking) = (other, false),
                    None => return Err(trouble),
                }
            }
            (node, call) = self.send_to(node, &order, asking, by_text);
        }
        Err(Trouble::Closed)
    }

    /// Sends an order and awaits its outcome.
    pub(super) async fn run(&self, order: Order) -> Outcome {
        self.land(self.send(order)).await
    }

    /// The node that keeps a slot now, if it is another one than the one that failed us and nothing
    /// came of the call.
    async fn another(&self, order: &Order, node: &Node, trouble: &Trouble) -> Option<Arc<Node>> {
        if !trouble.is_from_wrong_node() {
            if matches!(trouble, Trouble::Server { .. }) {
                self.unrest(order.slot);
            }
            return None;
        }
        if let Err(error) = self.survey(Asked::Enough).await {
            tracing::debug!(%error, "nobody says which node keeps what");
        }
        self.news();
        self.node_of(order.slot).ok().filter(|other| other.peer != node.peer)
    }

    fn send_to(
        &self,
        node: Arc<Node>,
        order: &Order,
        asking: bool,
        by_text: bool,
    ) -> (Arc<Node>, Call) {
        let script = order.script;
        let words = if by_text { ("EVAL", &*script.text) } else { ("EVALSHA", &*script.sha) };
        let items: Vec<&[u8]> = order.items.iter().map(Vec::as_slice).collect();
        let options = self.manner.options(false);
        let packed = script_call(words, &order.top, &[&order.key], &options, &items);
        let wire = if order.behind { node.wires.hearing() } else { node.wires.here() };
        let call = if asking {
            // The slot is only being moved there: this lets one command in.
            wire.call_behind(&pack(&[b"ASKING"]), &packed)
        } else {
            wire.call(&packed)
        };
        (node, call)
    }

    /// The cluster slot of a name.
    pub(super) fn slot(&self, name: &Name) -> u16 {
        slot_of(&self.keys.slot(name))
    }

    /// The node that keeps a slot.
    pub(super) fn node_of(&self, slot: u16) -> Result<Arc<Node>, Error> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let keeper = map.keeper(slot).map(|keeper| keeper.peer.clone());
        let Some(peer) = keeper else {
            self.news();
            let witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(witnesses.without_keeper(slot, map.uncovered()));
        };
        drop(map);
        self.node(&peer)
    }

    /// A node, connected to when first asked for.
    pub(super) fn node(&self, peer: &Peer) -> Result<Arc<Node>, Error> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(peer) {
            return Ok(Arc::clone(node));
        }
        let location = self.location_of(peer)?;
        let closed = || Error::new(ErrorKind::Closed, "the engine was closed");
        let engine = self.me.upgrade().ok_or_else(closed)?;
        let node =
            Node::open(location, peer.clone(), &engine, self.callers.as_ref(), self.own.handle());
        let node = Arc::new(node);
        nodes.insert(peer.clone(), Arc::clone(&node));
        drop(nodes);
        Ok(node)
    }

    /// All nodes that keep something.
    pub(super) fn keepers(&self) -> Result<Vec<Arc<Node>>, Error> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let peers: Vec<Peer> = map.peers().cloned().collect();
        drop(map);
        peers.iter().map(|peer| self.node(peer)).collect()
    }

    fn moved(&self, slot: u16, to: &Peer) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.moved(slot, to);
        drop(map);
        self.news();
    }

    /// A slot that is being moved fails apart from its node.
    fn unrest(&self, slot: u16) {
        self.restless.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
    }

    fn calm(&self, slot: u16) {
        let mut restless = self.restless.lock().unwrap_or_else(PoisonError::into_inner);
        if !restless.is_empty() {
            restless.remove(&slot);
        }
    }
}

//! One node of a cluster: its connections, and the handshake on each of them.

use std::sync::{Arc, OnceLock, Weak};

use redis::Value;
use tokio::runtime::Handle;

use super::ClusterInner;
use super::slots::NodeAddress;
use crate::contract::{Error, Verb};
use crate::engine::common::listeners::Listeners;
use crate::engine::common::redis::signals;
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::Callers;
use crate::engine::redis::client::{
    ConnectionHandler, MultiplexedConnection, RequestError, ServerInfo, TaskRuntimes, info_text,
    into_result, pack, strange,
};
use crate::engine::redis::connect::NamespaceHandshake;
use crate::engine::redis::connection_pair::ConnectionPair;
use crate::engine::redis::replicas::Confirmations;

/// A node that keeps slots, or did.
pub(super) struct ClusterNode {
    pub(super) address: NodeAddress,
    pub(super) connections: ConnectionPair<MultiplexedConnection>,
    location: Arc<Location>,
    engine: Weak<ClusterInner>,
    own: Handle,
    /// Opened when first needed: most programs never wait for replicas.
    confirmations: OnceLock<Confirmations>,
}

impl ClusterNode {
    /// Starts to connect.
    pub(super) fn open(
        location: Location,
        address: NodeAddress,
        engine: &Arc<ClusterInner>,
        callers: Option<&Callers>,
        own: &Handle,
    ) -> Self {
        let location = Arc::new(location);
        let connections = ConnectionPair::open(callers, own, |subscribes, runtimes| {
            let handler = Arc::new(NodeHandler::new(engine, &address, subscribes));
            let location = Arc::clone(&location);
            MultiplexedConnection::open(location, handler, Box::new(|_| ()), runtimes)
        });
        let (engine, own) = (Arc::downgrade(engine), own.clone());
        Self { address, connections, location, engine, own, confirmations: OnceLock::new() }
    }

    /// Returns where to wait for the replicas of this node; none if the engine was dropped.
    pub(super) fn confirmations(&self) -> Option<&Confirmations> {
        let engine = self.engine.upgrade()?;
        Some(self.confirmations.get_or_init(|| {
            let handler = Arc::new(NodeHandler::new(&engine, &self.address, false));
            let own = self.own.clone();
            let runtimes = TaskRuntimes { first: own.clone(), fallback: own.clone() };
            let location = Arc::clone(&self.location);
            let connection =
                MultiplexedConnection::open(location, handler, Box::new(|_| ()), runtimes);
            let (keys, options) = (Arc::clone(&engine.keys), Arc::clone(&engine.options));
            Confirmations::new(connection, keys, options, own)
        }))
    }
}

/// The handler of one connection to a node. The handshake checks what the node is; the terms are
/// agreed on at the node that keeps them (`connect.rs`).
struct NodeHandler {
    handshake: Arc<NamespaceHandshake>,
    listeners: Arc<Listeners>,
    address: NodeAddress,
    /// Channels of sessions are subscribed on this connection.
    subscribes: bool,
    engine: Weak<ClusterInner>,
}

impl NodeHandler {
    fn new(engine: &Arc<ClusterInner>, address: &NodeAddress, subscribes: bool) -> Self {
        Self {
            handshake: Arc::clone(&engine.handshake),
            listeners: Arc::clone(&engine.listeners),
            address: address.clone(),
            subscribes,
            engine: Arc::downgrade(engine),
        }
    }
}

impl ConnectionHandler for NodeHandler {
    fn greeting(&self) -> Vec<Vec<u8>> {
        // First, so that a client that changes the terms later sees this one connected.
        let client = self.handshake.keys.client(self.handshake.max_lease);
        let mut commands = vec![pack(&[b"SUBSCRIBE", client.as_bytes()]), pack(&[b"INFO"])];
        if self.subscribes {
            // Nothing is published there: it shows whether the access list allows channels.
            let probe = self.handshake.keys.probe();
            commands.push(pack(&[b"SSUBSCRIBE", probe.as_bytes()]));
            let scripts = self.handshake.options.scripts();
            for script in [&scripts.claim, &scripts.renew, &scripts.release] {
                commands.push(pack(&[b"SCRIPT", b"LOAD", script.text.as_bytes()]));
            }
        }
        commands
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        let mut replies = replies.into_iter();
        let subscribed = replies.next().unwrap_or(Value::Nil);
        let info = replies.next().unwrap_or(Value::Nil);
        let refused = |error: RequestError| error.into_error().during(Verb::Connect);
        let info = into_result(info).map_err(refused)?;
        let server = info_text(&info).map(ServerInfo::new).ok_or_else(|| strange(&info))?;
        self.handshake.check_server(&server).map_err(|error| error.during(Verb::Connect))?;
        let channels = |error| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            refused(error).with_help(next)
        };
        into_result(subscribed).map_err(channels)?;
        for (at, reply) in replies.enumerate() {
            match into_result(reply) {
                // The cluster refused the hash slot of the probe, not the user: the access list
                // allows channels.
                Err(RequestError::Server { code, .. })
                    if at == 0
                        && matches!(&*code, "MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN") => {}
                Err(error) if at == 0 => return Err(channels(error)),
                reply => drop(reply.map_err(refused)?),
            }
        }
        Ok(())
    }

    fn ready(&self, first: bool) {
        let Some(engine) = self.engine.upgrade().filter(|_| self.subscribes) else { return };
        if !first {
            engine.subscriptions.forget(&self.address);
            engine.changes.subscriptions.forget(&self.address);
        }
        engine.node_ready();
    }

    fn lost(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.request_refresh();
        }
    }

    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.handshake.options.count_activity();
        if let Some(name) = self.handshake.keys.parse_changes(channel) {
            if let Some(engine) = self.engine.upgrade() {
                engine.cell_changed(&name);
            }
            return;
        }
        let to = self.handshake.keys.parse_channel(channel);
        signals::dispatch(&self.listeners, to.map(|(_, session)| session), payload);
    }

    fn unsubscribed(&self, channel: &[u8]) {
        let Some(engine) = self.engine.upgrade() else { return };
        let Some(channel) = engine.parse_channel(channel) else { return };
        if engine.table_of(&channel).failed(&channel, &self.address) {
            engine.request_refresh();
        }
    }
}

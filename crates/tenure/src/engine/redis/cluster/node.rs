//! One node of a cluster: its connections, what is said on each, and who hears what the node tells.
//! Knows the node's address, not which slots it keeps.

use std::sync::{Arc, OnceLock, Weak};

use redis::Value;
use tokio::runtime::Handle;

use super::Inner;
use super::slots::Peer;
use crate::contract::{Error, Verb};
use crate::engine::redis::answers::{signal, strange};
use crate::engine::redis::doctor::words_of;
use crate::engine::redis::errors::{Trouble, judged};
use crate::engine::redis::pack::pack;
use crate::engine::redis::pair::Pair;
use crate::engine::redis::reception::{Reception, Server};
use crate::engine::redis::replicas::Replicas;
use crate::engine::redis::url::Location;
use crate::engine::redis::wire::{Greeter, Home, Wire};
use crate::engine::runtime::Callers;

/// A node that keeps slots, or did.
pub(super) struct Node {
    pub(super) peer: Peer,
    pub(super) wires: Pair<Wire>,
    location: Arc<Location>,
    engine: Weak<Inner>,
    own: Handle,
    /// Made when first asked for: most never ask replicas.
    replicas: OnceLock<Replicas>,
}

impl Node {
    /// Starts to connect.
    pub(super) fn open(
        location: Location,
        peer: Peer,
        engine: &Arc<Inner>,
        callers: Option<&Callers>,
        own: &Handle,
    ) -> Self {
        let location = Arc::new(location);
        let (reception, weak) = (&engine.reception, Arc::downgrade(engine));
        let wires = Pair::open(callers, own, |hears, home| {
            let clerk = NodeClerk {
                reception: Arc::clone(reception),
                peer: peer.clone(),
                hears,
                engine: weak.clone(),
            };
            Wire::open(Arc::clone(&location), Arc::new(clerk), Box::new(|_| ()), home)
        });
        let (own, replicas) = (own.clone(), OnceLock::new());
        Self { peer, wires, location, engine: weak, own, replicas }
    }

    /// Where the replicas of this node are asked; none if the engine is gone.
    pub(super) fn replicas(&self) -> Option<&Replicas> {
        let engine = self.engine.upgrade()?;
        Some(self.replicas.get_or_init(|| {
            let clerk = NodeClerk {
                reception: Arc::clone(&engine.reception),
                peer: self.peer.clone(),
                hears: false,
                engine: self.engine.clone(),
            };
            let home = Home { first: self.own.clone(), fallback: self.own.clone() };
            let location = Arc::clone(&self.location);
            let wire = Wire::open(location, Arc::new(clerk), Box::new(|_| ()), home);
            let (keys, manner) = (Arc::clone(&engine.keys), Arc::clone(&engine.manner));
            Replicas::new(wire, keys, manner, self.own.clone())
        }))
    }
}

/// What is said on a connection to a node. The terms are agreed on where they are kept; a node is
/// only asked what it is.
struct NodeClerk {
    reception: Arc<Reception>,
    peer: Peer,
    hears: bool,
    engine: Weak<Inner>,
}

impl Greeter for NodeClerk {
    fn greeting(&self) -> Vec<Vec<u8>> {
        // First of all, so that whoever would change the terms after us knows that we are there.
        let client = self.reception.keys.client(self.reception.max_lease);
        let mut commands = vec![pack(&[b"SUBSCRIBE", client.as_bytes()]), pack(&[b"INFO"])];
        if self.hears {
            // Nobody publishes there: it only shows whether we may listen at all.
            let probe = self.reception.keys.probe();
            commands.push(pack(&[b"SSUBSCRIBE", probe.as_bytes()]));
            let scripts = self.reception.manner.scripts();
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
        let refused = |trouble: Trouble| trouble.into_error().during(Verb::Connect);
        let info = judged(info).map_err(refused)?;
        let server = words_of(&info).map(Server::new).ok_or_else(|| strange(&info))?;
        self.reception.check(&server).map_err(|error| error.during(Verb::Connect))?;
        let channels = |trouble| {
            let next = "allow the channels too: ACL SETUSER ... resetchannels &tenure:*";
            refused(trouble).with_help(next)
        };
        judged(subscribed).map_err(channels)?;
        for (at, reply) in replies.enumerate() {
            match judged(reply) {
                // The access list was asked before the slot was.
                Err(Trouble::Server { code, .. })
                    if at == 0
                        && matches!(&*code, "MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN") => {}
                Err(trouble) if at == 0 => return Err(channels(trouble)),
                reply => drop(reply.map_err(refused)?),
            }
        }
        Ok(())
    }

    fn ready(&self, first: bool) {
        let Some(engine) = self.engine.upgrade().filter(|_| self.hears) else { return };
        if !first {
            engine.hearing.forget(&self.peer);
        }
        engine.is_ready();
    }

    fn lost(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.news();
        }
    }

    fn message(&self, channel: &[u8], payload: &[u8]) {
        self.reception.manner.active();
        let heard = self.reception.keys.heard_on(channel);
        let listener = heard.and_then(|(_, session)| self.reception.listener(session));
        let (Some(listener), Some(signal)) = (listener, signal(payload)) else { return };
        listener.on_signal(signal);
    }

    fn dismissed(&self, channel: &[u8]) {
        let (Some(engine), Some((name, session))) =
            (self.engine.upgrade(), self.reception.keys.heard_on(channel))
        else {
            return;
        };
        if engine.hearing.failed(&(session, name), &self.peer) {
            engine.news();
        }
    }
}

//! Finds out which node keeps what, and goes on finding out: when a node is lost, when one sends us
//! elsewhere, when one ends a subscription. Knows whom to ask; `slots.rs` reads the answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::Inner;
use super::hearing::Channel;
use super::node::Node;
use super::slots::{Peer, SlotMap};
use crate::contract::{Error, ErrorKind, Signal};
use crate::engine::redis::greeting::{self, ask};
use crate::engine::redis::location::Location;
use crate::engine::redis::pack::pack;
use crate::engine::redis::sentinel::Nobody;
use crate::engine::redis::talk::Talk;
use crate::engine::redis::trouble::{Trouble, judged};
use crate::engine::redis::wire::{Reply, Wire};

/// How long one node may take to say what it knows before the next is asked.
const PATIENCE: Duration = Duration::from_millis(400);
/// The pause between two surveys, and the one while a node is out of reach.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Surveys the cluster whenever there is news of it, until the engine is gone.
pub(super) async fn keep_surveying(engine: Weak<Inner>, news: Arc<Notify>) {
    loop {
        news.notified().await;
        let Some(inner) = engine.upgrade() else { return };
        if inner.outdated.swap(false, Ordering::SeqCst)
            && let Err(error) = inner.ask_around().await
        {
            tracing::warn!(%error, "nobody says which node keeps what");
        }
        inner.subscribe_astray();
        drop(inner);
        sleep(PAUSES.0).await;
        if engine.upgrade().is_some_and(|inner| !inner.all_up()) {
            sleep(PAUSES.1).await;
            // Somebody may take the place of the one that is away.
            if let Some(inner) = engine.upgrade() {
                inner.news();
            }
        }
    }
}

impl Inner {
    /// There is something to find out.
    pub(super) fn news(&self) {
        self.outdated.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }

    /// A node can be talked to: what is not subscribed there yet can be now.
    pub(super) fn is_ready(&self) {
        self.news.notify_one();
    }

    /// Finds out which node keeps what, on the engine's thread: whoever asks may have no runtime.
    pub(super) async fn survey(&self) -> Result<(), Error> {
        let closed = || Error::new(ErrorKind::Closed, "the engine was closed");
        let inner = self.me.upgrade().ok_or_else(closed)?;
        let (tell, told) = oneshot::channel();
        self.own.handle().spawn(async move {
            let outcome = inner.ask_around().await;
            drop(inner);
            drop(tell.send(outcome));
        });
        told.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Asks one node after the other which node keeps what. Who comes while somebody asks already
    /// has the same answer.
    async fn ask_around(&self) -> Result<(), Error> {
        let before = self.surveys.load(Ordering::SeqCst);
        let _alone = self.surveying.lock().await;
        if self.surveys.load(Ordering::SeqCst) != before {
            return Ok(());
        }
        let mut failures: Vec<Error> = Vec::new();
        for peer in self.whom_to_ask() {
            match timeout(PATIENCE, self.ask_one(&peer)).await {
                Ok(Ok(map)) => {
                    self.surveys.fetch_add(1, Ordering::SeqCst);
                    self.adopt(map, peer);
                    return Ok(());
                }
                Ok(Err(error)) => failures.push(error),
                Err(_) => failures.push(away(format!(
                    "{}:{} did not answer within {PATIENCE:?}",
                    peer.0, peer.1
                ))),
            }
        }
        Err(nobody(&failures))
    }

    /// The last one that answered, then all others we know of.
    fn whom_to_ask(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> = Vec::new();
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let seeds = self.reception.location.seeds();
        for peer in answered.iter().chain(map.keepers()).chain(seeds) {
            if !peers.contains(peer) {
                peers.push(peer.clone());
            }
        }
        peers
    }

    async fn ask_one(&self, peer: &Peer) -> Result<SlotMap, Error> {
        let location = self.location_of(peer)?;
        let mut talk = Talk::connect(&location).await?;
        greeting::hello(&mut talk, &location, &Nobody).await?;
        let question = pack(&[b"CLUSTER", b"SLOTS"]);
        let reply = ask(&mut talk, &location, &Nobody, vec![question]).await?.remove(0);
        let reply = judged(reply).map_err(|trouble| match trouble {
            Trouble::Server { code, .. } if code == "ERR" => {
                let what = format!("{location} is not a node of a cluster");
                Error::new(ErrorKind::Unsupported, what).next("use redis://")
            }
            trouble => trouble.into_error(),
        })?;
        let map = SlotMap::read(&reply, &peer.0);
        let map = map.ok_or_else(|| Trouble::strange(&reply).into_error())?;
        if map.keepers().next().is_none() {
            return Err(away(format!("{location} knows no node that keeps anything")));
        }
        Ok(map)
    }

    /// Goes by this map from now on.
    fn adopt(&self, map: SlotMap, from: Peer) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, gone) = nodes.drain().partition(|(peer, _)| map.keepers().any(|k| k == peer));
        *nodes = kept;
        drop(nodes);
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if *current != map {
            tracing::debug!("the cluster has {} nodes that keep slots", map.keepers().count());
            *current = map;
        }
        drop(current);
        // Last, without any lock: whoever awaits an answer from one of them is told.
        drop(gone);
    }

    /// Where a node is, with what it takes to be let in.
    pub(super) fn location_of(&self, peer: &Peer) -> Result<Location, Error> {
        self.reception.location.moved_to(&peer.0, peer.1)
    }

    /// Whether every node that we talk to can be talked to.
    fn all_up(&self) -> bool {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.values().all(|node| node.wires.all().all(Wire::is_up))
    }

    /// Subscribes again what is not subscribed where its slot is kept; when a node has confirmed
    /// all of it, the sessions concerned are told that they may have missed something.
    pub(super) fn subscribe_astray(&self) {
        let up = |name: &_| {
            let node = self.node_of(self.slot(name)).ok()?;
            // One that is not up yet has news when it is.
            node.wires.hearing().is_up().then(|| node.peer.clone())
        };
        let mut astray = self.hearing.astray(up);
        astray.sort_by(|(_, one), (_, other)| one.cmp(other));
        for channels in astray.chunk_by(|(_, one), (_, other)| one == other) {
            let Ok(node) = self.node(&channels[0].1) else { continue };
            let left = Arc::new(AtomicUsize::new(channels.len()));
            for (channel, _) in channels {
                self.subscribe(channel, &node, Some(Arc::clone(&left)));
            }
        }
    }

    /// Subscribes at a node. `left` counts others of the same kind: behind the last of them, all
    /// sessions are told to ask again.
    pub(super) fn subscribe(&self, channel: &Channel, node: &Node, left: Option<Arc<AtomicUsize>>) {
        let (engine, at, peer) = (self.me.clone(), channel.clone(), node.peer.clone());
        let told = move |outcome: Result<_, Trouble>| {
            let Some(inner) = engine.upgrade() else { return };
            match outcome {
                Ok(_) => inner.hearing.confirmed(&at, &peer),
                Err(trouble) => {
                    tracing::debug!(?trouble, name = %at.1, "not subscribed");
                    if inner.hearing.failed(&at, &peer) {
                        inner.news();
                    }
                }
            }
            if left.is_some_and(|left| left.fetch_sub(1, Ordering::SeqCst) == 1) {
                inner.resync();
            }
        };
        let name = self.keys.channel_of(&channel.1, channel.0);
        let packed = pack(&[b"SSUBSCRIBE", name.as_bytes()]);
        node.wires.hearing().send(&packed, Reply::Many(Box::new(told)));
    }

    /// Tells all sessions that they may have missed something.
    fn resync(&self) {
        for session in self.reception.sessions() {
            if let Some(ear) = self.reception.ear(session) {
                ear.hear(Signal::Resync);
            }
        }
    }
}

/// What all of them said, as one error. It passes as long as any of theirs may.
fn nobody(failures: &[Error]) -> Error {
    let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let what = format!("no node of the cluster says which keeps what: {}", said.join("; "));
    match (failures.iter().find(|error| error.is_retryable()), failures.first()) {
        (None, Some(first)) => Error::new(first.kind(), what).next(first.next_step().to_owned()),
        _ => away(what),
    }
}

fn away(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what)
        .next("check that the nodes of the cluster run and can be reached")
}

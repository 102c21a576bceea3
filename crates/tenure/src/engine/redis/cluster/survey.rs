//! Finds out which node keeps what, and goes on finding out: when a node is lost, when one sends us
//! elsewhere, when one ends a subscription. Knows whom to ask; `slots.rs` reads the answers, and
//! `views.rs` chooses between them.
//!
//! A survey asks a few nodes at a time, over connections of its own. It ends as soon as two nodes
//! that are in touch with the cluster say the same of all slots. Otherwise (a node contradicts, a
//! fail-over is under way, slots have no keeper) it goes on with every node that is known or named,
//! up to a limit, and goes by the best of what they said.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Inner;
use super::hearing::Channel;
use super::node::Node;
use super::slots::{Peer, SlotMap};
use super::views::{Choice, Nodes, View, choose, names};
use crate::contract::{Error, ErrorKind, Signal};
use crate::engine::redis::errors::{Trouble, judged};
use crate::engine::redis::greeting::{self, Kind, ask};
use crate::engine::redis::pack::pack;
use crate::engine::redis::sentinel::Nobody;
use crate::engine::redis::talk::Talk;
use crate::engine::redis::url::Location;
use crate::engine::redis::wire::{Reply, Wire};
use crate::limits;

/// How many nodes are asked at a time.
const AT_A_TIME: usize = 3;
/// How many nodes a survey asks at most while they do not agree.
const MOST_ASKED: usize = 24;
/// How long nodes may be silent before others are asked beside them, or are not waited for any more
/// because others have answered. While none has, each may take as long as any call: a slow link or
/// a busy host must not look like an absent node.
const SILENCE: Duration = Duration::from_millis(400);
/// The pause between two surveys, and the one while a node is out of reach.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// How many nodes a survey asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Until two agree.
    Enough,
    /// As many as may be asked: for an operator who wants to know which do not agree.
    All,
}

/// Surveys the cluster whenever there is news of it, until the engine is gone.
pub(super) async fn keep_surveying(engine: Weak<Inner>, news: Arc<Notify>) {
    loop {
        news.notified().await;
        let Some(inner) = engine.upgrade() else { return };
        if inner.outdated.swap(false, Ordering::SeqCst)
            && let Err(error) = inner.ask_around(Asked::Enough).await
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
    pub(super) async fn survey(&self, asked: Asked) -> Result<(), Error> {
        let closed = || Error::new(ErrorKind::Closed, "the engine was closed");
        let inner = self.me.upgrade().ok_or_else(closed)?;
        let (tell, told) = oneshot::channel();
        self.own.handle().spawn(async move {
            let outcome = inner.ask_around(asked).await;
            drop(inner);
            drop(tell.send(outcome));
        });
        told.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Asks nodes which node keeps what. A caller that comes while another asks already has the
    /// same answer.
    async fn ask_around(&self, asked: Asked) -> Result<(), Error> {
        let before = self.surveys.load(Ordering::SeqCst);
        let _alone = self.surveying.lock().await;
        if asked == Asked::Enough && self.surveys.load(Ordering::SeqCst) != before {
            return Ok(());
        }
        let choice = self.gather(asked).await?;
        self.surveys.fetch_add(1, Ordering::SeqCst);
        self.adopt(choice);
        Ok(())
    }

    /// Asks a few nodes at a time, until what they say is settled.
    async fn gather(&self, asked: Asked) -> Result<Choice, Error> {
        let known = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut peers = self.whom_to_ask(&known);
        let (mut next, mut asking) = (0, JoinSet::new());
        let (mut views, mut failures) = (Vec::new(), Vec::new());
        let mut choice: Option<Choice> = None;
        let mut at_a_time = AT_A_TIME;
        loop {
            let most = peers.len().min(MOST_ASKED);
            while asking.len() < at_a_time && next < most {
                let peer = peers[next].clone();
                asking.spawn(ask_within(limits::CALL, self.location_of(&peer), peer));
                next += 1;
            }
            match timeout(SILENCE, asking.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok(Ok(view)))) => views.push(view),
                Ok(Some(Ok(Err(error)))) => {
                    failures.push(error);
                    continue;
                }
                Err(_) if next < most => {
                    at_a_time = asking.len() + AT_A_TIME;
                    continue;
                }
                Err(_) if choice.is_some() && asked == Asked::Enough => break,
                Ok(Some(Err(_))) | Err(_) => continue,
            }
            add_new(&mut peers, views.iter().flat_map(|view: &View| view.map.peers()));
            choice = choose(&views, &known);
            if asked == Asked::Enough && choice.as_ref().is_some_and(|choice| choice.is_settled) {
                break;
            }
        }
        choice.ok_or_else(|| nobody(&failures))
    }

    /// The nodes on whose word the map rests, then all others we know of.
    fn whom_to_ask(&self, known: &SlotMap) -> Vec<Peer> {
        let mut peers: Vec<Peer> = Vec::new();
        let witnesses = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
        add_new(&mut peers, &witnesses.members);
        drop(witnesses);
        add_new(&mut peers, known.peers());
        add_new(&mut peers, &self.reception.location.seeds());
        peers
    }

    /// Goes by this choice from now on.
    fn adopt(&self, choice: Choice) {
        let Choice { map, witnesses, .. } = choice;
        let mut before = self.witnesses.lock().unwrap_or_else(PoisonError::into_inner);
        if !witnesses.apart.is_empty() && before.apart != witnesses.apart {
            let (apart, members) = (names(&witnesses.apart), names(&witnesses.members));
            tracing::warn!(%apart, %members, "nodes that the cluster does not count as its own");
        }
        *before = witnesses;
        drop(before);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, gone) = nodes.drain().partition(|(peer, _)| map.peers().any(|k| k == peer));
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
            if let Some(listener) = self.reception.listener(session) {
                listener.on_signal(Signal::Resync);
            }
        }
    }
}

/// Adds those that are not there yet.
fn add_new<'a>(peers: &mut Vec<Peer>, more: impl IntoIterator<Item = &'a Peer>) {
    for peer in more {
        if !peers.contains(peer) {
            peers.push(peer.clone());
        }
    }
}

/// Asks one node, over a connection of its own.
async fn ask_within(
    limit: Duration,
    location: Result<Location, Error>,
    peer: Peer,
) -> Result<View, Error> {
    let at = location.as_ref().map(ToString::to_string).unwrap_or_default();
    let asked = timeout(limit, async { ask_one(&location?, peer).await }).await;
    asked.unwrap_or_else(|_| Err(away(format!("{at} did not answer within {limit:?}"))))
}

async fn ask_one(location: &Location, peer: Peer) -> Result<View, Error> {
    let mut talk = Talk::connect(location).await?;
    greeting::hello(&mut talk, location, &Nobody, Kind::Server).await?;
    // Epochs first: were they read later, an old map could look new.
    let questions = vec![pack(&[b"CLUSTER", b"NODES"]), pack(&[b"CLUSTER", b"SLOTS"])];
    let mut replies = ask(&mut talk, location, &Nobody, questions).await?.into_iter();
    let (nodes, slots) = (replies.next(), replies.next().unwrap_or(Value::Nil));
    // Without the right to ask, epochs are not known, and the rest still is.
    let nodes = nodes.and_then(|reply| Nodes::read(&judged(reply).ok()?));
    let slots = judged(slots).map_err(|trouble| match trouble {
        Trouble::Server { code, .. } if code == "ERR" => {
            let what = format!("{location} is not a node of a cluster");
            Error::new(ErrorKind::Unsupported, what).with_help("use redis://")
        }
        trouble => trouble.into_error(),
    })?;
    let epoch_of = |id: &str| nodes.as_ref().map_or(0, |nodes| nodes.epoch_of(id));
    let map = SlotMap::read(&slots, &peer.0, epoch_of);
    let map = map.ok_or_else(|| Trouble::strange(&slots).into_error())?;
    if map.keepers().next().is_none() {
        return Err(away(format!("{location} knows no node that keeps anything")));
    }
    Ok(View { from: peer, map, nodes })
}

/// What all of them said, as one error. It passes as long as any of theirs may.
fn nobody(failures: &[Error]) -> Error {
    let error = Error::of_all("no node of the cluster says which keeps what", failures);
    if error.is_transient() { error.with_help(CHECK) } else { error }
}

fn away(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what).with_help(CHECK)
}

const CHECK: &str = "check that the nodes of the cluster run and can be reached";

//! Which node keeps which slot: the task that refreshes the map when a node is lost, a call is
//! redirected or a node ends a subscription.
//!
//! A refresh asks a few nodes at a time, over connections of its own. It ends as soon as two nodes
//! that are in touch with the cluster report the same for all slots. Otherwise (a node contradicts,
//! a fail-over is under way, slots have no keeper) it goes on with every node that is known or
//! named, up to a limit, and uses the best of their reports. `slots.rs` parses the replies, and
//! `views.rs` chooses between them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ClusterInner;
use super::slots::{NodeAddress, SlotMap};
use super::views::{Choice, ClusterView, NodeTable, choose, names};
use crate::contract::{Error, ErrorKind};
use crate::engine::common::redis::url::Location;
use crate::engine::redis::client::{
    IgnorePushes, MultiplexedConnection, RequestError, RespStream, ServerKind, hello, into_result,
    pack, request_all,
};
use crate::limits;

/// How many nodes are asked at a time.
const AT_A_TIME: usize = 3;
/// How many nodes a refresh asks at most while they do not agree.
const MAX_ASKED: usize = 24;
/// How long to wait for nodes before others are asked as well, or before a refresh ends without
/// them because others have replied. While none has, each may take as long as any call: a slow link
/// or a busy host must not look like an absent node.
const SILENCE: Duration = Duration::from_millis(400);
/// The pause after a refresh, and the one while a node is not connected.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// How many nodes a refresh asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefreshScope {
    /// Until two agree.
    UntilSettled,
    /// Up to the limit: for the doctor, which reports nodes that do not agree.
    AllNodes,
}

/// Refreshes the map and the subscriptions whenever `changed` is notified, until the engine is
/// dropped.
pub(super) async fn keep_current(engine: Weak<ClusterInner>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let Some(inner) = engine.upgrade() else { return };
        if inner.outdated.swap(false, Ordering::SeqCst)
            && let Err(error) = inner.refresh_here(RefreshScope::UntilSettled).await
        {
            tracing::warn!(%error, "cluster topology unknown");
        }
        inner.restore_subscriptions();
        drop(inner);
        sleep(PAUSES.0).await;
        if engine.upgrade().is_some_and(|inner| !inner.all_ready()) {
            sleep(PAUSES.1).await;
            // A replica may have taken the place of the node that is away.
            if let Some(inner) = engine.upgrade() {
                inner.request_refresh();
            }
        }
    }
}

impl ClusterInner {
    /// Wakes the task to refresh the map.
    pub(super) fn request_refresh(&self) {
        self.outdated.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Wakes the task to subscribe at a node whose handshake is done.
    pub(super) fn node_ready(&self) {
        self.changed.notify_one();
    }

    /// Refreshes the map, on the engine's thread: the caller may have no runtime.
    pub(super) async fn refresh(&self, scope: RefreshScope) -> Result<(), Error> {
        let closed = || Error::new(ErrorKind::Closed, "the engine was closed");
        let inner = self.me.upgrade().ok_or_else(closed)?;
        let (done, result) = oneshot::channel();
        self.own.handle().spawn(async move {
            let refreshed = inner.refresh_here(scope).await;
            drop(inner);
            drop(done.send(refreshed));
        });
        result.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Refreshes the map. A caller that waited for another refresh shares its result.
    async fn refresh_here(&self, scope: RefreshScope) -> Result<(), Error> {
        let before = self.refreshes.load(Ordering::SeqCst);
        let _alone = self.refreshing.lock().await;
        if scope == RefreshScope::UntilSettled && self.refreshes.load(Ordering::SeqCst) != before {
            return Ok(());
        }
        let choice = self.collect(scope).await?;
        self.refreshes.fetch_add(1, Ordering::SeqCst);
        self.adopt(choice);
        Ok(())
    }

    /// Asks a few nodes at a time, until their reports are settled.
    async fn collect(&self, scope: RefreshScope) -> Result<Choice, Error> {
        let known = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut addresses = self.addresses_to_ask(&known);
        let (mut next, mut asking) = (0, JoinSet::new());
        let (mut views, mut failures) = (Vec::new(), Vec::new());
        let mut choice: Option<Choice> = None;
        let mut at_a_time = AT_A_TIME;
        loop {
            let most = addresses.len().min(MAX_ASKED);
            while asking.len() < at_a_time && next < most {
                let address = addresses[next].clone();
                asking.spawn(ask_within(limits::CALL, self.location_of(&address), address));
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
                Err(_) if choice.is_some() && scope == RefreshScope::UntilSettled => break,
                Ok(Some(Err(_))) | Err(_) => continue,
            }
            let named = views.iter().flat_map(|view: &ClusterView| view.map.addresses());
            add_new(&mut addresses, named);
            choice = choose(&views, &known);
            if scope == RefreshScope::UntilSettled
                && choice.as_ref().is_some_and(|choice| choice.is_settled)
            {
                break;
            }
        }
        choice.ok_or_else(|| unknown(&failures))
    }

    /// Returns the nodes whose views make up the map, then all others that are known.
    fn addresses_to_ask(&self, known: &SlotMap) -> Vec<NodeAddress> {
        let mut addresses: Vec<NodeAddress> = Vec::new();
        let membership = self.membership.lock().unwrap_or_else(PoisonError::into_inner);
        add_new(&mut addresses, &membership.members);
        drop(membership);
        add_new(&mut addresses, known.addresses());
        add_new(&mut addresses, &self.handshake.location.seeds());
        addresses
    }

    /// Replaces the map, and closes the connections to nodes that keep no slots any more.
    fn adopt(&self, choice: Choice) {
        let Choice { map, membership, .. } = choice;
        let mut before = self.membership.lock().unwrap_or_else(PoisonError::into_inner);
        if !membership.apart.is_empty() && before.apart != membership.apart {
            let (apart, members) = (names(&membership.apart), names(&membership.members));
            tracing::warn!(%apart, %members, "nodes ignored: the cluster does not list them");
        }
        *before = membership;
        drop(before);
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, gone) =
            nodes.drain().partition(|(address, _)| map.addresses().any(|known| known == address));
        *nodes = kept;
        drop(nodes);
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if *current != map {
            tracing::debug!("the cluster has {} nodes that keep slots", map.keepers().count());
            *current = map;
        }
        drop(current);
        // Last, without any lock: dropping a connection delivers errors to its callers.
        drop(gone);
    }

    /// Returns the location of a node, with the login and TLS of the URL.
    pub(super) fn location_of(&self, address: &NodeAddress) -> Result<Location, Error> {
        self.handshake.location.moved_to(&address.0, address.1)
    }

    /// Returns true if all connections to nodes are ready.
    fn all_ready(&self) -> bool {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.values().all(|node| node.connections.all().all(MultiplexedConnection::is_ready))
    }
}

/// Appends the addresses that are not in the list yet.
fn add_new<'a>(addresses: &mut Vec<NodeAddress>, more: impl IntoIterator<Item = &'a NodeAddress>) {
    for address in more {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
}

/// Asks one node, over a connection of its own.
async fn ask_within(
    limit: Duration,
    location: Result<Location, Error>,
    address: NodeAddress,
) -> Result<ClusterView, Error> {
    let at = location.as_ref().map(ToString::to_string).unwrap_or_default();
    let asked = timeout(limit, async { ask_one(&location?, address).await }).await;
    asked.unwrap_or_else(|_| Err(unavailable(format!("{at} did not answer within {limit:?}"))))
}

async fn ask_one(location: &Location, address: NodeAddress) -> Result<ClusterView, Error> {
    let mut stream = RespStream::connect(location).await?;
    hello(&mut stream, location, &IgnorePushes, ServerKind::Server).await?;
    // Epochs first: were they read later, an old map could look new.
    let commands = vec![pack(&[b"CLUSTER", b"NODES"]), pack(&[b"CLUSTER", b"SLOTS"])];
    let replies = request_all(&mut stream, location, &IgnorePushes, commands).await?;
    let mut replies = replies.into_iter();
    let (nodes, slots) = (replies.next(), replies.next().unwrap_or(Value::Nil));
    // Where the access list forbids CLUSTER NODES, epochs are not known, and the rest still is.
    let nodes = nodes.and_then(|reply| NodeTable::read(&into_result(reply).ok()?));
    let slots = into_result(slots).map_err(|error| match error {
        RequestError::Server { code, .. } if code == "ERR" => {
            let what = format!("{location} is not a node of a cluster");
            Error::new(ErrorKind::Unsupported, what).with_help("use redis://")
        }
        error => error.into_error(),
    })?;
    let epoch_of = |id: &str| nodes.as_ref().map_or(0, |nodes| nodes.epoch_of(id));
    let map = SlotMap::read(&slots, &address.0, epoch_of);
    let map = map.ok_or_else(|| RequestError::strange(&slots).into_error())?;
    if map.keepers().next().is_none() {
        return Err(unavailable(format!("{location} knows no node that keeps slots")));
    }
    Ok(ClusterView { from: address, map, nodes })
}

/// Joins the errors of all nodes. The result is transient if any of them is.
fn unknown(failures: &[Error]) -> Error {
    let error = Error::of_all("no node of the cluster says which keeps what", failures);
    if error.is_transient() { error.with_help(CHECK) } else { error }
}

fn unavailable(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what).with_help(CHECK)
}

const CHECK: &str = "check that the nodes of the cluster run and can be reached";

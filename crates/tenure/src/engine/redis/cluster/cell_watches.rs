//! How changes of cells reach watchers in a cluster.
//!
//! A script may publish only in the hash slot of its keys, so each cell has a channel of its own. A
//! watch of one cell subscribes to that channel at the node that keeps the cell, and follows it as
//! the channels of sessions do (`signals.rs`): when the slot moves, or a connection is made anew,
//! the channel is subscribed again and every watcher gets a gap. The first message after the last
//! watcher is gone ends the subscription. A prefix has no channel, because its cells are in many
//! hash slots: its watcher has to read it again and again.
//!
//! Invariant: `watching` is locked while a watcher is added and its subscription is queued, and
//! while watchers are counted and the end of the subscription is queued; see
//! `redis/cell_watches.rs`.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::ClusterInner;
use super::calls::MAX_RETRIES;
use super::subscriptions::{Channel, Subscriber, Subscriptions};
use super::topology::RefreshScope;
use crate::contract::{CellRange, CellWatcher, Delivery, Name};
use crate::engine::common::cell_watches::CellWatchers;
use crate::engine::redis::client::{RequestError, RequestResult};

/// How often a prefix is read. Each time all keys of all nodes are scanned.
const POLL: Duration = Duration::from_secs(5);

/// The watchers of an engine, and the subscriptions that serve them.
pub(super) struct ClusterChanges {
    pub(super) watchers: CellWatchers,
    /// Without a limit: a channel that is let go would miss changes.
    pub(super) subscriptions: Subscriptions,
    watching: Mutex<()>,
}

impl ClusterChanges {
    pub(super) fn new() -> Self {
        let (watchers, watching) = (CellWatchers::default(), Mutex::default());
        Self { watchers, subscriptions: Subscriptions::new(usize::MAX), watching }
    }
}

impl ClusterInner {
    /// Calls the watcher when cells in the range change.
    pub(super) async fn watch(
        &self,
        range: &CellRange,
        watcher: Weak<dyn CellWatcher>,
    ) -> Result<Delivery, RequestError> {
        let CellRange::One(name) = range else { return Ok(Delivery::Polled(POLL)) };
        let mut replies = self.begin_watch(range, name, watcher)?;
        for left in (0..=MAX_RETRIES).rev() {
            let Err(error) = replies.await.unwrap_or(Err(RequestError::Closed)) else {
                return Ok(Delivery::Pushed);
            };
            let moved = error.redirection().is_some() || error.is_from_wrong_node();
            if left == 0 || !moved {
                return Err(error);
            }
            if let Err(error) = self.refresh(RefreshScope::UntilSettled).await {
                tracing::debug!(%error, "cluster topology unknown");
            }
            let _watching = self.changes.watching.lock().unwrap_or_else(PoisonError::into_inner);
            replies = self.subscribe_to_changes(name)?;
        }
        Err(RequestError::Closed)
    }

    fn begin_watch(
        &self,
        range: &CellRange,
        name: &Name,
        watcher: Weak<dyn CellWatcher>,
    ) -> Result<oneshot::Receiver<RequestResult>, RequestError> {
        let _watching = self.changes.watching.lock().unwrap_or_else(PoisonError::into_inner);
        self.changes.watchers.insert(range.clone(), watcher);
        self.subscribe_to_changes(name)
    }

    /// Subscribes to the changes of a cell, also if that was done before: the reply says that it is
    /// so now.
    fn subscribe_to_changes(
        &self,
        name: &Name,
    ) -> Result<oneshot::Receiver<RequestResult>, RequestError> {
        self.options.count_activity();
        let node = self.node_of(self.slot(name)).map_err(RequestError::NotConnected)?;
        let channel: Channel = (Subscriber::Changes, name.clone());
        let plan = self.changes.subscriptions.plan(&channel, &node.address);
        let (caller, reply) = oneshot::channel();
        // It was subscribed elsewhere before: other watchers may have missed a message.
        let engine = self.me.clone();
        self.subscribe(&channel, &node, move |result| {
            if let Some(inner) = engine.upgrade().filter(|_| plan.again) {
                inner.changes.watchers.gap();
            }
            drop(caller.send(result));
        });
        Ok(reply)
    }

    /// A cell has changed.
    pub(super) fn cell_changed(&self, name: &Name) {
        let changes = &self.changes;
        changes.watchers.changed(name);
        let watching = changes.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.watchers.ranges().iter().any(|range| range.contains(name)) {
            return;
        }
        let channel: Channel = (Subscriber::Changes, name.clone());
        self.unsubscribe(changes.subscriptions.remove(&channel));
        drop(watching);
    }
}

//! How grants, losses and wake-ups reach sessions.
//!
//! | signal | sent when |
//! |---|---|
//! | `Granted` | a waiting claim of this engine has written its hold (`grant.rs`) |
//! | `Ended` | an eviction notice for the session was written |
//! | `AllEnded` | the cluster was found to be restored from a backup |
//! | `Resync` | the watch stream was opened again: events may have been missed |
//!
//! An eviction by another process writes a notice below a key of the evicted session (`keys.rs`),
//! which the session's engine watches. Notices that were written before the watch was created are
//! read when it was. Listeners are called without any lock held.
//!
//! [`WatchRouter`] dispatches the events of the watch stream: by watch id to a session's notices,
//! to a waiting claim, whose turn is then checked, or to the watchers of cells.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::Inner;
use super::client::ResponseOp;
use super::transaction;
use super::watches::{self, WatchHandler, WatchNotice, WatchSpec};
use crate::contract::{Loss, SessionId, Signal, SignalListener};
use crate::engine::common::listeners::Listeners;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The listener of each session, and the watch of its eviction notices.
#[derive(Default)]
pub(super) struct SessionListeners {
    listeners: Listeners<i64>,
    by_watch: Mutex<HashMap<i64, SessionId>>,
}

impl Inner {
    /// Registers the listener of a session in place of a former one.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        // Locked over the whole: a notice of the new watch is dispatched after its entry is
        // written.
        let mut by_watch = self.by_watch();
        let watch = self.watches.add(WatchSpec::AnyIn(self.keys.notices(session)));
        if let Some(former) = self.listeners.listeners.insert(session, listener, watch) {
            by_watch.remove(&former);
            self.watches.remove(former);
        }
        by_watch.insert(watch, session);
    }

    /// Sends a signal to a session, if it still has a listener.
    pub(super) fn notify(&self, session: SessionId, signal: Signal) {
        self.listeners.listeners.notify(session, signal);
    }

    /// Sends a signal to every session, and forgets those whose listeners are gone.
    pub(super) fn notify_all(&self, signal: &Signal) {
        let mut by_watch = self.by_watch();
        for (_, watch) in self.listeners.listeners.remove_ended() {
            by_watch.remove(&watch);
            self.watches.remove(watch);
        }
        drop(by_watch);
        self.listeners.listeners.notify_all(signal);
    }

    /// Ends a claim that was evicted, and notifies its session.
    fn on_eviction_notice(self: &Arc<Self>, key: &[u8], value: &[u8]) {
        let Some((session, claim)) = self.keys.parse_notice(key) else { return };
        let reason = String::from_utf8_lossy(value);
        self.forget_claim(claim);
        self.notify(session, Signal::Ended { claim, loss: Loss::of_reason(&reason) });
    }

    /// Reads the eviction notices of a session that were written before the watch was created.
    async fn read_eviction_notices(self: &Arc<Self>, session: SessionId) {
        let read =
            self.connection.read(vec![transaction::read_range(self.keys.notices(session))]).await;
        let Ok(read) = read else { return };
        for key in read.replies.into_iter().flat_map(ResponseOp::into_kvs) {
            self.on_eviction_notice(&key.key, &key.value);
        }
    }

    fn by_watch(&self) -> MutexGuard<'_, HashMap<i64, SessionId>> {
        self.listeners.by_watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dispatches the notifications of watches.
pub(super) struct WatchRouter(pub(super) Weak<Inner>);

impl WatchHandler for WatchRouter {
    fn on_notice(&self, watch: i64, notice: WatchNotice) {
        let Some(inner) = self.0.upgrade() else { return };
        if inner.on_cell_notice(watch, &notice) {
            return;
        }
        let session = inner.by_watch().get(&watch).copied();
        let tasks = inner.tasks.clone();
        match (session, inner.waiters.of_watch(watch), notice) {
            (Some(session), _, WatchNotice::Created) => {
                tasks.spawn(async move { inner.read_eviction_notices(session).await });
            }
            (Some(_), _, WatchNotice::Events(events)) => {
                for event in events.iter().filter(|event| !watches::is_deletion(event)) {
                    if let Some(key) = &event.kv {
                        inner.on_eviction_notice(&key.key, &key.value);
                    }
                }
            }
            (None, Some(claim), WatchNotice::Created) => {
                tasks.spawn(async move { inner.verify_watch(watch, claim).await });
            }
            (None, Some(claim), WatchNotice::Events(_)) => {
                tasks.spawn(async move { inner.check_turn(claim).await });
            }
            #[cfg(feature = "conformance")]
            (None, None, notice) => inner.beacon(&notice),
            #[cfg(not(feature = "conformance"))]
            (None, None, _) => {}
        }
    }

    fn on_reconnect(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let checked = Arc::clone(&inner);
        inner.tasks.spawn(async move {
            if let Err(error) = checked.check_cluster().await {
                tracing::debug!(?error, "comparing the cluster with the terms failed");
            }
        });
        inner.notify_all(&Signal::Resync);
        for claim in inner.waiters.watching() {
            let inner = Arc::clone(&inner);
            inner.tasks.clone().spawn(async move { inner.check_turn(claim).await });
        }
    }
}

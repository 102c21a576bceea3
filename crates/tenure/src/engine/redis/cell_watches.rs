//! How changes of cells reach watchers: `write.lua` publishes the names of the cells that it has
//! written on one channel of the namespace.
//!
//! The connection that is subscribed to the channels of sessions is subscribed to this one too,
//! while cells are watched. The first message after the last watcher is gone ends the subscription.
//! Messages that are published while the connection is down are missed: after a reconnection, whose
//! handshake subscribes again, every watcher gets a gap.
//!
//! Invariant: `subscribed` is locked while a watcher is added and its subscription is queued, and
//! while watchers are counted and the end of the subscription is queued. Requests of one connection
//! stay in order, so that the last one sent is what the watchers need.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::RedisInner;
use super::client::{PendingReply, ReplyTo, pack};
use crate::contract::{CellRange, CellWatcher, Name};
use crate::engine::common::cell_watches::CellWatchers;

/// The watchers of an engine, and the subscription that serves them.
#[derive(Default)]
pub(super) struct CellChanges {
    watchers: CellWatchers,
    /// Whether the channel is subscribed, as far as requests that were sent say.
    subscribed: Mutex<bool>,
    engine: Mutex<Weak<RedisInner>>,
}

impl CellChanges {
    /// Sets the engine whose connection is subscribed.
    pub(super) fn attach(&self, engine: &Arc<RedisInner>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(engine);
    }

    /// Adds a watcher, and subscribes. Changes are signalled once the reply is there.
    pub(super) fn watch(
        &self,
        engine: &RedisInner,
        range: &CellRange,
        watcher: Weak<dyn CellWatcher>,
    ) -> PendingReply {
        engine.options.count_activity();
        let mut subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        self.watchers.insert(range.clone(), watcher);
        *subscribed = true;
        // Also if it is subscribed: the reply says that it is.
        let words: [&[u8]; 2] = [b"SUBSCRIBE", engine.keys.changes.as_bytes()];
        engine.batchers.subscribed().connection().call(&pack(&words))
    }

    /// Returns true if a new connection has to subscribe.
    pub(super) fn is_watched(&self) -> bool {
        !self.watchers.ranges().is_empty()
    }

    /// The connection was made anew: messages may have been missed.
    pub(super) fn reconnected(&self) {
        self.watchers.gap();
    }

    /// Cells have changed: their names, one per line.
    pub(super) fn message(&self, payload: &[u8]) {
        for line in payload.split(|byte| *byte == b'\n') {
            match std::str::from_utf8(line).ok().map(Name::from_store) {
                Some(Ok(name)) => self.watchers.changed(&name),
                // Not from a script of ours.
                _ => self.watchers.gap(),
            }
        }
        self.unsubscribe_if_unwatched();
    }

    fn unsubscribe_if_unwatched(&self) {
        let mut subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*subscribed || self.is_watched() {
            return;
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let Some(engine) = engine else { return };
        *subscribed = false;
        let packed = pack(&[b"UNSUBSCRIBE", engine.keys.changes.as_bytes()]);
        let connection = engine.batchers.subscribed().connection();
        connection.send(&packed, ReplyTo::Many(Box::new(drop)));
        drop(subscribed);
    }
}

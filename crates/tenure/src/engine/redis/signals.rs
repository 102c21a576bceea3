//! How grants, losses and wake-ups reach sessions: scripts publish on the channel of a session, and
//! the connection that is subscribed to it passes the message to the session's listener.
//!
//! `common/listeners.rs` has the listeners, `common/redis/signals.rs` the text of a message.
//!
//! Exactly one connection of an engine is subscribed. A message that is published while that
//! connection is down, or before the subscription is confirmed, is missed. So every session
//! receives [`Signal::Resync`] after a reconnection, and renews what waits; the store's state is
//! the truth, a signal is only a hint to look at it.

use std::sync::Weak;

use super::client::{ReplyTo, RequestResult};
use super::{RedisEngine, RedisInner};
use crate::contract::{SessionId, Signal, SignalListener};

impl RedisEngine {
    /// Subscribes to the channel of a session, and unsubscribes from those of ended ones.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let RedisInner { batchers, keys, listeners, .. } = &*self.inner;
        let connection = batchers.subscribed().connection();
        for (ended, ()) in listeners.remove_ended() {
            drop(connection.unsubscribe(keys.channel(ended).as_bytes()));
        }
        listeners.insert(session, listener.clone(), ());
        // The subscription is ordered before later claims on this connection, and the handshake
        // repeats it after a reconnection. A claim on the other connection may have been faster, so
        // that its grant was published too early: hence the resync.
        let single = batchers.is_single();
        let subscribed = move |result: RequestResult| {
            if let Some(listener) = listener.upgrade().filter(|_| result.is_ok() && !single) {
                listener.on_signal(Signal::Resync);
            }
        };
        let reply = ReplyTo::Many(Box::new(subscribed));
        connection.subscribe(keys.channel(session).as_bytes(), reply);
    }
}

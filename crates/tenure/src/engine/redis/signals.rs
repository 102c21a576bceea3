//! How grants, losses and wake-ups reach sessions: scripts publish on the channel of a session, and
//! the connection that is subscribed to it passes the message to the session's listener.
//!
//! Exactly one connection of an engine is subscribed. A message that is published while that
//! connection is down, or before the subscription is confirmed, is missed. So every session
//! receives [`Signal::Resync`] after a reconnection, and renews what waits; the store's state is
//! the truth, a signal is only a hint to look at it.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::client::{ReplyTo, RequestResult};
use super::{RedisEngine, RedisInner};
use crate::contract::{
    Arrival, ClaimId, Fence, Fences, Grant, IdMap, Loss, SessionId, Signal, SignalListener,
};

/// The listeners of all sessions of an engine.
#[derive(Default)]
pub(super) struct PushRouter {
    by_session: RwLock<IdMap<SessionId, Weak<dyn SignalListener>>>,
}

impl PushRouter {
    /// Sends a session's signals to this listener from now on.
    pub(super) fn insert(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let mut listeners = self.by_session.write().unwrap_or_else(PoisonError::into_inner);
        listeners.insert(session, listener);
    }

    /// Removes the sessions whose listeners were dropped, and returns them.
    pub(super) fn remove_ended(&self) -> Vec<SessionId> {
        let mut listeners = self.by_session.write().unwrap_or_else(PoisonError::into_inner);
        let ended = |(id, listener): (&SessionId, &Weak<dyn SignalListener>)| {
            (listener.strong_count() == 0).then_some(*id)
        };
        let ended: Vec<SessionId> = listeners.iter().filter_map(ended).collect();
        for session in &ended {
            listeners.remove(session);
        }
        ended
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let listeners = self.by_session.read().unwrap_or_else(PoisonError::into_inner);
        listeners.keys().copied().collect()
    }

    /// Passes a published message to the session that it is for.
    pub(super) fn dispatch(&self, session: Option<SessionId>, payload: &[u8]) {
        let listener = session.and_then(|session| self.get(session));
        let (Some(listener), Some(signal)) = (listener, parse_signal(payload)) else { return };
        listener.on_signal(signal);
    }

    /// Notifies all sessions that they may have missed signals.
    pub(super) fn resync(&self) {
        for session in self.sessions() {
            if let Some(listener) = self.get(session) {
                listener.on_signal(Signal::Resync);
            }
        }
    }

    fn get(&self, session: SessionId) -> Option<Arc<dyn SignalListener>> {
        let listeners = self.by_session.read().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&session)?.upgrade()
    }
}

impl RedisEngine {
    /// Subscribes to the channel of a session, and unsubscribes from those of ended ones.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let RedisInner { batchers, keys, listeners, .. } = &*self.inner;
        let connection = batchers.subscribed().connection();
        for ended in listeners.remove_ended() {
            drop(connection.unsubscribe(keys.channel(ended).as_bytes()));
        }
        listeners.insert(session, listener.clone());
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

/// Parses a published message.
pub(in crate::engine) fn parse_signal(payload: &[u8]) -> Option<Signal> {
    let text = std::str::from_utf8(payload).ok()?;
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "g" => {
            let mut words = rest.split(' ');
            let claim: ClaimId = words.next()?.parse().ok()?;
            let arrival = Arrival(words.next()?.parse().ok()?);
            let fences = words.map(|word| word.parse().ok().map(Fence::new));
            let fences = fences.collect::<Option<Fences>>()?;
            Some(Signal::Granted { claim, grant: Grant { fences, arrival } })
        }
        "e" => {
            let (claim, why) = rest.split_once(' ')?;
            let loss = Loss::of_reason(why);
            Some(Signal::Ended { claim: claim.parse().ok()?, loss })
        }
        // A long queue is granted a part at a time: its head requests the rest by renewing.
        "r" => Some(Signal::Resync),
        _ => None,
    }
}

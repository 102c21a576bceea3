//! How grants, evictions and wake-ups reach the sessions of this process.
//!
//! A session has a channel, `tenure:SESSION`, to which the server sends notifications
//! (`listener.rs` receives them). Rows of kind `t` in the reply to a call are the same signals:
//! those for sessions of this engine are delivered without the detour over the server, those for
//! other sessions are passed to the server by [`notify`](PostgresEngine::notify).
//!
//! A notification may be lost, so none is relied on: waiters renew at a third of their lease and
//! find a grant in the reply. After a reconnect, and regularly behind a pooler, where nothing can
//! be subscribed to, every session gets [`Signal::Resync`] and renews its waiters at once.
//!
//! A notification about a cell has the channel `tenure:cells:..` and the cell's name as its text.
//! It goes to the watchers of this engine. `cell_watches.rs` says which cells are notified.
//!
//! The text of a signal is `g CLAIM ARRIVAL FENCE..` (granted), `e CLAIM REASON` (evicted) or
//! `j QUEUE` (there may be work in a queue of jobs).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use uuid::Uuid;

use super::statements::{Function, Parameters, uuid};
use super::{Inner, PostgresEngine};
use crate::contract::{
    Arrival, ClaimId, Fence, Grant, Loss, Name, SessionId, Signal, SignalListener, Verb,
};
use crate::engine::common::cell_watches::CellWatchers;
use crate::engine::common::listeners::Listeners;
use crate::sync::random_bytes;

/// How long a call waits for the notifications that follow from it.
const NOTIFY_LIMIT: Duration = Duration::from_secs(1);
/// What the channels of cells begin with: `cells_channel` in `sql/cells.sql`.
const CELLS_CHANNEL: &str = "tenure:cells:";

impl PostgresEngine {
    /// Registers a session. Its channel is subscribed to in the background.
    pub(super) fn register(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let router = &self.inner.context.router;
        let ended = router.listeners.remove_ended();
        router.register(session, listener);
        let Some(listener) = &self.inner.listener else { return };
        for (session, _) in ended {
            listener.unsubscribe(session);
        }
        listener.subscribe(session);
    }

    /// Sends signals to sessions of other processes. Returns when the server has them, after
    /// [`NOTIFY_LIMIT`] at the latest. A failure is only logged: the waiter finds its grant at its
    /// next renewal.
    ///
    /// # Cancel safety
    /// May be dropped at any time: a task goes on.
    pub(super) async fn notify(&self, signals: Vec<(SessionId, String)>) {
        let inner = Arc::clone(&self.inner);
        inner.notifies_in_flight.fetch_add(1, Ordering::SeqCst);
        let sending = self.inner.own.handle().spawn(async move {
            let id = |session: SessionId| uuid(session.as_u128()).to_string();
            let (sessions, texts): (Vec<String>, Vec<String>) =
                signals.into_iter().map(|(session, text)| (id(session), text)).unzip();
            let parameters: Parameters = vec![Box::new(sessions), Box::new(texts)];
            let send = async {
                let pipeline = inner.own_connection.get().await.ok()?;
                let permit = pipeline.permit(Verb::Release).await;
                Some(permit.call(Function::Notify, parameters).await)
            };
            match tokio::time::timeout(NOTIFY_LIMIT, send).await {
                Ok(Some(Ok(_)) | None) => {}
                failed => tracing::debug!("notifications were not sent: {failed:?}"),
            }
            inner.notifies_done.fetch_add(1, Ordering::SeqCst);
            inner.notifies_in_flight.fetch_sub(1, Ordering::SeqCst);
        });
        let _ = sending.await;
    }
}

impl Inner {
    /// Makes all sessions renew their waiters, if this engine has any.
    pub(super) fn poll_waiters(&self) {
        if !self.waiting.is_empty() {
            self.context.router.resync();
        }
    }

    /// Records whether a claim waits, where waiters are polled for.
    pub(super) fn set_waiting(&self, claim: ClaimId, waits: bool) {
        if self.listener.is_none() {
            self.waiting.set(claim, waits);
        }
    }
}

/// The sessions of an engine and their listeners. Dispatches signals by session.
pub(super) struct SignalRouter {
    /// The listeners, each with whether the channel of its session is subscribed to.
    listeners: Listeners<AtomicBool>,
    /// The watchers of cells.
    pub(super) watchers: CellWatchers,
    /// A channel of this engine alone, to find out whether notifications arrive at all.
    probe_channel: String,
    probe_received: AtomicBool,
    /// How many signals were delivered.
    delivered: AtomicU64,
    /// How many requests to register the watchers of cells are under way.
    registering: AtomicU64,
}

impl Default for SignalRouter {
    fn default() -> Self {
        Self {
            listeners: Listeners::default(),
            watchers: CellWatchers::default(),
            probe_channel: format!("tenure:{}", Uuid::from_bytes(random_bytes())),
            probe_received: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            registering: AtomicU64::new(0),
        }
    }
}

impl SignalRouter {
    /// Adds a session, whose channel is not subscribed to yet.
    fn register(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        self.listeners.insert(session, listener, AtomicBool::new(false));
    }

    /// Records that the server has confirmed the subscription of a session's channel.
    pub(super) fn set_subscribed(&self, session: SessionId) {
        self.listeners.with(session, |subscribed| subscribed.store(true, Ordering::SeqCst));
    }

    /// Returns whether every session with a live listener is subscribed.
    #[cfg(feature = "conformance")]
    pub(super) fn all_subscribed(&self) -> bool {
        self.listeners.all(|subscribed| subscribed.load(Ordering::SeqCst))
    }

    /// Returns whether this session is subscribed, or not registered.
    pub(super) fn is_subscribed(&self, session: SessionId) -> bool {
        self.listeners.with(session, |subscribed| subscribed.load(Ordering::SeqCst)).unwrap_or(true)
    }

    /// Returns all registered sessions.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.listeners.sessions()
    }

    pub(super) fn probe_channel(&self) -> String {
        self.probe_channel.clone()
    }

    /// Returns whether a notification has arrived on the probe channel.
    pub(super) fn probe_received(&self) -> bool {
        self.probe_received.load(Ordering::SeqCst)
    }

    /// Counts a request to register the watchers of cells, when it begins and when it ends.
    pub(super) fn count_registration(&self, begins: bool) {
        if begins {
            self.registering.fetch_add(1, Ordering::SeqCst);
        } else {
            self.delivered.fetch_add(1, Ordering::SeqCst);
            self.registering.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns whether a request to register the watchers of cells is under way.
    #[cfg(feature = "conformance")]
    pub(super) fn is_registering(&self) -> bool {
        self.registering.load(Ordering::SeqCst) > 0
    }

    #[cfg(feature = "conformance")]
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::SeqCst)
    }

    /// Dispatches a notification of the server.
    pub(super) fn on_notification(&self, channel: &str, text: &str) {
        if channel == self.probe_channel {
            return self.probe_received.store(true, Ordering::SeqCst);
        }
        if channel.starts_with(CELLS_CHANNEL) {
            self.delivered.fetch_add(1, Ordering::SeqCst);
            if let Ok(name) = Name::from_store(text) {
                self.watchers.changed(&name);
            }
            return;
        }
        let session = channel.strip_prefix("tenure:").and_then(|id| id.parse::<Uuid>().ok());
        if let Some(session) = session {
            self.deliver(SessionId::from_u128(session.as_u128()), text);
        }
    }

    /// Delivers a signal. Returns false if the session is not one of this engine's.
    pub(super) fn deliver(&self, session: SessionId, text: &str) -> bool {
        let Some(listener) = self.listeners.get(session) else { return false };
        self.delivered.fetch_add(1, Ordering::SeqCst);
        if let Some(signal) = parse_signal(text) {
            listener.on_signal(signal);
        }
        true
    }

    /// Makes every session renew its waiters: notifications may have been missed.
    pub(super) fn resync(&self) {
        self.listeners.resync();
    }
}

/// The channel of a session.
pub(super) fn channel(session: SessionId) -> String {
    format!("tenure:{}", uuid(session.as_u128()))
}

fn parse_signal(text: &str) -> Option<Signal> {
    let (kind, rest) = text.split_once(' ')?;
    if kind == "j" {
        return Name::from_store(rest).ok().map(|queue| Signal::Jobs { queue });
    }
    let (claim, rest) = rest.split_once(' ')?;
    let claim = ClaimId::from_u128(claim.parse::<Uuid>().ok()?.as_u128());
    match kind {
        "g" => {
            let mut numbers = rest.split(' ').map(|word| word.parse::<u64>().ok());
            let arrival = Arrival(numbers.next()??);
            let fences = numbers.map(|fence| fence.map(Fence::new)).collect::<Option<_>>()?;
            Some(Signal::Granted { claim, grant: Grant { fences, arrival } })
        }
        "e" => Some(Signal::Ended { claim, loss: Loss::of_reason(rest) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed() {
        let id = ClaimId::new();
        let text = Uuid::from_u128(id.as_u128()).to_string();
        let fences = [Fence::new(5), Fence::new(6)].into_iter().collect();
        let grant = Grant { fences, arrival: Arrival(4) };
        assert_eq!(
            parse_signal(&format!("g {text} 4 5 6")),
            Some(Signal::Granted { claim: id, grant })
        );
        let loss = Loss::Evicted { reason: "by hand, 2nd".into() };
        assert_eq!(
            parse_signal(&format!("e {text} by hand, 2nd")),
            Some(Signal::Ended { claim: id, loss })
        );
        let queue = "two words".parse().unwrap();
        assert_eq!(parse_signal("j two words"), Some(Signal::Jobs { queue }));
        for odd in ["", "g", "g x 1 2", &format!("g {text} x"), &format!("z {text} 1")] {
            assert_eq!(parse_signal(odd), None, "{odd}");
        }
    }
}

//! Who hears what sessions are told. Knows sessions, not connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use uuid::Uuid;

use super::replies::signal;
use crate::contract::{IdMap, SessionId, Signal, SignalListener};
use crate::sync::random_bytes;

/// The sessions of an engine, each with who hears for it.
pub(super) struct Listeners {
    all: RwLock<IdMap<SessionId, Listening>>,
    /// A channel of our own, to see whether anything is heard at all.
    probe: String,
    probed: AtomicBool,
    /// How many messages were heard.
    heard: AtomicU64,
}

/// Who hears for a session, and whether its channel is listened to.
struct Listening {
    listener: Weak<dyn SignalListener>,
    yet: bool,
}

impl Default for Listeners {
    fn default() -> Self {
        Self {
            all: RwLock::default(),
            probe: format!("tenure:{}", Uuid::from_bytes(random_bytes())),
            probed: AtomicBool::new(false),
            heard: AtomicU64::new(0),
        }
    }
}

impl Listeners {
    /// Sends a session's signals to this listener.
    pub(super) fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let mut listeners = self.all.write().unwrap_or_else(PoisonError::into_inner);
        listeners.insert(session, Listening { listener, yet: false });
    }

    /// The channel of a session is listened to from now on.
    pub(super) fn listens(&self, session: SessionId) {
        let mut listeners = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(listening) = listeners.get_mut(&session) {
            listening.yet = true;
        }
    }

    /// Whether all are that somebody hears for.
    #[cfg(feature = "conformance")]
    pub(super) fn all_listen(&self) -> bool {
        let listeners = self.all.read().unwrap_or_else(PoisonError::into_inner);
        listeners.values().all(|listening| listening.yet || listening.listener.strong_count() == 0)
    }

    /// Whether it is, or nobody would hear anyway.
    pub(super) fn is_listening(&self, session: SessionId) -> bool {
        let listeners = self.all.read().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&session).is_none_or(|listening| listening.yet)
    }

    /// Forgets the sessions that are gone, and says which.
    pub(super) fn gone(&self) -> Vec<SessionId> {
        let mut listeners = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let gone = |(id, listening): (&SessionId, &Listening)| {
            (listening.listener.strong_count() == 0).then_some(*id)
        };
        let gone: Vec<SessionId> = listeners.iter().filter_map(gone).collect();
        for session in &gone {
            listeners.remove(session);
        }
        gone
    }

    /// All that are known.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let listeners = self.all.read().unwrap_or_else(PoisonError::into_inner);
        listeners.keys().copied().collect()
    }

    /// The channel on which nobody but we ourselves speaks.
    pub(super) fn probe(&self) -> String {
        self.probe.clone()
    }

    /// Whether our own words came back.
    pub(super) fn heard_probe(&self) -> bool {
        self.probed.load(Ordering::SeqCst)
    }

    /// How many messages were heard.
    #[cfg(feature = "conformance")]
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::SeqCst)
    }

    /// A message came in.
    pub(super) fn message(&self, channel: &str, text: &str) {
        if channel == self.probe {
            return self.probed.store(true, Ordering::SeqCst);
        }
        let session = channel.strip_prefix("tenure:").and_then(|id| id.parse::<Uuid>().ok());
        if let Some(session) = session {
            self.tell(SessionId::from_u128(session.as_u128()), text);
        }
    }

    /// Tells a session, if it is one of ours.
    pub(super) fn tell(&self, session: SessionId, text: &str) -> bool {
        let Some(listener) = self.listener(session) else { return false };
        self.heard.fetch_add(1, Ordering::SeqCst);
        if let Some(signal) = signal(text) {
            listener.on_signal(signal);
        }
        true
    }

    /// Something may have been missed: everybody who waits asks again.
    pub(super) fn resync(&self) {
        for session in self.sessions() {
            if let Some(listener) = self.listener(session) {
                listener.on_signal(Signal::Resync);
            }
        }
    }

    fn listener(&self, session: SessionId) -> Option<Arc<dyn SignalListener>> {
        let listeners = self.all.read().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&session)?.listener.upgrade()
    }
}

/// The channel of a session.
pub(super) fn channel(session: SessionId) -> String {
    format!("tenure:{}", Uuid::from_u128(session.as_u128()))
}

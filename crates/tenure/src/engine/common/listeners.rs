//! The registry of listeners: which listener gets the signals of which session.
//!
//! The registry keeps weak references: a session that is dropped needs not say so. Its entry stays
//! until [`Listeners::remove_ended`], which an engine calls when a session is added, so that the
//! registry never grows beyond the sessions that lived at once. A listener is always called without
//! the lock held, because it may call the engine back, and the engine the registry.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use crate::contract::{IdMap, SessionId, Signal, SignalListener};

type BySession<T> = IdMap<SessionId, (Weak<dyn SignalListener>, T)>;

/// The listeners of the sessions of an engine, each with what the engine keeps beside it.
pub(in crate::engine) struct Listeners<T = ()> {
    by_session: RwLock<BySession<T>>,
}

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self { by_session: RwLock::default() }
    }
}

#[allow(dead_code, reason = "which methods are used depends on the engines that are built")]
impl<T> Listeners<T> {
    /// Sends a session's signals to this listener from now on. Returns what was kept beside a
    /// former listener of the session.
    pub(in crate::engine) fn insert(
        &self,
        session: SessionId,
        listener: Weak<dyn SignalListener>,
        beside: T,
    ) -> Option<T> {
        self.write().insert(session, (listener, beside)).map(|(_, former)| former)
    }

    /// Removes the sessions whose listeners were dropped, and returns them.
    pub(in crate::engine) fn remove_ended(&self) -> Vec<(SessionId, T)> {
        let mut sessions = self.write();
        let ended: Vec<SessionId> = sessions
            .iter()
            .filter_map(|(id, (listener, _))| (listener.strong_count() == 0).then_some(*id))
            .collect();
        let remove = |id| sessions.remove(&id).map(|(_, beside)| (id, beside));
        ended.into_iter().filter_map(remove).collect()
    }

    /// Returns all registered sessions.
    pub(in crate::engine) fn sessions(&self) -> Vec<SessionId> {
        self.read().keys().copied().collect()
    }

    /// Returns the listener of a session, if it lives.
    pub(in crate::engine) fn get(&self, session: SessionId) -> Option<Arc<dyn SignalListener>> {
        self.read().get(&session)?.0.upgrade()
    }

    /// Sends a signal to a session. Returns false if the session has no listener.
    pub(in crate::engine) fn notify(&self, session: SessionId, signal: Signal) -> bool {
        let Some(listener) = self.get(session) else { return false };
        listener.on_signal(signal);
        true
    }

    /// Sends a signal to every session.
    pub(in crate::engine) fn notify_all(&self, signal: &Signal) {
        let all: Vec<_> =
            self.read().values().filter_map(|(listener, _)| listener.upgrade()).collect();
        for listener in all {
            listener.on_signal(signal.clone());
        }
    }

    /// Notifies every session that it may have missed signals.
    pub(in crate::engine) fn resync(&self) {
        self.notify_all(&Signal::Resync);
    }

    /// Applies `with` to what is kept beside a session's listener; `None` if the session is not
    /// registered. `with` must not use the registry.
    pub(in crate::engine) fn with<R>(
        &self,
        session: SessionId,
        with: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        self.read().get(&session).map(|(_, beside)| with(beside))
    }

    /// Returns whether `check` holds of what is kept beside every listener that lives.
    pub(in crate::engine) fn all(&self, check: impl Fn(&T) -> bool) -> bool {
        let sessions = self.read();
        sessions.values().all(|(listener, beside)| listener.strong_count() == 0 || check(beside))
    }

    fn read(&self) -> RwLockReadGuard<'_, BySession<T>> {
        self.by_session.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BySession<T>> {
        self.by_session.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Keeps what it receives, and uses the registry inside of the call.
    struct CallingBack {
        registry: Arc<Listeners<u32>>,
        received: Mutex<Vec<(usize, Signal)>>,
    }

    impl SignalListener for CallingBack {
        fn on_signal(&self, signal: Signal) {
            self.registry.remove_ended();
            let known = self.registry.sessions().len();
            self.received.lock().unwrap().push((known, signal));
        }
    }

    fn listener(registry: &Arc<Listeners<u32>>) -> Arc<CallingBack> {
        Arc::new(CallingBack { registry: Arc::clone(registry), received: Mutex::default() })
    }

    fn weak(listener: &Arc<CallingBack>) -> Weak<dyn SignalListener> {
        Arc::downgrade(listener) as Weak<dyn SignalListener>
    }

    #[test]
    fn a_listener_may_use_the_registry_while_it_is_called() {
        let registry = Arc::new(Listeners::default());
        let (one, other) = (listener(&registry), listener(&registry));
        let (first, second) = (SessionId::new(), SessionId::new());
        registry.insert(first, weak(&one), 1);
        registry.insert(second, weak(&other), 2);
        assert!(registry.notify(first, Signal::Resync));
        registry.resync();
        let resync = |count| vec![(2, Signal::Resync); count];
        assert_eq!(*one.received.lock().unwrap(), resync(2));
        assert_eq!(*other.received.lock().unwrap(), resync(1));
    }

    #[test]
    fn a_session_whose_listener_was_dropped_gets_nothing_and_is_returned_once() {
        let registry = Arc::new(Listeners::default());
        let (one, other) = (listener(&registry), listener(&registry));
        let (first, second) = (SessionId::new(), SessionId::new());
        registry.insert(first, weak(&one), 1);
        registry.insert(second, weak(&other), 2);
        assert!(!registry.all(|beside| *beside == 2));
        drop(one);
        assert!(registry.all(|beside| *beside == 2), "only of listeners that live");
        assert!(!registry.notify(first, Signal::Resync));
        assert!(registry.get(first).is_none());
        assert_eq!(registry.sessions().len(), 2, "until they are removed");
        assert_eq!(registry.remove_ended(), [(first, 1)]);
        assert_eq!(registry.remove_ended(), []);
        assert_eq!(registry.sessions(), [second]);
        assert_eq!(
            (registry.with(first, |_| ()), registry.with(second, |at| *at)),
            (None, Some(2))
        );
    }

    #[test]
    fn a_session_that_is_registered_again_has_its_new_listener_alone() {
        let registry = Arc::new(Listeners::default());
        let (one, other) = (listener(&registry), listener(&registry));
        let session = SessionId::new();
        assert_eq!(registry.insert(session, weak(&one), 1), None);
        assert_eq!(registry.insert(session, weak(&other), 2), Some(1));
        registry.resync();
        assert!(one.received.lock().unwrap().is_empty());
        assert_eq!(other.received.lock().unwrap().len(), 1);
        assert!(!registry.notify(SessionId::new(), Signal::Resync), "of another engine");
    }
}

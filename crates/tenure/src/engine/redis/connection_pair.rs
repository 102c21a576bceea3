//! Two connections to one server: the front one runs on the callers' runtime, the back one on the
//! engine's thread.
//!
//! A reply on the front connection wakes a task of the same runtime, no other thread. The back one
//! serves callers without a runtime and the keeper, which no busy runtime may delay. Exactly one of
//! the two is subscribed to channels: the front one if its runtime has threads of its own and
//! therefore runs while callers block, otherwise the back one.

use tokio::runtime::Handle;

use super::client::TaskRuntimes;
use crate::engine::common::runtime::Callers;

/// Two connections, or only the back one where the callers have no runtime.
#[derive(Debug)]
pub(super) struct ConnectionPair<T> {
    front: Option<(Callers, T)>,
    back: T,
}

impl<T> ConnectionPair<T> {
    /// Opens both; `open` receives whether the connection is the one that subscribes.
    pub(super) fn open(
        callers: Option<&Callers>,
        own: &Handle,
        open: impl Fn(bool, TaskRuntimes) -> T,
    ) -> Self {
        let runtimes =
            |first: &Handle| TaskRuntimes { first: first.clone(), fallback: own.clone() };
        let front_subscribes = callers.is_some_and(Callers::has_threads);
        let front = callers.map(|callers| {
            let front = open(front_subscribes, runtimes(callers.handle()));
            (callers.clone(), front)
        });
        Self { front, back: open(!front_subscribes, runtimes(own)) }
    }

    /// Returns the connection for the current caller.
    pub(super) fn for_caller(&self) -> &T {
        match &self.front {
            Some((callers, front)) if callers.serves() => front,
            _ => &self.back,
        }
    }

    /// Returns the connection that is subscribed to channels.
    pub(super) fn subscribed(&self) -> &T {
        match &self.front {
            Some((callers, front)) if callers.has_threads() => front,
            _ => &self.back,
        }
    }

    /// Returns the connection on the engine's thread.
    #[cfg(feature = "conformance")]
    pub(super) fn back(&self) -> &T {
        &self.back
    }

    /// Returns true if there is no front connection.
    pub(super) fn is_single(&self) -> bool {
        self.front.is_none()
    }

    /// Returns all connections.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.back).chain(self.front.as_ref().map(|(_, front)| front))
    }
}

//! Two connections to one server: the callers' own, on their runtime, and one on the engine's
//! thread. Knows which of them suits whoever calls, not what is said there.

use tokio::runtime::Handle;

use super::wire::Home;
use crate::engine::runtime::Callers;

/// Two connections, or one where the callers have no runtime for the other.
#[derive(Debug)]
pub(super) struct Pair<T> {
    front: Option<(Callers, T)>,
    back: T,
}

impl<T> Pair<T> {
    /// Opens both. Exactly one of them is told to hear.
    pub(super) fn open(
        callers: Option<&Callers>,
        own: &Handle,
        open: impl Fn(bool, Home) -> T,
    ) -> Self {
        let home = |first: &Handle| Home { first: first.clone(), fallback: own.clone() };
        let front_hears = callers.is_some_and(Callers::has_threads);
        let front = callers.map(|callers| {
            let front = open(front_hears, home(callers.handle()));
            (callers.clone(), front)
        });
        Self { front, back: open(!front_hears, home(own)) }
    }

    /// The one that suits whoever calls.
    pub(super) fn here(&self) -> &T {
        match &self.front {
            Some((callers, front)) if callers.serves() => front,
            _ => &self.back,
        }
    }

    /// The one that hears pushes.
    pub(super) fn hearing(&self) -> &T {
        match &self.front {
            Some((callers, front)) if callers.has_threads() => front,
            _ => &self.back,
        }
    }

    /// The one on the engine's thread.
    #[cfg(feature = "conformance")]
    pub(super) fn back(&self) -> &T {
        &self.back
    }

    /// Whether there is only one.
    pub(super) fn is_one(&self) -> bool {
        self.front.is_none()
    }

    /// All there are.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.back).chain(self.front.as_ref().map(|(_, front)| front))
    }
}

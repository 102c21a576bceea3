//! Two connections to one server: the callers' own, on their runtime, and one on the engine's
//! thread. Knows which of them suits whoever calls, not what is said there.

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::wire::Home;

/// The runtime of the callers.
#[derive(Clone, Debug)]
pub(super) struct Here {
    handle: Handle,
    /// It has threads of its own, which go on whatever a caller does.
    always_runs: bool,
}

impl Here {
    /// The runtime that this is called from, if it is.
    pub(super) fn now() -> Option<Self> {
        let handle = Handle::try_current().ok()?;
        let always_runs = handle.runtime_flavor() != RuntimeFlavor::CurrentThread;
        Some(Self { handle, always_runs })
    }
}

/// Two connections, or one where no runtime was around.
#[derive(Debug)]
pub(super) struct Pair<T> {
    front: Option<Front<T>>,
    back: T,
}

#[derive(Debug)]
struct Front<T> {
    one: T,
    runtime: Id,
    always_runs: bool,
}

impl<T> Pair<T> {
    /// Opens both. Exactly one of them is told to hear.
    pub(super) fn open(here: Option<&Here>, own: &Handle, open: impl Fn(bool, Home) -> T) -> Self {
        let home = |first: &Handle| Home { first: first.clone(), fallback: own.clone() };
        let front = here.map(|here| Front {
            one: open(here.always_runs, home(&here.handle)),
            runtime: here.handle.id(),
            always_runs: here.always_runs,
        });
        let front_hears = here.is_some_and(|here| here.always_runs);
        Self { front, back: open(!front_hears, home(own)) }
    }

    /// The one that suits whoever calls.
    pub(super) fn here(&self) -> &T {
        let here = || Handle::try_current().ok().map(|here| here.id());
        match &self.front {
            Some(front) => match here() {
                Some(_) if front.always_runs => &front.one,
                Some(runtime) if runtime == front.runtime => &front.one,
                _ => &self.back,
            },
            None => &self.back,
        }
    }

    /// The one that hears pushes.
    pub(super) fn hearing(&self) -> &T {
        match &self.front {
            Some(front) if front.always_runs => &front.one,
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
        std::iter::once(&self.back).chain(self.front.as_ref().map(|front| &front.one))
    }
}

//! The same locks for programs without a runtime: every call blocks its thread. Knows the async
//! face and how to wait for it.
//!
//! The keeper has a thread of its own anyway, so nothing else is needed: no runtime is started.
//! Inside an async runtime use the async face; a blocking call there blocks a worker.
//!
//! # Examples
//! ```
//! use tenure::blocking::Tenure;
//!
//! let tenure = Tenure::connect("memory:")?;
//! let guard = tenure.mutex("reports")?.lock()?;
//! println!("fence {}", guard.fence()?);
//! guard.release()?;
//! tenure.close();
//! # Ok::<(), tenure::Error>(())
//! ```

mod guards;
mod locks;

use std::future::Future;

pub use guards::{Guard, Permit, ReadGuard, SetGuard, WriteGuard};
pub use locks::{All, Family, Mutex, RwLock, Semaphore};

use crate::contract::{Error, Evicted, Fence, Part, Promises, Query, Snapshot};
use crate::primitives::{self, Builder};

/// Runs a future on this thread and returns what it comes to.
pub fn wait<F: Future>(future: F) -> F::Output {
    crate::session::block_on(future)
}

/// Runs a closure under a new owner: inside, a lock that is held already is entered again. The
/// blocking form of [`tenure::scope`](crate::scope).
pub fn scope<T>(work: impl FnOnce() -> T) -> T {
    primitives::new_scope_owner().scope_blocking(work)
}

/// One process's standing with one store: the blocking form of [`tenure::Tenure`](crate::Tenure).
#[derive(Clone, Debug)]
pub struct Tenure {
    inner: primitives::Tenure,
}

impl Tenure {
    /// Connects to the store that a URL names.
    ///
    /// # Errors
    /// If the URL is none, names an engine that is not built in, or the store cannot be reached.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(Builder::default(), url)
    }

    /// Connects with settings other than the defaults.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and if a setting is outside its limits.
    pub fn connect_with(builder: Builder, url: &str) -> Result<Self, Error> {
        Ok(Self { inner: wait(builder.connect(url))? })
    }

    /// The async face of the same session.
    #[must_use]
    pub fn as_async(&self) -> &primitives::Tenure {
        &self.inner
    }

    /// An exclusive lock.
    ///
    /// # Errors
    /// If the name cannot be one.
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex, Error> {
        self.inner.mutex(name).map(Mutex::from)
    }

    /// A read-write lock.
    ///
    /// # Errors
    /// If the name cannot be one.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock, Error> {
        self.inner.rwlock(name).map(RwLock::from)
    }

    /// A semaphore of this many permits.
    ///
    /// # Errors
    /// If the name cannot be one, or the number of permits is 0 or too large.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        self.inner.semaphore(name, permits).map(Semaphore::from)
    }

    /// Several locks of any kind, taken in one step.
    ///
    /// # Errors
    /// If the set is empty, too large, or names one lock as two kinds.
    pub fn all(&self, parts: impl IntoIterator<Item = Part>) -> Result<All, Error> {
        self.inner.all(parts).map(All::from)
    }

    /// One coarse lock for a family of names, such as `account:*`.
    ///
    /// # Errors
    /// If the pattern cannot be the name of a lock.
    pub fn family(&self, pattern: impl AsRef<str>) -> Result<Family, Error> {
        self.inner.family(pattern).map(Family::from)
    }

    /// What the engine promises.
    #[must_use]
    pub fn promises(&self) -> &Promises {
        self.inner.promises()
    }

    /// Looks at slots, holders and lines.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub fn inspect(&self, query: &Query) -> Result<Snapshot, Error> {
        wait(self.inner.inspect(query))
    }

    /// Releases by force exactly the grant of `name` with this fence.
    ///
    /// # Errors
    /// If the reason is empty or too long, or the store cannot be reached.
    pub fn evict(&self, name: &str, fence: Fence, reason: &str) -> Result<Evicted, Error> {
        wait(self.inner.evict(name, fence, reason))
    }

    /// Ends every wait, gives everything back, and refuses whatever comes after.
    pub fn close(&self) {
        wait(self.inner.close());
    }
}

//! Owners and scopes: who re-enters what. Knows tasks and the environment, not locks.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::contract::{Error, ErrorKind, Lineage, OwnerId};
use crate::order::{HELD_SEPARATOR, InheritedHolds, append_held, inherit, owner_sent};

/// One flow of control that holds, waits and re-enters.
///
/// Outside a [`scope`] every lock is its own owner: taking a lock twice waits for itself. Inside
/// a scope all locks belong to the scope's owner, which enters again what it holds already.
///
/// # Examples
/// ```
/// use tenure::{Owner, Tenure};
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let owner = Owner::new();
/// let outer = tenure.mutex("reports")?.owner(&owner).lock().await?;
/// let inner = tenure.mutex("reports")?.owner(&owner).lock().await?;
/// assert_eq!(outer.fence()?, inner.fence()?);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Owner {
    lineage: Lineage,
    /// How many of the nearest ancestors do nothing until this owner has ended.
    waiting_parents: u8,
    /// What the process that this owner came from holds: it counts as held for as long as this
    /// owner, a clone, a child, or a lock with one of them is there.
    inherited: Option<Arc<InheritedHolds>>,
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (&self.lineage, self.waiting_parents) == (&other.lineage, other.waiting_parents)
    }
}

impl Eq for Owner {}

/// The variable in which a process finds the owner it runs under.
pub(crate) const VARIABLE: &str = "TENURE_OWNER";

impl Owner {
    /// A new owner without a parent.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "two defaults would differ")]
    pub fn new() -> Self {
        Self { lineage: Lineage::root(OwnerId::new()), waiting_parents: 0, inherited: None }
    }

    /// A new owner nested in this one. It may enter what this one holds; its siblings may not
    /// enter what it holds.
    ///
    /// # Errors
    /// If the nesting is too deep.
    pub fn child(&self) -> Result<Self, Error> {
        let ancestors: Vec<OwnerId> = self.lineage.all().collect();
        let lineage = Lineage::nested(OwnerId::new(), &ancestors)?;
        Ok(Self { lineage, waiting_parents: 0, inherited: self.inherited.clone() })
    }

    /// The owner of the surrounding [`scope`], if there is one.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// A new owner nested in the one that `TENURE_OWNER` names, as `tenure run` sets it for the
    /// command it runs. `None` if the variable is not set. The library never looks by itself. The
    /// locks in it count as held by the parent for as long as this process lives.
    ///
    /// # Errors
    /// If the variable is set to something that is not an owner.
    pub fn from_env() -> Result<Option<Self>, Error> {
        match std::env::var_os(VARIABLE) {
            None => Ok(None),
            Some(value) => {
                let parsed = value.to_str().map(Self::from_env_value);
                let parsed = parsed.unwrap_or_else(|| Err(not_an_owner()))?;
                parsed.keep_inherited();
                parsed.child().map(Some)
            }
        }
    }

    /// The owner as text for `TENURE_OWNER` of a child process: its ids, and the locks that it and
    /// its ancestors hold in this process as far as an order checker knows of them, the one of the
    /// lowest level first. There they count as held in the order of locks.
    ///
    /// # Examples
    /// ```
    /// let owner = tenure::Owner::new().child()?;
    /// let read = tenure::Owner::from_env_value(&owner.to_env_value())?;
    /// assert_eq!(read, owner);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[must_use]
    pub fn to_env_value(&self) -> String {
        let ids: Vec<String> = self.lineage.all().map(OwnerId::to_hex).collect();
        let mut text = ids.join("/");
        append_held(&mut text, &self.lineage);
        text
    }

    /// The same text for the header of a request that is made to another service on behalf of the
    /// owner, which reads it with [`from_env_value`](Self::from_env_value).
    ///
    /// To hold a lock while another service works is a habit that the order checker reports, once
    /// for each place in the code.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Levels, Owner, Tenure};
    ///
    /// let levels = Levels::new(["region", "account"])?;
    /// let tenure = Tenure::builder().levels(levels).blocking_connect("memory:")?;
    /// let owner = Owner::new();
    /// let account = tenure.mutex("account:1")?.level("account").owner(&owner).blocking_lock()?;
    /// let header = owner.to_header();
    ///
    /// // In the service that is called, for as long as it works for this request.
    /// let called = Owner::from_env_value(&header)?.child()?;
    /// let refused = tenure.mutex("eu")?.level("region").owner(&called).blocking_lock();
    /// assert_eq!(refused.unwrap_err().kind(), tenure::ErrorKind::Order);
    /// # drop(account);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn to_header(&self) -> String {
        owner_sent(&self.lineage, Location::caller());
        self.to_env_value()
    }

    /// Counts what a parent process holds for as long as this process lives.
    fn keep_inherited(&self) {
        // The variable of a process does not change: the last text that was read is kept.
        static KEPT: Mutex<Option<Arc<InheritedHolds>>> = Mutex::new(None);
        if let Some(inherited) = &self.inherited {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(Arc::clone(inherited));
        }
    }

    /// The owner that [`to_env_value`](Self::to_env_value) or [`to_header`](Self::to_header) wrote.
    /// The locks in the text count as held by it for as long as the owner, a clone of it, a child,
    /// or a lock that was given one of them is there.
    ///
    /// # Errors
    /// If the text is not an owner, or names too many locks.
    pub fn from_env_value(text: &str) -> Result<Self, Error> {
        let (ids, held) = match text.split_once(HELD_SEPARATOR) {
            Some((ids, held)) => (ids, Some(held)),
            None => (text, None),
        };
        let ids: Result<Vec<OwnerId>, Error> = ids.split('/').map(str::parse).collect();
        let ids = ids.map_err(|_| not_an_owner())?;
        let (owner, ancestors) = ids.split_first().ok_or_else(not_an_owner)?;
        let lineage = Lineage::nested(*owner, ancestors)?;
        let inherited = held.map(|held| inherit(&lineage, held)).transpose()?.map(Arc::new);
        Ok(Self { lineage, waiting_parents: 0, inherited })
    }

    /// Says that this many of the nearest ancestors do nothing until this owner has ended, because
    /// each runs the next as its own child process and waits for it. The deadlock detector then
    /// takes an ancestor as stuck while this owner is stuck. Without it an ancestor counts as able
    /// to run: a deadlock through it is not found.
    #[must_use]
    pub fn with_waiting_parents(mut self, parents: u8) -> Self {
        self.waiting_parents = parents;
        self
    }

    pub(super) fn waiting_parents(&self) -> u8 {
        self.waiting_parents
    }

    /// Runs a future in which all locks belong to this owner.
    ///
    /// # Cancel safety
    /// As safe as the future itself.
    pub fn scope<F: Future>(&self, future: F) -> Scope<F> {
        Scope { owner: self.clone(), future: Box::pin(future) }
    }

    /// Runs a closure in which all locks belong to this owner, for programs without a runtime.
    pub fn blocking_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(self);
        work()
    }

    /// The owner and its ancestors, for claims that are made without a session.
    #[must_use]
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}

/// Runs a future under a new owner: inside, a lock that is held already is entered again, however
/// many calls deep. A scope inside a scope is a new owner nested in the outer one.
///
/// Tasks that are spawned inside do not belong to the scope: they are other flows of control.
///
/// # Cancel safety
/// As safe as the future itself.
///
/// # Examples
/// ```
/// # use tenure::Tenure;
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// tenure::scope(async {
///     let outer = tenure.mutex("reports")?.lock().await?;
///     let inner = tenure.mutex("reports")?.lock().await?; // enters again, no round trip
///     assert_eq!(outer.fence()?, inner.fence()?);
///     assert_eq!((outer.depth(), inner.depth()), (2, 2));
///     inner.release().await?;
///     assert_eq!(outer.depth(), 1);
///     Ok::<(), tenure::Error>(())
/// })
/// .await
/// # }).unwrap();
/// ```
pub fn scope<F: Future>(future: F) -> Scope<F> {
    new_scope_owner().scope(future)
}

/// Calls a closure under a new owner: the blocking form of [`scope`].
///
/// # Examples
/// ```
/// let tenure = tenure::Tenure::blocking_connect("memory:")?;
/// tenure::blocking_scope(|| {
///     let outer = tenure.mutex("reports")?.blocking_lock()?;
///     let inner = tenure.mutex("reports")?.blocking_lock()?;
///     assert_eq!(outer.fence()?, inner.fence()?);
///     Ok::<(), tenure::Error>(())
/// })
/// # ?; Ok::<(), tenure::Error>(())
/// ```
pub fn blocking_scope<T>(work: impl FnOnce() -> T) -> T {
    new_scope_owner().blocking_scope(work)
}

/// The owner of a new scope: nested in the surrounding one, if there is one.
fn new_scope_owner() -> Owner {
    // Deeper than owners nest, a scope stands on its own: it re-enters nothing, which is safe.
    let nested = Owner::current().and_then(|outer| outer.child().ok());
    nested.unwrap_or_else(Owner::new)
}

/// A future in which all locks belong to one owner. Made by [`scope`] and [`Owner::scope`].
#[must_use = "futures do nothing unless polled"]
pub struct Scope<F> {
    owner: Owner,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let entered = Entered::new(&self.owner);
        let polled = self.future.as_mut().poll(cx);
        drop(entered);
        polled
    }
}

impl<F> fmt::Debug for Scope<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("owner", &self.owner).finish_non_exhaustive()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Owner>> = const { RefCell::new(None) };
}

/// The owner is current on this thread until this is dropped, by a panic too.
struct Entered(Option<Owner>);

impl Entered {
    fn new(owner: &Owner) -> Self {
        Self(CURRENT.replace(Some(owner.clone())))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

fn not_an_owner() -> Error {
    Error::new(ErrorKind::InvalidOption, format!("{VARIABLE} does not name an owner"))
        .with_help("leave the variable as `tenure run` set it, or unset it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_the_environment() {
        let owner = Owner::new().child().unwrap().child().unwrap();
        assert_eq!(Owner::from_env_value(&owner.to_env_value()).unwrap(), owner);
        for text in ["", "x", "12/34", &format!("{0}/{0}", OwnerId::new().to_hex())] {
            assert!(Owner::from_env_value(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn scopes_end_with_their_closure_even_by_a_panic() {
        let owner = Owner::new();
        let caught = std::panic::catch_unwind(|| {
            owner.blocking_scope(|| {
                assert_eq!(Owner::current().as_ref(), Some(&owner));
                panic!("inside");
            })
        });
        assert!(caught.is_err());
        assert_eq!(Owner::current(), None);
    }

    #[test]
    fn nesting_has_an_end() {
        let mut owner = Owner::new();
        for _ in 0..crate::limits::ANCESTORS {
            owner = owner.child().unwrap();
        }
        assert!(owner.child().is_err());
    }
}

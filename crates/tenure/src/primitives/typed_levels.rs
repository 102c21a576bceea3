//! Levels of locks as types: an order that the compiler checks.
//!
//! What a flow holds is a value: a [`LevelFlow`] holds nothing, a [`LevelGuard`] a lock of its
//! level and all that it was acquired under. To acquire a lock borrows that value for as long as
//! the new guard lives, so it cannot acquire a second one meanwhile (several locks of one level are
//! one set), and only locks below its level are accepted. What the compiler cannot see is a second
//! [`LevelFlow`] in the same flow of control: make one for each, at its start. The macro that
//! declares levels is in the root of the crate, because its users reach it there.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;

use super::guard::{LockSetGuard, MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit};
use crate::contract::Error;
use crate::session::block_on;

/// A level of locks as a type. Declared by [`levels!`](crate::levels!).
pub trait Level {
    /// The name of the level.
    const NAME: &'static str;

    /// A lock of this level, of any kind.
    fn of<K>(lock: K) -> AtLevel<Self, K>
    where
        Self: Sized,
    {
        AtLevel { lock, level: PhantomData }
    }
}

/// A level that may be acquired while a lock of level `L` is held.
#[diagnostic::on_unimplemented(
    message = "a lock of level `{Self}` must not be acquired while one of level `{L}` is held",
    note = "acquire the higher level first; several locks of one level are acquired as a lock_set"
)]
pub trait Below<L>: Level {}

/// No lock is held: every level may be acquired.
#[derive(Debug)]
pub struct NoLevel;

impl<L: Level> Below<NoLevel> for L {}

/// A lock with its level. Made by [`Level::of`].
#[must_use = "a lock does nothing until it is acquired"]
pub struct AtLevel<L, K> {
    lock: K,
    level: PhantomData<fn() -> L>,
}

/// One flow of control, which holds no lock yet.
///
/// # Examples
/// ```
/// use tenure::{Level, LevelFlow, Tenure, levels};
///
/// levels! { System > Region > Account }
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let europe = Region::of(tenure.rwlock("europe")?);
/// let account = Account::of(tenure.mutex("account:17")?);
///
/// let mut flow = LevelFlow::new();
/// let mut region = flow.acquire(&europe, |lock| lock.read()).await?;
/// let account = region.acquire(&account, |lock| lock.lock()).await?;
/// println!("fence {}", account.fence()?);
/// account.release().await?;
/// # region.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
///
/// The wrong order does not compile:
/// ```compile_fail,E0277
/// # use tenure::{Level, LevelFlow, Tenure, levels};
/// # levels! { System > Region > Account }
/// # tenure::block_on(async {
/// # let tenure = Tenure::connect("memory:").await?;
/// # let europe = Region::of(tenure.rwlock("europe")?);
/// # let account = Account::of(tenure.mutex("account:17")?);
/// # let mut flow = LevelFlow::new();
/// let mut account = flow.acquire(&account, |lock| lock.lock()).await?;
/// let region = account.acquire(&europe, |lock| lock.read()).await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
/// Nor do two locks of one level, one under the other:
/// ```compile_fail,E0277
/// # use tenure::{Level, LevelFlow, Tenure, levels};
/// # levels! { System > Region > Account }
/// # tenure::block_on(async {
/// # let tenure = Tenure::connect("memory:").await?;
/// # let one = Account::of(tenure.mutex("account:1")?);
/// # let two = Account::of(tenure.mutex("account:2")?);
/// # let mut flow = LevelFlow::new();
/// let mut first = flow.acquire(&one, |lock| lock.lock()).await?;
/// let second = first.acquire(&two, |lock| lock.lock()).await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
/// or one beside the other:
/// ```compile_fail,E0499
/// # use tenure::{Level, LevelFlow, Tenure, levels};
/// # levels! { System > Region > Account }
/// # tenure::block_on(async {
/// # let tenure = Tenure::connect("memory:").await?;
/// # let one = Account::of(tenure.mutex("account:1")?);
/// # let two = Account::of(tenure.mutex("account:2")?);
/// # let mut flow = LevelFlow::new();
/// let first = flow.acquire(&one, |lock| lock.lock()).await?;
/// let second = flow.acquire(&two, |lock| lock.lock()).await?;
/// # drop((first, second));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a flow does nothing until it acquires"]
pub struct LevelFlow(());

impl LevelFlow {
    /// A flow that holds nothing. One for each flow of control, made at its start.
    #[allow(clippy::new_without_default, reason = "a second one is a decision, not a default")]
    pub fn new() -> Self {
        Self(())
    }
}

/// A guard with its level: what is held, and what may be acquired under it.
#[must_use = "if unused, the lock is released at once"]
pub struct LevelGuard<'a, L, G> {
    guard: G,
    /// Borrows what it was acquired under.
    under: PhantomData<&'a mut ()>,
    level: PhantomData<fn() -> L>,
}

/// Declares the methods that acquire a lock below a level.
macro_rules! acquire_below {
    ($level:ty) => {
        /// Acquires a lock of a lower level: `take` calls one of the lock's own methods, with or
        /// without a timeout.
        ///
        /// # Errors
        /// As the method that `take` calls.
        ///
        /// # Cancel safety
        /// As the method that `take` calls.
        pub async fn acquire<M, K, T, F>(
            &mut self,
            lock: &AtLevel<M, K>,
            take: impl FnOnce(&K) -> F,
        ) -> Result<LevelGuard<'_, M, T>, Error>
        where
            M: Below<$level>,
            F: Future<Output = Result<T, Error>>,
        {
            let guard = take(&lock.lock).await?;
            Ok(LevelGuard { guard, under: PhantomData, level: PhantomData })
        }

        /// The blocking form of [`acquire`](Self::acquire).
        ///
        /// # Errors
        /// As the method that `take` calls.
        pub fn blocking_acquire<M, K, T>(
            &mut self,
            lock: &AtLevel<M, K>,
            take: impl FnOnce(&K) -> Result<T, Error>,
        ) -> Result<LevelGuard<'_, M, T>, Error>
        where
            M: Below<$level>,
        {
            let guard = take(&lock.lock)?;
            Ok(LevelGuard { guard, under: PhantomData, level: PhantomData })
        }
    };
}

impl LevelFlow {
    acquire_below!(NoLevel);
}

impl<L, G> LevelGuard<'_, L, G> {
    acquire_below!(L);
}

/// Declares the release of one kind of guard, and of what a try returned.
macro_rules! release_at_level {
    ($($guard:ident),*) => {$(
        impl<L> LevelGuard<'_, L, $guard> {
            /// Releases the lock and waits for the store to confirm it.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($guard), "::release`].")]
            ///
            /// # Cancel safety
            /// Dropping the future still releases the lock, in the background.
            pub async fn release(self) -> Result<(), Error> {
                self.guard.release().await
            }

            /// The blocking form of [`release`](Self::release).
            ///
            /// # Errors
            /// As [`release`](Self::release).
            pub fn blocking_release(self) -> Result<(), Error> {
                block_on(self.release())
            }
        }

        impl<L> LevelGuard<'_, L, Option<$guard>> {
            /// Releases the lock, if the try acquired it, and waits for the store to confirm it.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($guard), "::release`].")]
            ///
            /// # Cancel safety
            /// Dropping the future still releases the lock, in the background.
            pub async fn release(self) -> Result<(), Error> {
                match self.guard {
                    Some(guard) => guard.release().await,
                    None => Ok(()),
                }
            }

            /// The blocking form of [`release`](Self::release).
            ///
            /// # Errors
            /// As [`release`](Self::release).
            pub fn blocking_release(self) -> Result<(), Error> {
                block_on(self.release())
            }
        }
    )*};
}
release_at_level!(MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit, LockSetGuard);

impl<L, G> Deref for LevelGuard<'_, L, G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<L, G: fmt::Debug> fmt::Debug for LevelGuard<'_, L, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LevelGuard").field(&self.guard).finish()
    }
}

impl<L: Level, K: fmt::Debug> fmt::Debug for AtLevel<L, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtLevel").field("lock", &self.lock).field("level", &L::NAME).finish()
    }
}

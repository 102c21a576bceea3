//! One acquisition, from the options of a lock to its guard: the same lines for every kind of lock.
//!
//! The public methods build a [`Request`] before their future is first polled, so that the caller's
//! place in the code and the surrounding scope are those of the call, and then choose how to run
//! it: wait for the guard, try once, try for a time, or run work under the guard. The blocking
//! forms run the same futures with `block_on`.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::guard::{AnyGuard, LockStatus};
use super::options::Options;
use super::ordered::{CheckedOrder, OrderedRequest};
use super::run::{release_after, until_lost};
use crate::contract::{Conduct, Error, ErrorKind, Lineage, OwnerId, Parts};
use crate::order::OrderChecker;
use crate::session::{AcquireRequest, AtOnce, Core, Outcome, Session, Share, Wait, block_on};
use crate::time::Tick;

/// A checked request for the session.
#[derive(Clone)]
pub(super) struct Request {
    session: Session,
    ask: Result<AcquireRequest, Error>,
    /// The order checker, where there is one.
    order: Option<OrderChecker>,
    level: Option<Arc<str>>,
}

impl Request {
    /// Checks the options of a lock. `wait` overrides the timeout that they state.
    #[track_caller]
    pub(super) fn new(
        session: &Session,
        options: &Options,
        parts: Result<Parts, Error>,
        wait: Option<Wait>,
    ) -> Self {
        let place = Location::caller();
        let ask = parts.and_then(|parts| options.ask(session.core(), parts, wait, place));
        let (order, level) = (options.order.clone(), options.level.clone());
        Self { session: session.clone(), ask, order, level }
    }

    /// The request for an owner of its own, whatever the surrounding scope is: it never re-enters.
    pub(super) fn for_new_owner(mut self) -> Self {
        if let Ok(ask) = &mut self.ask {
            (ask.lineage, ask.scoped) = (Lineage::root(OwnerId::new()), false);
            ask.about.conduct = Conduct::default();
        }
        // The order checker compares locks of one flow, and this owner is not the caller's flow.
        self.order = None;
        self
    }

    /// When the wait times out, if it begins now.
    pub(super) fn deadline(&self) -> Tick {
        let wait = self.ask.as_ref().map_or(Wait::Unlimited, |ask| ask.wait);
        self.session.core().deadline(wait)
    }

    /// The request with what is left of its wait until `deadline`.
    pub(super) fn until(mut self, deadline: Tick) -> Self {
        if let Ok(ask) = &mut self.ask
            && let Wait::Limit(limit) = &mut ask.wait
        {
            *limit = deadline.since(self.session.core().now());
        }
        self
    }

    /// Waits for the guard.
    pub(super) fn wait<G: AnyGuard>(self) -> impl Future<Output = Result<G, Error>> + Send {
        // Only a try may be refused because the lock is held, and this is none.
        let held = || Error::new(ErrorKind::TimedOut, "it is held");
        self.acquire(move |guard| guard.ok_or_else(held))
    }

    /// Takes the guard if it is available, in the time that the request allows.
    pub(super) fn attempt<G: AnyGuard>(
        self,
    ) -> impl Future<Output = Result<Option<G>, Error>> + Send {
        self.acquire(Ok)
    }

    /// Acquires the lock. The one future of an acquisition that is done at once; what takes longer
    /// is boxed, and so is everything that is not needed while it goes on, so that the futures of
    /// all locks stay small.
    async fn acquire<G: AnyGuard, T>(
        self,
        reply: impl FnOnce(Option<G>) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let Self { session, ask, order, level } = self;
        let rest = match begin(session.core(), ask, order, level)? {
            Begin::Held(guard) => return reply(Some(guard)),
            Begin::Rest(rest) => rest,
        };
        reply(rest.await?)
    }

    /// Tries for the guard again and again, holding nothing between two attempts.
    pub(super) async fn repeat<G: AnyGuard>(
        self,
        limit: Duration,
        tries: Option<u32>,
    ) -> Result<Option<G>, Error> {
        let core = Arc::clone(self.session.core());
        let mut ask = self.ask?;
        let ordered = match self.order {
            Some(order) => {
                let checked = OrderedRequest::check(order, self.level, &core, &ask)?;
                Some(checked.shared(&core, &mut ask).await?)
            }
            None => None,
        };
        let outcome = core.try_repeatedly(ask, limit, tries).await?;
        Ok(outcome.into_guard(ordered, self.session.core()))
    }

    /// Waits for the guard, runs the work while it is held, and releases.
    pub(super) async fn run<G, F, T>(
        self,
        work: impl FnOnce(LockStatus) -> F + Send,
    ) -> Result<T, Error>
    where
        G: AnyGuard,
        F: Future<Output = T> + Send,
    {
        let guard: G = self.wait().await?;
        let output = until_lost(&guard, work(guard.status())).await?;
        release_after(guard, output).await
    }

    /// Blocks for the guard, calls the work, and releases.
    pub(super) fn blocking_run<G: AnyGuard, T>(
        self,
        work: impl FnOnce(LockStatus) -> T,
    ) -> Result<T, Error> {
        let guard: G = block_on(self.wait())?;
        let output = work(guard.status());
        guard.check()?;
        block_on(release_after(guard, output))
    }
}

/// What was done of an acquisition without waiting.
enum Begin<'a, G> {
    Held(G),
    /// What is left to do.
    Rest(Pin<Box<dyn Future<Output = Result<Option<G>, Error>> + Send + 'a>>),
}

/// Checks the order of locks, and acquires if that can be done at once.
fn begin<'a, G: AnyGuard + 'a>(
    core: &'a Arc<Core>,
    ask: Result<AcquireRequest, Error>,
    order: Option<OrderChecker>,
    level: Option<Arc<str>>,
) -> Result<Begin<'a, G>, Error> {
    let ask = ask?;
    let ordered = match order {
        None => None,
        Some(order) => match OrderedRequest::check(order, level, core, &ask)? {
            CheckedOrder::Known(ordered) => Some(ordered),
            // This happens once for each edge.
            news @ CheckedOrder::News(_) => {
                return Ok(Begin::Rest(Box::pin(async move {
                    let mut ask = ask;
                    let ordered = news.shared(core, &mut ask).await?;
                    Ok(core.acquire(ask).await?.into_guard(Some(ordered), core))
                })));
            }
        },
    };
    match core.acquire_at_once(ask)? {
        AtOnce::Held(share) => Ok(Begin::Held(guard(share, ordered, core))),
        AtOnce::Begun(begun) => Ok(Begin::Rest(Box::pin(async move {
            Ok(core.acquire_begun(begun).await?.into_guard(ordered, core))
        }))),
    }
}

/// The guard, which the order checker counts as held until it is dropped.
fn guard<G: AnyGuard>(share: Share, ordered: Option<OrderedRequest>, core: &Core) -> G {
    let mark = ordered.and_then(|ordered| ordered.hold(&share, core));
    G::new(share, mark)
}

impl Outcome {
    /// The guard, if there is one.
    fn into_guard<G: AnyGuard>(self, ordered: Option<OrderedRequest>, core: &Core) -> Option<G> {
        match self {
            Self::Held(share) => Some(guard(share, ordered, core)),
            Self::No => None,
        }
    }
}

/// How long a `try_..._for` waits: a limit of zero is a plain try.
pub(super) fn try_for(limit: Duration) -> Wait {
    if limit.is_zero() { Wait::Try } else { Wait::TryFor(limit) }
}

/// Declares the methods that acquire one kind of lock: waiting, trying, trying for a time, and
/// running work, each async and blocking. `$request` makes the [`Request`] from the arguments.
macro_rules! acquire_methods {
    (
        $guard:ident, $request:ident($($arg:ident: $type:ty),*),
        $what:literal, $example:literal, $given:literal, $first:literal,
        $(#[$more:meta])*
        $lock:ident, $try_lock:ident, $run:ident,
        $blocking_lock:ident, $blocking_try_lock:ident, $blocking_run:ident $(,)?
    ) => {
        #[doc = concat!("Acquires ", $what, ", waiting until it is available.")]
        ///
        $(#[$more])*
        ///
        /// # Errors
        /// `TimedOut` if the timeout expires: the error names the holders and the place in the
        /// queue. `Shape` if the name is in use as another kind of lock. `Unavailable` if the store
        /// cannot be reached until the timeout expires or, without a timeout, for one `max_lease`.
        ///
        /// # Cancel safety
        /// Dropping the future gives up the place in the queue; what was granted meanwhile is
        /// released in the background.
        ///
        /// # Examples
        /// ```
        /// # tenure::block_on(async {
        /// let tenure = tenure::Tenure::connect("memory:").await?;
        #[doc = concat!("let lock = ", $example, ";")]
        #[doc = concat!("let guard = lock.", stringify!($lock), "(", $given, ").await?;")]
        /// println!("fence {}", guard.fence()?);
        /// guard.release().await?;
        /// # Ok::<(), tenure::Error>(()) }).unwrap();
        /// ```
        #[track_caller]
        pub fn $lock(
            &self,
            $($arg: $type,)*
        ) -> impl Future<Output = Result<$guard, Error>> + Send + use<> {
            self.$request($($arg,)* None).wait()
        }

        #[doc = concat!("Acquires ", $what, " if it is available at once; never waits.")]
        ///
        /// Returns `None` if it is held, or if other claims wait for it.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($lock), "`](Self::", stringify!($lock), "),")]
        /// except that it never times out.
        ///
        /// # Cancel safety
        /// What was granted meanwhile is released in the background.
        ///
        /// # Examples
        /// ```
        /// # tenure::block_on(async {
        /// let tenure = tenure::Tenure::connect("memory:").await?;
        #[doc = concat!("let lock = ", $example, ";")]
        #[doc = concat!(
            "if let Some(guard) = lock.",
            stringify!($try_lock),
            "(",
            $given,
            ").await? {",
        )]
        ///     guard.release().await?;
        /// }
        /// # Ok::<(), tenure::Error>(()) }).unwrap();
        /// ```
        #[track_caller]
        pub fn $try_lock(
            &self,
            $($arg: $type,)*
        ) -> impl Future<Output = Result<Option<$guard>, Error>> + Send + use<> {
            self.$request($($arg,)* Some($crate::session::Wait::Try)).attempt()
        }

        #[doc = concat!("Runs work while holding ", $what, ", and releases it.")]
        ///
        /// The work is dropped when the lock is lost.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($lock), "`](Self::", stringify!($lock), ");")]
        /// `Lost` if the lock was lost before the work was done: the error says why.
        ///
        /// # Cancel safety
        /// Dropping the future drops the work and releases the lock in the background.
        ///
        /// # Examples
        /// ```
        /// # tenure::block_on(async {
        /// let tenure = tenure::Tenure::connect("memory:").await?;
        #[doc = concat!("let lock = ", $example, ";")]
        #[doc = concat!("let work = |status: tenure::LockStatus| async move { status.fence() };")]
        #[doc = concat!("let fence = lock.", stringify!($run), "(", $first, "work).await??;")]
        /// # Ok::<(), tenure::Error>(()) }).unwrap();
        /// ```
        #[track_caller]
        pub fn $run<W, F, T>(
            &self,
            $($arg: $type,)*
            work: W,
        ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
        where
            W: FnOnce(LockStatus) -> F + Send,
            F: Future<Output = T> + Send,
            T: Send,
        {
            self.$request($($arg,)* None).run::<$guard, F, T>(work)
        }

        #[doc = concat!("Blocks the thread until ", $what, " is acquired.")]
        ///
        #[doc = concat!(
            "The blocking form of [`",
            stringify!($lock),
            "`](Self::",
            stringify!($lock),
            "): see there for an example.",
        )]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($lock), "`](Self::", stringify!($lock), ").")]
        #[track_caller]
        pub fn $blocking_lock(&self, $($arg: $type,)*) -> Result<$guard, Error> {
            $crate::session::block_on(self.$lock($($arg,)*))
        }

        #[doc = concat!("Acquires ", $what, " if it is available at once.")]
        ///
        #[doc = concat!(
            "The blocking form of [`",
            stringify!($try_lock),
            "`](Self::",
            stringify!($try_lock),
            "): see there for an example.",
        )]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($try_lock), "`](Self::", stringify!($try_lock), ").")]
        #[track_caller]
        pub fn $blocking_try_lock(&self, $($arg: $type,)*) -> Result<Option<$guard>, Error> {
            $crate::session::block_on(self.$try_lock($($arg,)*))
        }

        #[doc = concat!("Calls a closure while holding ", $what, ", and releases it.")]
        ///
        #[doc = concat!(
            "The blocking form of [`",
            stringify!($run),
            "`](Self::",
            stringify!($run),
            "): see there for an example.",
        )]
        /// A closure cannot be stopped from outside: one that takes long asks
        /// [`LockStatus::check`] now and then.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($run), "`](Self::", stringify!($run), ").")]
        #[track_caller]
        pub fn $blocking_run<T>(
            &self,
            $($arg: $type,)*
            work: impl FnOnce(LockStatus) -> T,
        ) -> Result<T, Error> {
            self.$request($($arg,)* None).blocking_run::<$guard, T>(work)
        }
    };
}
pub(super) use acquire_methods;

/// Declares the methods that wait in the queue for a limited time and return `None` after it.
macro_rules! try_for_methods {
    (
        $guard:ident, $request:ident($($arg:ident: $type:ty),*),
        $what:literal, $example:literal, $given:literal, $first:literal,
        $try_lock_for:ident, $blocking_try_lock_for:ident $(,)?
    ) => {
        #[doc = concat!("Acquires ", $what, ", waiting at most `limit`; returns `None` after it.")]
        ///
        /// The wait is one in the queue, and `limit` replaces the timeout of the lock. Zero is a
        /// plain try.
        ///
        /// # Errors
        /// `Shape` if the name is in use as another kind of lock. `Unavailable` if the store cannot
        /// be reached within `limit`.
        ///
        /// # Cancel safety
        /// Dropping the future gives up the place in the queue; what was granted meanwhile is
        /// released in the background.
        ///
        /// # Examples
        /// ```
        /// # use std::time::Duration;
        /// # tenure::block_on(async {
        /// let tenure = tenure::Tenure::connect("memory:").await?;
        #[doc = concat!("let lock = ", $example, ";")]
        /// let limit = Duration::from_millis(20);
        #[doc = concat!("match lock.", stringify!($try_lock_for), "(", $first, "limit).await? {")]
        ///     Some(guard) => guard.release().await?,
        ///     None => println!("still held after {limit:?}"),
        /// }
        /// # Ok::<(), tenure::Error>(()) }).unwrap();
        /// ```
        #[track_caller]
        pub fn $try_lock_for(
            &self,
            $($arg: $type,)*
            limit: Duration,
        ) -> impl Future<Output = Result<Option<$guard>, Error>> + Send + use<> {
            self.$request($($arg,)* Some($crate::primitives::request::try_for(limit))).attempt()
        }

        #[doc = concat!("Acquires ", $what, ", blocking at most `limit`; returns `None` after it.")]
        ///
        #[doc = concat!(
            "The blocking form of [`",
            stringify!($try_lock_for),
            "`](Self::",
            stringify!($try_lock_for),
            "): see there for an example.",
        )]
        ///
        /// # Errors
        #[doc = concat!(
            "As [`",
            stringify!($try_lock_for),
            "`](Self::",
            stringify!($try_lock_for),
            ").",
        )]
        #[track_caller]
        pub fn $blocking_try_lock_for(
            &self,
            $($arg: $type,)*
            limit: Duration,
        ) -> Result<Option<$guard>, Error> {
            $crate::session::block_on(self.$try_lock_for($($arg,)* limit))
        }
    };
}
pub(super) use try_for_methods;

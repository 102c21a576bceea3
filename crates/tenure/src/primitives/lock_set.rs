//! Several locks at once, all or nothing. A sorted set and options; `request.rs` acquires it.

use std::future::Future;
use std::time::Duration;

use super::guard::{LockSetGuard, LockStatus};
use super::options::{Options, option_methods};
use super::request::{Request, acquire_methods};
use crate::contract::{Error, ErrorKind, Part, Parts};
use crate::session::{Session, Wait, block_on};

/// Several locks, acquired and released together. Made by
/// [`Tenure::lock_set`](crate::Tenure::lock_set).
///
/// Names are sorted and de-duplicated, so two transfers over the same accounts in opposite
/// directions never wait for each other. There are two ways to wait for a set:
///
/// - [`lock`](Self::lock) stands in the queue of every name, and **holds what it has been granted
///   while it waits for the rest**. Where the engine takes a set in one step
///   ([`Promises::atomic_sets`](crate::Promises::atomic_sets)), these are places that were kept
///   for it; where it does not (Redis Cluster, a quorum), the names are acquired one by one, in
///   their order. It is not overtaken. Take it when the set must be had in the end.
/// - [`try_lock_for`](Self::try_lock_for) **holds nothing and stands in no queue**: it tries to
///   acquire all names, and pauses between two attempts. It may be overtaken. Take it when other
///   work on the names must go on meanwhile, and giving up is fine.
///
/// [`try_lock`](Self::try_lock) makes one attempt: it acquires all locks or releases what it got.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct LockSet {
    session: Session,
    parts: Parts,
    options: Options,
    max_tries: Option<u32>,
}

impl LockSet {
    pub(super) fn new(session: Session, parts: Parts, options: Options) -> Self {
        Self { session, parts, options, max_tries: None }
    }

    option_methods!();

    /// How many attempts [`try_lock_for`](Self::try_lock_for) makes at most. Without it: as many as
    /// fit into its time. At least one is made.
    pub fn max_tries(mut self, most: u32) -> Self {
        self.max_tries = Some(most);
        self
    }

    /// What the set consists of, sorted by name.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        self.parts.as_slice()
    }

    acquire_methods! {
        LockSetGuard, request(), "all locks of the set",
        "tenure.lock_set([tenure.mutex(\"a\")?.part(), tenure.mutex(\"b\")?.part()])?",
        "", "",
        /// The timeout counts for the whole set.
        ///
        /// # Fairness
        /// First come, first served on every name.
        lock, try_lock, run, blocking_lock, blocking_try_lock, blocking_run,
    }

    /// Tries to acquire all locks of the set until it succeeds or `limit` has passed, and holds
    /// nothing between two attempts. Returns `None` if no attempt succeeded.
    ///
    /// Each attempt is a [`try_lock`](Self::try_lock). After the first that fails it pauses for
    /// about 40 ms, then for twice as long each time, up to a second, with a jitter of half that
    /// time either way; the last attempt begins when `limit` has passed.
    /// [`max_tries`](Self::max_tries) limits the number of attempts as well. An attempt that has
    /// begun is finished, which takes as long as its calls to the store take.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except that it never times out. If the store cannot be reached it
    /// is tried again like a lock that is held; the error is returned if the last attempt met it.
    ///
    /// # Cancel safety
    /// What was granted meanwhile is released in the background.
    ///
    /// # Fairness
    /// None: it stands in no queue, and claims that wait come first.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let parts = [tenure.mutex("account:1")?.part(), tenure.mutex("account:2")?.part()];
    /// let both = tenure.lock_set(parts)?.max_tries(5);
    /// match both.try_lock_for(Duration::from_secs(1)).await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("one of the accounts is busy; later"),
    /// }
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn try_lock_for(
        &self,
        limit: Duration,
    ) -> impl Future<Output = Result<Option<LockSetGuard>, Error>> + Send + use<> {
        self.request(Some(Wait::Try)).repeat(limit, self.max_tries)
    }

    /// The blocking form of [`try_lock_for`](Self::try_lock_for): see there for an example.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for).
    #[track_caller]
    pub fn blocking_try_lock_for(&self, limit: Duration) -> Result<Option<LockSetGuard>, Error> {
        block_on(self.try_lock_for(limit))
    }

    #[track_caller]
    fn request(&self, wait: Option<Wait>) -> Request {
        Request::new(&self.session, &self.options, Ok(self.parts.clone()), wait)
    }
}

/// One lock of a [`LockSet`]: a name and a kind. Made by [`Mutex::part`](crate::Mutex::part) and
/// its like, or from a [`Part`].
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// let tenure = tenure::Tenure::blocking_connect("memory:")?;
/// let from = tenure.mutex("account:1")?;
/// let to = tenure.mutex("account:2")?;
/// // Options are set on the set, not on its parts.
/// let both = tenure.lock_set([from.part(), to.part()])?.lease(Duration::from_secs(5));
/// # both.blocking_lock()?.blocking_release()?;
/// let refused = tenure.lock_set([from.lease(Duration::from_secs(5)).part(), to.part()]);
/// assert!(refused.is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a part does nothing until its set is acquired"]
pub struct SetPart {
    part: Part,
    /// The first option that was set on the lock this part was made of.
    option: Option<&'static str>,
}

impl SetPart {
    pub(super) fn new(part: Part, options: &Options) -> Self {
        Self { part, option: options.set_on_lock }
    }

    /// The part, unless its lock has options that the set would ignore.
    pub(super) fn into_part(self) -> Result<Part, Error> {
        let Some(option) = self.option else { return Ok(self.part) };
        let what = format!("`{option}` was set on one lock of a set, where it has no effect");
        let help = format!("set it on the whole: lock_set(..)?.{option}(..)");
        Err(Error::new(ErrorKind::InvalidOption, what).on(self.part.name()).with_help(help))
    }
}

impl From<Part> for SetPart {
    fn from(part: Part) -> Self {
        Self { part, option: None }
    }
}

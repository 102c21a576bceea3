//! Several locks at once, all or nothing. Knows a sorted set and options.

use std::future::Future;

use super::asking::Asking;
use super::guard::{Held, SetGuard};
use super::options::{Options, option_methods};
use super::run::under;
use crate::contract::{Error, Parts};
use crate::session::Session;

/// Several locks, taken and given back together. Made by [`Tenure::all`](crate::Tenure::all).
///
/// Names are sorted and de-duplicated, and all places in line are taken in one atomic step: two
/// transfers over the same accounts in opposite directions never wait for each other.
///
/// Where the engine cannot do that ([`Promises::atomic_sets`](crate::Promises::atomic_sets)), they
/// are taken one by one in the order of their names, and nobody who takes sets alone waits in a
/// circle either. While one name is waited for, those before it are held already, and others wait
/// for them. A guard, its fences and its loss are the same.
#[derive(Clone, Debug)]
pub struct All {
    session: Session,
    parts: Parts,
    options: Options,
}

impl All {
    pub(super) fn new(session: Session, parts: Parts, options: Options) -> Self {
        Self { session, parts, options }
    }

    option_methods!();

    /// What the set consists of, sorted by name.
    #[must_use]
    pub fn parts(&self) -> &[crate::contract::Part] {
        self.parts.as_slice()
    }

    /// Waits until all locks of the set are ours.
    ///
    /// # Errors
    /// `TimedOut` when the wait limit, which counts for the whole set, passes; `Shape` if one of
    /// the names is in use as something else; `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future gives up all places in line and whatever was reserved or taken, in the
    /// background.
    ///
    /// # Fairness
    /// First come, first served on every name.
    ///
    /// # Examples
    /// ```
    /// # use tenure::Tenure;
    /// # tenure::blocking::wait(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let (from, to) = (tenure.mutex("account:1")?, tenure.mutex("account:2")?);
    /// let both = tenure.all([from.part(), to.part()])?.lock().await?;
    /// println!("fence of account:2: {}", both.fence_of("account:2")?);
    /// both.release().await?;
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<SetGuard, Error>> + Send + use<> {
        self.asking(true).wait()
    }

    /// Takes all locks if every one of them is to be had at once, and none otherwise.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except that it never times out.
    ///
    /// # Cancel safety
    /// What was granted meanwhile is given back in the background.
    #[track_caller]
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<SetGuard>, Error>> + Send + use<> {
        self.asking(false).attempt()
    }

    /// Runs work under all locks of the set; it is dropped when they are lost.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Lost` if the locks were lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the locks back in the background.
    #[track_caller]
    pub fn run<W, F, T>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
    where
        W: FnOnce(Held) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        under(self.lock(), work)
    }

    #[track_caller]
    fn asking(&self, may_wait: bool) -> Asking {
        Asking::new(&self.session, &self.options, self.parts.clone(), may_wait)
    }
}

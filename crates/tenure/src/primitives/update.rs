//! Updates of cells as users reach them: a cell, bounds, and a function to apply. How an update is
//! made is in `update_stages.rs`.

use std::future::Future;
use std::time::Duration;

use super::options::Options;
use super::update_stages::CellsUpdate;
use crate::contract::{Error, Name, Version};
#[cfg(feature = "json")]
use crate::contract::{ErrorKind, Verb};
use crate::limits;
use crate::session::{Session, block_on};

/// One cell, to be updated. Made by [`Tenure::cell`](crate::Tenure::cell).
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let visits = tenure.cell("visits")?;
/// let count = |old: Option<&[u8]>| {
///     let old = old.and_then(|old| std::str::from_utf8(old).ok()?.parse().ok());
///     (old.unwrap_or(0_u64) + 1).to_string()
/// };
/// visits.update(count).await?;
/// let done = visits.update(count).await?;
/// assert_eq!((done.value.as_deref(), done.conflicts), (Some(&b"2"[..]), 0));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct UpdatableCell {
    session: Session,
    options: Options,
    name: Name,
    bounds: UpdateBounds,
}

/// How often and for how long an update is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateBounds {
    pub(super) tries: u32,
    pub(super) timeout: Duration,
}

/// What an update did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updated {
    /// The version of the cell now; `None` if nothing was written because nothing changed.
    pub version: Option<Version>,
    /// What it contains now; `None` if it was removed.
    pub value: Option<Vec<u8>>,
    /// How often another client wrote in between: the function was applied so many times more.
    pub conflicts: u32,
}

impl Default for UpdateBounds {
    fn default() -> Self {
        Self { tries: limits::UPDATE_TRIES, timeout: limits::UPDATE_TIMEOUT }
    }
}

impl UpdatableCell {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Self {
        Self { session, options, name, bounds: UpdateBounds::default() }
    }

    /// Applies the function at most so many times [default: 64].
    pub fn tries(mut self, tries: u32) -> Self {
        self.bounds.tries = tries;
        self
    }

    /// Gives up after this long [default: 30 s].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.bounds.timeout = timeout;
        self
    }

    /// Replaces the value by what the function makes of it. The function gets `None` if there is no
    /// value. It may be applied several times and must do nothing else.
    ///
    /// # Errors
    /// `Conflict` if others wrote in between each time, or the time is over: it says how often, and
    /// who reserved the cell last; `Unsupported` if the engine has no cells; `Unavailable` if the
    /// store cannot be reached; `Limit` of unknown effect if the store cannot tell whether a write
    /// whose reply was lost was made.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write the cell, once.
    ///
    /// # Fairness
    /// After three conflicts, first come, first served.
    pub async fn update<V: Into<Vec<u8>>>(
        &self,
        mut apply: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated, Error> {
        self.update_async(|old| {
            let new = apply(old.as_deref()).into();
            std::future::ready(Ok(Some(new)))
        })
        .await
    }

    /// As [`update`](Self::update), with an async function that may fail, or return `None` to
    /// remove the value. Its error ends the update and is returned.
    ///
    /// # Errors
    /// As [`update`](Self::update), and what the function returns.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let queue = tenure.cell("queue")?;
    /// queue.update(|_| "a,b").await?;
    /// let pop = |old: Option<Vec<u8>>| async move {
    ///     let old = old.unwrap_or_default();
    ///     Ok(old.iter().position(|byte| *byte == b',').map(|at| old[at + 1..].to_vec()))
    /// };
    /// assert_eq!(queue.update_async(pop).await?.value.as_deref(), Some(&b"b"[..]));
    /// assert_eq!(queue.update_async(pop).await?.value, None); // removed
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn update_async<F>(
        &self,
        mut apply: impl FnMut(Option<Vec<u8>>) -> F,
    ) -> Result<Updated, Error>
    where
        F: Future<Output = Result<Option<Vec<u8>>, Error>>,
    {
        let names = std::slice::from_ref(&self.name);
        let mut update = CellsUpdate::new(&self.session, &self.options, names, self.bounds)?;
        let one = |olds: Vec<Option<Vec<u8>>>| {
            let new = apply(olds.into_iter().next().flatten());
            async move { Ok(vec![new.await?]) }
        };
        let mut done = update.run(one).await?;
        Ok(done.remove(0))
    }

    /// As [`update`](Self::update), with a value that is kept as JSON. A value that cannot be read
    /// is an error, and nothing is written.
    ///
    /// # Errors
    /// As [`update`](Self::update); `Corrupt` if the value is not such JSON.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    ///
    /// # Examples
    /// ```
    /// # tenure::block_on(async {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let stock = tenure.cell("stock")?;
    /// let left: u32 = stock.update_json(|old: Option<u32>| old.unwrap_or(10) - 1).await?;
    /// assert_eq!(left, 9);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[cfg(feature = "json")]
    pub async fn update_json<T>(&self, mut apply: impl FnMut(Option<T>) -> T) -> Result<T, Error>
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut last = None;
        self.update_async(|old| {
            let mut applied = || {
                let old = old.as_deref().map(serde_json::from_slice).transpose();
                let new = apply(old.map_err(|error| self.no_json("value", error))?);
                let text = serde_json::to_vec(&new);
                last = Some(new);
                text.map(Some).map_err(|error| self.no_json("new value", error))
            };
            std::future::ready(applied())
        })
        .await?;
        last.ok_or_else(|| Error::new(ErrorKind::Corrupt, "an update without a value"))
    }

    #[cfg(feature = "json")]
    fn no_json(&self, what: &str, error: serde_json::Error) -> Error {
        let what = format!("the {what} of the cell is not the expected JSON: {error}");
        let help = "see what is there with `tenure cells get`";
        let problem = Error::new(ErrorKind::Corrupt, what).during(Verb::Cell).on(&self.name);
        problem.with_help(help).caused_by(error)
    }

    /// The blocking form of [`update`](Self::update).
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn blocking_update<V: Into<Vec<u8>>>(
        &self,
        apply: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated, Error> {
        block_on(self.update(apply))
    }
}

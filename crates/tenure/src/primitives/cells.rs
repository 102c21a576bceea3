//! The cells of a store as users reach them. Each call goes through the session, which gives it a
//! time limit and refuses it once the session is closed.

use std::fmt;

use super::update_stages::write_unreserved;
use crate::contract::{
    Batch, BatchVerdict, Cell, CellPart, CellQuery, CellRange, Cells, Error, ErrorKind, Expect,
    Name, Pattern, Put, PutVerdict, Verb,
};
use crate::session::{CellWatch, Core, Session, block_on};

/// The cells of a store: versioned values beside the locks, with compare-and-set, time to live and
/// fenced writes. Made by [`Tenure::cells`](crate::Tenure::cells).
///
/// A cell and a lock of one name are two things. Every call has the time limit of
/// [`Builder::call_limit`](crate::Builder::call_limit). The example shows all calls; that of
/// [`Put`] compare-and-set.
///
/// # Examples
/// ```
/// use tenure::{Expect, Pattern, Put, PutVerdict, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("reports")?.lock().await?;
/// let put = Put::new("reports:latest".parse()?, "march").fenced(guard.fence()?);
/// assert!(matches!(tenure.cells().put(&put).await?, PutVerdict::Done(_)));
/// let cell = tenure.cells().get(&"reports:latest".parse()?).await?;
/// assert_eq!(cell.map(|cell| cell.value), Some(b"march".to_vec()));
///
/// let all = tenure.cells().list(&Pattern::new("reports:*"), None, 10).await?;
/// assert_eq!(all[0].0.as_str(), "reports:latest");
/// tenure.cells().remove(&"reports:latest".parse()?, Expect::Anything).await?;
/// # guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct CellStore<'a> {
    session: &'a Session,
}

impl<'a> CellStore<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self { session }
    }

    fn core(self) -> &'a Core {
        self.session.core()
    }

    /// Reads a cell. `None` if it has no value.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached, `Closed` after
    /// [`Tenure::close`](crate::Tenure::close).
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn get(&self, name: &Name) -> Result<Option<Cell>, Error> {
        self.core().get(name).await
    }

    /// Writes a cell if the expectation of `put` holds.
    ///
    /// # Errors
    /// `InvalidOption` if the value is too large; `InvalidName` if Tenure keeps the cell for
    /// itself; with an id, `Limit` of unknown effect if the store cannot tell whether this is a
    /// repeat; `Conflict` if an update has reserved the cell,
    /// with the process that writes; otherwise as [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write the cell. A repeat with the same id is safe.
    pub async fn put(&self, put: &Put) -> Result<PutVerdict, Error> {
        Ok(self.write(&Batch::from(put)).await?.into_single())
    }

    /// Writes several cells in one atomic step if all conditions hold.
    ///
    /// # Errors
    /// `InvalidOption` if the batch is outside its limits, `Unsupported` if the engine cannot write
    /// several cells at once; otherwise as [`put`](Self::put).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not write the cells: all of them, or none.
    pub async fn write(&self, batch: &Batch) -> Result<BatchVerdict, Error> {
        refuse_reserved(batch)?;
        write_unreserved(self.core(), batch).await
    }

    /// Removes a cell if the expectation holds. Its versions and fences go on growing.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Cancel safety
    /// Dropping the future may or may not remove the cell.
    pub async fn remove(&self, name: &Name, expect: Expect) -> Result<PutVerdict, Error> {
        let batch = Batch::new().remove(name.clone(), expect);
        Ok(self.write(&batch).await?.into_single())
    }

    /// Lists the cells that match, after a name, in the order of names.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Listing changes nothing.
    pub async fn list(
        &self,
        pattern: &Pattern,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        let behind = Name::after_reserved();
        let after = after.filter(|after| !after.is_reserved()).unwrap_or(&behind);
        self.core().list(CellQuery { pattern, after: Some(after), limit }).await
    }

    /// As [`list`](Self::list), with the cells that Tenure keeps for itself, such as the values of
    /// elections. Their names come first.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Listing changes nothing.
    pub async fn list_all(
        &self,
        pattern: &Pattern,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        self.core().list(CellQuery { pattern, after, limit }).await
    }

    /// Watches one cell, or all cells with a prefix. The watch begins with the present state.
    ///
    /// # Errors
    /// `InvalidOption` as for [`CellRange::prefix`]; otherwise as [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Dropping the future ends the watch.
    ///
    /// # Examples
    /// ```
    /// use tenure::{CellChange, CellRange, Put, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let mut watch = tenure.cells().watch(CellRange::prefix("config:")?).await?;
    /// tenure.cells().put(&Put::new("config:mail".parse()?, "on")).await?;
    /// let CellChange::Put(name, cell) = watch.next().await? else { panic!() };
    /// assert_eq!((name.as_str(), &*cell.value), ("config:mail", &b"on"[..]));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    pub async fn watch(&self, range: CellRange) -> Result<CellWatch, Error> {
        range.check()?;
        CellWatch::begin(self.session.clone(), range).await
    }

    /// The blocking form of [`get`](Self::get).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn blocking_get(&self, name: &Name) -> Result<Option<Cell>, Error> {
        block_on(self.get(name))
    }

    /// The blocking form of [`put`](Self::put).
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn blocking_put(&self, put: &Put) -> Result<PutVerdict, Error> {
        block_on(self.put(put))
    }

    /// The blocking form of [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn blocking_write(&self, batch: &Batch) -> Result<BatchVerdict, Error> {
        block_on(self.write(batch))
    }

    /// The blocking form of [`watch`](Self::watch).
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn blocking_watch(&self, range: CellRange) -> Result<CellWatch, Error> {
        block_on(self.watch(range))
    }

    /// The blocking form of [`remove`](Self::remove).
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn blocking_remove(&self, name: &Name, expect: Expect) -> Result<PutVerdict, Error> {
        block_on(self.remove(name, expect))
    }

    /// The blocking form of [`list`](Self::list).
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn blocking_list(
        &self,
        pattern: &Pattern,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Cell)>, Error> {
        block_on(self.list(pattern, after, limit))
    }
}

/// Refuses a batch that writes a cell that Tenure keeps for itself.
fn refuse_reserved(batch: &Batch) -> Result<(), Error> {
    let writes_reserved = |part: &&CellPart| part.writes() && part.name.is_reserved();
    match batch.parts.iter().find(writes_reserved) {
        None => Ok(()),
        Some(part) => {
            let what = "Tenure keeps this cell for itself, and it cannot be written";
            let error = Error::invalid(ErrorKind::InvalidName, what);
            Err(error.during(Verb::Cell).on(&part.name).with_help("choose another name"))
        }
    }
}

impl fmt::Debug for CellStore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CellStore").field(self.core()).finish()
    }
}

//! The second, small contract: versioned bytes for what is not a lock. Knows values, not owners.

use std::time::Duration;

use super::error::Error;
use super::name::Name;
use super::verdict::Fence;
use super::{Pattern, Pending};

/// Versioned bytes with compare-and-set, time to live and fenced writes.
///
/// Cells live in a name space of their own: a cell and a lock of one name never meet.
pub trait Cells: Send + Sync {
    /// The cell's value, if it has one.
    fn get<'a>(&'a self, name: &'a Name) -> Pending<'a, Option<Cell>>;

    /// Writes a value if the expectation holds.
    fn put<'a>(&'a self, put: &'a Put) -> Pending<'a, PutVerdict>;

    /// Removes the cell if the expectation holds. Its versions and fences go on growing.
    fn remove<'a>(&'a self, name: &'a Name, expect: Expect) -> Pending<'a, PutVerdict>;

    /// The cells that match, after a name, in the order of names.
    fn list<'a>(
        &'a self,
        pattern: &'a Pattern,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Pending<'a, Vec<(Name, Cell)>>;
}

/// The value of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with every write, also across removal.
    pub version: Version,
    /// The largest fence that wrote it, if any did.
    pub fence: Option<Fence>,
    /// How long it still lives, if it has a time to live.
    pub expires_in: Option<Duration>,
}

/// The version of a cell. Strictly grows, also across removal and expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A write.
///
/// # Examples
/// Compare-and-set: read, compute, and write only if the version is still the one that was read.
/// ```
/// use tenure::{Expect, Name, Put, PutVerdict, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let name: Name = "counter".parse()?;
/// let first = Put::new(name.clone(), [1]).expect(Expect::Absent);
/// let PutVerdict::Done(version) = tenure.cells().put(&first).await? else { unreachable!() };
/// let second = Put::new(name.clone(), [2]).expect(Expect::Version(version));
/// assert!(matches!(tenure.cells().put(&second).await?, PutVerdict::Done(_)));
/// // The version has changed, so the same write is refused now.
/// assert!(matches!(tenure.cells().put(&second).await?, PutVerdict::Refused(Some(_))));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which cell.
    pub name: Name,
    /// The new bytes. At most 256 KiB.
    pub value: Vec<u8>,
    /// On what condition.
    pub expect: Expect,
    /// Forget the value after this long.
    pub time_to_live: Option<Duration>,
}

/// On what condition a cell is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever is there.
    Anything,
    /// Nothing is there.
    Absent,
    /// Exactly this version is there.
    Version(Version),
    /// No larger fence has written it.
    Fence(Fence),
}

impl Expect {
    /// Judges a write to a cell: what is there, and the largest fence that wrote it. If it may be
    /// written, the fence that the cell has from then on; otherwise the answer to the writer.
    pub(crate) fn judge(
        self,
        present: Option<Cell>,
        seen: Option<Fence>,
    ) -> Result<Option<Fence>, PutVerdict> {
        let holds = match self {
            Self::Anything => true,
            Self::Absent => present.is_none(),
            Self::Version(version) => present.as_ref().is_some_and(|cell| cell.version == version),
            Self::Fence(given) => {
                return match seen.filter(|seen| *seen > given) {
                    Some(larger) => Err(PutVerdict::Stale(larger)),
                    None => Ok(Some(given)),
                };
            }
        };
        if holds { Ok(seen) } else { Err(PutVerdict::Refused(present)) }
    }
}

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutVerdict {
    /// Written; the cell now has this version.
    Done(Version),
    /// The expectation did not hold; this is what is there.
    Refused(Option<Cell>),
    /// A larger fence has written the cell before: the writer has lost its lock.
    Stale(Fence),
}

impl Put {
    /// A plain write.
    #[must_use]
    pub fn new(name: Name, value: impl Into<Vec<u8>>) -> Self {
        Self { name, value: value.into(), expect: Expect::Anything, time_to_live: None }
    }

    /// Only if the expectation holds.
    #[must_use]
    pub fn expect(mut self, expect: Expect) -> Self {
        self.expect = expect;
        self
    }

    /// Only if no larger fence has written the cell: a holder that lost its lock is refused.
    #[must_use]
    pub fn fenced(self, fence: Fence) -> Self {
        self.expect(Expect::Fence(fence))
    }

    /// Forget the value after this long.
    #[must_use]
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// Checks the value against its limits.
    ///
    /// # Errors
    /// If the value is too large or the time to live is zero.
    pub fn check(&self) -> Result<(), Error> {
        use super::error::{ErrorKind, Verb};
        let most = crate::limits::CELL_BYTES;
        let problem = if self.value.len() > most {
            format!("a cell holds at most {most} bytes, not {}", self.value.len())
        } else if self.time_to_live.is_some_and(|time| time.is_zero()) {
            "a time to live of zero would forget the value at once".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(ErrorKind::InvalidOption, problem).during(Verb::Cell).on(&self.name))
    }
}

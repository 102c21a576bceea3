//! Writes to cells: one put, or conditions on and writes to several cells as one atomic step.

use std::fmt;
use std::time::Duration;

use super::cells::{Cell, Expect, Version};
use super::error::{Error, ErrorKind, Verb};
use super::name::Name;
use super::verdict::Fence;
use crate::limits;
use crate::sync::random_bytes;
use crate::time::{Clock, SystemClock, Tick};

/// A write to one cell.
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
    /// A repeat with the same id is the same write.
    pub id: Option<WriteId>,
}

/// The reply to a write of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutVerdict {
    /// Written; the cell now has this version.
    Done(Version),
    /// The expectation did not hold; this is what is there.
    Refused(Option<Cell>),
    /// A larger fence has written the cell before: the writer has lost its lock.
    Stale(Fence),
}

/// Conditions on, and writes to, several cells as one atomic step: all of it is done, or nothing.
///
/// # Examples
/// ```
/// use tenure::{Batch, BatchVerdict, Expect, Put, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let batch = Batch::new()
///     .put(Put::new("stock:1".parse()?, "9").expect(Expect::Absent))
///     .put(Put::new("order:7".parse()?, "stock:1").expect(Expect::Absent));
/// assert!(matches!(tenure.cells().write(&batch).await?, BatchVerdict::Done(_)));
/// // Both exist now: neither is written, and both are named.
/// let BatchVerdict::Refused(conflicts) = tenure.cells().write(&batch).await? else { panic!() };
/// assert_eq!(conflicts.len(), 2);
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The cells, each at most once.
    pub parts: Vec<CellPart>,
    /// A repeat with the same id is the same write.
    pub id: Option<WriteId>,
    /// How long ago the id was made, at least, when the call arrives: the store must not take an
    /// old id for a new one. Set by the session.
    pub age: Duration,
}

/// One cell of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellPart {
    /// Which cell.
    pub name: Name,
    /// On what condition.
    pub expect: Expect,
    /// What is done to it.
    pub action: CellAction,
}

/// What a batch does to a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellAction {
    /// Nothing: the condition alone counts.
    Check,
    /// Writes a value.
    Put {
        /// The new bytes.
        value: Vec<u8>,
        /// Forget the value after this long.
        time_to_live: Option<Duration>,
    },
    /// Removes the value. Versions and the fence go on growing.
    Remove,
}

/// The reply to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchVerdict {
    /// All parts were written; the cells that were put have this version now.
    Done(Version),
    /// Nothing was written, because of these conditions. At least one.
    Refused(Vec<Conflict>),
}

/// A condition that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Of which cell.
    pub name: Name,
    /// Why it did not hold.
    pub cause: ConflictCause,
}

/// Why a condition on a cell did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictCause {
    /// The cell is not as expected; this is what is there.
    Changed(Option<Cell>),
    /// A larger fence has written the cell before: the writer has lost its lock.
    Stale(Fence),
}

/// The id of a write, with the instant at which it was made.
///
/// A store remembers the ids of the last 128 writes with an id to each cell, for at least one
/// `max_lease`. A repeat in that time gets the reply of the first. Later, or when so many other
/// writes came between, a store that cannot tell replies with an error of unknown effect, and
/// writes nothing.
///
/// # Examples
/// ```
/// use tenure::{Put, PutVerdict, Tenure, WriteId};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let put = Put::new("mail:17".parse()?, "sent").id(WriteId::new());
/// let first = tenure.cells().put(&put).await?;
/// assert_eq!(tenure.cells().put(&put).await?, first); // not written again
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteId {
    id: [u8; 16],
    made: Tick,
}

impl WriteId {
    /// A new id, made now.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "two defaults would differ")]
    pub fn new() -> Self {
        Self::made_at(SystemClock.now())
    }

    /// A new id, made at this instant of the session's clock.
    #[must_use]
    pub fn made_at(made: Tick) -> Self {
        Self { id: random_bytes(), made }
    }

    /// The id with this whole value, as a process of the same host made it.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) const fn from_parts(value: u128, made: Tick) -> Self {
        Self { id: value.to_be_bytes(), made }
    }

    /// The whole value, for stores.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.id)
    }

    /// How long ago the id was made.
    #[must_use]
    pub fn age(self, now: Tick) -> Duration {
        now.since(self.made)
    }
}

impl fmt::Debug for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteId({:08x})", self.as_u128() >> 96)
    }
}

impl Put {
    /// A plain write.
    #[must_use]
    pub fn new(name: Name, value: impl Into<Vec<u8>>) -> Self {
        let expect = Expect::Anything;
        Self { name, value: value.into(), expect, time_to_live: None, id: None }
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

    /// Makes repeats of this write safe: the session repeats it when a reply is lost, and a repeat
    /// that arrives after the first is not written again.
    #[must_use]
    pub fn id(mut self, id: WriteId) -> Self {
        self.id = Some(id);
        self
    }
}

impl Batch {
    /// A batch without parts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a write. The id of the put, if it has one, becomes that of the batch.
    #[must_use]
    pub fn put(mut self, put: Put) -> Self {
        self.id = put.id.or(self.id);
        let action = CellAction::Put { value: put.value, time_to_live: put.time_to_live };
        self.parts.push(CellPart { name: put.name, expect: put.expect, action });
        self
    }

    /// Adds a removal.
    #[must_use]
    pub fn remove(mut self, name: Name, expect: Expect) -> Self {
        self.parts.push(CellPart { name, expect, action: CellAction::Remove });
        self
    }

    /// Adds a condition on a cell that is not written.
    #[must_use]
    pub fn check(mut self, name: Name, expect: Expect) -> Self {
        self.parts.push(CellPart { name, expect, action: CellAction::Check });
        self
    }

    /// Makes repeats of this batch safe, see [`Put::id`].
    #[must_use]
    pub fn id(mut self, id: WriteId) -> Self {
        self.id = Some(id);
        self
    }

    /// The one cell that the batch is about: alone, its mark alone, or both together (see
    /// [`Name::update_mark`]). None if there are several.
    #[must_use]
    pub fn only_cell(&self) -> Option<Name> {
        let cell = |part: &CellPart| part.name.marked_cell().unwrap_or_else(|| part.name.clone());
        let (first, rest) = self.parts.split_first()?;
        let first = cell(first);
        rest.iter().all(|part| cell(part) == first).then_some(first)
    }

    /// Checks the batch against its limits. Engines get only batches that pass.
    ///
    /// # Errors
    /// `InvalidOption` if there is no part, if there are too many or a cell occurs twice, if a
    /// value or the whole is too large, if a time to live is zero, or if a version or fence is one
    /// that no store gives out.
    pub fn check_limits(&self) -> Result<(), Error> {
        let invalid = |what: String, help: &'static str| {
            Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell).with_help(help)
        };
        let (most, parts) = (limits::CELL_PARTS, self.parts.len());
        if parts == 0 {
            return Err(invalid("a batch without parts writes nothing".into(), "add a part"));
        }
        if parts > most {
            let what = format!("a batch has at most {most} parts, this one has {parts}");
            return Err(invalid(what, "write it in several batches"));
        }
        let mut names: Vec<&Name> = self.parts.iter().map(|part| &part.name).collect();
        names.sort();
        if let Some(name) = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]) {
            let what = "a batch has at most one part for each cell".to_owned();
            return Err(invalid(what, "merge the parts of this cell").on(name));
        }
        self.parts.iter().try_for_each(CellPart::check_limits)?;
        let bytes: usize = self.parts.iter().map(CellPart::bytes).sum();
        if bytes > limits::BATCH_BYTES {
            let most = limits::BATCH_BYTES;
            let what = format!("the values of a batch have at most {most} bytes, not {bytes}");
            return Err(invalid(what, "write it in several batches"));
        }
        Ok(())
    }
}

impl CellPart {
    /// Whether the batch writes or removes this cell.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.action != CellAction::Check
    }

    fn bytes(&self) -> usize {
        match &self.action {
            CellAction::Put { value, .. } => value.len(),
            CellAction::Check | CellAction::Remove => 0,
        }
    }

    fn check_limits(&self) -> Result<(), Error> {
        let most = limits::CELL_BYTES;
        let (problem, help) = match &self.action {
            CellAction::Put { value, .. } if value.len() > most => {
                let what = format!("a cell holds at most {most} bytes, not {}", value.len());
                (what, "keep the value elsewhere, and its address in the cell")
            }
            CellAction::Put { time_to_live: Some(Duration::ZERO), .. } => {
                let what = "a time to live of zero would forget the value at once";
                (what.to_owned(), "leave it out for a value that stays")
            }
            _ if self.expect.operand() >= limits::FENCE => {
                let what = format!("no fence or version is as large as {}", self.expect.operand());
                (what, "pass the number exactly as it was handed out")
            }
            _ => return Ok(()),
        };
        let error = Error::invalid(ErrorKind::InvalidOption, problem).during(Verb::Cell);
        Err(error.on(&self.name).with_help(help))
    }
}

impl From<&Put> for Batch {
    fn from(put: &Put) -> Self {
        Self::new().put(put.clone())
    }
}

impl BatchVerdict {
    /// The reply to a batch of one part.
    #[must_use]
    pub fn into_single(self) -> PutVerdict {
        match self {
            Self::Done(version) => PutVerdict::Done(version),
            Self::Refused(conflicts) => match conflicts.into_iter().next().map(|one| one.cause) {
                Some(ConflictCause::Stale(fence)) => PutVerdict::Stale(fence),
                Some(ConflictCause::Changed(cell)) => PutVerdict::Refused(cell),
                None => PutVerdict::Refused(None),
            },
        }
    }
}

/// The error for a repeat whose first attempt the store cannot tell about any more.
pub(crate) fn write_forgotten(name: &Name) -> Error {
    let what = "the store does not remember any more whether this write was made before";
    Error::new(ErrorKind::Limit, what)
        .effect_unknown()
        .during(Verb::Cell)
        .on(name)
        .with_help("read the cell, and write again with a new id if it must be")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    #[test]
    fn a_batch_outside_its_limits_is_refused_with_the_reason() {
        let put = |at: usize, bytes: usize| Put::new(name(&format!("c{at}")), vec![0; bytes]);
        let many = |parts: usize, bytes: usize| {
            (0..parts).fold(Batch::new(), |batch, at| batch.put(put(at, bytes)))
        };
        let large = Expect::Version(Version(limits::FENCE));
        let cases = [
            (Batch::new(), "without parts"),
            (many(limits::CELL_PARTS + 1, 0), "at most 32 parts"),
            (many(1, 0).check(name("c0"), Expect::Absent), "one part for each cell"),
            (many(1, limits::CELL_BYTES + 1), "a cell holds at most"),
            (many(5, limits::CELL_BYTES), "values of a batch"),
            (Batch::new().put(put(0, 1).time_to_live(Duration::ZERO)), "time to live of zero"),
            (Batch::new().check(name("c0"), large), "no fence or version"),
        ];
        for (batch, says) in cases {
            let error = batch.check_limits().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(says), "{error}");
        }
        many(limits::CELL_PARTS, 16).check_limits().unwrap();
        many(4, limits::CELL_BYTES).check_limits().unwrap();
    }

    #[test]
    fn an_id_is_shown_in_part_and_grows_old() {
        let id = WriteId::made_at(Tick::from_nanos(5));
        assert_eq!(id.age(Tick::from_nanos(8)), Duration::from_nanos(3));
        assert!(!format!("{id:?}").contains(&format!("{:032x}", id.as_u128())));
    }
}

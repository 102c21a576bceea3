//! The rules of cells: a batch, what is in its cells and the time -> what to write, or why not.
//!
//! A batch is judged in three steps.
//!
//! 1. *Is it a repeat?* Every cell has a [`WriteLog`] of the ids that wrote it. If the id of the
//!    batch is in the log of a cell that the batch writes, the reply is that of the first time.
//! 2. *Could it be a repeat?* The logs are short. If an entry that is younger than the id was
//!    dropped from the log of every cell that the batch writes, or if the id is older than entries
//!    are kept, the answer is unknown and nothing is written. A version that is still the expected
//!    one proves that the batch was not written before: it would have raised it.
//! 3. *Do all conditions hold?* If not, all that do not hold are returned.

use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::{
    Batch, Cell, CellPart, Conflict, ConflictCause, Expect, Fence, Name, Version,
};
use crate::limits;

/// What is in a cell of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellState {
    /// The value, unless it has expired.
    pub(crate) present: Option<Cell>,
    /// The largest fence that wrote it. Kept when the value is gone.
    pub(crate) fence: Option<Fence>,
    /// The ids that wrote it. Kept for a while when the value is gone.
    pub(crate) log: WriteLog,
}

/// What follows for a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It was written before, as this version.
    Repeat(Version),
    /// Write it. Each cell has the given fence from then on.
    Write(Vec<Option<Fence>>),
    /// These conditions do not hold.
    Refused(Vec<Conflict>),
    /// Whether it was written before cannot be told any more.
    Forgotten(Name),
}

/// The ids that wrote a cell, oldest first, with the instants by a clock of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteLog {
    pub(crate) entries: VecDeque<LogEntry>,
    /// The instant of the youngest entry that was dropped because there were too many; 0 if none.
    pub(crate) dropped_micros: u64,
}

/// One write with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub(crate) id: u128,
    pub(crate) version: Version,
    pub(crate) at_micros: u64,
}

impl WriteLog {
    /// The version that a write with this id made.
    pub(crate) fn find(&self, id: u128) -> Option<Version> {
        self.entries.iter().find(|entry| entry.id == id).map(|entry| entry.version)
    }

    /// Adds a write, and drops what is too much and what is older than `keep`.
    pub(crate) fn record(&mut self, entry: LogEntry, keep: Duration) {
        self.entries.push_back(entry);
        if self.entries.len() > limits::WRITE_IDS
            && let Some(dropped) = self.entries.pop_front()
        {
            self.dropped_micros = self.dropped_micros.max(dropped.at_micros);
        }
        let oldest = entry.at_micros.saturating_sub(micros(keep));
        while self.entries.front().is_some_and(|entry| entry.at_micros < oldest) {
            self.entries.pop_front();
        }
    }

    /// Whether the log still says something about writes at this time.
    pub(crate) fn is_needed(&self, now_micros: u64, keep: Duration) -> bool {
        let ends = |at: u64| at.saturating_add(micros(keep));
        let last = self.entries.back().map_or(0, |entry| entry.at_micros);
        now_micros < ends(last) || now_micros < ends(self.dropped_micros)
    }

    /// Whether the log has everything that was written since an instant.
    fn is_complete_since(&self, since_micros: u64) -> bool {
        self.dropped_micros < since_micros || self.dropped_micros == 0
    }
}

/// Judges a batch by what is in its cells, which come in the order of its parts.
pub(crate) fn judge(
    batch: &Batch,
    cells: &[CellState],
    now_micros: u64,
    keep: Duration,
) -> Judgement {
    let parts = || batch.parts.iter().zip(cells);
    let written = || parts().filter(|(part, _)| part.writes());
    if let Some(id) = batch.id {
        if let Some(version) = written().find_map(|(_, cell)| cell.log.find(id.as_u128())) {
            return Judgement::Repeat(version);
        }
        let since = now_micros.saturating_sub(micros(batch.age));
        let told = |(part, cell): (&CellPart, &CellState)| {
            let complete = batch.age < keep && cell.log.is_complete_since(since);
            complete || is_expected_version(part.expect, cell)
        };
        if let Some((part, _)) = written().next()
            && !written().any(told)
        {
            return Judgement::Forgotten(part.name.clone());
        }
    }
    let mut fences = Vec::with_capacity(cells.len());
    let mut conflicts = Vec::new();
    for (part, cell) in parts() {
        match check(part.expect, cell) {
            Ok(fence) => fences.push(if part.writes() { fence } else { cell.fence }),
            Err(cause) => conflicts.push(Conflict { name: part.name.clone(), cause }),
        }
    }
    if conflicts.is_empty() { Judgement::Write(fences) } else { Judgement::Refused(conflicts) }
}

/// Checks one condition. Returns the fence that the cell has after a write.
fn check(expect: Expect, cell: &CellState) -> Result<Option<Fence>, ConflictCause> {
    let holds = match expect {
        Expect::Anything => true,
        Expect::Absent => cell.present.is_none(),
        Expect::Version(_) => is_expected_version(expect, cell),
        Expect::Fence(given) => {
            return match cell.fence.filter(|seen| *seen > given) {
                Some(larger) => Err(ConflictCause::Stale(larger)),
                None => Ok(Some(given)),
            };
        }
    };
    if holds { Ok(cell.fence) } else { Err(ConflictCause::Changed(cell.present.clone())) }
}

fn is_expected_version(expect: Expect, cell: &CellState) -> bool {
    let version = cell.present.as_ref().map(|cell| cell.version);
    version.is_some_and(|version| expect == Expect::Version(version))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Put, WriteId};
    use crate::time::Tick;

    const KEEP: Duration = Duration::from_secs(60);

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn state(version: Option<u64>, fence: Option<u64>) -> CellState {
        let fence = fence.map(Fence::new);
        let cell = |version| Cell {
            value: b"x".to_vec(),
            version: Version(version),
            fence,
            expires_in: None,
        };
        CellState { present: version.map(cell), fence, log: WriteLog::default() }
    }

    fn entry(id: WriteId, version: u64, at_micros: u64) -> LogEntry {
        LogEntry { id: id.as_u128(), version: Version(version), at_micros }
    }

    fn id() -> WriteId {
        WriteId::made_at(Tick::ZERO)
    }

    fn judged(batch: &Batch, cells: &[CellState]) -> Judgement {
        judge(batch, cells, 100_000_000, KEEP)
    }

    #[test]
    fn all_conditions_that_do_not_hold_are_named_and_nothing_is_written() {
        let batch = Batch::new()
            .check(name("a"), Expect::Absent)
            .put(Put::new(name("b"), "1").expect(Expect::Version(Version(3))))
            .remove(name("c"), Expect::Fence(Fence::new(4)))
            .check(name("d"), Expect::Anything);
        let cells = [state(Some(1), None), state(Some(2), None), state(None, Some(5))];
        let cells = [&cells[..], &[state(None, None)]].concat();
        let Judgement::Refused(conflicts) = judged(&batch, &cells) else { panic!() };
        let names: Vec<&str> = conflicts.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(conflicts[1].cause, ConflictCause::Changed(cells[1].present.clone()));
        assert_eq!(conflicts[2].cause, ConflictCause::Stale(Fence::new(5)));
    }

    #[test]
    fn a_write_raises_the_fence_and_a_check_does_not() {
        let fenced = Expect::Fence(Fence::new(7));
        let batch = Batch::new()
            .check(name("a"), fenced)
            .remove(name("b"), fenced)
            .put(Put::new(name("c"), ""));
        let cells = [state(None, Some(5)), state(None, Some(5)), state(None, Some(9))];
        let fences = [5, 7, 9].map(|fence| Some(Fence::new(fence))).to_vec();
        assert_eq!(judged(&batch, &cells), Judgement::Write(fences));
    }

    #[test]
    fn a_repeat_gets_the_first_reply_whatever_the_conditions_say_by_now() {
        let (id, mut cell) = (id(), state(Some(9), None));
        cell.log.record(entry(id, 4, 99_000_000), KEEP);
        let batch = Batch::new()
            .check(name("a"), Expect::Absent)
            .put(Put::new(name("b"), "1").expect(Expect::Absent).id(id));
        let cells = [state(Some(1), None), cell];
        assert_eq!(judged(&batch, &cells), Judgement::Repeat(Version(4)));
        // The log of a cell that is only checked says nothing about this batch.
        let other = Batch::new().check(name("b"), Expect::Anything).id(id);
        assert!(matches!(judged(&other, &cells[1..]), Judgement::Write(_)));
    }

    #[test]
    fn a_log_keeps_128_ids_and_knows_what_it_does_not_know() {
        let mut log = WriteLog::default();
        let first = id();
        log.record(entry(first, 1, 1_000), KEEP);
        for at in 0..limits::WRITE_IDS as u64 - 1 {
            log.record(entry(id(), 2 + at, 2_000 + at), KEEP);
        }
        assert_eq!((log.find(first.as_u128()), log.dropped_micros), (Some(Version(1)), 0));
        log.record(entry(id(), 500, 3_000), KEEP);
        assert_eq!((log.find(first.as_u128()), log.dropped_micros), (None, 1_000));
        assert_eq!(log.entries.len(), limits::WRITE_IDS);

        let cell = CellState { log, ..state(Some(500), None) };
        let put = Put::new(name("a"), "1").id(id());
        let mut batch = Batch::from(&put);
        let aged = |batch: &mut Batch, micros: u64, now: u64| {
            batch.age = Duration::from_micros(micros);
            judge(batch, std::slice::from_ref(&cell), now, KEEP)
        };
        // Made after the entry that was dropped: it would be in the log.
        assert!(matches!(aged(&mut batch, 1_999, 3_000), Judgement::Write(_)));
        // Made before.
        assert_eq!(aged(&mut batch, 2_000, 3_000), Judgement::Forgotten(name("a")));
        // The version proves that nothing was written since.
        batch.parts[0].expect = Expect::Version(Version(500));
        assert!(matches!(aged(&mut batch, 2_000, 3_000), Judgement::Write(_)));
        batch.parts[0].expect = Expect::Version(Version(499));
        assert_eq!(aged(&mut batch, 2_000, 3_000), Judgement::Forgotten(name("a")));
    }

    #[test]
    fn an_id_older_than_logs_are_kept_is_not_told() {
        let mut batch = Batch::from(&Put::new(name("a"), "1").id(id()));
        batch.age = KEEP;
        assert_eq!(judged(&batch, &[state(None, None)]), Judgement::Forgotten(name("a")));
        batch.age = KEEP.saturating_sub(Duration::from_micros(1));
        assert!(matches!(judged(&batch, &[state(None, None)]), Judgement::Write(_)));
    }

    #[test]
    fn entries_end_when_they_are_too_old_and_a_log_when_all_are() {
        let (mut log, keep) = (WriteLog::default(), Duration::from_micros(10));
        log.record(entry(id(), 1, 100), keep);
        log.record(entry(id(), 2, 110), keep);
        assert_eq!(log.entries.len(), 2);
        log.record(entry(id(), 3, 111), keep);
        assert_eq!(log.entries.len(), 2);
        assert!(log.is_needed(120, keep) && !log.is_needed(121, keep));
        let dropped = WriteLog { entries: VecDeque::new(), dropped_micros: 111 };
        assert!(dropped.is_needed(120, keep) && !dropped.is_needed(121, keep));
    }
}

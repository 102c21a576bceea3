//! Updates of cells without a lock: read, apply a function, write if nothing has changed meanwhile.
//!
//! An update goes through at most three stages.
//!
//! 1. *Among the updates of this process* it waits for its turn (`session/update_lines.rs`), and
//!    begins with what the one before it left there.
//! 2. *Optimistic*: apply the function, write on the condition that the cell has the version that
//!    was read. A refusal carries what is there now, so no second read is needed. After a conflict
//!    it pauses: full jitter from 1 ms on, doubled each time up to 50 ms.
//! 3. *Reserved*, after three conflicts or when a reservation is met: it takes its place in the
//!    fair queue of a mutex that belongs to the cell, and as its holder writes a mark: a cell of
//!    its own (`@update:NAME`) with the fence of the lock and a time to live. Every update and
//!    every plain write is made on the condition that there is no such mark, in the same step, so
//!    the holder is the only writer until it is done. Its write removes the mark. So every update
//!    ends after three conflicts and its turn, however slow its function is.
//!
//! Every write has an id, and the session repeats it under that id if a reply is lost: the store
//! does not write it again. If that cannot be told any more, the error has an unknown effect, and
//! the function is not applied a second time.
//!
//! Engines that write one cell at a time (Redis Cluster) keep the mark beside its cell, so that the
//! two are one step there too; only updates of several cells are refused.

use std::future::Future;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::guard::LockSetGuard;
use super::lock_set::LockSet;
use super::options::Options;
use super::update::{UpdateBounds, Updated};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, Cells, ConflictCause, Error, ErrorKind,
    Expect, Name, Part, Parts, Put, Verb, Version, WriteId,
};
use crate::limits;
use crate::session::{Core, KnownCell, Session, sleep_until, within};
use crate::time::Tick;

/// After so many conflicts an update reserves its cells.
const CONFLICTS_BEFORE_QUEUE: u32 = 3;
/// How long a mark lives: the time that a function has before others may write again.
const MARK: Duration = Duration::from_secs(10);

/// One update of one or several cells.
pub(super) struct CellsUpdate<'a> {
    session: &'a Session,
    core: &'a Core,
    options: &'a Options,
    names: Vec<Name>,
    /// The marks of the cells.
    marks: Vec<Name>,
    olds: Vec<Option<Cell>>,
    bounds: UpdateBounds,
    deadline: Tick,
    conflicts: u32,
    /// Who reserved a cell that was to be written.
    reserved_by: Option<String>,
}

/// The lock and the marks of an update that has reserved its cells.
struct Reservation {
    lock: LockSetGuard,
    marks: Option<Version>,
}

impl<'a> CellsUpdate<'a> {
    pub(super) fn new(
        session: &'a Session,
        options: &'a Options,
        names: &[Name],
        bounds: UpdateBounds,
    ) -> Result<Self, Error> {
        let core: &Core = session.core();
        if bounds.tries == 0 || bounds.timeout > limits::MAX_WAIT {
            let what = "an update has at least one try, and at most a week";
            return Err(Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell));
        }
        let promises = core.engine().promises();
        if names.len() > 1 && !promises.atomic_sets {
            return Err(promises.lacks("writes of several cells in one step").during(Verb::Cell));
        }
        if names.len() > limits::CELL_PARTS / 2 {
            let most = limits::CELL_PARTS / 2;
            let what = format!("an update has at most {most} cells, not {}", names.len());
            return Err(Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell));
        }
        let marks: Result<Vec<Name>, Error> = names.iter().map(Name::update_mark).collect();
        Ok(Self {
            session,
            core,
            options,
            names: names.to_vec(),
            marks: marks?,
            olds: Vec::new(),
            bounds,
            deadline: core.now() + bounds.timeout,
            conflicts: 0,
            reserved_by: None,
        })
    }

    /// Runs the update to its end.
    pub(super) async fn run<F>(
        &mut self,
        apply: impl FnMut(Vec<Option<Vec<u8>>>) -> F,
    ) -> Result<Vec<Updated>, Error>
    where
        F: Future<Output = Result<Vec<Option<Vec<u8>>>, Error>>,
    {
        // Several cells could wait for each other's turns: only the store orders those.
        let mut turn = match &self.names[..] {
            [name] => Some(self.wait_for_turn(name.clone()).await?),
            _ => None,
        };
        match turn.as_mut().and_then(|known| known.take()) {
            Some(known) => self.olds = vec![known],
            None => self.read().await?,
        }
        let mut reservation = None;
        match self.repeat(apply, &mut reservation).await {
            Ok((news, version)) => {
                if let Some(known) = &mut turn {
                    **known = version.and_then(|version| self.known(&news, version));
                }
                // The write has removed the marks; dropping the lock serves the next in its queue.
                drop(reservation);
                Ok(self.done(news, version))
            }
            Err(error) => {
                self.give_back(reservation).await;
                Err(error)
            }
        }
    }

    /// Applies the function and writes until nothing came between. Returns what was written.
    async fn repeat<F>(
        &mut self,
        mut apply: impl FnMut(Vec<Option<Vec<u8>>>) -> F,
        reservation: &mut Option<Reservation>,
    ) -> Result<(Vec<Option<Vec<u8>>>, Option<Version>), Error>
    where
        F: Future<Output = Result<Vec<Option<Vec<u8>>>, Error>>,
    {
        loop {
            let news = apply(self.values()).await?;
            if news.len() != self.names.len() {
                let what = format!("{} values for {} cells", news.len(), self.names.len());
                return Err(Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell));
            }
            let marks = reservation.as_ref().and_then(|held| held.marks);
            let met_mark = match self.write(&news, marks).await? {
                Ok(version) => return Ok((news, version)),
                Err(met_mark) => met_mark,
            };
            self.conflicts += 1;
            self.check_bounds()?;
            let queues = met_mark || self.conflicts >= CONFLICTS_BEFORE_QUEUE;
            if queues && self.core.engine().promises().queue {
                self.reserve(reservation).await?;
            } else {
                self.pause().await;
            }
        }
    }

    async fn wait_for_turn(&self, name: Name) -> Result<OwnedMutexGuard<KnownCell>, Error> {
        let line = self.core.update_line(&name);
        let turn = within(self.core, self.deadline, line.lock_owned()).await;
        turn.ok_or_else(|| self.too_late())
    }

    async fn read(&mut self) -> Result<(), Error> {
        self.olds.clear();
        for name in &self.names {
            self.olds.push(self.core.get(name).await?);
        }
        Ok(())
    }

    fn values(&self) -> Vec<Option<Vec<u8>>> {
        self.olds.iter().map(|old| old.as_ref().map(|cell| cell.value.clone())).collect()
    }

    /// Writes the new values if nothing has changed. Returns the version, or whether a mark of
    /// another update was in the way; what is there now is in `olds`.
    async fn write(
        &mut self,
        news: &[Option<Vec<u8>>],
        marks: Option<Version>,
    ) -> Result<Result<Option<Version>, bool>, Error> {
        let mut batch = Batch::new().id(WriteId::made_at(self.core.now()));
        for ((name, old), new) in self.names.iter().zip(&self.olds).zip(news) {
            let expect = old.as_ref().map_or(Expect::Absent, |old| Expect::Version(old.version));
            let same = new.as_ref() == old.as_ref().map(|old| &old.value);
            let action = match new {
                // What is only read still has to be as it was.
                _ if same && self.names.len() > 1 => CellAction::Check,
                Some(value) => {
                    // A value that expires goes on to do so.
                    let left = old.as_ref().and_then(|old| old.expires_in);
                    let time_to_live = left.map(|left| left.max(Duration::from_micros(1)));
                    CellAction::Put { value: value.clone(), time_to_live }
                }
                None if old.is_none() => CellAction::Check,
                None => CellAction::Remove,
            };
            batch.parts.push(CellPart { name: name.clone(), expect, action });
        }
        if !batch.parts.iter().any(CellPart::writes) {
            batch.id = None;
        }
        for mark in &self.marks {
            batch = match marks {
                Some(version) => batch.remove(mark.clone(), Expect::Version(version)),
                None => batch.check(mark.clone(), Expect::Absent),
            };
        }
        let written = batch.parts[..self.names.len()].iter().any(CellPart::writes);
        let conflicts = match self.core.write_new(&batch).await? {
            BatchVerdict::Done(version) => return Ok(Ok(written.then_some(version))),
            BatchVerdict::Refused(conflicts) => conflicts,
        };
        let mut met_mark = false;
        for conflict in conflicts {
            let found = match conflict.cause {
                ConflictCause::Changed(found) => found,
                ConflictCause::Stale(_) => None,
            };
            if let Some(at) = self.names.iter().position(|name| *name == conflict.name) {
                self.olds[at] = found;
            } else {
                met_mark = true;
                self.reserved_by = found.map(|mark| writer(&mark.value));
            }
        }
        Ok(Err(met_mark))
    }

    /// Takes the place in the queue, and writes the marks as the holder of the lock.
    async fn reserve(&mut self, reservation: &mut Option<Reservation>) -> Result<(), Error> {
        let lock = if let Some(held) = reservation.take() {
            held.lock
        } else {
            let left = self.deadline.since(self.core.now());
            let parts = self.marks.iter().map(|mark| Part::write(mark.clone()));
            let parts = Parts::set(parts)?;
            let set = LockSet::new(self.session.clone(), parts, self.options.clone());
            set.timeout(left).lock().await?
        };
        let held = reservation.insert(Reservation { lock, marks: None });
        let text = format!("{} {}", self.core.host(), self.core.pid());
        let mut batch = Batch::new().id(WriteId::made_at(self.core.now()));
        for mark in &self.marks {
            let fence = held.lock.fence_of(mark.as_str())?;
            let put = Put::new(mark.clone(), text.clone()).fenced(fence);
            batch = batch.put(put.time_to_live(MARK));
        }
        let BatchVerdict::Done(version) = self.core.write_new(&batch).await? else {
            // A later holder of the lock has reserved the cells: this one was lost.
            return Err(self.too_late());
        };
        held.marks = Some(version);
        self.read().await
    }

    /// Ends a reservation without a write. If that fails, the marks end with their time to live.
    async fn give_back(&self, reservation: Option<Reservation>) {
        let Some(Reservation { lock, marks }) = reservation else { return };
        if let Some(version) = marks {
            let remove =
                |batch: Batch, mark: &Name| batch.remove(mark.clone(), Expect::Version(version));
            let _ = self.core.write(&self.marks.iter().fold(Batch::new(), remove)).await;
        }
        drop(lock);
    }

    /// Full jitter: any time up to 1 ms, 2 ms, ... 50 ms.
    async fn pause(&self) {
        let most = limits::UPDATE_PAUSE.min(Duration::from_millis(1 << self.conflicts.min(10)) / 2);
        let pause = most * u32::from(self.core.jitter()) / 255;
        sleep_until(self.core, (self.core.now() + pause).min(self.deadline)).await;
    }

    fn check_bounds(&self) -> Result<(), Error> {
        if self.conflicts >= self.bounds.tries || self.core.now() >= self.deadline {
            return Err(self.too_late());
        }
        Ok(())
    }

    fn too_late(&self) -> Error {
        let by = self.reserved_by.as_ref().map(|by| format!("; reserved last by {by}"));
        let what = format!(
            "not updated: others wrote in between {} times{}",
            self.conflicts,
            by.unwrap_or_default()
        );
        let help = "try again later, or allow more tries and time";
        let error = Error::new(ErrorKind::Conflict, what).during(Verb::Cell).with_help(help);
        self.names.first().map_or(error.clone(), |name| error.on(name))
    }

    /// What the next update of this process finds. Not known of a value that expires.
    fn known(&self, news: &[Option<Vec<u8>>], version: Version) -> KnownCell {
        let old = self.olds.first().and_then(Option::as_ref);
        if old.is_some_and(|old| old.expires_in.is_some()) {
            return None;
        }
        let fence = old.and_then(|old| old.fence);
        let cell = |value| Cell { value, version, fence, expires_in: None };
        Some(news.first().cloned().flatten().map(cell))
    }

    fn done(&self, news: Vec<Option<Vec<u8>>>, version: Option<Version>) -> Vec<Updated> {
        let conflicts = self.conflicts;
        news.into_iter().map(|value| Updated { version, value, conflicts }).collect()
    }
}

/// Writes a batch of a caller unless an update has reserved one of its cells.
pub(super) async fn write_unreserved(core: &Core, batch: &Batch) -> Result<BatchVerdict, Error> {
    let promises = core.engine().promises();
    let own = batch.parts.len();
    let written = batch.parts.iter().filter(|part| part.writes() && !part.name.is_reserved());
    let marks: Vec<(Name, &Name)> =
        written.filter_map(|part| Some((part.name.update_mark().ok()?, &part.name))).collect();
    // An engine that writes one cell at a time refuses more than one by itself.
    let several = own > 1 && !promises.atomic_sets;
    if several || own + marks.len() > limits::CELL_PARTS || own == 0 {
        return core.write(batch).await;
    }
    let check = |batch: Batch, (mark, _): &(Name, &Name)| batch.check(mark.clone(), Expect::Absent);
    let verdict = core.write(&marks.iter().fold(batch.clone(), check)).await?;
    let BatchVerdict::Refused(conflicts) = &verdict else { return Ok(verdict) };
    for conflict in conflicts {
        let Some((_, name)) = marks.iter().find(|(mark, _)| *mark == conflict.name) else {
            continue;
        };
        let by = match &conflict.cause {
            ConflictCause::Changed(Some(mark)) => writer(&mark.value),
            ConflictCause::Changed(None) | ConflictCause::Stale(_) => "another client".to_owned(),
        };
        let what = format!("not written: an update of {by} has reserved the cell");
        let help = "try again when it is done, or use an update, which waits for its turn";
        let error = Error::new(ErrorKind::Conflict, what).during(Verb::Cell).on(name);
        return Err(error.with_help(help));
    }
    Ok(verdict)
}

/// The host and process that wrote a mark.
pub(super) fn writer(mark: &[u8]) -> String {
    let text = String::from_utf8_lossy(mark);
    match text.rsplit_once(' ') {
        Some((host, pid)) => format!("process {pid} on {host}"),
        None => text.into_owned(),
    }
}

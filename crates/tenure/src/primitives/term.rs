//! A term of office: the guard of a leader, and the values it publishes.
//!
//! A leader holds the slot of the election, like a mutex, and keeps a record in the cell of the
//! same name. The record is written as part of winning, fenced with the term: a store that has seen
//! a later term refuses it. Every later write of the term expects the version that the term wrote
//! before, so that a late copy of an earlier `publish` cannot undo a later one, nor bring back what
//! `resign` has removed.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use super::guard::{LockStatus, MutexGuard};
use super::options::lacking;
use super::term_record::{TermRecord, check_value};
use crate::contract::{
    Batch, Cell, Cells, Error, ErrorKind, Expect, Fence, Loss, Name, Put, PutVerdict, Verb,
    Version, WriteId,
};
use crate::session::{Core, block_on, sleep_until};
use crate::time::Tick;

/// The leader of an [`Election`](crate::Election), from winning until it resigns or loses.
///
/// Dereferences to its [`Term`], and through that to a [`LockStatus`]: `term()`, `lost()`,
/// `check()`. Dropping it resigns in the background; observers hear of that from the next leader,
/// or within a lease. [`resign`](Self::resign) tells them at once.
///
/// # Examples
/// ```
/// # tenure::block_on(async {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let election = tenure.election("scheduler")?;
/// let leader = election.campaign("10.0.0.7:4100").await?;
/// println!("leads in term {}", leader.term()?); // an error once the leadership is lost
/// leader.publish("10.0.0.7:4200").await?;
/// leader.resign().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[must_use = "if unused, the leader resigns at once"]
pub struct LeaderGuard {
    term: Term,
    held: MutexGuard,
}

/// The term of a leader: number, loss, and the value it publishes. Cheap to clone. It only watches:
/// a `Term` does not keep the leadership, and outlives it. [`LeaderGuard`] has an example.
///
/// Dereferences to a [`LockStatus`], whose fence is the number of the term.
#[derive(Clone)]
#[must_use]
pub struct Term {
    status: LockStatus,
    core: Arc<Core>,
    /// Slot and cell of the election.
    slot: Name,
    /// The version that this term wrote last.
    written: Arc<Mutex<Option<Version>>>,
}

impl LeaderGuard {
    /// Publishes the value of a term that was just won. Until `deadline` it tries again while the
    /// store is away; an error means that the guard may not be handed out.
    pub(super) async fn win(
        held: MutexGuard,
        slot: &Name,
        value: Vec<u8>,
        deadline: Tick,
    ) -> Result<Self, Error> {
        let core = Arc::clone(held.lease.core());
        let (status, slot) = (held.status(), slot.clone());
        let term = Term { status, core, slot, written: Arc::default() };
        if term.core.engine().promises().cells {
            term.publish_first(value, deadline).await?;
        }
        // The store may have taken longer to answer than the grant may be trusted.
        term.check()?;
        Ok(Self { term, held })
    }

    /// Resigns: gives the leadership to the next candidate, and tells observers. Returns when the
    /// store has confirmed it.
    ///
    /// # Errors
    /// `Lost` if the leadership had been lost before. If the store could not be reached, it is
    /// given up in the background, and the lease is the backstop.
    ///
    /// # Cancel safety
    /// Dropping the future still resigns, in the background.
    pub async fn resign(self) -> Result<(), Error> {
        let number = self.term.term();
        self.held.release().await?;
        if let Ok(number) = number
            && self.term.core.engine().promises().cells
        {
            // Only now, because observers look at the slot when the cell changes. If it fails, they
            // find out when the lease would have ended.
            let (slot, expect) = (self.term.slot.clone(), Expect::Fence(number));
            let _ = self.term.core.write(&Batch::new().remove(slot, expect)).await;
        }
        Ok(())
    }

    /// The blocking form of [`resign`](Self::resign).
    ///
    /// # Errors
    /// As [`resign`](Self::resign).
    pub fn blocking_resign(self) -> Result<(), Error> {
        block_on(self.resign())
    }
}

impl Term {
    /// The number of the term, which grows from one leader to the next: the fence to hand to
    /// whatever the leader writes to.
    ///
    /// # Errors
    /// If the leadership was lost. Reads the clock itself, so that a process which was stopped for
    /// too long never gets a number to write with.
    pub fn term(&self) -> Result<Fence, Error> {
        self.status.fence()
    }

    /// Publishes another value. Observers see it with this term.
    ///
    /// # Errors
    /// `Lost` if the leadership was lost; `InvalidOption` if the value is too large (256 KiB less a
    /// few bytes); `Unsupported` if the engine has no cells; `Unavailable` if the store cannot be
    /// reached.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not publish the value. It is never published after one that
    /// was published later.
    pub async fn publish(&self, value: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (term, value) = (self.term()?, value.into());
        check_value(&value, &self.slot)?;
        let mut version = self.written();
        loop {
            // Without a version the term was won on an engine without cells.
            let expect = version.map(Expect::Version).ok_or_else(|| self.no_values())?;
            match self.write(term, &value, expect).await? {
                PutVerdict::Done(_) => return self.check(),
                PutVerdict::Stale(_) => return Err(self.overtaken()),
                // Another publish of this term came between, or one whose reply was lost.
                PutVerdict::Refused(found) => {
                    let is_ours = |cell: &Cell| {
                        let record = TermRecord::decode(&cell.value, &self.slot);
                        record.is_ok_and(|record| record.term == term)
                    };
                    let ours = found.filter(is_ours).ok_or_else(|| self.overtaken())?;
                    version = Some(ours.version);
                }
            }
        }
    }

    /// The blocking form of [`publish`](Self::publish).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn blocking_publish(&self, value: impl Into<Vec<u8>>) -> Result<(), Error> {
        block_on(self.publish(value))
    }

    async fn publish_first(&self, value: Vec<u8>, deadline: Tick) -> Result<(), Error> {
        let mut failures = 0;
        loop {
            let term = self.term()?;
            let error = match self.write(term, &value, Expect::Fence(term)).await {
                Ok(PutVerdict::Done(_)) => return Ok(()),
                Ok(PutVerdict::Stale(_) | PutVerdict::Refused(_)) => return Err(self.overtaken()),
                Err(error) => error,
            };
            failures += 1;
            let next = self.core.now() + self.core.pause(failures);
            if error.kind() != ErrorKind::Unavailable || next >= deadline {
                return Err(error);
            }
            sleep_until(&self.core, next).await;
        }
    }

    async fn write(&self, term: Fence, value: &[u8], expect: Expect) -> Result<PutVerdict, Error> {
        let claim = self.status.claim_id();
        let record = TermRecord { term, claim, value: value.to_vec() };
        let put = Put::new(self.slot.clone(), record.encode()).expect(expect);
        let put = put.id(WriteId::made_at(self.core.now()));
        let written = self.core.write(&Batch::from(&put)).await;
        let verdict = written.map_err(|error| error.on(&self.slot))?.into_single();
        if let PutVerdict::Done(version) = verdict {
            let mut last = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            *last = (*last).max(Some(version));
        }
        Ok(verdict)
    }

    fn written(&self) -> Option<Version> {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a term that the store shows to be over.
    fn overtaken(&self) -> Error {
        if let Err(error) = self.check() {
            return error;
        }
        let what = "the leadership was lost: the election has gone on to a later term";
        Error::new(ErrorKind::Lost, what)
            .during(Verb::Cell)
            .on(&self.slot)
            .because_of(Loss::Forgotten)
            .with_help("stop what you do as the leader; another one may have begun")
    }

    fn no_values(&self) -> Error {
        no_values(&self.core).on(&self.slot)
    }
}

/// The error of an engine on which leaders publish no values.
pub(super) fn no_values(core: &Core) -> Error {
    let has_cells = |promises: &crate::contract::Promises| promises.cells;
    lacking(core.engine().promises(), "cells, in which a leader publishes its value", has_cells)
}

impl Deref for LeaderGuard {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.term
    }
}

impl Deref for Term {
    type Target = LockStatus;

    fn deref(&self) -> &LockStatus {
        &self.status
    }
}

impl fmt::Debug for LeaderGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaderGuard").field(&self.term).finish()
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Term").field(&self.status).finish()
    }
}

//! The read-write lock: a reader weighs 1, a writer everything. Knows its name and options.

use std::future::Future;

use super::asking::Asking;
use super::guard::{Held, ReadGuard, WriteGuard};
use super::options::{Options, option_methods};
use super::run::under;
use crate::contract::{Error, Name, Part, Parts};
use crate::session::Session;

/// Many readers or one writer. Made by [`Tenure::rwlock`](crate::Tenure::rwlock).
///
/// Neither starves the other: all stand in one line, and readers that arrive behind a waiting
/// writer wait for it. A reader may [upgrade](ReadGuard::upgrade), a writer may
/// [downgrade](WriteGuard::downgrade).
#[derive(Clone, Debug)]
pub struct RwLock {
    session: Session,
    name: Name,
    options: Options,
}

impl RwLock {
    pub(super) fn new(session: Session, name: Name, options: Options) -> Self {
        Self { session, name, options }
    }

    option_methods!();

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// A reader's part of a set, for [`Tenure::all`](crate::Tenure::all). Only its name and
    /// kind: options belong on the set.
    #[must_use]
    pub fn reader(&self) -> Part {
        Part::read(self.name.clone())
    }

    /// A writer's part of a set, for [`Tenure::all`](crate::Tenure::all). Only its name and
    /// kind: options belong on the set.
    #[must_use]
    pub fn writer(&self) -> Part {
        Part::write(self.name.clone())
    }

    /// Waits until we are a reader.
    ///
    /// # Errors
    /// `TimedOut` when the wait limit passes (with who holds it and our place in line), `Shape`
    /// if the name is in use as something else, `Unavailable` if the store cannot be reached.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in line; if the lock was granted meanwhile it is
    /// given back in the background.
    ///
    /// # Fairness
    /// First come, first served, readers and writers in one line.
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = Result<ReadGuard, Error>> + Send + use<> {
        self.asking(self.reader(), true).wait()
    }

    /// Waits until we are the writer.
    ///
    /// # Errors
    /// As [`read`](Self::read). Inside a scope that already reads, this is an upgrade: it fails
    /// with `UpgradeConflict` if another reader already waits to write.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    ///
    /// # Fairness
    /// First come, first served, readers and writers in one line.
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = Result<WriteGuard, Error>> + Send + use<> {
        self.asking(self.writer(), true).wait()
    }

    /// Reads if that is possible at once. Never waits and never jumps the line.
    ///
    /// # Errors
    /// As [`read`](Self::read), except that it never times out.
    ///
    /// # Cancel safety
    /// If the lock was granted meanwhile it is given back in the background.
    #[track_caller]
    pub fn try_read(
        &self,
    ) -> impl Future<Output = Result<Option<ReadGuard>, Error>> + Send + use<> {
        self.asking(self.reader(), false).attempt()
    }

    /// Writes if that is possible at once. Never waits and never jumps the line.
    ///
    /// # Errors
    /// As [`read`](Self::read), except that it never times out.
    ///
    /// # Cancel safety
    /// If the lock was granted meanwhile it is given back in the background.
    #[track_caller]
    pub fn try_write(
        &self,
    ) -> impl Future<Output = Result<Option<WriteGuard>, Error>> + Send + use<> {
        self.asking(self.writer(), false).attempt()
    }

    /// Runs work as a reader; it is dropped when the lock is lost.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Lost` if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back in the background.
    #[track_caller]
    pub fn run_read<W, F, T>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
    where
        W: FnOnce(Held) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        under(self.read(), work)
    }

    /// Runs work as the writer; it is dropped when the lock is lost.
    ///
    /// # Errors
    /// As [`write`](Self::write); `Lost` if the lock was lost before the work was done.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives the lock back in the background.
    #[track_caller]
    pub fn run_write<W, F, T>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<W, F, T>
    where
        W: FnOnce(Held) -> F + Send,
        F: Future<Output = T> + Send,
        T: Send,
    {
        under(self.write(), work)
    }

    #[track_caller]
    fn asking(&self, part: Part, may_wait: bool) -> Asking {
        Asking::new(&self.session, &self.options, Parts::one(part), may_wait)
    }
}

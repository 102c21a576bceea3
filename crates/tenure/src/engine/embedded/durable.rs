//! The synced environment: what must outlive a reboot. It keeps the cells, and up to where fences
//! are reserved.
//!
//! ```text
//! F                 -> the fence up to which fences are reserved
//! G                 -> what a commit has written for other processes (`commit.rs`)
//! M, N, W, V, I     -> cells (`cell_rows.rs`)
//! J                 -> jobs (`job_rows.rs`)
//! ```
//!
//! Writers pass the gate's mutex for this environment. Every commit is an `fsync`, so writes run on
//! the worker thread for the disk. A transaction without a change is dropped, not committed.
//!
//! Readers do not wait for writers. But each one takes a place in LMDB's table of readers, under a
//! lock of LMDB that has no timeout: a process that is stopped there would block every reader of
//! every process. So a reader passes another mutex of the gate while it takes its place.
//!
//! LMDB creates a new environment in an empty file. So a `data.mdb` that was truncated would look
//! like a new one, and cells and fences would begin anew without an error. The file `made` beside
//! it shows that there was an environment: it is written once that is on disk. With it, an empty or
//! missing `data.mdb` is refused and left as it is.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use heed::{Env, EnvOpenOptions, MdbError, RoTxn, WithoutTls};

use super::directory::{self, StoreDirectory, cannot, cannot_without, is_full};
use super::errors::stuck;
use super::files::{is_damage, until_closed};
use super::gate::{Environment, Gate, GateGuard};
use super::store::WAIT;
use super::txn::{LmdbTable, Txn, TxnError};
use crate::contract::{Error, ErrorKind};

/// Address space for the environment; the file is only as large as what is in it.
const MAP: usize = 4 << 30;

/// What the disk must have space for, as a help text.
const MIN_SPACE: &str = "cells and the reserve of fences need 64 KiB, and what is in the cells";

/// The file that shows that there was an environment.
const MADE: &str = "made";

/// The synced environment.
pub(super) struct Durable {
    root: StoreDirectory,
    path: PathBuf,
    /// `None` once its files are gone: this process may open new ones at the same path.
    env: RwLock<Option<Env<WithoutTls>>>,
    table: LmdbTable,
    /// Device and inode of the file, to notice that the path leads to another one.
    inode: (u64, u64),
}

/// The environments that this process has open: LMDB must not open one twice.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<Durable>>>> = LazyLock::new(Mutex::default);

impl Durable {
    /// Returns the environment in this directory; opens it if this process has not done so yet.
    pub(super) fn at(root: &StoreDirectory, gate: &Gate) -> Result<Arc<Self>, Error> {
        let path = root.durable();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, durable| durable.strong_count() > 0);
        if let Some(durable) = open.get(&path).and_then(Weak::upgrade) {
            if inode(&path).is_ok_and(|inode| inode == durable.inode) {
                return Ok(durable);
            }
            *durable.env.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        directory::private_directory(&path).map_err(|error| cannot("make", &path, error))?;
        check_not_emptied(&path)?;
        // The environment reads while it opens.
        let _inside = gate.enter(Environment::Readers, WAIT).map_err(stuck)?;
        let durable =
            match open_env(&path).and_then(|opened| Ok(write_mark(&path).map(|()| opened)?)) {
                Ok((env, table)) => {
                    let inode = inode(&path).map_err(|error| cannot("look at", &path, error))?;
                    let env = RwLock::new(Some(env));
                    Self { root: root.clone(), path: path.clone(), env, table, inode }
                }
                Err(error) => return Err(failed(root, &path, TxnError::Store(error))),
            };
        let durable = Arc::new(durable);
        open.insert(path, Arc::downgrade(&durable));
        Ok(durable)
    }

    /// Runs one synced transaction. Blocks the thread: on the gate, and on the disk.
    pub(super) fn write<T>(
        &self,
        gate: &Gate,
        step: impl FnOnce(&Txn<'_>) -> T,
    ) -> Result<T, Error> {
        let inside = DurableGuard::enter(gate, WAIT)?;
        self.commit(&inside, |txn| (step(txn), true)).map_err(|failure| failure.error)
    }

    /// Runs one synced transaction inside the gate. The step also returns whether it has changed
    /// anything; if not, nothing is written. Returns when the transaction is on disk.
    pub(super) fn commit<T>(
        &self,
        _inside: &DurableGuard<'_>,
        step: impl FnOnce(&Txn<'_>) -> (T, bool),
    ) -> Result<T, CommitFailure> {
        let env = self.env();
        let env = env.as_ref().ok_or_else(|| CommitFailure::unwritten(self.gone()))?;
        let begun = env.write_txn().map_err(TxnError::Store);
        let txn = begun.map_err(|error| CommitFailure::unwritten(self.failed(error)))?;
        let txn = Txn::new(txn, self.table);
        let (answer, changed) = step(&txn);
        if txn.has_failed() || changed {
            let before = env.info().last_txn_id;
            let is_step = txn.has_failed();
            if let Err(error) = txn.commit() {
                let unwritten = is_step || is_unwritten(env, before);
                let full = unwritten && is_about_space(&error);
                let error = self.failed(error);
                let error = if unwritten { error } else { error.effect_unknown() };
                return Err(CommitFailure { error, full });
            }
        }
        Ok(answer)
    }

    /// Runs one read transaction.
    pub(super) fn read<T>(
        &self,
        gate: &Gate,
        read: impl FnOnce(&RoTxn<'_, WithoutTls>, LmdbTable) -> heed::Result<T>,
    ) -> Result<T, Error> {
        let env = self.env();
        let env = env.as_ref().ok_or_else(|| self.gone())?;
        let begun = {
            let _inside = gate.enter(Environment::Readers, WAIT).map_err(stuck)?;
            env.read_txn()
        };
        let result = begun.and_then(|txn| read(&txn, self.table));
        result.map_err(|error| self.failed(TxnError::Store(error)))
    }

    /// Returns up to where fences are reserved.
    pub(super) fn reserved(&self, gate: &Gate) -> Result<u64, Error> {
        self.write(gate, read_reserved)
    }

    /// Reserves fences up to `until`. Returns up to where they are reserved now.
    pub(super) fn reserve(&self, gate: &Gate, until: u64) -> Result<u64, Error> {
        self.write(gate, |txn| {
            let reserved = read_reserved(txn).max(until);
            txn.put(b"F", &reserved.to_le_bytes());
            reserved
        })
    }

    fn env(&self) -> RwLockReadGuard<'_, Option<Env<WithoutTls>>> {
        self.env.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> Error {
        let what = format!("{} was removed or replaced", self.path.display());
        Error::new(ErrorKind::Closed, what).with_help("connect again")
    }

    fn failed(&self, error: TxnError) -> Error {
        failed(&self.root, &self.path, error)
    }
}

/// Why a transaction was not committed.
pub(super) struct CommitFailure {
    /// With an unknown effect if it may have been.
    pub(super) error: Error,
    /// There was no space for it. A smaller one may fit.
    pub(super) full: bool,
}

impl CommitFailure {
    fn unwritten(error: Error) -> Self {
        Self { error, full: false }
    }
}

/// Proof of being alone inside the durable mutex. Dropping it unlocks the mutex, and wakes the
/// processes that wait for that.
pub(super) struct DurableGuard<'a> {
    inside: Option<GateGuard<'a>>,
    gate: &'a Gate,
}

impl<'a> DurableGuard<'a> {
    /// Enters, waiting for `limit` at most.
    pub(super) fn enter(gate: &'a Gate, limit: Duration) -> Result<Self, Error> {
        let inside = gate.enter(Environment::Durable, limit).map_err(stuck)?;
        Ok(Self { inside: Some(inside), gate })
    }

    /// Enters if the mutex is free.
    pub(super) fn enter_now(gate: &'a Gate) -> Option<Self> {
        let inside = gate.enter_now(Environment::Durable)?;
        Some(Self { inside: Some(inside), gate })
    }
}

impl Drop for DurableGuard<'_> {
    fn drop(&mut self) {
        // First unlocked, then woken: otherwise those that wake up would find it locked.
        self.inside = None;
        self.gate.board().end_round();
    }
}

/// Returns whether a failed commit has certainly left nothing behind. LMDB writes the pages of a
/// transaction, syncs them, and then writes the page that makes them valid. If it fails there, the
/// disk may have the transaction or not, and LMDB begins no other one.
fn is_unwritten(env: &Env<WithoutTls>, last_txn: usize) -> bool {
    env.info().last_txn_id == last_txn && env.write_txn().is_ok()
}

/// Returns whether a smaller transaction may succeed. LMDB reports `EIO` for a page that was
/// written in part, which is what a full disk does.
fn is_about_space(error: &TxnError) -> bool {
    match error {
        TxnError::Store(heed::Error::Mdb(error)) => *error == MdbError::MapFull,
        TxnError::Store(heed::Error::Io(error)) => is_full(error) || is_cut_short(error),
        TxnError::Store(_) | TxnError::Damaged(_) => false,
    }
}

fn is_cut_short(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// Writes the file `made`. The environment is synced first: a power cut must not leave the mark
/// without the environment.
fn write_mark(path: &Path) -> std::io::Result<()> {
    let mark = path.join(MADE);
    if mark.exists() {
        return Ok(());
    }
    std::fs::File::open(path.join("data.mdb"))?.sync_all()?;
    directory::private(&mark).map(drop)
}

/// Refuses an environment whose file was truncated or removed.
fn check_not_emptied(path: &Path) -> Result<(), Error> {
    let data = path.join("data.mdb");
    let state = match std::fs::metadata(&data) {
        Ok(about) if about.len() > 0 => return Ok(()),
        Ok(_) => "is empty",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "is missing",
        Err(error) => return Err(cannot("look at", &data, error)),
    };
    if !path.join(MADE).exists() {
        return Ok(());
    }
    let what = format!(
        "{} {state}, although cells and the reserve of fences were kept in it: it was cut short or \
         removed; nothing was changed",
        data.display()
    );
    let next = format!(
        "stop its users and put a backup of the file in its place; or remove {} to begin anew: \
         cells are then empty, and fences go on as far as the clock is right",
        path.display()
    );
    Err(Error::new(ErrorKind::Corrupt, what).with_help(next))
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path.join("data.mdb")).map(|about| (about.dev(), about.ino()))
}

fn read_reserved(txn: &Txn<'_>) -> u64 {
    let read = |bytes: &[u8]| {
        let bytes = bytes.try_into().map_err(|_| super::codec::Damaged)?;
        Ok(u64::from_le_bytes(bytes))
    };
    txn.get(b"F", "the reserve of fences", read).unwrap_or(0)
}

fn failed(root: &StoreDirectory, path: &Path, error: TxnError) -> Error {
    let what = match error {
        TxnError::Damaged(what) => format!("{what} cannot be read"),
        TxnError::Store(error) if is_damage(&error) => error.to_string(),
        TxnError::Store(heed::Error::Mdb(MdbError::MapFull)) => {
            return Error::new(ErrorKind::Limit, "the store has no room for more cells")
                .with_help("remove cells, or give them a time to live");
        }
        TxnError::Store(heed::Error::Io(error)) if is_cut_short(&error) => {
            let help = format!("see whether the disk is full or failing: {MIN_SPACE}");
            return cannot("write", path, error).with_help(help);
        }
        TxnError::Store(heed::Error::Io(error)) => {
            return cannot_without("write", path, error, MIN_SPACE);
        }
        TxnError::Store(error) => {
            let what = format!("{} failed: {error}", path.display());
            return Error::new(ErrorKind::Unavailable, what).caused_by(error);
        }
    };
    let aside = match root.set_aside(path) {
        Ok(aside) => format!("set aside as {}", aside.display()),
        Err(error) => format!("could not be set aside: {error}"),
    };
    Error::new(ErrorKind::Corrupt, format!("{} is damaged ({what}); {aside}", path.display()))
        .with_help(
            "restart its users: cells begin empty, fences go on as far as the clock is right",
        )
}

#[allow(unsafe_code, reason = "heed cannot see which processes map the file")]
fn open_env(path: &Path) -> heed::Result<(Env<WithoutTls>, LmdbTable)> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP);
    until_closed(path);
    // SAFETY: opened once in this process (see `OPEN`), in one pid namespace, on a local file
    // system (see `directory`); nothing but LMDB writes these files.
    let env = unsafe { options.open(path) }?;
    // A read beyond the end of the file would end the process with a signal.
    let whole = (env.info().last_page_number as u64 + 1) * u64::from(env.stat().page_size);
    if std::fs::metadata(path.join("data.mdb"))?.len() < whole {
        return Err(heed::Error::Mdb(MdbError::Corrupted));
    }
    // Readers of killed processes would keep old pages from being reused.
    env.clear_stale_readers()?;
    // The unnamed table always exists, so opening it writes nothing.
    let txn = env.read_txn()?;
    let table = env.open_database(&txn, None)?;
    drop(txn);
    let table = table.ok_or(heed::Error::Mdb(MdbError::Invalid))?;
    Ok((env, table))
}

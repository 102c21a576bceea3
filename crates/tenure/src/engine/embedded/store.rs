//! The lock environment of one store, opened once in this process, and the steps made in it.
//!
//! A *step* is one verb of the ledger inside one LMDB write transaction, inside the gate. In order:
//! enter the gate; read the clock; check that the files are still in place; follow a map that
//! another process has enlarged; run the verb; reserve fences on disk if the step gave out more
//! than are reserved; commit. A map that is full is enlarged, and the step is run again.
//!
//! Invariants:
//!
//! 1. **Time does not go back from one step to the next**, because the clock is read inside the
//!    gate.
//! 2. **No fence is committed that is not reserved on disk**: `check_reserve` comes before the
//!    commit. So fences grow even if the lock files are deleted.
//! 3. **The blocks of the map exist before the map does**: a page that the disk has no space for
//!    would end the process with a signal instead of an error.
//! 4. **A full disk never keeps a lock taken**: steps that may grow the store leave `SPARE` bytes
//!    free for releases, renewals and evictions.
//! 5. **Damaged files are set aside, not repaired.** `closed` is set in shared memory first, so
//!    that no other process goes on in files that the next client will not find.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use heed::{Env, MdbError, RoTxn, WithoutTls};
use rustix::fs::{FlockOperation, fcntl_lock};

use super::directory::{self, SetupLock, StoreDirectory, cannot};
use super::durable::Durable;
use super::errors::{foreign, forked, stuck};
use super::files::{OpenError, check_namespace, create, is_damage, open_env, set_aside};
use super::gate::{Environment, Gate, GateBusy, GateGuard};
use super::handover::Handover;
use super::liveness;
use super::map::MAX_MAP;
use super::sizes::Sizes;
use super::slots::{RowContext, SlotRows};
use super::txn::{LmdbTable, Txn, TxnError};
use crate::contract::{Error, ErrorKind, SessionId, Signal};
use crate::ledger::seam::Mint;
use crate::ledger::{Ledger, Now};
use crate::limits;
use crate::process::Birth;
use crate::time::{Clock, Tick};

/// The smallest map that any version has created.
const MIN_MAP: u64 = 1 << 20;
/// How far ahead fences are reserved: an hour of the wall clock, which they follow.
const AHEAD: u64 = 3_600_000_000;

/// How often a step checks that the files are still in place, in nanoseconds.
const CHECK_EVERY: u64 = 100_000_000;

/// Every so many claims a few slots are swept: rarely, because that wakes the worker thread.
const SWEEP_EVERY: u64 = 4_096;

/// The timeout of the gate.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// The lock environment.
pub(super) struct Store {
    root: StoreDirectory,
    pub(super) file_set: PathBuf,
    /// Never read: the record lock on it shows that the file set is in use. Closed before the
    /// environment: this process may open the store again as soon as that is closed, and closing
    /// this descriptor later would release the new lock too.
    _users: File,
    /// `None` once the store is gone: this process may open another one at the same path.
    env: RwLock<Option<Env<WithoutTls>>>,
    table: LmdbTable,
    sizes: Sizes,
    pub(super) gate: Gate,
    handover: Handover,
    pub(super) data: File,
    /// Device and inode of `data`, to notice that the path leads to another file.
    inode: (u64, u64),
    durable: OnceLock<Arc<Durable>>,
    birth: Birth,
    pub(super) gone: OnceLock<String>,
    claims: AtomicU64,
    /// The reserve of fences is running low.
    low: AtomicBool,
    /// A claim found the store full.
    pub(super) full: AtomicBool,
    /// When the files were checked last, in nanoseconds of the clock.
    checked: AtomicU64,
}

/// A store directory and a boot of the machine: what identifies a file set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreAddress {
    pub(super) root: StoreDirectory,
    pub(super) boot: String,
}

/// Whether a step may need more space, which a full disk may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    MayGrow,
    FreesSpace,
}

/// The answer of a step, and the signals to deliver.
pub(super) type StepOutcome<T> = (T, Vec<(SessionId, Signal)>);

impl Store {
    /// Opens the store at this address, and creates it if it does not exist. Once per process.
    pub(super) fn open(address: &StoreAddress, sizes: Sizes) -> Result<Self, Error> {
        let root = &address.root;
        let lock = root.lock_setup()?;
        root.clear_old(&address.boot, &lock);
        let file_set = root.file_set(&address.boot);
        if file_set.exists() {
            check_namespace(&file_set)?;
        }
        let fresh = !file_set.exists();
        if fresh {
            create(root, &file_set, &lock)?;
        }
        let opened = Self::open_files(root, &file_set, sizes);
        match opened {
            Ok(store) => {
                store.first_reserve(&lock)?;
                liveness::clear_old(&store.sessions());
                Ok(store)
            }
            Err(OpenError::Failed(error)) => Err(error),
            // Files that are in use are not damaged: another build has made them.
            Err(OpenError::Damaged(what)) if directory::in_use(&file_set) => Err(foreign(&what)),
            Err(OpenError::Damaged(what)) => Err(set_aside(root, &file_set, &what)),
        }
    }

    fn open_files(root: &StoreDirectory, file_set: &Path, sizes: Sizes) -> Result<Self, OpenError> {
        let page = file_set.join("guard");
        let file = File::options().read(true).write(true).open(&page);
        let file =
            file.map_err(|error| OpenError::Damaged(format!("{}: {error}", page.display())))?;
        let gate = Gate::open(&file, false).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => OpenError::Damaged(format!("guard page: {error}")),
            _ => OpenError::Failed(cannot("map", &page, error)),
        })?;
        let handover = open_handover(&file_set.join("writes"))?;
        let path = file_set.join("locks/data.mdb");
        let data = File::options().read(true).write(true).open(&path);
        let data =
            data.map_err(|error| OpenError::Damaged(format!("{}: {error}", path.display())))?;
        let about =
            data.metadata().map_err(|error| OpenError::Failed(cannot("read", &path, error)))?;
        let map = gate.counters().map_size.load(Ordering::Acquire);
        if about.len() < map || map < MIN_MAP {
            return Err(OpenError::Damaged(format!("{} was cut short", path.display())));
        }
        let env = {
            // Opening takes LMDB's writer lock, which has no timeout: inside the gate, then.
            let inside = gate.enter(Environment::Locks, WAIT);
            // The kernel unlocks the mutex of a process that died: a mutex that stays locked while
            // no process uses the file set is not one.
            let _inside = inside.map_err(|busy| {
                if directory::in_use(file_set) {
                    OpenError::Failed(stuck(busy))
                } else {
                    OpenError::Damaged(
                        "guard page: the gate is locked, but no process uses the store".into(),
                    )
                }
            })?;
            open_env(&file_set.join("locks"), usize::try_from(map).unwrap_or(MAX_MAP))
        };
        let (env, table) = env.map_err(|error| OpenError::new(error, &path))?;
        let users = directory::private(&file_set.join("users"))
            .and_then(|file| {
                Ok(fcntl_lock(&file, FlockOperation::NonBlockingLockShared).map(|()| file)?)
            })
            .map_err(|error| OpenError::Failed(cannot("lock", file_set, error)))?;
        Ok(Self {
            root: root.clone(),
            file_set: file_set.to_owned(),
            _users: users,
            env: RwLock::new(Some(env)),
            table,
            sizes,
            gate,
            handover,
            data,
            inode: (about.dev(), about.ino()),
            durable: OnceLock::new(),
            birth: Birth::here(),
            gone: OnceLock::new(),
            claims: AtomicU64::new(0),
            low: AtomicBool::new(false),
            full: AtomicBool::new(false),
            checked: AtomicU64::new(0),
        })
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.file_set.join("sessions")
    }

    pub(super) fn file_set(&self) -> &Path {
        &self.file_set
    }

    /// Returns why the store is gone, if it is.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    /// Returns whether this process is a forked child, which must not use its parent's store.
    pub(super) fn inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Checks that the path still leads to the file that was opened. If not, the store is gone.
    pub(super) fn check_files(&self) -> bool {
        let path = self.file_set.join("locks/data.mdb");
        let there = fs::metadata(&path).map(|about| (about.dev(), about.ino()));
        if there.ok() == Some(self.inode) {
            return self.gone.get().is_none();
        }
        let what = format!("the store at {} was removed or replaced", self.file_set.display());
        let _ = self.gone.set(what);
        false
    }

    /// Returns the synced environment, which is opened at its first use.
    pub(super) fn durable(&self) -> Result<&Arc<Durable>, Error> {
        if self.inherited() {
            return Err(forked());
        }
        if let Some(durable) = self.durable.get() {
            return Ok(durable);
        }
        // Two threads may open it at once; the second value is dropped, and `Durable::at` returns
        // the same environment to both.
        let durable = Durable::at(&self.root, &self.gate)?;
        Ok(self.durable.get_or_init(|| durable))
    }

    /// Runs one read transaction of the synced environment.
    pub(super) fn read_durable<T>(
        &self,
        read: impl FnOnce(&RoTxn<'_, WithoutTls>, LmdbTable) -> heed::Result<T>,
    ) -> Result<T, Error> {
        self.durable()?.read(&self.gate, read)
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns the slots through which processes hand writes of cells to each other.
    pub(super) fn handover(&self) -> &Handover {
        &self.handover
    }

    /// Runs one step if the gate is free. Returns `None` if it is busy.
    pub(super) fn try_step<T>(
        &self,
        namespace: u32,
        clock: &dyn Clock,
        kind: StepKind,
        step: impl FnMut(&mut Ledger<SlotRows<'_, '_>>, Now) -> T,
    ) -> Result<Option<StepOutcome<T>>, Error> {
        self.usable()?;
        match self.gate.try_enter(Environment::Locks) {
            Ok(inside) => self.run(&inside, namespace, clock, kind, step).map(Some),
            Err(GateBusy { .. }) => Ok(None),
        }
    }

    /// Runs one step as soon as the gate is free. Blocks the thread, for `limit` at most.
    pub(super) fn step<T>(
        &self,
        namespace: u32,
        clock: &dyn Clock,
        kind: StepKind,
        limit: Duration,
        step: impl FnMut(&mut Ledger<SlotRows<'_, '_>>, Now) -> T,
    ) -> Result<StepOutcome<T>, Error> {
        self.usable()?;
        match self.gate.enter(Environment::Locks, limit) {
            Ok(inside) => self.run(&inside, namespace, clock, kind, step),
            Err(busy) => Err(stuck(busy)),
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stop_inside(&self) -> Result<(), Error> {
        let inside = self.gate.enter(Environment::Locks, WAIT).map_err(stuck)?;
        let env = self.env();
        let env = env.as_ref().ok_or_else(|| self.lost())?;
        let txn = env.write_txn().map_err(|error| self.failed(TxnError::Store(error)))?;
        inside.stop();
        drop(txn);
        Ok(())
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stop_in_read(&self) -> Result<(), Error> {
        self.durable()?;
        self.gate.enter(Environment::Readers, WAIT).map_err(stuck)?.stop();
        Ok(())
    }

    /// Returns the error if this process cannot use the store any more.
    pub(super) fn usable(&self) -> Result<(), Error> {
        if self.inherited() {
            return Err(forked());
        }
        if self.gone().is_some() { Err(self.lost()) } else { Ok(()) }
    }

    pub(super) fn lost(&self) -> Error {
        Error::new(ErrorKind::Closed, self.gone().unwrap_or("the store is closed").to_owned())
            .with_help("connect again; everything that was held is lost")
    }

    fn env(&self) -> RwLockReadGuard<'_, Option<Env<WithoutTls>>> {
        self.env.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the environment of a store that is gone.
    pub(super) fn close(&self) {
        *self.env.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn run<T>(
        &self,
        inside: &GateGuard<'_>,
        namespace: u32,
        clock: &dyn Clock,
        kind: StepKind,
        mut step: impl FnMut(&mut Ledger<SlotRows<'_, '_>>, Now) -> T,
    ) -> Result<StepOutcome<T>, Error> {
        let env = self.env();
        let env = env.as_ref().ok_or_else(|| self.lost())?;
        // Inside the gate: invariant 1.
        let mut tick = clock.now();
        self.check_open(tick)?;
        self.follow_map(env, inside)?;
        if kind == StepKind::MayGrow {
            self.keep_spare(env, inside)?;
        }
        let counters = self.gate.counters();
        loop {
            let txn = env.write_txn().map_err(|error| self.failed(TxnError::Store(error)))?;
            let txn = Txn::new(txn, self.table);
            let context = RowContext { txn: &txn, counters, sizes: &self.sizes };
            let now = Now { tick, wall_micros: clock.wall_micros() };
            let mint = Mint {
                floor: counters.floor.load(Ordering::Relaxed),
                arrivals: counters.arrivals.load(Ordering::Relaxed),
                ..Mint::default()
            };
            let mut ledger = Ledger::over(SlotRows::new(context, namespace), mint);
            let answer = step(&mut ledger, now);
            let (mut rows, mint, signals) = ledger.into_parts();
            rows.flush();
            drop(rows);
            counters.floor.fetch_max(mint.floor, Ordering::Relaxed);
            counters.arrivals.fetch_max(mint.arrivals, Ordering::Relaxed);
            self.check_reserve(mint.top)?;
            match txn.commit() {
                Ok(()) => return Ok((answer, signals)),
                Err(TxnError::Store(heed::Error::Mdb(MdbError::MapFull))) => {
                    self.grow(env, inside)?;
                    tick = clock.now();
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Checks that the store was not set aside by another process and, now and then, that its files
    /// are still in place. A backstop: the event loop watches them too.
    fn check_open(&self, now: Tick) -> Result<(), Error> {
        if self.gate.counters().closed.load(Ordering::Acquire) != 0 {
            let _ = self.gone.set("the store was found damaged and set aside".to_owned());
            return Err(self.lost());
        }
        let now = now.as_nanos();
        let checked = self.checked.load(Ordering::Relaxed);
        if now.abs_diff(checked) < CHECK_EVERY {
            return Ok(());
        }
        self.checked.store(now, Ordering::Relaxed);
        if self.check_files() { Ok(()) } else { Err(self.lost()) }
    }

    /// Makes sure that fences up to `top` are reserved.
    fn check_reserve(&self, top: u64) -> Result<(), Error> {
        let reserved = self.gate.counters().reserved.load(Ordering::Acquire);
        if top > reserved {
            return self.reserve(top);
        }
        if top.saturating_add(AHEAD / 4) > reserved {
            self.low.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts a claim. Returns whether it is the one that starts a sweep.
    pub(super) fn counts_to_sweep(&self) -> bool {
        self.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1
    }

    /// Returns whether a claim found the store full, and resets that.
    pub(super) fn was_full(&self) -> bool {
        self.full.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the reserve of fences is running low, and resets that.
    pub(super) fn wants_reserve(&self) -> bool {
        self.low.load(Ordering::Relaxed) && self.low.swap(false, Ordering::Relaxed)
    }

    /// Reserves fences further ahead, before they are needed.
    pub(super) fn reserve_ahead(&self) -> Result<(), Error> {
        self.reserve(self.gate.counters().reserved.load(Ordering::Acquire))
    }

    /// Reserves fences past `fence`, on disk: later fences are larger than all that were given out,
    /// whatever happens to the lock files.
    pub(super) fn reserve(&self, fence: u64) -> Result<(), Error> {
        let reserved = self.durable()?.reserve(&self.gate, fence.saturating_add(AHEAD))?;
        self.gate.counters().reserved.fetch_max(reserved, Ordering::AcqRel);
        Ok(())
    }

    /// Makes a new file set begin above all fences that earlier ones may have given out.
    fn first_reserve(&self, _lock: &SetupLock) -> Result<(), Error> {
        let counters = self.gate.counters();
        if counters.reserved.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let floor = self.durable()?.reserved(&self.gate)?;
        counters.floor.fetch_max(floor, Ordering::AcqRel);
        let wall = crate::time::SystemClock.wall_micros().min(limits::FENCE / 2);
        self.reserve(floor.max(wall))
    }

    /// Converts to the public error. Damaged files are set aside, which ends all their locks.
    fn failed(&self, error: TxnError) -> Error {
        let what = match error {
            TxnError::Damaged(what) => format!("{what} cannot be read"),
            TxnError::Store(error) if is_damage(&error) => error.to_string(),
            TxnError::Store(error) => {
                let what = format!("the embedded store failed: {error}");
                return Error::new(ErrorKind::Unavailable, what)
                    .with_help("see whether the disk is full or failing")
                    .caused_by(error);
            }
        };
        // Before the files are moved: invariant 5.
        self.gate.counters().closed.store(1, Ordering::Release);
        let error = set_aside(&self.root, &self.file_set, &what);
        let _ = self.gone.set(error.to_string());
        error
    }
}

fn open_handover(path: &Path) -> Result<Handover, OpenError> {
    let file = File::options().read(true).write(true).open(path);
    let opened = file.and_then(|file| Handover::open(&file, false));
    opened.map_err(|error| OpenError::Damaged(format!("{}: {error}", path.display())))
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("at", &self.file_set).finish_non_exhaustive()
    }
}

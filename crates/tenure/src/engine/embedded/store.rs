//! The lock environment of one host, opened once in this process. Knows transactions and their
//! trouble, not what a step does.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use heed::{Env, MdbError, WithoutTls};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fcntl_lock};

use super::directory::{self, SetupLock, StoreDirectory, cannot, cannot_without};
use super::durable::Durable;
use super::errors::{foreign, forked, stuck};
use super::files::{Refused, check_namespace, is_damage, make, open_env, refused, set_aside};
use super::gate::{Environment, Gate, GateBusy, GateGuard};
use super::liveness;
use super::sizes::Sizes;
use super::slots::{RowContext, SlotRows};
use super::txn::{Table, Txn, TxnError};
use crate::contract::{Error, ErrorKind, SessionId, Signal};
use crate::ledger::seam::Mint;
use crate::ledger::{Ledger, Now};
use crate::limits;
use crate::process::Birth;
use crate::time::{Clock, Tick};

/// No version has begun with a smaller map.
const LEAST_MAP: u64 = 1 << 20;
/// How large the map may become.
const LAST_MAP: usize = 4 << 30;
/// Kept free for everything but claims, so that a full disk never keeps a lock taken.
const SPARE: usize = 1 << 20;
/// How far ahead fences are reserved: an hour of the wall clock, which they follow.
const AHEAD: u64 = 3_600_000_000;

/// How often a step looks whether the files are still in their place, in nanoseconds.
const LOOK_EVERY: u64 = 100_000_000;

/// Every so many claims a few slots are looked through: rarely, because it wakes a thread.
const SWEEP_EVERY: u64 = 4_096;

/// How long anybody waits for the gate.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// The lock environment.
pub(super) struct Store {
    root: StoreDirectory,
    file_set: PathBuf,
    /// Never read: the record lock on it says that the file set is in use. Closed before the
    /// environment, because closing it would also let go of the lock of whoever opens next.
    _users: File,
    /// `None` once the store is gone: its path may be needed for another.
    env: RwLock<Option<Env<WithoutTls>>>,
    table: Table,
    sizes: Sizes,
    gate: Gate,
    data: File,
    /// Which file that is, to notice when the path leads to another one.
    inode: (u64, u64),
    durable: OnceLock<Arc<Durable>>,
    birth: Birth,
    gone: OnceLock<String>,
    claims: AtomicU64,
    /// The reserve of fences is running low.
    low: AtomicBool,
    /// A claim found no room.
    full: AtomicBool,
    /// When the place was last looked at.
    looked: AtomicU64,
}

/// Which store, for which boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreAddress {
    pub(super) root: StoreDirectory,
    pub(super) boot: String,
}

/// Whether a step takes something new, which a full disk may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    MayGrow,
    FreesSpace,
}

/// What a step came to, and whom to tell.
pub(super) type StepOutcome<T> = (T, Vec<(SessionId, Signal)>);

impl Store {
    /// Opens the store at this address, and makes it if it is not there yet. Once per process.
    pub(super) fn open(address: &StoreAddress, sizes: Sizes) -> Result<Self, Error> {
        let root = &address.root;
        let alone = root.set_up()?;
        root.clear_old(&address.boot, &alone);
        let file_set = root.file_set(&address.boot);
        if file_set.exists() {
            check_namespace(&file_set)?;
        }
        let fresh = !file_set.exists();
        if fresh {
            make(root, &file_set, &alone)?;
        }
        let opened = Self::open_files(root, &file_set, sizes);
        match opened {
            Ok(store) => {
                store.first_reserve(&alone)?;
                liveness::clear_old(&store.sessions());
                Ok(store)
            }
            Err(Refused::Plainly(error)) => Err(error),
            // What others work in is not damaged: it was made by another build.
            Err(Refused::Damaged(what)) if directory::in_use(&file_set) => Err(foreign(&what)),
            Err(Refused::Damaged(what)) => Err(set_aside(root, &file_set, &what)),
        }
    }

    fn open_files(root: &StoreDirectory, file_set: &Path, sizes: Sizes) -> Result<Self, Refused> {
        let page = file_set.join("guard");
        let file = File::options().read(true).write(true).open(&page);
        let file =
            file.map_err(|error| Refused::Damaged(format!("{}: {error}", page.display())))?;
        let gate = Gate::open(&file, false).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Refused::Damaged(format!("guard page: {error}")),
            _ => Refused::Plainly(cannot("map", &page, error)),
        })?;
        let path = file_set.join("locks/data.mdb");
        let data = File::options().read(true).write(true).open(&path);
        let data =
            data.map_err(|error| Refused::Damaged(format!("{}: {error}", path.display())))?;
        let about =
            data.metadata().map_err(|error| Refused::Plainly(cannot("read", &path, error)))?;
        let map = gate.counters().map_size.load(Ordering::Acquire);
        if about.len() < map || map < LEAST_MAP {
            return Err(Refused::Damaged(format!("{} was cut short", path.display())));
        }
        let env = {
            // Opening takes LMDB's writer lock, which has no time limit: through the gate, then.
            let inside = gate.enter(Environment::Locks, WAIT);
            // The kernel frees the gate of whoever died in it: if nobody is there at all, what
            // stands in the page is no mutex.
            let _inside = inside.map_err(|busy| {
                if directory::in_use(file_set) {
                    Refused::Plainly(stuck(busy))
                } else {
                    Refused::Damaged("guard page: the gate is shut, with nobody inside".into())
                }
            })?;
            open_env(&file_set.join("locks"), usize::try_from(map).unwrap_or(LAST_MAP))
        };
        let (env, table) = env.map_err(|error| refused(error, &path))?;
        let users = directory::private(&file_set.join("users"))
            .and_then(|file| {
                Ok(fcntl_lock(&file, FlockOperation::NonBlockingLockShared).map(|()| file)?)
            })
            .map_err(|error| Refused::Plainly(cannot("lock", file_set, error)))?;
        Ok(Self {
            root: root.clone(),
            file_set: file_set.to_owned(),
            _users: users,
            env: RwLock::new(Some(env)),
            table,
            sizes,
            gate,
            data,
            inode: (about.dev(), about.ino()),
            durable: OnceLock::new(),
            birth: Birth::here(),
            gone: OnceLock::new(),
            claims: AtomicU64::new(0),
            low: AtomicBool::new(false),
            full: AtomicBool::new(false),
            looked: AtomicU64::new(0),
        })
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.file_set.join("sessions")
    }

    pub(super) fn file_set(&self) -> &Path {
        &self.file_set
    }

    /// Why everything in this store is lost, if it is.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    /// Whether this process is a child that inherited the store and must leave it alone.
    pub(super) fn inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Looks whether the path still leads to the file we opened; if not, all is lost.
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

    /// The synced environment, opened when it is first needed.
    pub(super) fn durable(&self) -> Result<&Arc<Durable>, Error> {
        if self.inherited() {
            return Err(forked());
        }
        if let Some(durable) = self.durable.get() {
            return Ok(durable);
        }
        let durable = Durable::at(&self.root)?;
        Ok(self.durable.get_or_init(|| durable))
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// One atomic step, if the gate is free; `None` if it is not.
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

    /// One atomic step, as soon as the gate is free. Blocks the thread, for `limit` at most.
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
        let txn = env.write_txn().map_err(|error| self.trouble(TxnError::Store(error)))?;
        inside.stop();
        drop(txn);
        Ok(())
    }

    fn usable(&self) -> Result<(), Error> {
        if self.inherited() {
            return Err(forked());
        }
        if self.gone().is_some() { Err(self.lost()) } else { Ok(()) }
    }

    fn lost(&self) -> Error {
        Error::new(ErrorKind::Closed, self.gone().unwrap_or("the store is closed").to_owned())
            .with_help("connect again; everything that was held is lost")
    }

    fn env(&self) -> RwLockReadGuard<'_, Option<Env<WithoutTls>>> {
        self.env.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a store that is gone: this process may open another at the same path.
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
        // Read inside the gate, so that time never goes back from one step to the next.
        let mut tick = clock.now();
        self.still_there(tick)?;
        self.follow_map(env, inside)?;
        if kind == StepKind::MayGrow {
            self.keep_spare(env, inside)?;
        }
        let counters = self.gate.counters();
        loop {
            let txn = env.write_txn().map_err(|error| self.trouble(TxnError::Store(error)))?;
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
                Err(trouble) => return Err(self.trouble(trouble)),
            }
        }
    }

    /// Whether the files are still where others look for them. Asked often enough that nobody goes
    /// on for long in a store that was replaced, even if nobody tells.
    fn still_there(&self, now: Tick) -> Result<(), Error> {
        if self.gate.counters().closed.load(Ordering::Acquire) != 0 {
            let _ = self.gone.set("the store was found damaged and set aside".to_owned());
            return Err(self.lost());
        }
        let now = now.as_nanos();
        let looked = self.looked.load(Ordering::Relaxed);
        if now.abs_diff(looked) < LOOK_EVERY {
            return Ok(());
        }
        self.looked.store(now, Ordering::Relaxed);
        if self.check_files() { Ok(()) } else { Err(self.lost()) }
    }

    /// No fence is given out that is not reserved.
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

    /// Whether this claim is the one that looks through a few slots for what is dead.
    pub(super) fn sweeps(&self) -> bool {
        self.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1
    }

    /// Whether a claim found no room. Says so to one caller.
    pub(super) fn was_full(&self) -> bool {
        self.full.swap(false, Ordering::Relaxed)
    }

    /// Whether fences should be reserved further ahead soon. Says so to one caller.
    pub(super) fn wants_reserve(&self) -> bool {
        self.low.load(Ordering::Relaxed) && self.low.swap(false, Ordering::Relaxed)
    }

    /// Reserves fences further ahead, before they are needed.
    pub(super) fn reserve_ahead(&self) -> Result<(), Error> {
        self.reserve(self.gate.counters().reserved.load(Ordering::Acquire))
    }

    /// Reserves fences past `fence`, durably: whatever happens to the lock files, later fences are
    /// larger than all that were given out.
    pub(super) fn reserve(&self, fence: u64) -> Result<(), Error> {
        let reserved = self.durable()?.reserve(&self.gate, fence.saturating_add(AHEAD))?;
        self.gate.counters().reserved.fetch_max(reserved, Ordering::AcqRel);
        Ok(())
    }

    /// A new file set begins above everything that earlier ones may have given out.
    fn first_reserve(&self, _alone: &SetupLock) -> Result<(), Error> {
        let counters = self.gate.counters();
        if counters.reserved.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let floor = self.durable()?.reserved(&self.gate)?;
        counters.floor.fetch_max(floor, Ordering::AcqRel);
        let wall = crate::time::SystemClock.wall_micros().min(limits::FENCE / 2);
        self.reserve(floor.max(wall))
    }

    /// Another process may have made the map larger.
    fn follow_map(&self, env: &Env<WithoutTls>, _inside: &GateGuard<'_>) -> Result<(), Error> {
        let wanted = self.gate.counters().map_size.load(Ordering::Acquire);
        let wanted = usize::try_from(wanted).unwrap_or(LAST_MAP);
        if env.info().map_size < wanted {
            self.resize(env, wanted)?;
        }
        Ok(())
    }

    fn keep_spare(&self, env: &Env<WithoutTls>, inside: &GateGuard<'_>) -> Result<(), Error> {
        let info = env.info();
        if (info.last_page_number + 1) * rustix::param::page_size() + SPARE <= info.map_size {
            return Ok(());
        }
        let Err(full) = self.grow(env, inside) else { return Ok(()) };
        // SlotRows that were used once may be free again.
        let used = env.non_free_pages_size().ok().and_then(|size| usize::try_from(size).ok());
        if used.is_some_and(|used| used + SPARE <= info.map_size) {
            return Ok(());
        }
        self.full.store(true, Ordering::Relaxed);
        Err(full)
    }

    fn grow(&self, env: &Env<WithoutTls>, _inside: &GateGuard<'_>) -> Result<(), Error> {
        let wanted = env.info().map_size * 2;
        if wanted > LAST_MAP {
            let what = "the store is as large as it may become";
            return Err(Error::new(ErrorKind::Limit, what).with_help("hold fewer locks"));
        }
        // The blocks must be there before the map is: a page that the disk has no room for would
        // end the process instead of giving an error.
        let room = fallocate(&self.data, FallocateFlags::empty(), 0, wanted as u64);
        if let Err(error) = room {
            // What was found before the end came is given back.
            let _ = self.data.set_len(env.info().map_size as u64);
            let more = (wanted - env.info().map_size) >> 20;
            let needs = format!("the store needs {more} MiB more to hold more locks");
            return Err(cannot_without("enlarge", &self.file_set, error.into(), &needs));
        }
        self.resize(env, wanted)?;
        self.gate.counters().map_size.fetch_max(wanted as u64, Ordering::AcqRel);
        Ok(())
    }

    #[allow(unsafe_code, reason = "heed cannot see that no transaction is open")]
    fn resize(&self, env: &Env<WithoutTls>, size: usize) -> Result<(), Error> {
        // SAFETY: the caller is alone inside the gate, and every transaction of this environment
        // is opened and closed inside it.
        let resized = unsafe { env.resize(size) };
        resized.map_err(|error| {
            // The old map is gone already: this process must not look at it again.
            let _ = self.gone.set(format!("the store could not be mapped: {error}"));
            self.lost()
        })
    }

    /// What a step's trouble means. Damage is set aside, which ends every lock of the file set.
    fn trouble(&self, trouble: TxnError) -> Error {
        let what = match trouble {
            TxnError::Damaged(what) => format!("{what} cannot be read"),
            TxnError::Store(error) if is_damage(&error) => error.to_string(),
            TxnError::Store(error) => {
                let what = format!("the embedded store failed: {error}");
                return Error::new(ErrorKind::Unavailable, what)
                    .with_help("see whether the disk is full or failing")
                    .caused_by(error);
            }
        };
        // Those who are inside next must not go on in files that nobody else will find.
        self.gate.counters().closed.store(1, Ordering::Release);
        let error = set_aside(&self.root, &self.file_set, &what);
        let _ = self.gone.set(error.to_string());
        error
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("at", &self.file_set).finish_non_exhaustive()
    }
}

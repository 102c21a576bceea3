//! Tenure is a distributed lock library and command: leases, fencing tokens, fair queues and early
//! loss detection over Redis, PostgreSQL, etcd, or no server at all.
//!
//! ```
//! use tenure::Tenure;
//!
//! # tenure::block_on(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let guard = tenure.mutex("reports")?.lock().await?;
//! println!("the only holder, with fence {}", guard.fence()?);
//! guard.release().await?;
//! # Ok::<(), tenure::Error>(()) }).unwrap();
//! ```
//!
//! # Which one should I use?
//!
//! | you want | take |
//! |---|---|
//! | exactly one holder | [`Tenure::mutex`] |
//! | one writer, many readers | [`Tenure::rwlock`] |
//! | at most N holders | [`Tenure::semaphore`] |
//! | several locks at once, all or nothing | [`Tenure::lock_set`] |
//! | one leader, which observers can find | [`Tenure::election`] |
//! | one coarse lock for many names | [`Tenure::family`] |
//! | to lock again further down the same flow of control | [`scope`] |
//! | work that must stop when the lock is lost | [`Mutex::run`] |
//! | to wait for two seconds, else `None` | [`Mutex::try_lock_for`] |
//! | an error instead of a deadlock, before it happens | [`Levels`], [`LockOrder`], [`levels!`] |
//! | to see holders and waiters | [`Tenure::inspect`], [`Tenure::holders`] |
//! | to release a lock by force | [`Tenure::force_release`] |
//! | a small versioned value with compare-and-set | [`Tenure::cells`] |
//! | work done at least once, by any of many workers | `Tenure::queue` (feature `jobs`) |
//! | to run again what was refused to break a deadlock | [`Tenure::retry_on_deadlock`] |
//! | no async runtime | the `blocking_` form of each method: [`Tenure::blocking_connect`] |
//!
//! # Coming from `tokio::sync`
//!
//! A lock here has a name, not a value: it guards something outside the process. So it can be lost
//! (its store was away for a lease, an operator released it by force), every call to it can fail,
//! and a guard is a status, not a reference.
//!
//! | `tokio::sync` | Tenure |
//! |---|---|
//! | `Mutex::new(value)` | [`Tenure::mutex`]: a name, not a value; cheap to make |
//! | `lock().await` | [`Mutex::lock`]: fair too; it can time out, and the store can be away |
//! | `try_lock()` | [`Mutex::try_lock`]: one call to the store, `Ok(None)` if it is held |
//! | `timeout(d, lock())` | [`Mutex::try_lock_for`] returns `None` |
//! | | [`Mutex::timeout`] makes it an error that names the holders |
//! | `blocking_lock()` | [`Mutex::blocking_lock`]: never panics, inside a runtime neither |
//! | `MutexGuard` | [`MutexGuard`]: owned, `Send`; dropping it releases in the background |
//! | | [`MutexGuard::release`] confirms |
//! | `*guard` | [`LockStatus::fence`]: hand it to what you protect |
//! | | [`LockStatus::lost`], [`LockStatus::check`]: the lock can be lost |
//! | `RwLock::read`, `write` | [`RwLock::read`], [`RwLock::write`] |
//! | `downgrade` | [`RwLockWriteGuard::downgrade`]; [`RwLockReadGuard::upgrade`] too |
//! | `Semaphore::new(3)` | [`Tenure::semaphore`]: every user of the name states the same number |
//! | `acquire`, `acquire_many` | [`Semaphore::acquire`], [`Semaphore::acquire_many`] |
//! | `available_permits` | [`Semaphore::available_permits`]: one call to the store |
//! | `SemaphorePermit` | [`SemaphorePermit`]: ends with its lease if its holder crashes |
//! | | [`Mutex::run`]: drops the work when the lock is lost |
//! | | [`LockSet`], [`Family`], [`scope`]: several locks, many names, re-entry |
//!
//! # What no lock can promise
//!
//! A lease lock gives at most one holder whose deadline has not passed, as far as clocks run alike.
//! A process can be paused between its check and its write. Hand [`LockStatus::fence`] to what you
//! protect, and let that refuse a smaller fence than it has seen: only this makes a late writer
//! harmless.
//!
//! # Cancel safety
//!
//! Every future may be dropped at any point. A waiting claim is withdrawn; one that was granted
//! meanwhile is released in the background; the lease is the backstop.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `config` | yes | presets from a TOML file |
//! | `embedded` | yes | locks between the processes of one host, without a server (Linux) |
//! | `redis` | no | locks between hosts, in a Redis or Valkey server |
//! | `redlock` | no | locks held at a majority of independent Redis servers |
//! | `jobs` | no | queues of jobs whose attempts are fenced: [`Tenure`]`::queue` |
//! | `etcd` | yes | locks between hosts, in an etcd cluster |
//! | `json` | no | [`UpdatableCell::update`] with values that `serde` knows |
//! | `conformance` | no | the suite that judges engines, for engines of your own |
//! | `postgres` | no | locks between hosts in a PostgreSQL (see also crate `tenure-postgres`) |
//! | `test-util` | no | [`time`]`::ManualClock`: tests that own the time |

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod deadlock;
pub mod engine;
mod ledger;
// Public, because an engine of another crate has to keep to the same limits as the conformance
// suite, and for the crates `tenure-cli` (defaults), `tenure-postgres` (time limit of a call) and
// `tenure-bench`. Hidden, because the numbers may change.
#[doc(hidden)]
pub mod limits;
mod order;
mod primitives;
mod process;
// Public for `tests/conformance.rs`, which turns each bug on and expects a scenario to fail.
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
pub mod seeded;
#[cfg(not(feature = "seeded-bugs"))]
mod seeded;
mod session;
mod sync;
pub mod time;

pub use contract::{
    About, Batch, BatchVerdict, Cell, CellAction, CellPart, CellRange, ClaimId, Conduct, Conflict,
    ConflictCause, Effect, Error, ErrorKind, Evicted, Expect, Fence, Fencing, Finding, Health,
    HolderView, Label, Lineage, Loss, Name, NameClasses, Namespace, OwnerId, Ownership, Page, Part,
    Pattern, Place, Promises, Put, PutVerdict, Query, RateLevel, RateLimit, SessionId, SessionView,
    Settled, Shape, SlotView, Snapshot, Verb, Version, WaiterView, WriteId,
};
#[cfg(feature = "jobs")]
pub use contract::{
    AttemptError, BackOff, JobChanged, JobDue, JobFilter, JobId, JobState, JobView, KeyMode, Lane,
    NewJob, Pushed, QueueCounts, QueueSettings,
};
pub use order::{
    Levels, LockMode, LockOrder, NameOrders, OrderChecker, OrderEdge, OrderGraph, OrderMode,
    OrderReport, ReportKind, SilencedEdges,
};
pub use primitives::{
    AtLevel, Below, Builder, CellStore, Election, Family, Leader, LeaderGuard, Level, LevelFlow,
    LevelGuard, LockSet, LockSetGuard, LockStatus, Mutex, MutexGuard, NoLevel, Observed, Observer,
    Owner, Preset, Rate, RatePermit, RateRefusal, RateStatus, RwLock, RwLockReadGuard,
    RwLockWriteGuard, Scope, Semaphore, SemaphorePermit, SetPart, TakeOutcome, Tenure, Term,
    UpdatableCell, Updated, UpgradeError, blocking_scope, scope,
};
#[cfg(feature = "jobs")]
pub use primitives::{CronSchedule, Job, JobFailure, JobQueue, RecurringJob};
pub use session::{
    CallOutcome, CellChange, CellWatch, Closed, DeadlockMode, Event, Lost, Sample, Sampler,
    StoreCall, WaitEnd, Witness, block_on,
};

/// Declares levels of locks as types, the highest first: `levels! { System > Region > Account }`.
/// [`LevelFlow`](crate::LevelFlow) has an example.
#[macro_export]
macro_rules! levels {
    ($($level:ident)>+) => {
        $(
            #[doc = concat!("The level `", stringify!($level), "` of locks.")]
            #[derive(Debug)]
            pub struct $level;

            impl $crate::Level for $level {
                const NAME: &'static str = stringify!($level);
            }
        )+
        $crate::levels!(@below $($level)>+);
    };
    (@below $last:ident) => {};
    (@below $first:ident > $($rest:ident)>+) => {
        $(impl $crate::Below<$first> for $rest {})+
        $crate::levels!(@below $($rest)>+);
    };
}

/// The README and the docs are compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[cfg(feature = "config")]
    #[doc = include_str!("../../../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../../../docs/cells.md")]
    mod cells {}
    #[cfg(feature = "jobs")]
    #[doc = include_str!("../../../docs/jobs.md")]
    mod jobs {}
    #[doc = include_str!("../../../docs/ordering.md")]
    mod ordering {}
    #[doc = include_str!("../../../docs/rates.md")]
    mod rates {}
    #[doc = include_str!("../../../docs/settings.md")]
    mod settings {}
    #[doc = include_str!("../../../docs/election.md")]
    mod election {}
    #[doc = include_str!("../../../docs/deadlock.md")]
    mod deadlock {}
    #[cfg(all(feature = "embedded", target_os = "linux"))]
    #[doc = include_str!("../../../docs/embedded.md")]
    mod embedded {}
}

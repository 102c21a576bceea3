//! The public types: locks, guards, owners, presets. Thin shapes over one session, which acquire
//! through `request.rs`; no store and no admission rules here.

mod builder;
mod cells;
mod deadlock;
mod election;
mod exchange;
mod family;
mod guard;
#[cfg(feature = "jobs")]
mod jobs;
mod lock_set;
mod mutex;
mod observer;
mod operate;
mod options;
mod ordered;
mod owner;
mod preset;
mod rate;
mod request;
mod run;
mod rwlock;
mod semaphore;
mod tenure;
mod term;
mod term_record;
mod typed_levels;
mod update;
mod update_stages;

pub use builder::Builder;
pub use cells::CellStore;
pub use election::Election;
pub use exchange::UpgradeError;
pub use family::Family;
pub use guard::{
    LockSetGuard, LockStatus, MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit,
};
#[cfg(feature = "jobs")]
pub use jobs::{CronSchedule, Job, JobFailure, JobQueue, RecurringJob};
pub use lock_set::{LockSet, SetPart};
pub use mutex::Mutex;
pub use observer::{Leader, Observed, Observer};
pub use owner::{Owner, Scope, blocking_scope, scope};
pub use preset::Preset;
pub use rate::{Rate, RatePermit, RateRefusal, RateStatus, TakeOutcome};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use tenure::Tenure;
pub use term::{LeaderGuard, Term};
pub use typed_levels::{AtLevel, Below, Level, LevelFlow, LevelGuard, NoLevel};
pub use update::{UpdatableCell, Updated};

//! The public types: locks, guards, owners, presets. Thin shapes over one session, which acquire
//! through `request.rs`; no store and no admission rules here.

mod builder;
mod cells;
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
mod owner;
mod preset;
mod request;
mod run;
mod rwlock;
mod semaphore;
mod tenure;
mod term;
mod term_record;

pub use builder::Builder;
pub use cells::CellStore;
pub use election::Election;
pub use exchange::UpgradeError;
pub use family::Family;
pub use guard::{
    LockSetGuard, LockStatus, MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit,
};
#[cfg(feature = "jobs")]
pub use jobs::{Job, JobFailure, JobQueue};
pub use lock_set::{LockSet, SetPart};
pub use mutex::Mutex;
pub use observer::{Leader, Observed, Observer};
pub use owner::{Owner, Scope, blocking_scope, scope};
pub use preset::Preset;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use tenure::Tenure;
pub use term::{LeaderGuard, Term};

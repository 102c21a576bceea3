//! Tenure gives a program the right to act, for a time, and tells it when that right is gone.

pub mod blocking;
pub mod contract;
pub mod engine;
pub mod ledger;
pub mod limits;
mod primitives;
mod session;
pub mod time;

pub use contract::{
    Cell, Effect, Error, ErrorKind, Evicted, Expect, Fence, HolderView, Loss, Name, Namespace,
    Page, Part, Pattern, Promises, Put, PutVerdict, Query, SlotView, Snapshot, Verb, WaiterView,
};
pub use primitives::{
    All, Builder, Family, Guard, Held, Mutex, Owner, Permit, Preset, ReadGuard, RwLock, Scope,
    Semaphore, SetGuard, Tenure, Unchanged, WriteGuard, scope,
};
pub use session::{Event, Lost, Witness};

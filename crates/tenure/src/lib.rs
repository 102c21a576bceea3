//! Tenure gives a program the right to act, for a time, and tells it when that right is gone.
//!
//! Locks, read-write locks, semaphores and sets of them, with leases, fair queues, fencing tokens
//! and early notice of loss.
//!
//! ```
//! use tenure::Tenure;
//!
//! # tenure::blocking::wait(async {
//! let tenure = Tenure::connect("memory:").await?;
//! let guard = tenure.mutex("reports")?.lock().await?;
//! println!("exactly one of us is here, with fence {}", guard.fence()?);
//! guard.release().await?;
//! # Ok::<(), tenure::Error>(()) }).unwrap();
//! ```
//!
//! # Which one should I use?
//!
//! | you want | take |
//! |---|---|
//! | exactly one to act | [`Tenure::mutex`] |
//! | one writer, many readers | [`Tenure::rwlock`] |
//! | at most N | [`Tenure::semaphore`] |
//! | several at once, all or nothing | [`Tenure::all`] |
//! | one coarse lock for many names | [`Tenure::family`] |
//! | to lock again further down the same flow | [`scope`] |
//! | no async runtime | [`blocking`] |
//!
//! # What no lock can promise
//!
//! A lease lock gives at most one holder whose deadline has not passed, as far as clocks run alike.
//! A process can be paused between its check and its write. Hand [`Held::fence`] to what you
//! protect, and let that refuse a smaller fence than it has seen: only this makes a late writer
//! harmless.
//!
//! # Cancel safety
//!
//! Every future may be dropped at any point. A waiting claim is withdrawn; one that was granted
//! meanwhile is given back in the background; the lease is the backstop.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `config` | yes | presets from a TOML file |
//! | `embedded` | yes | locks between the processes of one host, without a server (Linux) |
//! | `redis` | no | locks between hosts, in a Redis or Valkey server |
//! | `redlock` | no | locks held at a majority of independent Redis servers |
//! | `etcd` | no | locks between hosts, in an etcd cluster; needs `protoc` to build |
//! | `conformance` | no | the suite that judges engines, for engines of your own |
//! | `postgres` | no | locks between hosts in a PostgreSQL; its advisory locks |
//! | `tokio-postgres-07` | no | advisory locks, fences, row locks on your own client |
//! | `test-util` | no | [`time`]`::ManualClock`: tests that own the time |

pub mod blocking;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod engine;
pub mod ledger;
pub mod limits;
#[cfg(feature = "postgres")]
pub mod postgres;
mod primitives;
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
pub mod seeded;
#[cfg(not(feature = "seeded-bugs"))]
mod seeded;
mod session;
mod sync;
pub mod time;

pub use contract::{
    Cell, Effect, Error, ErrorKind, Evicted, Expect, Fence, HolderView, Loss, Name, Namespace,
    Ownership, Page, Part, Pattern, Promises, Put, PutVerdict, Query, SlotView, Snapshot, Verb,
    WaiterView,
};
pub use primitives::{
    All, Builder, Family, Guard, Held, Mutex, Owner, Permit, Preset, ReadGuard, RwLock, Scope,
    Semaphore, SetGuard, Tenure, Unchanged, WriteGuard, scope,
};
pub use session::{Event, Lost, Witness};

/// The README and the docs are compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[cfg(feature = "config")]
    #[doc = include_str!("../../../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../../../docs/fencing.md")]
    mod fencing {}
    #[cfg(all(feature = "embedded", target_os = "linux"))]
    #[doc = include_str!("../../../docs/embedded.md")]
    mod embedded {}
}

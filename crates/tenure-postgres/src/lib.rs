//! Advisory locks, rows that refuse stale writers, and row locks in order, for PostgreSQL: what a
//! database has beside the locks of [`tenure`].
//!
//! | you want | take |
//! |---|---|
//! | a lock that ends with a transaction or a connection, without a table | [`advisory`] |
//! | rows that refuse a holder who wakes too late | [`FencedTable`], [`fence_trigger_sql`] |
//! | several rows locked without a deadlock | [`lock_rows`] |
//! | rows written only over what was read, without a lock | [`VersionedTable`] |
//! | deadlocks reported that go through rows and Tenure's locks | [`name_backend`] |
//! | jobs pushed, or completed, with the transaction | `push_in`, `complete_in` (feature `jobs`) |
//! | transactions repeated after a serialization failure or a deadlock | [`retrying`] |
//!
//! Clients and transactions are those of `tokio-postgres` 0.7, which is part of this crate's API.
//! `docs/postgres-locks.md` explains the rest.

pub mod advisory;
mod backend;
mod fenced;
#[cfg(feature = "jobs")]
mod jobs;
mod names;
mod own;
mod retrying;
mod rows;
mod step;
mod versioned;

pub use self::backend::{NamedBackend, name_backend};
pub use self::fenced::fence_trigger_sql;
pub use self::fenced::{FencedTable, Stale, state_fence};
#[cfg(feature = "jobs")]
pub use self::jobs::{complete_in, push_in};
pub use self::names::Table;
pub use self::own::Canceller;
pub use self::retrying::{RetryCause, retrying};
pub use self::rows::{RowKey, lock_rows};
pub use self::versioned::{Outdated, VersionedRow, VersionedTable};

/// The README and the page are compiled as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/postgres-locks.md")]
    mod postgres_locks {}
}

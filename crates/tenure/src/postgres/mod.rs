//! What PostgreSQL has beside Tenure's own locks: advisory locks, rows that refuse a stale writer,
//! rows locked in order. Knows a database and its clients, not leases.
//!
//! | you want | take |
//! |---|---|
//! | a lock that ends with a transaction or a connection, without a table | [`advisory`] |
//! | rows that refuse a holder who wakes too late | [`fence_trigger_sql`], `FencedTable` |
//! | several rows locked without a deadlock | `lock_rows` |
//!
//! What takes a client or a transaction of yours needs the feature `tokio-postgres-07`, which
//! names the version of that crate. `docs/postgres-locks.md` tells the whole.

pub mod advisory;
mod fenced;
mod names;
#[cfg(feature = "tokio-postgres-07")]
mod own;
#[cfg(feature = "tokio-postgres-07")]
mod rows;
#[cfg(feature = "tokio-postgres-07")]
mod step;

pub use self::fenced::fence_trigger_sql;
#[cfg(feature = "tokio-postgres-07")]
pub use self::fenced::{FencedTable, Stale, state_fence};
pub use self::names::Table;
#[cfg(feature = "tokio-postgres-07")]
pub use self::own::Canceller;
#[cfg(feature = "tokio-postgres-07")]
pub use self::rows::{RowKey, lock_rows};

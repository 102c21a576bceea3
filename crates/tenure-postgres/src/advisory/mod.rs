//! PostgreSQL's advisory locks: no lease, no table; the server releases them when the transaction
//! or the connection ends.
//!
//! | scope | take | ends |
//! |---|---|---|
//! | connections of Tenure's own | [`Advisory`] | at release, or with its connection |
//! | your own client | `Session` | at release, or with your connection |
//! | your own transaction | `InTransaction` | with the transaction |
//!
//! There is no fence, and a loss is noticed late: when a connection breaks, the server frees its
//! locks at once, and the client notices it a moment later. Where two holders at once would do
//! harm, take a [`Mutex`](tenure::Mutex) and check its fence.

mod alone;
mod errand;
mod guard;
mod key;
mod session;
mod table;
mod transaction;
mod trouble;
mod wire;

pub use self::alone::{Advisory, Lock};
pub use self::guard::Guard;
pub use self::key::Key;
pub use self::session::{Session, SessionGuard, SessionLock};
pub use self::transaction::{InTransaction, TransactionLock};
pub(super) use self::trouble::{Waited, failed, millis};

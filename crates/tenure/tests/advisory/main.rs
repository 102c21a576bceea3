//! PostgreSQL's advisory locks, fences at rows and ordered row locks, with real servers, poolers
//! and faults.
#![cfg(feature = "tokio-postgres-07")]

mod alone;
mod dropping;
mod fences;
mod host;
mod page;
mod pooler;
mod rows;
mod session;
mod transaction;

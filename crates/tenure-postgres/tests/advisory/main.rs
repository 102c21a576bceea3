//! PostgreSQL's advisory locks, fences at rows and ordered row locks, with real servers, poolers
//! and faults.

mod alone;
mod backend;
mod dropping;
mod errors;
mod fences;
mod host;
#[cfg(feature = "jobs")]
mod jobs;
mod moving;
mod page;
mod pooler;
mod rows;
mod session;
mod transaction;
mod versioned;

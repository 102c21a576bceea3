//! Tenure gives a program the right to act, for a time, and tells it when that right is gone.

pub mod contract;
mod engine;
mod ledger;
pub mod limits;
pub mod time;

pub use contract::*;

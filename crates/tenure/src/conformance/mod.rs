//! The conformance suite: every engine is judged by the same scenarios. Knows the promises, not
//! how any engine keeps them.
//!
//! Public behind the feature `conformance`, so that other crates can test engines of their own:
//! write a [`Harness`] that opens fresh namespaces, and [`check`] it in a test.
//!
//! ```
//! use tenure::conformance::{MemoryHarness, check};
//!
//! // Panics with a report if a scenario fails; says what ran and what was not promised.
//! let report = check(&MemoryHarness);
//! println!("{report}");
//! assert_eq!(report.absent, None);
//! ```
//!
//! Scenarios are selected by what the engine [promises](crate::Promises). Each is named
//! `engine::group::scenario` and cites the numbers of the promises it checks; [`PROMISES`] has
//! their sentences, and a failure prints those it cites.

pub mod audit;
mod cell_link;
pub mod differential;
#[cfg(all(feature = "embedded", target_os = "linux"))]
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod gate;
mod harness;
mod link;
mod memory;
pub mod paths;
#[cfg(feature = "postgres")]
mod postgres;
mod promises;
mod rate_link;
mod raw;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
mod registry;
mod scenarios;
mod waiting;
mod world;

#[cfg(all(feature = "embedded", target_os = "linux"))]
pub use embedded::EmbeddedHarness;
#[cfg(feature = "etcd")]
pub use etcd::EtcdHarness;
pub use gate::{GateOrder, RequestGate};
pub use harness::{Absent, Connected, Harness, Stage};
pub use link::{Fault, Link};
pub use memory::MemoryHarness;
#[cfg(feature = "postgres")]
pub use postgres::PostgresHarness;
pub use promises::{PROMISES, sentence};
pub use raw::{Ask, Raw};
#[cfg(feature = "redis")]
pub use redis::RedisHarness;
#[cfg(feature = "redlock")]
pub use redlock::RedlockHarness;
pub use registry::{Applicability, Case, Report, Scenario, ScenarioGroup, all, cases, check};
pub use waiting::Waiting;
pub use world::{Actor, World};

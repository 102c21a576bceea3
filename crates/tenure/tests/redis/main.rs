//! The Redis engine with real servers and real faults, through the library as its users have it, on
//! the real clock.
#![cfg(feature = "redis")]

mod access;
mod cells;
#[path = "../common/clock_steps.rs"]
mod clock_steps;
mod clocks;
mod contended;
mod damage;
mod doors;
#[path = "../common/flow.rs"]
mod flow;
mod forgetting;
mod full;
mod gaps;
mod host;
mod logs;
mod outage;
mod page;
mod replicas;
mod runtimes;
mod silence;
mod terms;
mod traffic;
mod ttl;
mod watching;

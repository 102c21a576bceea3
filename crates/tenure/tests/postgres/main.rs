//! The PostgreSQL engine with real servers and real faults, through the library as its users have
//! it, on the real clock.
#![cfg(feature = "postgres")]

mod cells;
#[path = "../common/traffic.rs"]
mod clients;
#[path = "../common/clock_steps.rs"]
mod clock_steps;
mod clocks;
mod contended;
mod crashes;
mod crowds;
mod disk;
mod doors;
mod faults;
#[path = "../common/flow.rs"]
mod flow;
mod host;
mod page;
mod pooler;
mod rates;
mod rows;
mod space;
mod stand;
mod standby;
mod traffic;
mod watches;

//! The quorum engine with real servers and real faults, through the library as its users have it,
//! on the real clock.
#![cfg(feature = "redlock")]

mod crowds;
mod doors;
mod faults;
mod host;
mod page;
mod traffic;
mod votes;

//! The PostgreSQL engine with real servers and real faults, through the library as its users have
//! it, on the real clock.
#![cfg(feature = "postgres")]

mod crashes;
mod disk;
mod doors;
mod faults;
mod host;
mod page;
mod pooler;
mod space;
mod standby;
mod traffic;

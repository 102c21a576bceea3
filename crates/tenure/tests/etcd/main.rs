//! The etcd engine with real clusters and real faults, through the library as its users have it, on
//! the real clock.
#![cfg(feature = "etcd")]

mod access;
mod endings;
mod host;
mod members;
mod page;
mod recipes;
mod restoring;
mod runtimes;

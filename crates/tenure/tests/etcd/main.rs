//! The etcd engine with real clusters and real faults, through the library as its users have it, on
//! the real clock.
#![cfg(feature = "etcd")]

mod abandoned;
mod access;
mod cells;
mod contended;
mod crowds;
mod endings;
mod heap;
mod host;
mod lengths;
mod members;
mod page;
mod recipes;
mod restoring;
mod reused;
mod terms;

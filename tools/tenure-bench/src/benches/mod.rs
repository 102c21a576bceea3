//! The benchmarks. They know the contract and the primitives, not which engine they measure.

mod bare;
pub(crate) mod cells;
pub(crate) mod command;
mod counting;
pub(crate) mod crowd;
pub(crate) mod election;
pub(crate) mod etcd;
pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod jobs;
mod lane;
pub(crate) mod looking;
pub(crate) mod order;
pub(crate) mod pair;
pub(crate) mod postgres;
pub(crate) mod processes;
pub(crate) mod rates;
pub(crate) mod readers;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod reentry;
mod relay;
mod stores;
pub(crate) mod taker;
pub(crate) mod updates;

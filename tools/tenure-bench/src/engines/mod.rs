//! Where each engine is brought up to be measured: one file per engine, with the benchmarks that
//! make sense for it. A file for an engine with a server starts that server itself, for itself.

pub(crate) mod embedded;
pub(crate) mod etcd;
pub(crate) mod memory;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redlock;

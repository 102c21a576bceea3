//! Tests of the engine with a real etcd: what `Ownership` is worth to a plain client, and races
//! between requests that a gate stops half way.

mod ownership;
#[cfg(feature = "conformance")]
mod races;

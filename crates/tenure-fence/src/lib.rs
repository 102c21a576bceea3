//! Resources that refuse stale writers: what to call where you write, so that a holder who wakes
//! too late does no harm.
//!
//! A lease can run out while its holder is paused. The number that comes with each grant of
//! [`tenure`], the fence, is worth something only if the resource compares it: **remember the
//! largest fence seen, refuse a smaller one.** Equal is the same holder.
//!
//! | resource | feature | take |
//! |---|---|---|
//! | a value or a hash of Redis | `redis` | [`redis::FencedValue`], [`redis::FencedHash`] |
//! | a key of etcd | `etcd` | [`etcd::FencedPut`] |
//! | a file | `file` | [`file::FencedFile`] |
//! | an object in S3 or its like | `object-store` | [`object::FencedObject`] |
//! | anything behind an HTTP service | `http` | [`http::set_fence`], [`http::FenceLayer`] |
//! | a row of PostgreSQL | | `FencedTable` of the crate `tenure-postgres` |
//! | a small value beside the locks | | [`tenure::Put::fenced`] |
//!
//! Every check refuses with an error of the kind [`tenure::ErrorKind::Conflict`], whose cause is a
//! [`Refusal`] with both fences. [`observe_refusals`] counts them. `docs/fencing.md` explains the
//! rest: what each costs and what it cannot do.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "object-store")]
pub mod object;
#[cfg(feature = "redis")]
pub mod redis;
mod refusal;

pub use self::refusal::{Refusal, Resource, observe_refusals, report};

/// The README and the page are compiled and run as tests, where all they speak of is built.
#[cfg(all(
    doctest,
    feature = "etcd",
    feature = "file",
    feature = "http",
    feature = "object-store",
    feature = "redis"
))]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/fencing.md")]
    mod fencing {}
}

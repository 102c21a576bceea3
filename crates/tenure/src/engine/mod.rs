//! Engines: the code for each kind of store. Each has the same files, one for each concern (the
//! list and its exceptions: `tools/tidy/src/rooms.rs`); what several need is in `common/`.

mod common;
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
mod retry;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "conformance")]
pub(crate) use self::common::paths::taken as paths_taken;
pub use self::retry::connect_within;
use crate::contract::{Engine, Error, ErrorKind, Namespace, Promises, Verb};
use crate::time::Clock;

/// What a client states when it opens a store.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Whose locks.
    pub namespace: Namespace,
    /// The longest lease that a claim may ask for in this namespace. All clients must agree.
    pub max_lease: Duration,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

/// What each engine of this build promises.
#[must_use]
pub fn built_in() -> Vec<&'static Promises> {
    vec![
        #[cfg(all(feature = "embedded", target_os = "linux"))]
        &embedded::PROMISES,
        #[cfg(feature = "etcd")]
        &etcd::PROMISES,
        &memory::PROMISES,
        #[cfg(feature = "postgres")]
        &postgres::PROMISES,
        #[cfg(feature = "redis")]
        &redis::PROMISES,
        #[cfg(feature = "redis")]
        &redis::SENTINEL_PROMISES,
        #[cfg(feature = "redis")]
        &redis::CLUSTER_PROMISES,
        #[cfg(feature = "redlock")]
        &redlock::PROMISES,
    ]
}

/// Schemes that an engine will answer, with the feature that has it.
const KNOWN: &[(&str, &str)] = &[
    ("embedded", "embedded"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
    ("redis-sentinel", "redis"),
    ("rediss-sentinel", "redis"),
    ("valkey+sentinel", "redis"),
    ("valkeys+sentinel", "redis"),
    ("redis+cluster", "redis"),
    ("rediss+cluster", "redis"),
    ("valkey+cluster", "redis"),
    ("valkeys+cluster", "redis"),
    ("valkey", "redis"),
    ("valkeys", "redis"),
    ("redlock", "redlock"),
    ("redlocks", "redlock"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
];

/// Opens the store a URL names.
///
/// Async because most stores are reached over a network.
///
/// # Errors
/// If the URL names no engine, or one that this build does not have, or the store refuses.
///
/// # Cancel safety
/// Dropping the future opens nothing.
#[allow(clippy::unused_async, reason = "most engines connect over a network")]
pub async fn connect(url: &str, terms: Terms) -> Result<Arc<dyn Engine>, Error> {
    let scheme = scheme_of(url)?;
    if scheme == "memory" {
        return memory::connect(&url["memory:".len()..], terms);
    }
    #[cfg(all(feature = "embedded", target_os = "linux"))]
    if scheme == "embedded" {
        return embedded::connect(&url["embedded:".len()..], terms);
    }
    #[cfg(feature = "etcd")]
    if matches!(&*scheme, "etcd" | "etcds") {
        return etcd::connect(url, &terms).await;
    }
    #[cfg(feature = "postgres")]
    if matches!(&*scheme, "postgres" | "postgresql") {
        return postgres::connect(url, &terms).await;
    }
    #[cfg(feature = "redis")]
    if KNOWN.iter().any(|(known, feature)| *known == scheme && *feature == "redis") {
        return redis::connect(url, &terms).await;
    }
    #[cfg(feature = "redlock")]
    if matches!(&*scheme, "redlock" | "redlocks") {
        return redlock::connect(url, &terms).await;
    }
    let known = KNOWN.iter().find(|(known, _)| *known == scheme);
    let error = if let Some((_, feature)) = known {
        absent(&scheme, feature)
    } else {
        let what = format!("no engine answers to the scheme {scheme:?}");
        Error::new(ErrorKind::InvalidOption, what).with_help(format!("use {}", schemes()))
    };
    Err(error.during(Verb::Connect))
}

/// What to do about an engine that this build does not have.
fn absent(scheme: &str, feature: &str) -> Error {
    let what = format!("this build has no engine for {scheme}: URLs");
    let next = format!("build with the feature `{feature}`, or use {}", schemes());
    Error::new(ErrorKind::Unsupported, what).with_help(next)
}

/// The schemes this build answers to, for people.
fn schemes() -> String {
    let names: Vec<_> = built_in().iter().map(|promises| format!("{}:", promises.engine)).collect();
    names.join(" or ")
}

/// The scheme of a URL. Errors never repeat the rest of it, which may hold a password.
fn scheme_of(url: &str) -> Result<String, Error> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    match url.split_once(':') {
        Some((scheme, _)) if !scheme.is_empty() && scheme.chars().all(legal) => {
            Ok(scheme.to_ascii_lowercase())
        }
        _ => {
            Err(Error::new(ErrorKind::InvalidOption, "a store is named by a URL, with its scheme")
                .during(Verb::Connect)
                .with_help(format!("use {}", schemes())))
        }
    }
}

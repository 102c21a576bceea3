//! What several engines need and none of them owns: the registry of listeners, watchers of cells,
//! limits of jobs, URLs, TLS, jitter, the choice of the runtime that a call runs on, text files,
//! the agreement on `max_lease`. `redis/` is what the two engines over Redis servers share.

pub(super) mod cell_watches;
pub(super) mod jitter;
pub(super) mod job_limits;
pub(super) mod listeners;
pub(super) mod max_lease;
#[cfg(any(
    feature = "conformance",
    feature = "etcd",
    all(feature = "embedded", target_os = "linux")
))]
pub(crate) mod paths;
#[cfg(feature = "redis")]
pub(super) mod redis;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(super) mod runtime;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod texts;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod tls;
#[cfg(any(
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    all(feature = "embedded", target_os = "linux")
))]
pub(super) mod url;
#[cfg(any(
    feature = "postgres",
    feature = "redis",
    all(feature = "embedded", target_os = "linux")
))]
pub(super) mod verbs;

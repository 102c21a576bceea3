//! What several engines need and none of them owns: watchers of cells, limits of jobs, URLs, TLS,
//! jitter, the choice of the runtime that a call runs on, text files, the agreement on `max_lease`.

pub(super) mod cell_watchers;
pub(super) mod jitter;
pub(super) mod job_limits;
pub(super) mod max_lease;
#[cfg(any(
    feature = "conformance",
    feature = "etcd",
    all(feature = "embedded", target_os = "linux")
))]
pub(crate) mod paths;
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

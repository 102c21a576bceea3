//! What several engines need and none of them owns: URLs, TLS, jitter, the choice of the runtime
//! that a call runs on, text files, the agreement on `max_lease`.

pub(super) mod jitter;
pub(super) mod max_lease;
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

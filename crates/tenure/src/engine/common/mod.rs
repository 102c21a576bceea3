//! What several engines need and none of them owns: URLs, TLS.

#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod tls;
#[cfg(any(
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    all(feature = "embedded", target_os = "linux")
))]
pub(super) mod url;

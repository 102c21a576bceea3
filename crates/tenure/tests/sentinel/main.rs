//! The Redis engine through fail-overs, with real sentinels, primaries and replicas.

#[path = "../common/traffic.rs"]
mod clients;
mod finding;
mod following;
mod guarded;
mod losing;
mod replicas;
mod stale;
mod traffic;

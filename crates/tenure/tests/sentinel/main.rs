//! The Redis engine through fail-overs, with real sentinels, primaries and replicas.

mod finding;
mod replicas;
mod traffic;

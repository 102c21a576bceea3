//! The Redis engine in a cluster, with real nodes: slots that move, masters that die, and
//! everything that is different when names are spread.

mod cells;
#[path = "../common/traffic.rs"]
mod clients;
mod guarded;
mod moving;
mod replicas;
mod spread;
mod stale;
mod traffic;

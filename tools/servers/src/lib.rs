//! Real servers for tests and benchmarks: started on demand, tormented, and gone with the process.
//!
//! Knows how to run servers and how to stand between a server and its clients; knows nothing of
//! Tenure. Everything blocks, and everything is on loopback. A server that cannot be started is a
//! failure that says what to install: no test is skipped.
//!
//! - [`Redis`] is a `redis-server` of one's own, with [`Client`] to talk to it.
//! - [`Sentinels`] are a primary, its replicas, and the sentinels that watch over them.
//! - [`Cluster`] are masters and replicas that share the slots of a Redis Cluster.
//! - [`Etcd`] is an `etcd` of one's own, with one member or three.
//! - [`Postgres`] is a PostgreSQL of one's own, [`PgBouncer`] a pooler before it.
//! - [`Proxy`] is a TCP proxy that delays, holds back, loses and cuts.
//! - [`Clock`] is the clock of a server, moved while it runs.
//! - [`Dice`] are the seeded numbers by which a test chooses its faults.
//! - [`Certificates`] are an authority and two certificates for one run.
//! - [`reset_signals_of_children`] and [`output_within`] are for programs that tests start.
//!
//! ```
//! use servers::{Redis, Reply};
//!
//! let redis = Redis::start();
//! assert_eq!(redis.cmd(&["INCR", "visits"]), Ok(Reply::Int(1)));
//! ```

mod certificates;
mod children;
mod clock;
mod cluster;
mod dice;
mod etcd;
mod papers;
mod patience;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod resp;
mod sentinels;
mod wall;

pub use certificates::Certificates;
pub use children::{output_within, reset_signals_of_children};
pub use clock::{Clock, Direction, SetWhenDropped};
pub use cluster::Cluster;
pub use dice::Dice;
pub use etcd::{Builder as EtcdBuilder, Etcd};
pub use patience::eventually;
pub use postgres::{Builder as PostgresBuilder, PgBouncer, Postgres};
pub use proxy::{Counts, Faults, Proxy};
pub use redis::{Builder as RedisBuilder, Fsync, Redis};
pub use resp::{Client, Reply};
pub use sentinels::{Sentinel, Sentinels, SentinelsBuilder};

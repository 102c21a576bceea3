//! What only a server on the other end of a connection makes interesting: round trips, commands,
//! the server's own time. Always beside what people would use instead.

pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod pair;
pub(crate) mod server;
pub(super) mod takers;
pub(crate) mod throughput;

use servers::Redis;

/// What clients ask for by themselves. Commands inside scripts are counted under other names.
const ASKED: [&str; 10] = [
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "fcall",
    "hello",
    "ping",
    "script|load",
    "subscribe",
    "unsubscribe",
];

/// How many commands clients have asked for so far.
pub(super) fn asked(redis: &Redis) -> u64 {
    ASKED.iter().map(|name| redis.commands(name)).sum()
}

/// A count for arithmetic. None comes near the 2^32 at which this would saturate.
pub(super) fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

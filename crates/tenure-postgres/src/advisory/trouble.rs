//! What a failed wait means. Knows the server's codes for waits; all others are the engine's.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use tenure::contract::{Error, ErrorKind, Verb};
use tenure::engine::postgres::client::to_error;

/// What was waited for, for people.
pub(crate) struct Waited<'a> {
    pub(crate) what: &'a dyn std::fmt::Display,
    pub(crate) limit: Option<Duration>,
}

/// A wait, or the call around it, that failed.
pub(crate) fn failed(error: &tokio_postgres::Error, waited: &Waited<'_>) -> Error {
    let what = waited.what;
    let error = match error.code() {
        Some(&SqlState::T_R_DEADLOCK_DETECTED) => {
            let told = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
            let told = told.replace('\n', " ");
            Error::new(ErrorKind::Deadlock, format!("waiting for {what} would never end: {told}"))
                .with_help(
                    "give back what you hold, or roll back, and try again; take locks in one order",
                )
        }
        Some(&SqlState::LOCK_NOT_AVAILABLE) => timed_out(waited),
        _ => to_error(error),
    };
    error.during(Verb::Claim)
}

/// The limit of a wait has passed.
pub(crate) fn timed_out(waited: &Waited<'_>) -> Error {
    let within = match waited.limit {
        Some(limit) => format!("within {limit:?}"),
        None => "within the lock_timeout of this role or database".to_owned(),
    };
    Error::new(ErrorKind::TimedOut, format!("{} did not become free {within}", waited.what))
        .during(Verb::Claim)
        .with_help("try again, or look into pg_locks for who holds it")
}

/// A pooler lends the connection to others between our statements.
pub(super) fn pooled(next: &'static str) -> Error {
    let what = "a pooler lends this connection to others: a lock of the session would be theirs";
    Error::new(ErrorKind::Unsupported, what).during(Verb::Connect).with_help(next)
}

/// `lock_timeout` counts in milliseconds, and none is for ever.
pub(crate) fn millis(limit: Duration) -> u128 {
    // The server takes no more than this.
    limit.as_nanos().div_ceil(1_000_000).clamp(1, 2_147_483_647)
}

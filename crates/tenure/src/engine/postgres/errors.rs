//! Converts failed calls into public errors: which kind, whether the call may have taken effect,
//! and what to do next.
//!
//! A statement that fails with an ordinary error was rolled back, so it had no effect. The effect
//! is unknown in two cases: the connection broke after the statement was sent, or the server ended
//! the backend (severity FATAL or PANIC), which may have committed a moment before.

use std::error::Error as _;

use tokio_postgres::error::{Severity, SqlState};

use crate::contract::{Error, ErrorKind};

/// Longest part of a server's message that is repeated, in characters.
const MAX_MESSAGE: usize = 300;

/// Whether a failed statement may have reached the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// It was passed to a connection: the server may have run it.
    Sent,
    /// It was not sent, or has no effect that outlives its connection.
    NotSent,
}

/// Converts an error of the client or the server to the public [`Error`].
pub(super) fn to_error(error: &tokio_postgres::Error, send_state: SendState) -> Error {
    let Some(server) = error.as_db_error() else { return broken(error, send_state) };
    let code = server.code();
    let (kind, what, next) = classify(code);
    let message: String = server.message().chars().take(MAX_MESSAGE).collect();
    let error = Error::new(kind, format!("{what}: {message} ({})", code.code())).with_help(next);
    let unknown = send_state == SendState::Sent && may_have_acted(code, server.parsed_severity());
    if unknown { error.effect_unknown() } else { error }
}

/// The error of a call without a reply: that of the server or the connection, or `None` if the
/// runtime of the connection was shut down.
pub(super) fn call_failed(error: Option<&tokio_postgres::Error>) -> Error {
    error.map_or_else(
        || {
            Error::new(ErrorKind::Unavailable, "the runtime of the connection was shut down")
                .with_help("call again: Tenure continues on a thread of its own")
                .effect_unknown()
        },
        |error| to_error(error, SendState::Sent),
    )
}

/// The error for a reply that cannot be parsed.
pub(super) fn unexpected_reply() -> Error {
    Error::new(ErrorKind::Corrupt, "unexpected reply from a function of Tenure's schema")
        .with_help(
            "check whether Tenure's functions were changed, and use one version of Tenure \
             everywhere",
        )
        .effect_unknown()
}

/// A statement that fails is rolled back as a whole. A backend that is ended may have committed a
/// moment before: a server that cannot extend its write-ahead log dies with the code of a full
/// disk, and what it wrote before counts after its recovery.
fn may_have_acted(code: &SqlState, severity: Option<Severity>) -> bool {
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
        || matches!(
            *code,
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::DATABASE_DROPPED
        )
}

/// Returns whether an error means that the connection is open but of no more use.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(
            // The server has become a standby, or the prepared statements were lost or belong to a
            // schema that was dropped.
            &SqlState::READ_ONLY_SQL_TRANSACTION
                | &SqlState::INVALID_SQL_STATEMENT_NAME
                | &SqlState::UNDEFINED_FUNCTION
                | &SqlState::UNDEFINED_TABLE
                | &SqlState::INVALID_SCHEMA_NAME
                | &SqlState::FEATURE_NOT_SUPPORTED
                | &SqlState::FOREIGN_KEY_VIOLATION
        )
    )
}

fn broken(error: &tokio_postgres::Error, send_state: SendState) -> Error {
    let what = format!("the connection broke: {}", with_causes(error));
    let error = Error::new(ErrorKind::Unavailable, what)
        .with_help("call again: Tenure reconnects by itself");
    if send_state == SendState::Sent { error.effect_unknown() } else { error }
}

/// Formats an error with its causes, which tokio-postgres leaves out of its own text.
pub(super) fn with_causes(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text.push_str(": ");
        text.push_str(&one.to_string());
        cause = one.source();
    }
    text
}

/// Error `TN001` of the schema (function `check_terms`): the terms of the namespace have changed
/// since this client connected.
const OTHER_TERMS: (ErrorKind, &str, &str) = (
    ErrorKind::InvalidOption,
    "another client has changed max_lease of the namespace meanwhile",
    "state the same max_lease in every client of a namespace, and connect again",
);

fn classify(code: &SqlState) -> (ErrorKind, &'static str, &'static str) {
    use ErrorKind as K;
    const AGAIN: &str = "call again";
    if code.code() == "TN001" {
        return OTHER_TERMS;
    }
    match *code {
        SqlState::READ_ONLY_SQL_TRANSACTION => (
            K::Unavailable,
            "the server takes no writes: a standby, or set to read only",
            "call again: Tenure looks for a server of the URL that takes writes",
        ),
        SqlState::CANNOT_CONNECT_NOW => {
            (K::Unavailable, "the server is starting, stopping or recovering", AGAIN)
        }
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => {
            (K::Unavailable, "the server ended the connection", "call again: Tenure reconnects")
        }
        SqlState::QUERY_CANCELED => (
            K::Unavailable,
            "the statement timed out or was cancelled",
            "look for what keeps the server busy, or raise the role's statement_timeout",
        ),
        SqlState::LOCK_NOT_AVAILABLE => (
            K::Unavailable,
            "timeout while waiting for a row lock",
            "look for a transaction that was left open on Tenure's tables",
        ),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            (K::Unavailable, "the transaction was rolled back in favour of another", AGAIN)
        }
        SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY | SqlState::INSUFFICIENT_RESOURCES => {
            (K::Unavailable, "the server is out of disk space or memory", "free some, or add more")
        }
        SqlState::TOO_MANY_CONNECTIONS => (
            K::Unavailable,
            "the server accepts no more connections",
            "raise its max_connections, or put a pooler before it",
        ),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (K::InvalidOption, "login rejected by the server", "check user and password")
        }
        SqlState::INVALID_CATALOG_NAME => {
            (K::InvalidOption, "the database does not exist", "check the URL, or create it")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => (
            K::InvalidOption,
            "permission denied to the role",
            "grant it what docs/postgres.md lists",
        ),
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_OBJECT => (
            K::Unsupported,
            "the schema is missing or incomplete",
            "run `tenure migrate`, or name another schema",
        ),
        _ => match code.code().get(..2) {
            // Connection exceptions, resources, operator intervention, system errors.
            Some("08" | "53" | "57" | "58") => (K::Unavailable, "the server is unavailable", AGAIN),
            Some("28") => (K::InvalidOption, "login rejected by the server", "check the URL"),
            _ => (
                K::Corrupt,
                "unexpected error from the server",
                "check whether Tenure's tables or functions were changed",
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_refusal_says_what_to_do() {
        for (code, kind) in [
            ("25006", ErrorKind::Unavailable),
            ("57P03", ErrorKind::Unavailable),
            ("57P01", ErrorKind::Unavailable),
            ("57014", ErrorKind::Unavailable),
            ("55P03", ErrorKind::Unavailable),
            ("40001", ErrorKind::Unavailable),
            ("40P01", ErrorKind::Unavailable),
            ("53100", ErrorKind::Unavailable),
            ("53300", ErrorKind::Unavailable),
            ("58030", ErrorKind::Unavailable),
            ("28P01", ErrorKind::InvalidOption),
            ("28000", ErrorKind::InvalidOption),
            ("3D000", ErrorKind::InvalidOption),
            ("42501", ErrorKind::InvalidOption),
            ("42883", ErrorKind::Unsupported),
            ("3F000", ErrorKind::Unsupported),
            ("23505", ErrorKind::Corrupt),
        ] {
            let (found, what, next) = classify(&SqlState::from_code(code));
            assert_eq!(found, kind, "{code}");
            assert!(!what.is_empty() && !next.is_empty(), "{code}");
        }
    }

    #[test]
    fn what_ends_a_backend_leaves_open_what_it_did_and_a_mere_error_does_not() {
        for (code, severity, open) in [
            ("53100", Severity::Error, false),
            ("53100", Severity::Panic, true),
            ("40001", Severity::Error, false),
            ("40001", Severity::Fatal, true),
            ("57P01", Severity::Fatal, true),
            ("57014", Severity::Error, false),
        ] {
            let found = may_have_acted(&SqlState::from_code(code), Some(severity));
            assert_eq!(found, open, "{code} {severity:?}");
        }
        // Servers before 9.6 and some poolers do not send the severity untranslated.
        assert!(may_have_acted(&SqlState::CRASH_SHUTDOWN, None));
        assert!(!may_have_acted(&SqlState::DISK_FULL, None));
    }
}

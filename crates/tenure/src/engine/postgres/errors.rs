//! What can go wrong between a call and its answer. Knows the server's codes, not the verbs.

use std::error::Error as _;

use tokio_postgres::error::{Severity, SqlState};

use crate::contract::{Error, ErrorKind};

/// Longest piece of a server's own words that we repeat, in characters.
const WORDS: usize = 300;

/// Whether a statement was given to a connection before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It may have been run.
    Yes,
    /// The server has not seen it.
    No,
}

/// The same for people, and for the session.
pub(super) fn to_error(error: &tokio_postgres::Error, sent: Sent) -> Error {
    let Some(server) = error.as_db_error() else { return broken(error, sent) };
    let code = server.code();
    let (kind, what, next) = judge(code);
    let message: String = server.message().chars().take(WORDS).collect();
    let error = Error::new(kind, format!("{what}: {message} ({})", code.code())).with_help(next);
    let unknown = sent == Sent::Yes && may_have_acted(code, server.parsed_severity());
    if unknown { error.effect_unknown() } else { error }
}

/// A statement that fails is rolled back as a whole. One whose backend is ended may have been
/// committed a moment before: a server that has no room for its log of writes dies with the code of
/// a full disk, and what it wrote so far counts when it is back.
fn may_have_acted(code: &SqlState, severity: Option<Severity>) -> bool {
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
        || matches!(
            *code,
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::DATABASE_DROPPED
        )
}

/// Whether an error says that this connection will not do any more, though it stands.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(
            // The server has become a standby, or our statements were lost or belong to a schema
            // that is no more.
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

fn broken(error: &tokio_postgres::Error, sent: Sent) -> Error {
    // The client keeps the cause out of its own words.
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        what.push_str(": ");
        what.push_str(&one.to_string());
        cause = one.source();
    }
    let what = format!("the connection broke: {what}");
    let error = Error::new(ErrorKind::Unavailable, what)
        .with_help("call again: Tenure reconnects by itself");
    if sent == Sent::Yes { error.effect_unknown() } else { error }
}

/// The schema's own error: the terms of the namespace are not those that the caller goes by.
const OTHER_TERMS: (ErrorKind, &str, &str) = (
    ErrorKind::InvalidOption,
    "another client has changed max_lease of the namespace meanwhile",
    "state the same max_lease in every client of a namespace, and connect again",
);

fn judge(code: &SqlState) -> (ErrorKind, &'static str, &'static str) {
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
            (K::Unavailable, "the server starts, stops or recovers", AGAIN)
        }
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => {
            (K::Unavailable, "the server ended the connection", "call again: Tenure reconnects")
        }
        SqlState::QUERY_CANCELED => (
            K::Unavailable,
            "the server ended the statement, which took too long or was cancelled",
            "look for what keeps the server busy, or raise the role's statement_timeout",
        ),
        SqlState::LOCK_NOT_AVAILABLE => (
            K::Unavailable,
            "a row stayed locked for too long",
            "look for a transaction that was left open on Tenure's tables",
        ),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            (K::Unavailable, "the server ended the transaction in favour of another", AGAIN)
        }
        SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY | SqlState::INSUFFICIENT_RESOURCES => {
            (K::Unavailable, "the server is out of room", "give it disk or memory")
        }
        SqlState::TOO_MANY_CONNECTIONS => (
            K::Unavailable,
            "the server takes no more connections",
            "raise its max_connections, or put a pooler before it",
        ),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (K::InvalidOption, "the server lets us not in", "check user and password")
        }
        SqlState::INVALID_CATALOG_NAME => {
            (K::InvalidOption, "there is no such database", "check the URL, or create it")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (K::InvalidOption, "the role may not do that", "grant it what docs/postgres.md lists")
        }
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_OBJECT => (
            K::Unsupported,
            "the schema is not there, or not whole",
            "run `tenure migrate`, or name another schema",
        ),
        _ => match code.code().get(..2) {
            // Connection trouble, resources, operator's intervention, system errors.
            Some("08" | "53" | "57" | "58") => (K::Unavailable, "the server refuses", AGAIN),
            Some("28") => (K::InvalidOption, "the server lets us not in", "check the URL"),
            _ => (
                K::Corrupt,
                "the server answers with an error that should not be",
                "look whether somebody changed Tenure's tables or functions",
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
            let (found, what, next) = judge(&SqlState::from_code(code));
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
        // Servers before 9.6 and some poolers do not say it in a way that is the same everywhere.
        assert!(may_have_acted(&SqlState::CRASH_SHUTDOWN, None));
        assert!(!may_have_acted(&SqlState::DISK_FULL, None));
    }
}

//! Errors of calls and verbs, and what they say about their effect.
//!
//! A [`CallError`] is the failure of one call. It distinguishes what the engine handles
//! differently: whether the request may have had an effect, whether another member may do better,
//! and whether the lease is gone. etcd reports some conditions only in the text of the message,
//! which is matched here and nowhere else.

use std::time::Duration;

use tonic::Code;

use super::client::RpcError;
use crate::contract::{Error, ErrorKind, Name, Verb, short};

/// Most characters of a server's message that are repeated in an error.
const MAX_MESSAGE: usize = 300;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// The lease that a key was to be attached to is gone. Nothing was written.
    LeaseGone,
    /// No connection to the member could be established, so nothing was sent.
    NotConnected(String),
    /// No response within this time. The request may have had an effect.
    Timeout(Duration),
    /// The connection broke or the member cannot serve now. The request may have had an effect.
    Unavailable(String),
    /// The server does not speak HTTP/2, so the request had no effect.
    NotEtcd(String),
    /// The server rejected the request, and will do so again.
    Rejected(Error),
    /// The cluster was replaced or restored from a backup.
    Restored(Error),
}

impl CallError {
    /// Classifies a failure of the client.
    pub(super) fn from_rpc(failure: &RpcError) -> Self {
        let message = shorten(&failure.message);
        if failure.closed_early {
            // A server of another kind does so too: its first bytes, which are no HTTP/2 frame, may
            // end the connection before the request is sent, and then nothing says why.
            let what =
                "the server closed the connection at once, or does not speak etcd's protocol";
            return Self::NotConnected(format!("{what} (gRPC): {message}"));
        }
        if failure.unsent {
            return Self::NotConnected(message);
        }
        let refused = |kind, what: &str, next: &'static str| {
            Self::Rejected(Error::new(kind, format!("{what}: {message}")).with_help(next))
        };
        match failure.code {
            _ if message.contains("requested lease not found") => Self::LeaseGone,
            _ if message.contains("too many operations in txn") => refused(
                ErrorKind::Limit,
                "the set is too large for one transaction of this etcd",
                "take fewer names at once, or raise --max-txn-ops on the members",
            ),
            _ if message.contains("request is too large") => refused(
                ErrorKind::Limit,
                "the values are too large for one request of this etcd",
                "write less at once, or raise --max-request-bytes on the members",
            ),
            _ if message.contains("database space exceeded") => refused(
                ErrorKind::Limit,
                "etcd is full and refuses to write",
                "compact and defragment it, then `etcdctl alarm disarm`",
            ),
            Code::Unauthenticated | Code::PermissionDenied => refused(
                ErrorKind::InvalidOption,
                "etcd rejected the login",
                "check user and password in the URL, and the role's right to the prefix",
            ),
            Code::InvalidArgument if message.contains("authentication failed") => refused(
                ErrorKind::InvalidOption,
                "etcd rejected the login",
                "check user and password in the URL",
            ),
            Code::FailedPrecondition if message.contains("authentication is not enabled") => {
                refused(
                    ErrorKind::InvalidOption,
                    "authentication is not enabled on this etcd",
                    "leave user and password out of the URL, or `etcdctl auth enable`",
                )
            }
            // The client's message for bytes that are not an HTTP/2 frame.
            _ if message.contains("connection error detected") => Self::NotEtcd(message),
            _ => Self::Unavailable(message),
        }
    }

    /// Adds the endpoint of the member to the message.
    pub(super) fn with_endpoint(self, endpoint: &str) -> Self {
        match self {
            Self::Unavailable(message) => Self::Unavailable(format!("{endpoint}: {message}")),
            Self::NotConnected(message) => Self::NotConnected(format!("{endpoint}: {message}")),
            Self::NotEtcd(message) => Self::NotEtcd(format!("{endpoint}: {message}")),
            other => other,
        }
    }

    /// Whether the failure is that of the member, so that another one may succeed.
    pub(super) fn should_switch_member(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Unavailable(_) | Self::NotConnected(_) | Self::NotEtcd(_)
        )
    }

    /// Converts to the public `Error`.
    pub(super) fn into_error(self) -> Error {
        let help = "check that a majority of the members is up and reachable, and that the URL \
                    names their client ports";
        match self {
            Self::LeaseGone => {
                Error::new(ErrorKind::Unavailable, "the lease of this session has ended in etcd")
                    .with_help("call again: a new lease is granted")
            }
            Self::NotConnected(message) => {
                Error::new(ErrorKind::Unavailable, format!("etcd cannot be reached: {message}"))
                    .with_help(help)
            }
            Self::Timeout(limit) => {
                let what = format!("etcd did not respond within {}", short(limit));
                Error::new(ErrorKind::Unavailable, what).with_help(help).effect_unknown()
            }
            Self::Unavailable(message) => {
                Error::new(ErrorKind::Unavailable, format!("etcd is unavailable: {message}"))
                    .with_help(help)
                    .effect_unknown()
            }
            // Another member may be an etcd, so a retry may succeed.
            Self::NotEtcd(message) => Error::new(
                ErrorKind::Unavailable,
                format!("a server of the URL does not speak etcd's protocol (gRPC): {message}"),
            )
            .with_help("check hosts and ports of the URL: they are etcd's client ports"),
            Self::Rejected(error) | Self::Restored(error) => error,
        }
    }
}

/// Why a verb failed: a call did, or the engine refuses.
#[derive(Debug)]
pub(super) enum VerbError {
    Call(CallError),
    Error(Error),
}

impl VerbError {
    pub(super) fn into_error(self, verb: Verb) -> Error {
        match self {
            Self::Call(error) => error.into_error().during(verb),
            Self::Error(error) => error.during(verb),
        }
    }
}

impl From<CallError> for VerbError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<Error> for VerbError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The error after too many transactions whose comparisons failed.
pub(super) fn contended(name: &Name) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "too much contention: other clients changed this lock during every attempt",
    )
    .on(name)
    .with_help("call again; if it happens often, spread the load over several names")
}

/// The error for a claim whose lease passed before it was sent.
pub(super) fn expired_unsent(lease: Duration) -> Error {
    let what = format!(
        "the claim was not sent: it was queued for longer than its lease of {}",
        short(lease)
    );
    Error::new(ErrorKind::Unavailable, what)
        .with_help("call again; if it happens often, use longer leases or fewer claims at once")
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Effect;

    fn failure(code: Code, message: &str, unsent: bool) -> RpcError {
        RpcError { code, message: message.to_owned(), unsent, closed_early: false }
    }

    #[test]
    fn silence_may_have_had_an_effect_and_a_lost_lease_had_none() {
        let silence = CallError::Timeout(Duration::from_secs(2)).into_error();
        assert_eq!(silence.effect(), Effect::Unknown);
        assert!(silence.is_transient() && silence.to_string().contains("2s"), "{silence}");
        let lost = failure(Code::NotFound, "etcdserver: requested lease not found", false);
        let gone = CallError::from_rpc(&lost);
        assert!(matches!(gone, CallError::LeaseGone));
        assert_eq!(gone.into_error().effect(), Effect::None);
    }

    #[test]
    fn a_broken_connection_is_about_the_member() {
        let broken = CallError::from_rpc(&failure(Code::Unavailable, "reset", false));
        assert!(broken.should_switch_member());
        let error = broken.into_error();
        assert!(error.to_string().contains("reset"));
        assert_eq!(error.effect(), Effect::Unknown);
    }

    /// A server of another kind that speaks first may end the connection before the request is
    /// sent. The error said that etcd may have acted, and nothing of the protocol.
    #[test]
    fn a_connection_that_was_closed_before_the_request_had_no_effect() {
        let text = "operation was canceled: connection closed";
        let canceled = RpcError { closed_early: true, ..failure(Code::Cancelled, text, true) };
        let closed = CallError::from_rpc(&canceled);
        assert!(closed.should_switch_member());
        let error = closed.into_error();
        assert!(error.is_transient() && error.to_string().contains("does not speak etcd's"));
        assert_eq!(error.effect(), Effect::None);
    }

    #[test]
    fn a_connection_that_was_not_made_had_no_effect() {
        let refused = CallError::from_rpc(&failure(Code::Unavailable, "connection refused", true));
        assert!(refused.should_switch_member());
        let error = refused.into_error();
        assert!(error.is_transient() && error.to_string().contains("connection refused"));
        assert_eq!(error.effect(), Effect::None);
    }
}

//! What can go wrong between a call and its answer. Knows etcd's own words, not the verbs.

use std::time::Duration;

use tonic::Code;

use super::client::Failure;
use crate::contract::{Error, ErrorKind, Name, Verb, short};

/// Longest piece of a server's own words that we repeat, in characters.
const MAX_MESSAGE: usize = 300;

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// The lease that a key should be attached to is gone. Nothing was written.
    LeaseGone,
    /// No connection to the member could be made, so nothing was sent.
    NotConnected(String),
    /// No answer within this time.
    Timeout(Duration),
    /// The member could not be reached or cannot serve now, and may have acted before that.
    Unavailable(String),
    /// What is there does not speak HTTP/2, so it cannot have acted.
    NotEtcd(String),
    /// The server refuses, and will refuse again.
    Rejected(Error),
    /// What the store holds is older than what we have seen.
    Restored(Error),
}

impl CallError {
    /// Reads a client's failure.
    pub(super) fn of(failure: &Failure) -> Self {
        let said = shorten(&failure.message);
        if failure.unsent {
            return Self::NotConnected(said);
        }
        let refused = |kind, what: &str, next: &'static str| {
            Self::Rejected(Error::new(kind, format!("{what}: {said}")).with_help(next))
        };
        match failure.code {
            _ if said.contains("requested lease not found") => Self::LeaseGone,
            _ if said.contains("too many operations in txn") => refused(
                ErrorKind::Limit,
                "the set is too large for one transaction of this etcd",
                "take fewer names at once, or raise --max-txn-ops on the members",
            ),
            _ if said.contains("database space exceeded") => refused(
                ErrorKind::Limit,
                "etcd is full and refuses to write",
                "compact and defragment it, then `etcdctl alarm disarm`",
            ),
            Code::Unauthenticated | Code::PermissionDenied => refused(
                ErrorKind::InvalidOption,
                "etcd does not let us in",
                "check user and password in the URL, and the role's right to the prefix",
            ),
            Code::InvalidArgument if said.contains("authentication failed") => refused(
                ErrorKind::InvalidOption,
                "etcd does not let us in",
                "check user and password in the URL",
            ),
            Code::FailedPrecondition if said.contains("authentication is not enabled") => refused(
                ErrorKind::InvalidOption,
                "this etcd knows no users",
                "leave user and password out of the URL, or `etcdctl auth enable`",
            ),
            // The client's words for a frame that is none.
            _ if said.contains("connection error detected") => Self::NotEtcd(said),
            _ => Self::Unavailable(said),
        }
    }

    /// The same, with the name of the member that was asked.
    pub(super) fn at(self, endpoint: &str) -> Self {
        match self {
            Self::Unavailable(said) => Self::Unavailable(format!("{endpoint}: {said}")),
            Self::NotConnected(said) => Self::NotConnected(format!("{endpoint}: {said}")),
            Self::NotEtcd(said) => Self::NotEtcd(format!("{endpoint}: {said}")),
            other => other,
        }
    }

    /// Whether another member may answer better.
    pub(super) fn should_switch_member(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Unavailable(_) | Self::NotConnected(_) | Self::NotEtcd(_)
        )
    }

    /// The same for people, and for the session.
    pub(super) fn into_error(self) -> Error {
        let away = "check that a majority of the members is up and reachable, and that the URL \
                    names their client ports";
        match self {
            Self::LeaseGone => {
                Error::new(ErrorKind::Unavailable, "the lease of this session ended in etcd")
                    .with_help("call again: a new one is made")
            }
            Self::NotConnected(said) => {
                Error::new(ErrorKind::Unavailable, format!("etcd cannot be reached: {said}"))
                    .with_help(away)
            }
            Self::Timeout(limit) => {
                let what = format!("etcd gave no answer within {}", short(limit));
                Error::new(ErrorKind::Unavailable, what).with_help(away).effect_unknown()
            }
            Self::Unavailable(said) => {
                Error::new(ErrorKind::Unavailable, format!("etcd does not answer: {said}"))
                    .with_help(away)
                    .effect_unknown()
            }
            // Another member may be one, so this may pass.
            Self::NotEtcd(said) => Error::new(
                ErrorKind::Unavailable,
                format!("a server of the URL does not speak etcd's protocol (gRPC): {said}"),
            )
            .with_help("check hosts and ports of the URL: they are etcd's client ports"),
            Self::Rejected(error) | Self::Restored(error) => error,
        }
    }
}

/// Why a verb has no answer.
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

/// Others were faster too often.
pub(super) fn contended(name: &Name) -> Error {
    Error::new(ErrorKind::Unavailable, "others changed this lock faster than we could look at it")
        .on(name)
        .with_help("call again; if it happens often, spread the load over several names")
}

/// The error of a claim whose lease passed before it was sent.
pub(super) fn expired_unsent(lease: Duration) -> Error {
    let what = format!("the claim was not sent: its turn came after its lease of {}", short(lease));
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

    fn failure(code: Code, message: &str, unsent: bool) -> Failure {
        Failure { code, message: message.to_owned(), unsent }
    }

    #[test]
    fn silence_may_have_had_an_effect_and_a_lost_lease_had_none() {
        let silence = CallError::Timeout(Duration::from_secs(2)).into_error();
        assert_eq!(silence.effect(), Effect::Unknown);
        assert!(silence.is_transient() && silence.to_string().contains("2s"), "{silence}");
        let lost = failure(Code::NotFound, "etcdserver: requested lease not found", false);
        let gone = CallError::of(&lost);
        assert!(matches!(gone, CallError::LeaseGone));
        assert_eq!(gone.into_error().effect(), Effect::None);
    }

    #[test]
    fn a_broken_connection_is_about_the_member() {
        let broken = CallError::of(&failure(Code::Unavailable, "reset", false));
        assert!(broken.should_switch_member());
        let error = broken.into_error();
        assert!(error.to_string().contains("reset"));
        assert_eq!(error.effect(), Effect::Unknown);
    }

    #[test]
    fn a_connection_that_was_not_made_had_no_effect() {
        let refused = CallError::of(&failure(Code::Unavailable, "connection refused", true));
        assert!(refused.should_switch_member());
        let error = refused.into_error();
        assert!(error.is_transient() && error.to_string().contains("connection refused"));
        assert_eq!(error.effect(), Effect::None);
    }
}

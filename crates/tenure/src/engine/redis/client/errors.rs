//! Why a call has no reply: what the server's error codes mean, whether the server may have acted
//! all the same, and the public [`Error`] for each.
//!
//! The effect of a call that failed decides whether it may be repeated blindly. A server that
//! replies with an error has not acted, except where a script failed half way: Redis does not roll
//! it back, and then names the line of the script in the message.

use std::sync::Arc;

use redis::{ServerError, Value};

use crate::contract::{Effect, Error, ErrorKind};

/// Longest piece of a server's message that is kept, in characters.
const MAX_MESSAGE: usize = 300;
/// The error code of Tenure's own scripts.
const SCRIPT_CODE: &str = "TENURE";

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// The server replied with an error.
    Server {
        /// Its first word: `NOSCRIPT`, `OOM`, ...
        code: String,
        /// The rest, shortened, without the arguments of a command.
        message: String,
    },
    /// The connection broke after the call was queued.
    Disconnected {
        /// [`Effect::None`] if the server cannot have received the whole command.
        effect: Effect,
        /// What ended the connection.
        reason: Arc<str>,
    },
    /// There is no connection; this is the error of the latest attempt.
    NotConnected(Error),
    /// The connection was closed by its owner.
    Closed,
    /// The server replied with something that is not a reply to this call.
    UnexpectedReply(Error),
}

impl RequestError {
    /// Converts an error reply.
    fn server(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        // An unknown command is repeated with its arguments, and these may be a password.
        let details = details.split(", with args").next().unwrap_or_default();
        let message = details.chars().take(MAX_MESSAGE).collect();
        Self::Server { code: error.code().to_owned(), message }
    }

    /// The error for an unexpected reply.
    pub(in crate::engine) fn strange(value: &Value) -> Self {
        Self::UnexpectedReply(strange(value))
    }

    /// Returns true if the server does not have the script cached, and so did not run it.
    pub(in crate::engine) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "NOSCRIPT")
    }

    /// Returns true if a command met a key of another type.
    pub(in crate::engine) fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "WRONGTYPE")
    }

    /// Returns true if the server is a replica, which refuses writes.
    pub(super) fn is_from_replica(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "READONLY")
    }

    /// Returns the node that a node of a cluster redirects to (`MOVED`, `ASK`).
    pub(in crate::engine) fn redirection(&self) -> Option<Redirection<'_>> {
        let Self::Server { code, message } = self else { return None };
        let (_, address) = message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match &**code {
            "MOVED" => Some(Redirection { host, port, ask: false }),
            "ASK" => Some(Redirection { host, port, ask: true }),
            _ => None,
        }
    }

    /// Returns true if nothing came of the call and another node of the cluster may serve it.
    pub(in crate::engine) fn is_from_wrong_node(&self) -> bool {
        match self {
            Self::Server { code, .. } => {
                matches!(&**code, "CLUSTERDOWN" | "READONLY" | "MASTERDOWN")
            }
            Self::Disconnected { effect, .. } => *effect == Effect::None,
            Self::NotConnected(error) => error.is_transient(),
            Self::Closed | Self::UnexpectedReply(_) => false,
        }
    }

    /// Returns the message of an error that one of Tenure's scripts raised.
    pub(in crate::engine) fn script_message(&self) -> Option<&str> {
        match self {
            Self::Server { code, message } if code == SCRIPT_CODE => Some(message),
            Self::Server { message, .. } if message.contains("TENURE ") => Some(message),
            _ => None,
        }
    }

    /// Returns whether the server may have acted all the same.
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Self::Disconnected { effect, .. } => *effect,
            Self::Server { code, message } => server_effect(code, message),
            Self::NotConnected(_) | Self::Closed => Effect::None,
            Self::UnexpectedReply(error) => error.effect(),
        }
    }

    /// Converts to the public [`Error`].
    pub(crate) fn into_error(self) -> Error {
        let effect = self.effect();
        let error = match self {
            Self::Server { code, message } => server_error(&code, &message),
            Self::Disconnected { reason, .. } => {
                Error::new(ErrorKind::Unavailable, format!("the connection broke: {reason}"))
                    .with_help("call again: Tenure reconnects by itself")
            }
            Self::NotConnected(error) | Self::UnexpectedReply(error) => error,
            Self::Closed => Error::new(ErrorKind::Closed, "the connection was closed"),
        };
        if effect == Effect::Unknown { error.effect_unknown() } else { error }
    }
}

/// Another node of a cluster that serves the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Redirection<'a> {
    /// Empty where it is the host of the node that replied.
    pub(in crate::engine) host: &'a str,
    pub(in crate::engine) port: u16,
    /// `ASK`: for this command only, because the slot is being moved.
    pub(in crate::engine) ask: bool,
}

/// Turns an error reply into an error, and unwraps attributes.
pub(in crate::engine) fn into_result(value: Value) -> Result<Value, RequestError> {
    match value {
        Value::ServerError(error) => Err(RequestError::server(&error)),
        Value::Attribute { data, .. } => into_result(*data),
        value => Ok(value),
    }
}

/// Returns whether a server may have written something before it replied with an error.
fn server_effect(code: &str, message: &str) -> Effect {
    match code {
        // Refused before a script runs, or at its first write.
        "NOSCRIPT" | "OOM" | "READONLY" | "LOADING" | "MISCONF" | "NOREPLICAS" | "BUSY"
        | "NOAUTH" | "WRONGPASS" | "MASTERDOWN" | "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN"
        | "EXECABORT" => Effect::None,
        // A failing script is not rolled back; Redis then names the line that failed.
        _ if message.contains("@user_script") || message.contains("@user_function") => {
            Effect::Unknown
        }
        _ => Effect::None,
    }
}

fn server_error(code: &str, message: &str) -> Error {
    use ErrorKind as K;
    let code = if is_forbidden_in_script(message) {
        "NOPERM"
    } else if message.contains("access a non local key") {
        // The slot began to move while the script ran.
        "TRYAGAIN"
    } else {
        code
    };
    let (kind, what, next) = match code {
        "OOM" => (
            K::Unavailable,
            "the server is out of memory",
            "raise its maxmemory or remove other data",
        ),
        "READONLY" => {
            (K::Unavailable, "the server is a replica", "connect to the primary, or wait for it")
        }
        "LOADING" => (K::Unavailable, "the server still loads its data", "try again in a moment"),
        "MISCONF" => (
            K::Unavailable,
            "the server cannot save its data and refuses writes",
            "look at its log: the disk may be full",
        ),
        "NOREPLICAS" => {
            (K::Unavailable, "too few replicas are in touch", "check min-replicas-to-write")
        }
        "BUSY" => (K::Unavailable, "the server runs a long script", "wait, or SCRIPT KILL it"),
        "MASTERDOWN" => (K::Unavailable, "the replica lost its primary", "try again in a moment"),
        "CLUSTERDOWN" | "TRYAGAIN" => {
            (K::Unavailable, "the cluster is being changed or is down", "try again in a moment")
        }
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (K::Unsupported, "the server is a node of a cluster", "use redis+cluster://")
        }
        "NOSCRIPT" => (K::Unavailable, "the server lost our scripts", "call again"),
        "NOAUTH" => (K::InvalidOption, "the server wants a password", "give it by password_file="),
        "WRONGPASS" => (
            K::InvalidOption,
            "the server refused the user or the password",
            "check both, and that the user is on",
        ),
        "NOPERM" => (
            K::InvalidOption,
            "the server's access list forbids the command",
            "allow it with ACL SETUSER; `tenure doctor` names all that is missing",
        ),
        "WRONGTYPE" => (
            K::Corrupt,
            "a key of ours holds something else",
            "use another database or namespace: another program writes here",
        ),
        _ => (K::Corrupt, "the server answered with an error", "please report it"),
    };
    // The server's message helps, except about passwords.
    let quiet = matches!(code, "NOAUTH" | "WRONGPASS");
    let what = if quiet { what.to_owned() } else { format!("{what} ({code} {message})") };
    Error::new(kind, what).with_help(next)
}

/// Inside a script a denied command has no error code of its own, only a message: one of Redis
/// before 7.2, one since.
fn is_forbidden_in_script(message: &str) -> bool {
    message.contains("The user executing the script can't")
        || message.contains("ACL failure in script")
}

/// The error for a reply that is not one to its request.
pub(in crate::engine) fn strange(value: &Value) -> Error {
    let shown: String = format!("{value:?}").chars().take(80).collect();
    Error::new(ErrorKind::Corrupt, format!("unexpected reply from the server: {shown}"))
        .effect_unknown()
        .with_help("check that no proxy between this program and the server changes replies")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, message: &str) -> RequestError {
        RequestError::Server { code: code.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn refusals_before_the_first_write_had_no_effect() {
        let inside = "it. script: 1234, on @user_script:7.";
        for (code, message, kind, effect) in [
            ("NOSCRIPT", "", ErrorKind::Unavailable, Effect::None),
            ("OOM", inside, ErrorKind::Unavailable, Effect::None),
            ("READONLY", inside, ErrorKind::Unavailable, Effect::None),
            ("LOADING", "", ErrorKind::Unavailable, Effect::None),
            ("MISCONF", inside, ErrorKind::Unavailable, Effect::None),
            ("NOREPLICAS", "", ErrorKind::Unavailable, Effect::None),
            ("BUSY", "", ErrorKind::Unavailable, Effect::None),
            ("NOPERM", "", ErrorKind::InvalidOption, Effect::None),
            ("NOPERM", inside, ErrorKind::InvalidOption, Effect::Unknown),
            (
                "ERR",
                "The user executing the script can't run this command, on @user_script:7.",
                ErrorKind::InvalidOption,
                Effect::Unknown,
            ),
            ("ERR", "ACL failure in script: no", ErrorKind::InvalidOption, Effect::None),
            ("NOAUTH", "", ErrorKind::InvalidOption, Effect::None),
            ("WRONGPASS", "", ErrorKind::InvalidOption, Effect::None),
            ("WRONGTYPE", inside, ErrorKind::Corrupt, Effect::Unknown),
            ("MOVED", "1 h:1", ErrorKind::Unsupported, Effect::None),
            ("ERR", "", ErrorKind::Corrupt, Effect::None),
            ("ERR", inside, ErrorKind::Corrupt, Effect::Unknown),
        ] {
            let error = server(code, message).into_error();
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{error}");
            assert!(!error.help().is_empty(), "{error}");
        }
    }

    #[test]
    fn a_node_that_is_not_the_right_one_says_which_is() {
        let to = |host, port, ask| Some(Redirection { host, port, ask });
        for (code, message, wanted) in [
            ("MOVED", "3999 10.0.0.1:6381", to("10.0.0.1", 6381, false)),
            ("ASK", "3999 ::1:6381", to("::1", 6381, true)),
            ("MOVED", "3999 :6381", to("", 6381, false)),
            ("MOVED", "3999", None),
            ("ERR", "3999 h:1", None),
        ] {
            assert_eq!(server(code, message).redirection(), wanted);
        }
    }

    #[test]
    fn a_broken_connection_says_whether_the_server_may_have_acted() {
        for effect in [Effect::None, Effect::Unknown] {
            let error = RequestError::Disconnected { effect, reason: "reset".into() }.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect));
            assert!(error.is_transient() && error.to_string().contains("reset"), "{error}");
        }
    }

    #[test]
    fn arguments_that_a_server_repeats_are_left_out() {
        let reply = "-ERR unknown command 'HELLO', with args beginning with: '3' 'c4n4ry'\r\n";
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        let error = into_result(value).unwrap_err();
        let RequestError::Server { code, message } = &error else { panic!("{error:?}") };
        assert_eq!((&**code, &**message), ("ERR", "unknown command 'HELLO'"));
    }
}

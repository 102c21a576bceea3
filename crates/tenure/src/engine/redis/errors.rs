//! What can go wrong between a call and its reply. Knows the server's error codes, not the verbs.

use std::sync::Arc;

use redis::{ServerError, Value};

use crate::contract::{Effect, Error, ErrorKind};

/// Longest piece of a server's own words that we repeat, in characters.
const WORDS: usize = 300;

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The server answered with an error.
    Server {
        /// Its first word: `NOSCRIPT`, `OOM`, ...
        code: String,
        /// The rest, shortened, without the arguments of a command.
        message: String,
    },
    /// The connection broke after the call was accepted.
    Broken {
        /// None if the server cannot have seen the whole command.
        effect: Effect,
        /// What broke it.
        why: Arc<str>,
    },
    /// There is no connection, and the latest attempt to make one failed like this.
    NotConnected(Error),
    /// The connection was closed by us.
    Closed,
    /// The server answered, but not what it should.
    Strange(Error),
}

impl Trouble {
    /// What an error reply says.
    pub(super) fn server(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        // An unknown command is repeated with its arguments, and these may be a password.
        let details = details.split(", with args").next().unwrap_or_default();
        let message = details.chars().take(WORDS).collect();
        Self::Server { code: error.code().to_owned(), message }
    }

    /// An answer that makes no sense.
    pub(in crate::engine) fn strange(value: &Value) -> Self {
        Self::Strange(super::answers::strange(value))
    }

    /// Whether the server does not know a script, and so did not run it.
    pub(in crate::engine) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "NOSCRIPT")
    }

    /// Whether a command met a key of another type.
    pub(super) fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "WRONGTYPE")
    }

    /// Whether the server does not write, because another one does.
    pub(super) fn is_from_replica(&self) -> bool {
        matches!(self, Self::Server { code, .. } if code == "READONLY")
    }

    /// Where a node of a cluster sends us, if it does.
    pub(super) fn redirection(&self) -> Option<Redirection<'_>> {
        let Self::Server { code, message } = self else { return None };
        let (_, address) = message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match &**code {
            "MOVED" => Some(Redirection { host, port, for_now: false }),
            "ASK" => Some(Redirection { host, port, for_now: true }),
            _ => None,
        }
    }

    /// Whether another node of the cluster may be the right one by now.
    pub(super) fn is_from_wrong_node(&self) -> bool {
        match self {
            Self::Server { code, .. } => {
                matches!(&**code, "CLUSTERDOWN" | "READONLY" | "MASTERDOWN")
            }
            Self::Broken { effect, .. } => *effect == Effect::None,
            Self::NotConnected(error) => error.is_transient(),
            Self::Closed | Self::Strange(_) => false,
        }
    }

    /// What one of our scripts says it found wrong.
    pub(in crate::engine) fn script_message(&self) -> Option<&str> {
        match self {
            Self::Server { code, message } if code == "TENURE" => Some(message),
            Self::Server { message, .. } if message.contains("TENURE ") => Some(message),
            _ => None,
        }
    }

    /// Whether the server may have acted all the same.
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Self::Broken { effect, .. } => *effect,
            Self::Server { code, message } => server_effect(code, message),
            Self::NotConnected(_) | Self::Closed => Effect::None,
            Self::Strange(error) => error.effect(),
        }
    }

    /// The same for people, and for the session.
    pub(crate) fn into_error(self) -> Error {
        let effect = self.effect();
        let error = match self {
            Self::Server { code, message } => server_error(&code, &message),
            Self::Broken { why, .. } => {
                Error::new(ErrorKind::Unavailable, format!("the connection broke: {why}"))
                    .with_help("call again: Tenure reconnects by itself")
            }
            Self::NotConnected(error) | Self::Strange(error) => error,
            Self::Closed => Error::new(ErrorKind::Closed, "the connection was closed"),
        };
        if effect == Effect::Unknown { error.effect_unknown() } else { error }
    }
}

/// Another node of a cluster to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirection<'a> {
    /// Empty where it is the host of the node that answered.
    pub(super) host: &'a str,
    pub(super) port: u16,
    /// With this one command only: the slot is being moved.
    pub(super) for_now: bool,
}

/// A reply as a result: an error reply is trouble, an attribute is only a wrapping.
pub(in crate::engine) fn judged(value: Value) -> Result<Value, Trouble> {
    match value {
        Value::ServerError(error) => Err(Trouble::server(&error)),
        Value::Attribute { data, .. } => judged(*data),
        value => Ok(value),
    }
}

/// Whether a server that refused may have written something before.
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
        "BUSY" => {
            (K::Unavailable, "the server runs somebody's long script", "wait, or SCRIPT KILL it")
        }
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
            "use another database or namespace: somebody else writes here",
        ),
        _ => (K::Corrupt, "the server answered with an error", "please report it"),
    };
    // The server's own words help, except about passwords, where ours say more.
    let quiet = matches!(code, "NOAUTH" | "WRONGPASS");
    let what = if quiet { what.to_owned() } else { format!("{what} ({code} {message})") };
    Error::new(kind, what).with_help(next)
}

/// Inside a script the access list has no code of its own, only words: those of Redis before and
/// since 7.2.
fn is_forbidden_in_script(message: &str) -> bool {
    message.contains("The user executing the script can't")
        || message.contains("ACL failure in script")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, message: &str) -> Trouble {
        Trouble::Server { code: code.to_owned(), message: message.to_owned() }
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
        let to = |host, port, for_now| Some(Redirection { host, port, for_now });
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
            let error = Trouble::Broken { effect, why: "reset".into() }.into_error();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect));
            assert!(error.is_transient() && error.to_string().contains("reset"), "{error}");
        }
    }

    #[test]
    fn arguments_that_a_server_repeats_are_left_out() {
        let reply = "-ERR unknown command 'HELLO', with args beginning with: '3' 'c4n4ry'\r\n";
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        let trouble = judged(value).unwrap_err();
        let Trouble::Server { code, message } = &trouble else { panic!("{trouble:?}") };
        assert_eq!((&**code, &**message), ("ERR", "unknown command 'HELLO'"));
    }
}

//! The reply of the script `change_terms.lua`, which both engines over Redis have: whether clients
//! are connected that rely on the terms of the namespace, and whether the terms were changed.

use redis::Value;

use super::keys::NamespaceKeys;
use crate::contract::{Error, ErrorKind};
use crate::engine::redis::client::{list, strange, text};

/// The reply of `change_terms.lua`.
pub(in crate::engine) enum TermsReply {
    /// Clients are connected that state another value.
    There(Vec<String>),
    /// The top, which must not change until the terms are changed.
    Top(String),
    /// The top has changed: a claim may have been made.
    Again,
    /// The terms are changed.
    Done,
}

impl TermsReply {
    /// Parses the reply of the script.
    pub(in crate::engine) fn read(value: &Value, keys: &NamespaceKeys) -> Result<Self, Error> {
        let words = list(value).ok_or_else(|| strange(value))?;
        let word = |at: usize| words.get(at).and_then(text).ok_or_else(|| strange(value));
        Ok(match word(0)? {
            "there" => {
                let client = |word| text(word).map(|channel| keys.client_of(channel));
                Self::There(words[1..].iter().filter_map(client).collect())
            }
            "top" => Self::Top(word(1)?.to_owned()),
            "again" => Self::Again,
            "ok" => Self::Done,
            "denied" => {
                let what = format!("the server does not list connected clients: {}", word(1)?);
                return Err(Error::new(ErrorKind::InvalidOption, what)
                    .with_help("to change max_lease, allow the user +pubsub|channels"));
            }
            _ => return Err(strange(value)),
        })
    }
}

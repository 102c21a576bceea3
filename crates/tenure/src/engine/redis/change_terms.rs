//! Changing the longest lease of a namespace, when no client is there who relies on it.
//!
//! Every connection is subscribed to a channel that names what its client states, before the client
//! agrees on the terms; so the server knows which clients are connected, idle ones too, and a
//! client that was away is asked again when it comes back. Claims may stand without a client. They
//! are looked for, and the change is refused if the top has moved since: a claim moves it, and in a
//! cluster, where each name has a top of its own, a client that agrees on the terms does.

use std::time::Duration;

use redis::Value;

use super::answers::{list, strange, text};
use super::inspect::{self, Store};
use super::keys::Keys;
use crate::contract::{Error, ErrorKind, Page, Snapshot};
use crate::engine::{Terms, max_lease};

/// How often claims are looked for while others come and go.
const TRIES: usize = 8;

/// What `change_terms.lua` said.
pub(in crate::engine) enum Said {
    /// Clients are connected that state another value.
    There(Vec<String>),
    /// The number that must not change until the terms are.
    Top(String),
    /// A claim may have come meanwhile.
    Again,
    /// They are changed.
    Done,
}

impl Said {
    /// Reads the answer of the script.
    pub(in crate::engine) fn read(value: &Value, keys: &Keys) -> Result<Self, Error> {
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
                let what =
                    format!("the server does not tell which clients are there: {}", word(1)?);
                return Err(Error::new(ErrorKind::InvalidOption, what)
                    .with_help("to change max_lease, allow the user +pubsub|channels"));
            }
            _ => return Err(strange(value)),
        })
    }
}

/// Has the namespace opened with another longest lease than `stands`. The store is opened by a
/// client that makes no claims.
///
/// # Errors
/// If a client or a claim is there, or the server cannot be asked.
pub(super) async fn change_terms(
    store: &impl Store,
    terms: &Terms,
    stands: Duration,
) -> Result<(), Error> {
    let refuse = |because: &str| max_lease::refused(stands, terms.max_lease, because);
    for _ in 0..TRIES {
        let top = match ask(store, terms, "").await? {
            Said::Top(top) => top,
            Said::There(clients) => return Err(refuse(&max_lease::connected(clients))),
            Said::Again | Said::Done => continue,
        };
        if let Some(claims) = max_lease::claimed(&everything(store).await?) {
            return Err(refuse(&claims));
        }
        match ask(store, terms, &top).await? {
            Said::Done => return Ok(()),
            Said::There(clients) => return Err(refuse(&max_lease::connected(clients))),
            Said::Again | Said::Top(_) => {}
        }
    }
    Err(refuse("others keep coming and going"))
}

async fn ask(store: &impl Store, terms: &Terms, top: &str) -> Result<Said, Error> {
    let (wanted, prefix) = (terms.max_lease.as_micros().to_string(), store.keys().clients());
    let items: [&[u8]; 3] = [wanted.as_bytes(), prefix.as_bytes(), top.as_bytes()];
    Said::read(&store.ask_to_change(items).await?, store.keys())
}

/// All slots in which something is, page by page, up to the first in which somebody is.
async fn everything(store: &impl Store) -> Result<Snapshot, Error> {
    let mut page = Page::default();
    loop {
        let seen = inspect::page(store, &page).await?;
        if seen.more_after.is_none() || max_lease::claimed(&seen).is_some() {
            return Ok(seen);
        }
        page.after = seen.more_after;
    }
}

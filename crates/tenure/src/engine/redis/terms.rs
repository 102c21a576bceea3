//! The terms of a namespace, on which all its clients agree; here: changing the longest lease when
//! no client relies on it.
//!
//! Every connection is subscribed to a channel that names the longest lease its client states, and
//! subscribes before it agrees on the terms (`connect.rs`). So the server knows which clients are
//! connected, idle ones too, and a client that was away runs the handshake again when it is back.
//! Claims may exist without a client. They are searched for, and the change is refused if the top
//! has moved since: a claim moves it, and in a cluster, where each name has a top of its own, a
//! client that agrees on the terms does. So the check and the change act as one step, repeated a
//! few times if others interfere.

use std::time::Duration;

use super::inspect::{self, StoreAccess};
use crate::contract::{Error, Page, Snapshot};
use crate::engine::Terms;
use crate::engine::common::max_lease;
use crate::engine::common::redis::terms::TermsReply;

/// How many times the change is tried while other clients come and go.
const MAX_ATTEMPTS: usize = 8;

/// Changes the longest lease of the namespace from `agreed` to that of `terms`. `store` belongs to
/// a client that makes no claims.
///
/// # Errors
/// If another client is connected, a claim exists, or the server does not allow the question.
pub(super) async fn change(
    store: &impl StoreAccess,
    terms: &Terms,
    agreed: Duration,
) -> Result<(), Error> {
    let refuse = |because: &str| max_lease::refused(agreed, terms.max_lease, because);
    for _ in 0..MAX_ATTEMPTS {
        let top = match run(store, terms, "").await? {
            TermsReply::Top(top) => top,
            TermsReply::There(clients) => return Err(refuse(&max_lease::connected(clients))),
            TermsReply::Again | TermsReply::Done => continue,
        };
        if let Some(claims) = max_lease::claimed(&first_claims(store).await?) {
            return Err(refuse(&claims));
        }
        match run(store, terms, &top).await? {
            TermsReply::Done => return Ok(()),
            TermsReply::There(clients) => return Err(refuse(&max_lease::connected(clients))),
            TermsReply::Again | TermsReply::Top(_) => {}
        }
    }
    Err(refuse("others keep coming and going"))
}

async fn run(store: &impl StoreAccess, terms: &Terms, top: &str) -> Result<TermsReply, Error> {
    let (wanted, prefix) = (terms.max_lease.as_micros().to_string(), store.keys().clients());
    let items: [&[u8]; 3] = [wanted.as_bytes(), prefix.as_bytes(), top.as_bytes()];
    TermsReply::read(&store.change_terms(items).await?, store.keys())
}

/// Reads slots page by page, up to the first page that has a claim.
async fn first_claims(store: &impl StoreAccess) -> Result<Snapshot, Error> {
    let mut page = Page::default();
    loop {
        let seen = inspect::page(store, &page).await?;
        if seen.more_after.is_none() || max_lease::claimed(&seen).is_some() {
            return Ok(seen);
        }
        page.after = seen.more_after;
    }
}

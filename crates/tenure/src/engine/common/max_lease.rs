//! The longest lease of a namespace, when a client states another one than stands: the error that
//! says who relies on the one that stands. Knows words; each engine finds out who is there.
//!
//! Every grace period counts on the longest lease, so all clients of a namespace go by the same
//! one. It changes when a client connects with another value while no other client is connected
//! and no claim lives.

#![allow(dead_code, reason = "for engines that a build may leave out")]

use std::time::Duration;

use crate::contract::{Error, ErrorKind, Snapshot};

/// How many clients are named.
const NAMED: usize = 8;

/// Refuses the value that a client states: another one stands, for this reason.
pub(in crate::engine) fn refused(stands: Duration, stated: Duration, because: &str) -> Error {
    let what = format!(
        "this namespace was opened with max_lease {stands:?}, not {stated:?}, and {because}"
    );
    Error::new(ErrorKind::InvalidOption, what).with_help(
        "state the same max_lease in every client of a namespace; to change it, stop all of them, \
         wait until no claim is left (`tenure ls`), and connect with the new value",
    )
}

/// The reason if clients are connected, by what is known of each.
pub(in crate::engine) fn connected(mut clients: Vec<String>) -> String {
    clients.sort();
    clients.dedup();
    format!("clients are connected: {}", named(&clients))
}

/// The reason if there are holders or waiters; `None` if there are none.
pub(in crate::engine) fn claimed(seen: &Snapshot) -> Option<String> {
    let holders = seen.slots.iter().flat_map(|slot| {
        slot.holders.iter().map(|holder| format!("{} holds {:?}", holder.about, slot.name))
    });
    let waiters = seen.slots.iter().flat_map(|slot| {
        slot.queue.iter().map(|waiter| format!("{} waits for {:?}", waiter.about, slot.name))
    });
    let claims: Vec<String> = holders.chain(waiters).collect();
    (!claims.is_empty()).then(|| named(&claims))
}

fn named(all: &[String]) -> String {
    let more = all.len().saturating_sub(NAMED);
    let mut text = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    text
}

/// This process, as others see it.
pub(in crate::engine) fn this_process() -> (std::sync::Arc<str>, u32) {
    (crate::contract::host_name(), std::process::id())
}

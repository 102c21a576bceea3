//! Errors that scripts raise, as the public [`Error`]. `client/errors.rs` has those of the server
//! and the connection.
//!
//! A script that finds a key with contents that are not Tenure's raises `TENURE corrupt KEY` before
//! it has written anything, or `TENURE met KEY` when it may have.

use super::client::RequestError;
use crate::contract::{Error, ErrorKind, Verb};

/// Converts the error of a call that was made for a verb.
pub(super) fn to_error(error: RequestError, verb: Verb) -> Error {
    let error = match error.script_message() {
        Some(message) => script_error(message),
        None => error.into_error(),
    };
    error.during(verb)
}

/// Converts the message of an error that a script raised.
pub(in crate::engine) fn script_error(message: &str) -> Error {
    // Servers before 7 find out only when a script writes.
    if message.starts_with("READONLY") {
        return Error::new(ErrorKind::Unavailable, "the server is a replica")
            .with_help("connect to the primary, or wait for it");
    }
    // The error code is cut off where the message comes as an error reply.
    let untouched = message.split_once("corrupt ");
    let written = message.split_once("TENURE met ");
    let Some((_, rest)) = untouched.or(written) else {
        let what = format!("a script failed: {}", message.escape_debug());
        return Error::new(ErrorKind::Corrupt, what).effect_unknown().with_help(
            "look at the keys of this lock; an older or newer Tenure may have made them",
        );
    };
    let key: String = rest.split(' ').next().unwrap_or_default().escape_debug().collect();
    let what = format!("the contents of key {key} were not written by Tenure");
    let error = Error::new(ErrorKind::Corrupt, what)
        .with_help("find out which program writes there; delete the key once it is not needed");
    if untouched.is_none() { error.effect_unknown() } else { error }
}

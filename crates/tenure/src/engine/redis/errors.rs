//! Errors of calls, as the public [`Error`]: those that scripts raise are in
//! `common/redis/errors.rs`, those of the server and the connection in `client/errors.rs`.

use super::client::RequestError;
use crate::contract::{Error, Verb};
use crate::engine::common::redis::errors::script_error;

/// Converts the error of a call that was made for a verb.
pub(super) fn to_error(error: RequestError, verb: Verb) -> Error {
    let error = match error.script_message() {
        Some(message) => script_error(message),
        None => error.into_error(),
    };
    error.during(verb)
}

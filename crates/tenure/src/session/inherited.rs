//! A session in a child that was forked without `exec`. Knows processes, not claims.
//!
//! The child has the session's memory and none of its threads. The keeper, the connections and the
//! locks in the store are the parent's; a mutex may be locked by a thread that the child does not
//! have. So every way into a session asks [`Core::is_inherited`] first, which is one atomic load,
//! and takes no lock, sends nothing and removes nothing if it is so: calls return [`forked_error`],
//! guards are lost with [`Loss::Forked`](crate::contract::Loss::Forked), drops do nothing.

use super::Core;
use crate::contract::{Error, ErrorKind, Verb};

impl Core {
    /// Whether this process was forked from the one that the session belongs to.
    pub(crate) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// An error if this process was forked from the one that the session belongs to.
    pub(crate) fn check_process(&self, verb: Verb) -> Result<(), Error> {
        if self.is_inherited() { Err(forked_error(verb)) } else { Ok(()) }
    }
}

/// What a child hears that uses the session of its parent.
pub(super) fn forked_error(verb: Verb) -> Error {
    let what = "this Tenure belongs to the process from which this one was forked";
    Error::new(ErrorKind::Closed, what)
        .during(verb)
        .with_help("connect after the fork, or start the child with exec")
}

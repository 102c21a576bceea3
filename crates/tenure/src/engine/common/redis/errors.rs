//! Errors that scripts raise, as the public [`Error`].
//!
//! A script that finds a key with contents that are not Tenure's raises `TENURE corrupt KEY` before
//! it has written anything, or `TENURE met KEY` when it may have.

use crate::contract::{Error, ErrorKind};

/// Converts the message of an error that a script raised.
pub(in crate::engine) fn script_error(message: &str) -> Error {
    // Servers before 7 find out only when a script writes.
    if message.starts_with("READONLY") {
        return Error::new(ErrorKind::Unavailable, "the server is a replica")
            .with_help("connect to the primary, or wait for it");
    }
    if message.contains("queue_version ") {
        let what = "the queue was written by another version of Tenure";
        return Error::new(ErrorKind::Unsupported, what)
            .with_help("use the version that wrote it, or let that one finish its jobs");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Effect;

    #[test]
    fn an_error_says_whether_the_script_may_have_written() {
        for (message, key, effect) in [
            ("TENURE corrupt tenure:{a/b}", "tenure:{a/b}", Effect::None),
            ("corrupt tenure:{a/b} line 3", "tenure:{a/b}", Effect::None),
            ("ERR TENURE met tenure:{a/b}:l x", "tenure:{a/b}:l", Effect::Unknown),
            ("attempt to index a nil value", "a script failed", Effect::Unknown),
            ("READONLY You can't write", "is a replica", Effect::None),
        ] {
            let error = script_error(message);
            assert!(error.to_string().contains(key), "{message}: {error}");
            assert_eq!(error.effect(), effect, "{message}");
        }
    }
}

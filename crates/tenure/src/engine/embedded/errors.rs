//! Builds the errors of the engine that do not come from the file system (for those see
//! `directory::cannot`).

use std::fs;

use super::gate::GateBusy;
use crate::contract::{Error, ErrorKind};

/// The store is in use, and its files cannot be read by this build.
pub(super) fn foreign(what: &str) -> Error {
    let what = format!("the store is in use by another build of Tenure ({what})");
    Error::new(ErrorKind::Unsupported, what)
        .with_help("use one build for all programs that share a store, or a directory for each")
}

/// The gate was busy for the whole timeout.
pub(super) fn stuck(busy: GateBusy) -> Error {
    let what = match busy.pid {
        None => "another process has been inside the store too long".to_owned(),
        Some(pid) => {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let command = command.trim();
            format!("process {pid} ({command}) has been inside the store too long; is it stopped?")
        }
    };
    Error::new(ErrorKind::Unavailable, what).with_help("let it go on (kill -CONT) or end it")
}

/// This process is a forked child of the one that opened the store.
pub(super) fn forked() -> Error {
    Error::new(ErrorKind::Closed, "this process was forked from one that had the store open")
        .with_help("start the child with exec, or connect after the fork only")
}

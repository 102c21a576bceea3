//! Counts which paths of an engine were taken, so that the differential run can fail by the name of
//! one that no program reached. The names are listed in `conformance/paths.rs`.
//!
//! Code in Rust calls [`take`]. In Lua and SQL a path is a comment `--#path NAME`, or
//! `--#path NAME if CONDITION`, where a statement may stand: what ships has the comment, and only
//! the texts of the conformance suite have a counter there ([`counted`]). Builds without the
//! feature `conformance` count nothing.

#[cfg(feature = "conformance")]
use std::{collections::BTreeMap, sync::Mutex, sync::PoisonError};

#[cfg(feature = "conformance")]
static TAKEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// A path was taken.
#[cfg(feature = "conformance")]
pub(in crate::engine) fn take(path: &'static str) {
    *TAKEN.lock().unwrap_or_else(PoisonError::into_inner).entry(path).or_default() += 1;
}

/// A path was taken. Nothing is counted in this build.
#[cfg(not(feature = "conformance"))]
#[allow(dead_code, reason = "not every engine has paths in Rust")]
pub(in crate::engine) const fn take(_: &'static str) {}

/// How often each path was taken in this process, by name.
#[cfg(feature = "conformance")]
pub(crate) fn taken() -> BTreeMap<&'static str, u64> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The path that a line of Lua or SQL marks, and the condition if it has one.
#[cfg(all(feature = "conformance", feature = "redis"))]
pub(in crate::engine) fn counted(line: &str) -> Option<(&str, Option<&str>)> {
    let mark = line.trim().strip_prefix("--#path ")?;
    Some(mark.split_once(" if ").map_or((mark, None), |(path, when)| (path, Some(when))))
}

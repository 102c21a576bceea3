//! The URLs of embedded stores: the user's own, or a directory.

use std::path::{Path, PathBuf};

use crate::contract::{Error, ErrorKind};
use crate::engine::common::url::decode;

/// Where to open a store.
#[derive(Clone, Debug, Default)]
pub struct Location {
    path: Option<PathBuf>,
    boot: Option<String>,
}

impl Location {
    /// The user's own store.
    #[must_use]
    pub fn own() -> Self {
        Self::default()
    }

    /// The store in this directory.
    #[must_use]
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self { path: Some(path.as_ref().to_owned()), boot: None }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Which boot of the machine it is.
    pub(super) fn boot_id(&self) -> Result<String, Error> {
        self.boot.clone().map_or_else(super::directory::boot_id, Ok)
    }

    /// As it would be after the machine had started again with this boot id: for tests.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn boot(mut self, id: &str) -> Self {
        self.boot = Some(id.to_owned());
        self
    }
}

/// Reads what follows the scheme: nothing, or `///path`.
pub(super) fn read(rest: &str) -> Result<Location, Error> {
    if rest.is_empty() {
        return Ok(Location::own());
    }
    let wrong = |what: String| {
        Error::new(ErrorKind::InvalidOption, what)
            .with_help("use embedded: for the user's own store, or embedded:///path")
    };
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(wrong("an embedded store is on this host, not on another".into())),
        None if rest.starts_with('/') => rest,
        None => return Err(wrong("the path of an embedded store begins with a slash".into())),
    };
    if path.contains(['?', '#']) {
        return Err(wrong("an embedded store has no options; write ? as %3F, # as %23".into()));
    }
    let decoded = decode(path).map_err(|problem| wrong(problem.into_owned()))?;
    if decoded.contains('\0') {
        return Err(wrong("the path contains a zero byte".into()));
    }
    Ok(Location::at(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_the_own_store_or_a_path() {
        let path = |rest: &str| read(rest).map(|location| location.path);
        assert_eq!(path("").unwrap(), None);
        assert_eq!(path("///var/x").unwrap(), Some(PathBuf::from("/var/x")));
        assert_eq!(path("/var/x").unwrap(), Some(PathBuf::from("/var/x")));
        assert_eq!(path("///a%20b").unwrap(), Some(PathBuf::from("/a b")));
        for wrong in ["x", "//host/x", "//", "///x?y=1", "///x%00y", "///%ff"] {
            let error = path(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{wrong}");
            assert!(!error.help().is_empty(), "{wrong}");
        }
    }
}

//! Declared levels of locks: which may be taken while which is held.
//!
//! Levels are a list, the highest first. While a lock of one level is held, only locks of lower
//! levels (further down the list) may be acquired: so no two flows can wait for each other on locks
//! that have levels. Several locks of one level are acquired as one set. A lock without a level is
//! not checked.

use std::sync::Arc;

use crate::contract::{Error, ErrorKind, Name, Pattern};
use crate::limits;

/// Levels of locks, the highest first, and which names are on which.
///
/// # Examples
/// ```
/// use tenure::{Levels, Tenure};
///
/// # tenure::block_on(async {
/// let levels = Levels::new(["system", "region", "account", "transaction"])?
///     .names("account:*", "account")?;
/// let tenure = Tenure::builder().levels(levels).connect("memory:").await?;
/// let account = tenure.mutex("account:17")?.lock().await?; // its level is that of the pattern
/// let refused = tenure.mutex("europe")?.level("region").lock().await;
/// println!("{}", refused.unwrap_err()); // names both locks, both levels, both places in the code
/// let entry = tenure.mutex("entry")?.level("transaction").lock().await?;
/// # drop((account, entry));
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    names: Vec<Arc<str>>,
    patterns: Vec<(Pattern, usize)>,
}

impl Levels {
    /// Levels with these names, the highest first.
    ///
    /// # Errors
    /// `InvalidOption` if there is none, a name is empty or appears twice, or there are more than
    /// 64.
    pub fn new<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let names: Vec<Arc<str>> = names.into_iter().map(|name| Arc::from(name.as_ref())).collect();
        let twice = |(at, name): (usize, &Arc<str>)| names[..at].contains(name);
        let what = if names.is_empty() {
            "no level was named".to_owned()
        } else if names.len() > limits::LEVELS {
            format!("there are at most {} levels, not {}", limits::LEVELS, names.len())
        } else if names.iter().any(|name| name.trim().is_empty()) {
            "the name of a level is empty".to_owned()
        } else if names.iter().enumerate().any(twice) {
            "a level is named twice".to_owned()
        } else {
            return Ok(Self { names, patterns: Vec::new() });
        };
        let help = "name each level once, the highest first: system, region, account";
        Err(Error::new(ErrorKind::InvalidOption, what).with_help(help))
    }

    /// Puts the names that match a pattern on a level. The first pattern that matches counts; what
    /// a lock itself says ([`Mutex::level`](crate::Mutex::level)) comes before all patterns.
    ///
    /// # Errors
    /// `InvalidOption` if there is no such level.
    pub fn names(mut self, pattern: &str, level: &str) -> Result<Self, Error> {
        let level = self.index(level).ok_or_else(|| self.unknown(level))?;
        self.patterns.push((Pattern::new(pattern), level));
        Ok(self)
    }

    /// The levels, the highest first.
    pub fn level_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// The level of that name, counted from the highest.
    pub(crate) fn index(&self, level: &str) -> Option<usize> {
        self.names.iter().position(|name| **name == *level)
    }

    /// The level of a lock: the one that was said, or that of the first pattern. A level that is
    /// not known here was said by another process.
    pub(super) fn level_of(&self, said: Option<&str>, name: &Name) -> Option<usize> {
        if let Some(level) = said.and_then(|said| self.index(said)) {
            return Some(level);
        }
        let found = self.patterns.iter().find(|(one, _)| one.matches(name.as_str()));
        found.map(|(_, level)| *level)
    }

    pub(super) fn name(&self, level: usize) -> &str {
        self.names.get(level).map_or("", |name| name)
    }

    /// The shared text of a level's name.
    pub(crate) fn shared_name(&self, level: &str) -> Result<Arc<str>, Error> {
        let found = self.names.iter().find(|name| ***name == *level);
        found.cloned().ok_or_else(|| self.unknown(level))
    }

    fn unknown(&self, level: &str) -> Error {
        let known: Vec<&str> = self.level_names().collect();
        Error::new(ErrorKind::InvalidOption, format!("no level is called {level:?}"))
            .with_help(format!("use one of: {}", known.join(", ")))
    }
}

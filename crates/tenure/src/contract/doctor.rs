//! What an engine finds when it looks at its store with the eyes of an operator. Knows findings,
//! not stores.

/// One thing that was looked at, and what was found.
///
/// # Examples
/// ```
/// use tenure::contract::{Finding, Health};
///
/// let finding = Finding::new("memory", Health::Note, "almost full; raise maxmemory");
/// assert!(finding.state < Health::Bad);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word or two: `persistence`.
    pub check: &'static str,
    /// Whether an operator should act.
    pub state: Health,
    /// What was found, what it means for locks and what to do, in one line for people. Holds no
    /// password.
    pub what: String,
}

impl Finding {
    /// What a look found.
    #[must_use]
    pub fn new(check: &'static str, state: Health, what: impl Into<String>) -> Self {
        Self { check, state, what: what.into() }
    }
}

/// Whether an operator should act on a [`Finding`], from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// As it should be.
    Fine,
    /// Works, with consequences that an operator should know.
    Note,
    /// Locks fail, or do not protect.
    Bad,
}

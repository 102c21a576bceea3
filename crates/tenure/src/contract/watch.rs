//! Watching cells: what an engine signals. A signal is a hint to read the cell again, never a
//! value, so that a lost or repeated one does no harm and the last state is never missed.

use std::sync::Weak;
use std::time::Duration;

use super::error::{Error, ErrorKind, Verb};
use super::name::Name;
use crate::limits;

/// Which cells are watched.
///
/// # Examples
/// ```
/// use tenure::CellRange;
///
/// let range = CellRange::prefix("config:")?;
/// assert!(range.contains(&"config:mail".parse()?));
/// assert!(!range.contains(&"counter".parse()?));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellRange {
    /// One cell.
    One(Name),
    /// All cells whose names begin with this text, except those that Tenure keeps for itself.
    Prefix(String),
}

impl CellRange {
    /// All cells whose names begin with this text; with an empty one, all cells.
    ///
    /// # Errors
    /// `InvalidOption` if the text is longer than a name may be or has a control character.
    pub fn prefix(text: impl Into<String>) -> Result<Self, Error> {
        let range = Self::Prefix(text.into());
        range.check()?;
        Ok(range)
    }

    /// Checks the text of a prefix, which may have been made without [`prefix`](Self::prefix).
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (text, most) = match self {
            Self::One(_) => return Ok(()),
            Self::Prefix(text) => (text, limits::NAME_BYTES),
        };
        let (what, help) = if text.len() > most {
            let what = format!("a prefix has at most {most} bytes, this one has {}", text.len());
            (what, "no name is longer than that, so no cell would match")
        } else if text.chars().any(char::is_control) {
            let what = format!("a prefix has no control characters, but {text:?} has");
            (what, "no name of a user has any, so no cell would match")
        } else {
            return Ok(());
        };
        Err(Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell).with_help(help))
    }

    /// Whether a cell is in the range.
    #[must_use]
    pub fn contains(&self, name: &Name) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Prefix(prefix) => {
                name.as_str().starts_with(prefix.as_str()) && !name.is_reserved()
            }
        }
    }
}

/// Receives signals about cells. Must not block.
pub trait CellWatcher: Send + Sync {
    /// The cell may have changed.
    fn on_change(&self, name: &Name);

    /// Changes of any cell in the range may have been missed.
    fn on_gap(&self);
}

/// A watcher as an engine keeps it: a watcher that is dropped is not called any more.
pub type WeakWatcher = Weak<dyn CellWatcher>;

/// How changes of cells reach a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The engine calls the watcher.
    Pushed,
    /// It cannot, and the watcher has to look that often.
    Polled(Duration),
}

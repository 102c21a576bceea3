//! Watching cells: what an engine signals. A signal is a hint to read the cell again, never a
//! value, so that a lost or repeated one does no harm and the last state is never missed.

use std::sync::Weak;
use std::time::Duration;

use super::error::{Error, ErrorKind, Verb};
use super::name::{Name, RESERVED};
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
    /// `InvalidOption` if the text is longer than a name may be.
    pub fn prefix(text: impl Into<String>) -> Result<Self, Error> {
        let (text, most) = (text.into(), limits::NAME_BYTES);
        if text.len() <= most {
            return Ok(Self::Prefix(text));
        }
        let what = format!("a prefix has at most {most} bytes, this one has {}", text.len());
        let help = "no name is longer than that, so no cell would match";
        Err(Error::invalid(ErrorKind::InvalidOption, what).during(Verb::Cell).with_help(help))
    }

    /// Whether a cell is in the range.
    #[must_use]
    pub fn contains(&self, name: &Name) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Prefix(prefix) => {
                name.as_str().starts_with(prefix.as_str())
                    && (self.is_reserved() || !name.is_reserved())
            }
        }
    }

    /// Whether it is a range of cells that Tenure keeps for itself.
    pub(crate) fn is_reserved(&self) -> bool {
        match self {
            Self::One(name) => name.is_reserved(),
            Self::Prefix(prefix) => prefix.starts_with(RESERVED),
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

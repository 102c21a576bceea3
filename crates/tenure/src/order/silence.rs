//! Edges that shall not be reported: a committed file, one edge and its reason per line.
//!
//! ```text
//! # held -> acquired : reason
//! account:* -> audit : the audit log is written by one process alone
//! ```
//!
//! A silenced edge is left out as if it had not been seen, so no cycle through it is reported. The
//! reason is required: a list of exceptions without reasons is never cleaned up.

use crate::contract::{Error, ErrorKind};

/// Edges that are left out, each with the reason.
///
/// # Examples
/// ```
/// let silenced = tenure::SilencedEdges::parse("account:* -> audit : one writer alone\n")?;
/// assert!(silenced.contains("account:*", "audit"));
/// assert!(!silenced.contains("audit", "account:*"), "the other direction is another edge");
/// assert!(tenure::SilencedEdges::parse("account:* -> audit\n").is_err(), "no reason");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SilencedEdges {
    edges: Vec<(String, String, String)>,
}

impl SilencedEdges {
    /// Reads the lines of a file. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// `InvalidOption` with the number of the first line that is not `held -> acquired : reason`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut edges = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            edges.push(edge(line).ok_or_else(|| {
                let what = format!("line {} is not `held -> acquired : reason`", at + 1);
                Error::new(ErrorKind::InvalidOption, what)
                    .with_help("give the reason after ` : `, with a space on both sides")
            })?);
        }
        Ok(Self { edges })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or has a mistake: see [`parse`](Self::parse).
    pub fn from_file(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        let shown = path.as_ref().display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let what = format!("cannot read {shown}: {error}");
            Error::new(ErrorKind::InvalidOption, what).with_help("name the file of silenced edges")
        })?;
        Self::parse(&text).map_err(|error| error.within(&shown))
    }

    /// Whether an edge between these two classes is left out.
    #[must_use]
    pub fn contains(&self, held: &str, acquired: &str) -> bool {
        self.edges.iter().any(|(from, to, _)| from == held && to == acquired)
    }

    /// The edges: held class, acquired class, reason.
    pub fn edges(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.edges.iter().map(|(held, acquired, why)| (&**held, &**acquired, &**why))
    }
}

/// The parts of a line. Classes may contain colons, but no ` : `.
fn edge(line: &str) -> Option<(String, String, String)> {
    let (pair, reason) = line.split_once(" : ")?;
    let (held, acquired) = pair.split_once(" -> ")?;
    let parts = [held, acquired, reason].map(|part| part.trim().to_owned());
    let [held, acquired, reason] = parts;
    (![&held, &acquired, &reason].iter().any(|part| part.is_empty()))
        .then_some((held, acquired, reason))
}

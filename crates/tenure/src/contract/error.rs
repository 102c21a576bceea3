//! What can go wrong, and whether the store may have acted all the same. Knows words, not causes.
//!
//! "No" is an answer, not an error: see [`Verdict`](super::Verdict). An error means that we do not
//! know, or that we cannot. Each one says what happened, to which verb and name, whether the store
//! may have acted ([`Effect`]), and what to do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::inspect::HolderView;
use super::name::Name;
use super::verdict::Loss;

/// What kind of trouble it is. More kinds may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name or namespace that cannot be one.
    InvalidName,
    /// An option, a URL, a preset or another argument outside its limits.
    InvalidOption,
    /// The name is in use with another shape (mutex and semaphore, two capacities).
    Shape,
    /// The wait limit passed before the lock was ours.
    TimedOut,
    /// The lock was ours and is no longer.
    Lost,
    /// Both readers of one lock asked to write; one of them has to give way.
    UpgradeConflict,
    /// Those who wait for each other would wait for ever; this wait was chosen to give way.
    Deadlock,
    /// The session, or the whole `Tenure`, was closed.
    Closed,
    /// The store did not answer, or not in time.
    Unavailable,
    /// The engine does not promise what was asked for, or was not built in.
    Unsupported,
    /// A limit was reached: holders, waiters, names in a set.
    Limit,
    /// A value was changed by somebody else meanwhile, or the fence is stale.
    Conflict,
    /// The store holds something that is not ours or is damaged.
    Corrupt,
}

/// Whether the store may have acted although the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing happened.
    None,
    /// The store may have acted; Tenure cleans up in the background, the lease is the backstop.
    Unknown,
}

/// Which verb of the contract failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Opening the store.
    Connect,
    /// Asking for a slot.
    Claim,
    /// Keeping a claim alive.
    Renew,
    /// Giving a claim back.
    Release,
    /// Looking.
    Inspect,
    /// Forced release.
    Evict,
    /// Reading or writing a cell.
    Cell,
}

/// An error that a person can act on.
///
/// # Examples
/// ```
/// # use tenure::{Effect, ErrorKind, Name};
/// let error = "two\nlines".parse::<Name>().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidName);
/// assert_eq!(error.effect(), Effect::None);
/// println!("{error}");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    verb: Option<Verb>,
    name: Option<Name>,
    what: Cow<'static, str>,
    next: Cow<'static, str>,
    held_by: Vec<HolderView>,
    place: Option<usize>,
    loss: Option<Loss>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind that had no effect.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::None,
            verb: None,
            name: None,
            what: what.into(),
            next: Cow::Borrowed(""),
            held_by: Vec::new(),
            place: None,
            loss: None,
            source: None,
        }))
    }

    /// Bad input: found before anything was sent.
    pub(crate) fn invalid(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kind, what)
    }

    /// Says that the store may have acted all the same.
    #[must_use]
    pub fn effect_unknown(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Says which verb failed.
    #[must_use]
    pub fn during(mut self, verb: Verb) -> Self {
        self.0.verb = Some(verb);
        self
    }

    /// Says for which name.
    #[must_use]
    pub fn on(mut self, name: &Name) -> Self {
        self.0.name = Some(name.clone());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn next(mut self, next: impl Into<Cow<'static, str>>) -> Self {
        self.0.next = next.into();
        self
    }

    /// Says who holds the lock.
    #[must_use]
    pub fn blocked_by(mut self, holders: Vec<HolderView>, place: Option<usize>) -> Self {
        self.0.held_by = holders;
        self.0.place = place;
        self
    }

    /// Says why the lock was lost.
    #[must_use]
    pub fn because_of(mut self, loss: Loss) -> Self {
        self.0.loss = Some(loss);
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the store may have acted all the same.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Which verb failed, if it was one.
    #[must_use]
    pub fn verb(&self) -> Option<Verb> {
        self.0.verb
    }

    /// For which name.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// What to do next; empty if there is nothing sensible to say.
    #[must_use]
    pub fn next_step(&self) -> &str {
        &self.0.next
    }

    /// Who held the lock when the wait ended.
    #[must_use]
    pub fn held_by(&self) -> &[HolderView] {
        &self.0.held_by
    }

    /// Our place in line when the wait ended, counted from 1.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.0.place
    }

    /// Why the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        use ErrorKind as K;
        matches!(
            self.kind(),
            K::TimedOut | K::Unavailable | K::UpgradeConflict | K::Lost | K::Deadlock
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(verb) = inner.verb {
            write!(f, "{verb}")?;
            if let Some(name) = &inner.name {
                write!(f, " {name:?}")?;
            }
            f.write_str(": ")?;
        } else if let Some(name) = &inner.name {
            write!(f, "{name:?}: ")?;
        }
        f.write_str(&inner.what)?;
        if let Some(first) = inner.held_by.first() {
            write!(f, "; held by {first}")?;
            if inner.held_by.len() > 1 {
                write!(f, " and {} more", inner.held_by.len() - 1)?;
            }
        }
        if let Some(place) = inner.place {
            write!(f, "; place {place} in line")?;
        }
        if inner.effect == Effect::Unknown {
            f.write_str("; the store may have acted all the same")?;
        }
        if !inner.next.is_empty() {
            write!(f, "; {}", inner.next)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, effect {:?}: {self}", self.kind(), self.effect())?;
        if let Some(source) = &self.0.source {
            write!(f, "; caused by {source}")?;
        }
        f.write_str(")")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::Evict => "evict",
            Self::Cell => "cell",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_verb_name_what_effect_and_next_step() {
        let name = Name::try_from("reports").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "no answer within 2s")
            .during(Verb::Claim)
            .on(&name)
            .effect_unknown()
            .next("check that the store is up")
            .caused_by(std::io::Error::other("reset"));
        assert_eq!(
            error.to_string(),
            "claim \"reports\": no answer within 2s; the store may have acted all the same; \
             check that the store is up"
        );
        assert!(error.is_retryable());
        assert_eq!(error.source().unwrap().to_string(), "reset");
    }
}

//! What can go wrong, and whether the store may have acted all the same. Knows words, not causes.
//!
//! "No" is an answer, not an error: see [`Verdict`](super::Verdict). An error means that we do not
//! know, or that we cannot. Each one says what happened, to which verb and name, whether the store
//! may have acted ([`Effect`]), and what to do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::inspect::HolderView;
use super::name::Name;
use super::short;
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
    /// The timeout expired before the lock was acquired.
    TimedOut,
    /// The lock was ours and is no longer.
    Lost,
    /// Both readers of one lock asked to write; one of them has to give way.
    UpgradeConflict,
    /// These owners wait for each other, for ever; this wait was chosen to give way.
    Deadlock,
    /// The lock would be acquired against the order of locks: its level is not below one that is
    /// held, or it closes a cycle in the learned order. No wait began.
    Order,
    /// The session, or the whole `Tenure`, was closed.
    Closed,
    /// The store did not answer, or not in time.
    Unavailable,
    /// The engine does not promise what was asked for, or was not built in.
    Unsupported,
    /// A limit was reached: holders, waiters, names in a set.
    Limit,
    /// A value was changed by another client meanwhile, or the fence is stale.
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
    /// Refusing a waiting claim to break a deadlock.
    RefuseVictim,
    /// Raising the fences of a namespace.
    RaiseFences,
    /// Reading or writing a cell.
    Cell,
    /// A queue of jobs.
    Job,
    /// Taking permits of a rate.
    Rate,
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
    help: Cow<'static, str>,
    held_by: Vec<HolderView>,
    place: Option<usize>,
    loss: Option<Loss>,
    /// The caller held the lock when the call was made: an upgrade or a downgrade.
    holding: bool,
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
            help: Cow::Borrowed(""),
            held_by: Vec::new(),
            place: None,
            loss: None,
            holding: false,
            source: None,
        }))
    }

    /// Bad input: found before anything was sent.
    pub(crate) fn invalid(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(kind, what)
    }

    /// Several failures of the same call as one error: `what`, what each of them says, and each
    /// advice once. It is of a kind that passes if one of them is.
    #[allow(dead_code, reason = "for engines that a build may leave out")]
    pub(crate) fn of_all(what: &str, failures: &[Self]) -> Self {
        let said: Vec<String> = failures.iter().map(Self::without_help).collect();
        let passes = failures.iter().find(|error| error.is_transient());
        let kind = passes.or(failures.first()).map_or(ErrorKind::Unavailable, Self::kind);
        let mut steps: Vec<&str> = Vec::new();
        for step in failures.iter().map(Self::help) {
            if !step.is_empty() && !steps.contains(&step) {
                steps.push(step);
            }
        }
        Self::new(kind, format!("{what}: {}", said.join("; "))).with_help(steps.join("; "))
    }

    /// Says what the error is a part of, in front of what it says already.
    #[must_use]
    pub(crate) fn within(mut self, context: &str) -> Self {
        self.0.what = format!("{context}: {}", self.0.what).into();
        self
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
    pub fn with_help(mut self, help: impl Into<Cow<'static, str>>) -> Self {
        self.0.help = help.into();
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

    /// Says that the caller held the lock when the call was made (an upgrade or a downgrade).
    #[must_use]
    pub(crate) fn while_holding(mut self) -> Self {
        self.0.holding = true;
        self
    }

    /// Says how often the same was tried, and for how long, if it was more than once.
    #[must_use]
    pub(crate) fn tried(mut self, times: u32, time: Duration) -> Self {
        if times > 1 {
            let time = short(time);
            self.0.what = format!("{}; tried {times} times in {time}", self.0.what).into();
        }
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
    pub fn help(&self) -> &str {
        &self.0.help
    }

    /// Who held the lock when the wait ended.
    #[must_use]
    pub fn held_by(&self) -> &[HolderView] {
        &self.0.held_by
    }

    /// The claim's place in the queue when the wait ended, counted from 1.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.0.place
    }

    /// Why the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
    }

    /// Whether the same *call* may succeed later without any change: the store was away, the lock
    /// was taken. Says nothing about work: see [`may_start_over`](Self::may_start_over).
    ///
    /// A lost lock is not transient: the guard stays lost however often it is asked.
    ///
    /// # Examples
    /// ```
    /// # use tenure::{Error, ErrorKind};
    /// assert!(Error::new(ErrorKind::Unavailable, "connection refused").is_transient());
    /// assert!(!Error::new(ErrorKind::Lost, "the lease ran out").is_transient());
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        use ErrorKind as K;
        matches!(self.kind(), K::TimedOut | K::Unavailable | K::UpgradeConflict | K::Deadlock)
    }

    /// Whether the *work* that needs this lock may be started over from the beginning: the error is
    /// transient, and it was met while connecting or while asking for the lock, so nothing was done
    /// under the lock yet.
    ///
    /// False for [`Lost`](ErrorKind::Lost): the work may be half done, and another holder may have
    /// begun. False also for a failed upgrade, downgrade or release, which come after work under
    /// the lock. The answer is about this one lock: what was done under others it does not know.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use tenure::Tenure;
    /// # tenure::block_on(async {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let guard = tenure.mutex("export")?.lock().await?;
    /// let second = tenure.mutex("export")?.timeout(Duration::from_millis(5)).lock().await;
    /// assert!(second.unwrap_err().may_start_over(), "it never held the lock");
    /// # drop(guard);
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn may_start_over(&self) -> bool {
        let before = matches!(self.verb(), Some(Verb::Connect | Verb::Claim)) && !self.0.holding;
        self.is_transient() && before && self.kind() != ErrorKind::UpgradeConflict
    }
}

impl Error {
    /// The error as one line without what to do next: for an error that carries this one in its own
    /// words and has an advice of its own, which would be said twice.
    pub(crate) fn without_help(&self) -> String {
        Said(self).to_string()
    }
}

/// All that an error says but the advice.
struct Said<'a>(&'a Error);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0.0;
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
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Said(self).fmt(f)?;
        if !self.0.help.is_empty() {
            write!(f, "; {}", self.0.help)?;
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
            Self::RefuseVictim => "refuse victim",
            Self::RaiseFences => "raise fences",
            Self::Cell => "cell",
            Self::Job => "job",
            Self::Rate => "rate",
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
            .with_help("check that the store is up")
            .caused_by(std::io::Error::other("reset"));
        assert_eq!(
            error.to_string(),
            "claim \"reports\": no answer within 2s; the store may have acted all the same; \
             check that the store is up"
        );
        assert!(error.is_transient());
        assert_eq!(error.source().unwrap().to_string(), "reset");
    }

    #[test]
    fn of_all_kinds_these_are_transient_and_only_before_the_lock_was_held_may_work_start_over() {
        use ErrorKind as K;
        // A kind that is added fails to compile here, and belongs into the list as well.
        let known = |kind: K| match kind {
            K::InvalidName
            | K::InvalidOption
            | K::Shape
            | K::TimedOut
            | K::Lost
            | K::UpgradeConflict
            | K::Deadlock
            | K::Order
            | K::Closed
            | K::Unavailable
            | K::Unsupported
            | K::Limit
            | K::Conflict
            | K::Corrupt => (),
        };
        let kinds = [
            (K::InvalidName, false),
            (K::InvalidOption, false),
            (K::Shape, false),
            (K::TimedOut, true),
            (K::Lost, false),
            (K::UpgradeConflict, true),
            (K::Deadlock, true),
            (K::Order, false),
            (K::Closed, false),
            (K::Unavailable, true),
            (K::Unsupported, false),
            (K::Limit, false),
            (K::Conflict, false),
            (K::Corrupt, false),
        ];
        let locks = [Verb::Renew, Verb::Release, Verb::Inspect, Verb::Evict];
        let verbs = locks.into_iter().chain([Verb::Cell, Verb::Job, Verb::Rate]);
        for (kind, transient) in kinds {
            known(kind);
            let error = |verb| Error::new(kind, "").during(verb);
            assert_eq!(error(Verb::Claim).is_transient(), transient, "{kind:?}");
            let before = transient && kind != K::UpgradeConflict;
            assert_eq!(error(Verb::Claim).may_start_over(), before, "{kind:?}");
            assert_eq!(error(Verb::Connect).may_start_over(), before, "{kind:?}");
            assert!(!error(Verb::Claim).while_holding().may_start_over(), "{kind:?}");
            assert!(!Error::new(kind, "").may_start_over(), "{kind:?}");
            for verb in verbs.clone() {
                assert!(!error(verb).may_start_over(), "{kind:?} during {verb}");
            }
        }
    }

    #[test]
    fn an_error_of_many_says_what_each_said_and_each_advice_once() {
        let one = Error::new(ErrorKind::InvalidOption, "a is wrong").with_help("look at a");
        let two =
            Error::new(ErrorKind::Unavailable, "b is away").with_help("start b").effect_unknown();
        let all = Error::of_all("nobody knows", &[one.clone(), two.clone(), one.clone(), two]);
        assert_eq!(all.kind(), ErrorKind::Unavailable);
        assert_eq!(
            all.to_string(),
            "nobody knows: a is wrong; b is away; the store may have acted all the same; a is \
             wrong; b is away; the store may have acted all the same; look at a; start b"
        );
        assert_eq!(Error::of_all("none", &[one]).kind(), ErrorKind::InvalidOption);
    }
}

//! One learned edge with its evidence, and the line of text that keeps it in files and cells.
//!
//! A line has twelve fields with tabs between them: held class, its mode, its place in the code,
//! acquired class, its mode, its place, the wait, the orders of names, service, build, first seen
//! (seconds since 1970), last seen. Classes and places have no control characters, so no field
//! contains a tab.

use std::fmt::Write as _;

use super::name_order::NameOrders;
use crate::contract::{Error, ErrorKind, deceives};

/// How a lock was held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockMode {
    /// As the only holder, or as a permit of a semaphore.
    Exclusive,
    /// As a reader among others.
    Shared,
}

/// While a lock of one class was held, a lock of another was waited for.
///
/// # Examples
/// ```
/// use tenure::{LockMode, OrderEdge};
///
/// let edge = OrderEdge::new("account:*", "ledger").service("billing").places("a.rs:1", "a.rs:2");
/// assert_eq!(OrderEdge::from_line(&edge.to_line())?, edge);
/// assert_eq!(edge.held_mode, LockMode::Exclusive);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderEdge {
    /// The class of the lock that was held.
    pub held: String,
    /// How it was held.
    pub held_mode: LockMode,
    /// Where in the code it was acquired.
    pub held_at: String,
    /// The class of the lock that was acquired next.
    pub acquired: String,
    /// How it was waited for.
    pub acquired_mode: LockMode,
    /// Where in the code.
    pub acquired_at: String,
    /// Every wait that was seen had a time limit: a cycle through this edge resolves itself.
    pub bounded: bool,
    /// If both are of one class: the orders of names that every pair agreed with.
    pub orders: NameOrders,
    /// The service that was seen to do this.
    pub service: String,
    /// Which build of the service.
    pub build: String,
    /// When it was first seen, in seconds since 1970.
    pub first_seen: u64,
    /// When a process of that build was last seen to do this, in seconds since 1970.
    pub last_seen: u64,
}

impl OrderEdge {
    /// An edge between two classes, exclusive on both sides and without a time limit.
    #[must_use]
    pub fn new(held: impl Into<String>, acquired: impl Into<String>) -> Self {
        Self {
            held: held.into(),
            held_mode: LockMode::Exclusive,
            held_at: String::new(),
            acquired: acquired.into(),
            acquired_mode: LockMode::Exclusive,
            acquired_at: String::new(),
            bounded: false,
            orders: NameOrders::ALL,
            service: String::new(),
            build: String::new(),
            first_seen: 0,
            last_seen: 0,
        }
    }

    /// Says which service was seen to do this.
    #[must_use]
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// Says which build of the service it was.
    #[must_use]
    pub fn build(mut self, build: impl Into<String>) -> Self {
        self.build = build.into();
        self
    }

    /// Says where in the code both locks were acquired.
    #[must_use]
    pub fn places(mut self, held: impl Into<String>, acquired: impl Into<String>) -> Self {
        (self.held_at, self.acquired_at) = (held.into(), acquired.into());
        self
    }

    /// The edge as one line of text.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        let wait = if self.bounded { "bounded" } else { "unlimited" };
        let texts = [
            &*self.held,
            self.held_mode.word(),
            &*self.held_at,
            &*self.acquired,
            self.acquired_mode.word(),
            &*self.acquired_at,
            wait,
        ];
        for text in texts {
            push_clean(&mut line, text);
            line.push('\t');
        }
        let _ = write!(line, "{}\t", self.orders.bits());
        push_clean(&mut line, &self.service);
        line.push('\t');
        push_clean(&mut line, &self.build);
        let _ = write!(line, "\t{}\t{}", self.first_seen, self.last_seen);
        line
    }

    /// The edge that [`to_line`](Self::to_line) wrote.
    ///
    /// # Errors
    /// `InvalidOption` if the line is not an edge.
    pub fn from_line(line: &str) -> Result<Self, Error> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [
            held,
            held_mode,
            held_at,
            acquired,
            mode,
            at,
            wait,
            orders,
            service,
            build,
            first,
            last,
        ] = fields[..]
        else {
            return Err(not_an_edge(line));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| not_an_edge(line));
        let mode_of = |text| LockMode::from_word(text).ok_or_else(|| not_an_edge(line));
        let orders = u8::try_from(number(orders)?).map_err(|_| not_an_edge(line))?;
        if held.is_empty() || acquired.is_empty() || !matches!(wait, "bounded" | "unlimited") {
            return Err(not_an_edge(line));
        }
        Ok(Self {
            held: held.to_owned(),
            held_mode: mode_of(held_mode)?,
            held_at: held_at.to_owned(),
            acquired: acquired.to_owned(),
            acquired_mode: mode_of(mode)?,
            acquired_at: at.to_owned(),
            bounded: wait == "bounded",
            orders: NameOrders::from_bits(orders),
            service: service.to_owned(),
            build: build.to_owned(),
            first_seen: number(first)?,
            last_seen: number(last)?,
        })
    }

    /// What makes two edges the same one, seen twice.
    pub(super) fn identity(&self) -> ((&str, &str, LockMode, LockMode), &str, &str) {
        (self.pair(), &self.service, &self.build)
    }

    /// The classes and how they are locked, whichever service does it.
    pub(super) fn pair(&self) -> (&str, &str, LockMode, LockMode) {
        (&self.held, &self.acquired, self.held_mode, self.acquired_mode)
    }

    /// Takes over what another sighting of the same edge says. Returns whether that is news.
    pub(super) fn absorb(&mut self, other: &Self) -> bool {
        let before = (self.bounded, self.orders);
        // The places of the first wait without a limit, if there was one: a report is about it.
        let shows_more = match (self.bounded, other.bounded) {
            (true, false) => true,
            (false, true) => false,
            _ => other.first_seen < self.first_seen,
        };
        if shows_more {
            self.held_at.clone_from(&other.held_at);
            self.acquired_at.clone_from(&other.acquired_at);
        }
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
        self.bounded &= other.bounded;
        self.orders = self.orders.and(other.orders);
        before != (self.bounded, self.orders)
    }

    /// The edge for people: `service: class (place) -> class (place), first seen ...`.
    pub(super) fn describe(&self) -> String {
        let mode = |mode: LockMode| if mode == LockMode::Shared { " to read" } else { "" };
        let mut text = format!(
            "{} holds {}{} ({}) and acquires {}{} ({})",
            or_unknown(&self.service),
            self.held,
            mode(self.held_mode),
            or_unknown(&self.held_at),
            self.acquired,
            mode(self.acquired_mode),
            or_unknown(&self.acquired_at),
        );
        if self.bounded {
            text.push_str(" with a time limit");
        }
        let _ = write!(text, ", first seen {}", utc(self.first_seen));
        if !self.build.is_empty() {
            let _ = write!(text, " in build {}", self.build);
        }
        text
    }
}

impl LockMode {
    /// The mode as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared].into_iter().find(|mode| mode.word() == word)
    }

    pub(super) fn is_shared(self) -> bool {
        self == Self::Shared
    }

    pub(super) fn of(shared: bool) -> Self {
        if shared { Self::Shared } else { Self::Exclusive }
    }
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// Appends text without what could end a field or move a reader's cursor.
fn push_clean(line: &mut String, text: &str) {
    line.extend(text.chars().map(|c| if deceives(c) { '?' } else { c }));
}

fn not_an_edge(line: &str) -> Error {
    let shown: String = line.chars().take(80).collect();
    Error::new(ErrorKind::InvalidOption, format!("not an edge of a lock order: {shown:?}"))
        .with_help("use a file that `tenure order export` wrote")
}

/// Seconds since 1970 as a date and time of day in UTC (the days by Howard Hinnant's algorithm).
#[must_use]
pub(super) fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

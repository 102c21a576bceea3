//! What an inspection returns: slots, holders, queues, sessions. Plain data; engines fill it in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::claim::{About, Lineage, Shape};
use super::ids::{Arrival, ClaimId, OwnerId, SessionId};
use super::name::Name;
use super::verdict::Fence;
use crate::limits;

/// What to inspect.
///
/// # Examples
/// ```
/// use tenure::{Page, Pattern, Query, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.mutex("account:1")?.lock().await?;
/// let one = tenure.inspect(&Query::Slot("account:1".parse()?)).await?;
/// assert_eq!(one.slots[0].holders.len(), 1);
/// let page = Page { pattern: Pattern::new("account:*"), ..Page::default() };
/// let seen = tenure.inspect(&Query::Page(page)).await?;
/// assert_eq!(seen.slots.len(), 1); // ask again with `after` while `more_after` is set
/// # guard.release().await?;
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// One slot.
    Slot(Name),
    /// A page of slots, by name.
    Page(Page),
    /// Everything that can be reached from an owner: the slots it waits for, their holders and the
    /// waiters before it, what those wait for, and so on. One snapshot.
    Reach(OwnerId),
}

/// A page of slots: those that match, after a name, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// `*` stands for any text, `?` for any one character; everything else for itself.
    pub pattern: Pattern,
    /// Start after this name: the last one of the page before.
    pub after: Option<Name>,
    /// At most this many, and at most 1,000.
    pub limit: usize,
    /// Only slots with waiters. Answered from an index, without a look at the others.
    pub contended: bool,
    /// Also what Tenure keeps for itself, such as the slots of elections.
    pub reserved: bool,
}

impl Page {
    /// The page as engines get it: reserved names sort before all others, so that a page without
    /// them begins behind them.
    pub(crate) fn without_reserved(&self) -> Self {
        let mut page = self.clone();
        if !page.reserved && page.after.as_ref().is_none_or(Name::is_reserved) {
            page.after = Some(Name::after_reserved());
        }
        page
    }
}

impl Default for Page {
    fn default() -> Self {
        let (pattern, limit) = (Pattern::all(), limits::PAGE);
        Self { pattern, after: None, limit, contended: false, reserved: false }
    }
}

/// A pattern over names: `*` stands for any text, `?` for any one character.
///
/// # Examples
/// ```
/// let accounts = tenure::Pattern::new("account:*");
/// assert!(accounts.matches("account:17") && !accounts.matches("cache:17"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Token>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Any,
    One,
    Char(char),
}

impl Pattern {
    /// Matches every name.
    #[must_use]
    pub fn all() -> Self {
        Self::new("*")
    }

    /// The pattern with this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let token = |c| match c {
            '*' => Token::Any,
            '?' => Token::One,
            c => Token::Char(c),
        };
        Self(text.chars().map(token).collect())
    }

    /// Matches every name that begins with this text, in which nothing is special.
    #[must_use]
    pub fn prefix(text: &str) -> Self {
        Self(text.chars().map(Token::Char).chain([Token::Any]).collect())
    }

    /// The text that every match begins with: what is before the first `*` or `?`.
    #[must_use]
    pub fn literal_prefix(&self) -> String {
        let literal = |token: &Token| match token {
            Token::Char(c) => Some(*c),
            Token::Any | Token::One => None,
        };
        self.0.iter().map_while(literal).collect()
    }

    /// Whether the pattern matches the whole of `text`. Linear in practice, never exponential.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut p, mut t) = (0, 0);
        // Where to go on if the text after the latest star has to start one character later.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match self.0.get(p) {
                Some(Token::Any) => {
                    retry = Some((p + 1, t));
                    p += 1;
                }
                Some(token) if *token == Token::One || *token == Token::Char(text[t]) => {
                    p += 1;
                    t += 1;
                }
                _ => {
                    let Some((after_star, from)) = retry else { return false };
                    retry = Some((after_star, from + 1));
                    (p, t) = (after_star, from + 1);
                }
            }
        }
        self.0[p..].iter().all(|token| *token == Token::Any)
    }
}

/// What an inspection saw, at one instant of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The slots, by name.
    pub slots: Vec<SlotView>,
    /// There is more: ask for the page after this name.
    pub more_after: Option<Name>,
    /// The picture was too large to be complete.
    pub truncated: bool,
    /// Waits of owners for each other that the store sees beside these slots; only of what can be
    /// reached from an owner.
    pub outside: Vec<OutsideWait>,
}

/// An owner that waits for another one by a lock of the store that is none of Tenure's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideWait {
    /// Who waits.
    pub waiter: OwnerId,
    /// Who has to go on before it can.
    pub holder: OwnerId,
    /// What it waits for, to be read after "waits for".
    pub what: Arc<str>,
}

impl Snapshot {
    /// The sessions that hold or wait in this snapshot, each with what it holds and waits for.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionView> {
        let mut views: Vec<SessionView> = Vec::new();
        let mut view = |session: Option<SessionId>, about: &About| {
            let at = views.iter().position(|view| view.session == session);
            at.unwrap_or_else(|| {
                let (host, pid) = (about.host.to_string(), about.pid);
                views.push(SessionView { session, host, pid, holds: vec![], waits: vec![] });
                views.len() - 1
            })
        };
        let mut holds = Vec::new();
        let mut waits = Vec::new();
        for slot in &self.slots {
            for holder in &slot.holders {
                holds.push((view(holder.session, &holder.about), slot.name.clone()));
            }
            for waiter in &slot.queue {
                waits.push((view(waiter.session, &waiter.about), slot.name.clone()));
            }
        }
        for (at, name) in holds {
            views[at].holds.push(name);
        }
        for (at, name) in waits {
            views[at].waits.push(name);
        }
        views
    }
}

/// One process's standing, as far as a snapshot shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session; none for detached claims.
    pub session: Option<SessionId>,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The names it holds.
    pub holds: Vec<Name>,
    /// The names it waits for.
    pub waits: Vec<Name>,
}

/// Everything the store knows of one lock name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The name.
    pub name: Name,
    /// The shape that stands.
    pub shape: Shape,
    /// The holders, longest first.
    pub holders: Vec<HolderView>,
    /// The waiters, next first.
    pub queue: Vec<WaiterView>,
    /// The slot stays closed that much longer after an expiry.
    pub closed_for: Option<Duration>,
}

/// One holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Its claim.
    pub claim: ClaimId,
    /// Its session; none for a detached claim.
    pub session: Option<SessionId>,
    /// Its owner and ancestors.
    pub lineage: Lineage,
    /// Its weight.
    pub weight: u32,
    /// Its fence.
    pub fence: Fence,
    /// It is part of a set that still waits for other parts.
    pub reserved: bool,
    /// How long it has held.
    pub held_for: Duration,
    /// How long until it expires if it is not renewed.
    pub expires_in: Duration,
    /// Host, process, place in the code, label.
    pub about: About,
}

impl fmt::Display for HolderView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}, fence {}", self.about, short(self.held_for), self.fence)
    }
}

/// One waiter of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Its claim.
    pub claim: ClaimId,
    /// Its session; none for a detached claim.
    pub session: Option<SessionId>,
    /// Its owner and ancestors.
    pub lineage: Lineage,
    /// The weight it asks for.
    pub weight: u32,
    /// It stands ahead of the queue, because its owner or an ancestor holds the slot.
    pub ahead: bool,
    /// The number of its arrival: of the tickets that stand ahead, and of all others, the lower
    /// number is served first.
    pub arrival: Arrival,
    /// How long it has waited.
    pub waited_for: Duration,
    /// How long until it expires if it is not renewed.
    pub expires_in: Duration,
    /// Host, process, place in the code, label.
    pub about: About,
}

/// A duration for messages, in two digits or two units: `340ms`, `1.5s`, `12s`, `2m30s`, `3h`,
/// `5d2h`. Whatever is smaller than that is cut off.
#[must_use]
pub fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = |(large, name): (u64, &str), (small, rest): (u64, &str)| {
        let (whole, more) = (seconds / large, seconds % large / small);
        if more == 0 { format!("{whole}{name}") } else { format!("{whole}{name}{more}{rest}") }
    };
    let [second, minute, hour, day] = [(1, "s"), (60, "m"), (3_600, "h"), (86_400, "d")];
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 => match duration.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        10..60 => format!("{seconds}s"),
        60..3_600 => units(minute, second),
        3_600..86_400 => units(hour, minute),
        _ => units(day, hour),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_whole_name_and_nothing_but_stars_is_special() {
        let yes = [
            ("*", "anything"),
            ("account:*", "account:17"),
            ("a?c", "abc"),
            ("a?c", "aéc"),
            ("*a*b", "xxaxxb"),
            ("[x]", "[x]"),
            ("a*", "a"),
            ("**", "é"),
        ];
        for (pattern, text) in yes {
            assert!(Pattern::new(pattern).matches(text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("a?", "a"), ("[x]", "x"), ("", "a"), ("*b", "a")] {
            assert!(!Pattern::new(pattern).matches(text), "{pattern} {text}");
        }
    }

    #[test]
    fn the_literal_prefix_ends_at_the_first_wildcard() {
        let prefixes = ["a:b*c", "a?*", "é", "*", ""].map(|p| Pattern::new(p).literal_prefix());
        assert_eq!(prefixes, ["a:b", "a", "é", "", ""]);
        let prefix = Pattern::prefix("a*?");
        assert!(prefix.matches("a*?") && prefix.matches("a*?b") && !prefix.matches("abc"));
        assert_eq!(prefix.literal_prefix(), "a*?");
    }

    #[test]
    fn a_hostile_pattern_does_not_explode() {
        let pattern = Pattern::new(&"*a".repeat(100));
        assert!(!pattern.matches(&"a".repeat(99).repeat(2).replace('a', "ab")[..150]));
    }

    #[test]
    fn durations_read_as_people_say_them() {
        let shown = [5_u64, 1_590, 2_000, 59_900, 120_000, 150_000, 7_200_000, 200_000_000]
            .map(|millis| short(Duration::from_millis(millis)));
        assert_eq!(shown, ["5ms", "1.5s", "2s", "59s", "2m", "2m30s", "2h", "2d7h"]);
    }
}

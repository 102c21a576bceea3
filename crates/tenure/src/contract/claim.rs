//! A claim: who asks, for what weight on which slots, for how long. Knows no rules and no store.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::deadlock::Conduct;
use super::error::{Error, ErrorKind};
use super::ids::{ClaimId, OwnerId, SessionId};
use super::name::{Name, deceives};
use crate::limits;

/// What a slot is: how much it holds, and whether an owner's claims add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Many readers or one writer; an owner may enter again. A mutex is the writer's side.
    Lock,
    /// This many permits; every claim takes its own.
    Semaphore(u32),
}

impl Shape {
    /// How much weight fits.
    #[must_use]
    pub const fn capacity(self) -> u32 {
        match self {
            Self::Lock => limits::FULL_WEIGHT,
            Self::Semaphore(permits) => permits,
        }
    }

    /// Whether an owner that holds may enter again. Permits of a semaphore add up instead.
    #[must_use]
    pub const fn reentrant(self) -> bool {
        !matches!(self, Self::Semaphore(_))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("a lock"),
            Self::Semaphore(permits) => write!(f, "a semaphore of {permits}"),
        }
    }
}

/// One slot of a claim: its name, its shape, and the weight asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    name: Name,
    shape: Shape,
    weight: u32,
}

impl Part {
    /// A reader's share of a read-write lock.
    #[must_use]
    pub fn read(name: Name) -> Self {
        Self { name, shape: Shape::Lock, weight: 1 }
    }

    /// The whole of a lock: a mutex, or the writer of a read-write lock.
    #[must_use]
    pub fn write(name: Name) -> Self {
        Self { name, shape: Shape::Lock, weight: limits::FULL_WEIGHT }
    }

    /// `permits` of the `capacity` permits of a semaphore.
    ///
    /// # Errors
    /// If the capacity is 0 or too large, or the permits are 0 or above the capacity.
    pub fn permits(name: Name, permits: u32, capacity: u32) -> Result<Self, Error> {
        if capacity == 0 || capacity > limits::PERMITS {
            let what = format!("a semaphore has 1 to {} permits, not {capacity}", limits::PERMITS);
            return Err(Error::invalid(ErrorKind::InvalidOption, what)
                .on(&name)
                .with_help("say how many may hold at once"));
        }
        if permits == 0 || permits > capacity {
            let what = format!("cannot take {permits} of {capacity} permits");
            return Err(Error::invalid(ErrorKind::InvalidOption, what)
                .on(&name)
                .with_help("ask for at least 1 and at most as many as the semaphore has"));
        }
        Ok(Self { name, shape: Shape::Semaphore(capacity), weight: permits })
    }

    /// The slot's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The shape the claim takes the slot for.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How much of the capacity it asks for.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Whether it is a reader's share of a lock, which other readers may have as well.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shape == Shape::Lock && self.weight < limits::FULL_WEIGHT
    }
}

/// The slots of one claim: sorted by name, each name once, at least one, at most 64.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parts(SmallVec<[Part; 1]>);

impl Parts {
    /// One slot.
    #[must_use]
    pub fn one(part: Part) -> Self {
        Self(SmallVec::from_buf([part]))
    }

    /// A set: sorted and de-duplicated. The same name twice asks for the heavier of the two on a
    /// mutex or read-write lock, and for the sum on a semaphore.
    ///
    /// # Errors
    /// If the set is empty or too large, names one slot with two shapes, or asks for more permits
    /// than there are.
    pub fn set(parts: impl IntoIterator<Item = Part>) -> Result<Self, Error> {
        let mut all: SmallVec<[Part; 1]> = parts.into_iter().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let mut merged: SmallVec<[Part; 1]> = SmallVec::new();
        for part in all {
            match merged.last_mut() {
                Some(last) if last.name == part.name => last.merge(&part)?,
                _ => merged.push(part),
            }
        }
        if merged.is_empty() {
            return Err(Error::invalid(ErrorKind::InvalidOption, "a set of locks is empty")
                .with_help("name at least one lock"));
        }
        if merged.len() > limits::SET_NAMES {
            let what = format!(
                "a set has at most {} names, this one has {}",
                limits::SET_NAMES,
                merged.len()
            );
            return Err(Error::invalid(ErrorKind::Limit, what)
                .with_help("take a coarser lock that covers them all"));
        }
        Ok(Self(merged))
    }

    /// The parts, sorted by name.
    #[must_use]
    pub fn as_slice(&self) -> &[Part] {
        &self.0
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().map(Part::name)
    }

    /// The first name, for messages.
    #[must_use]
    pub fn first_name(&self) -> &Name {
        &self.0[0].name
    }
}

impl Part {
    fn merge(&mut self, other: &Self) -> Result<(), Error> {
        if self.shape != other.shape {
            let what = format!("asked for as {} and as {} in one set", self.shape, other.shape);
            return Err(Error::invalid(ErrorKind::Shape, what)
                .on(&self.name)
                .with_help("use one name for one kind of lock"));
        }
        let Shape::Semaphore(capacity) = self.shape else {
            self.weight = self.weight.max(other.weight);
            return Ok(());
        };
        let sum = self.weight.saturating_add(other.weight);
        *self = Self::permits(self.name.clone(), sum, capacity)?;
        Ok(())
    }
}

/// Who asks: an owner and the owners it is nested in, nearest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    owner: OwnerId,
    ancestors: Option<Arc<[OwnerId]>>,
}

impl Lineage {
    /// An owner without a parent.
    #[must_use]
    pub fn root(owner: OwnerId) -> Self {
        Self { owner, ancestors: None }
    }

    /// An owner with these ancestors, nearest first.
    ///
    /// # Errors
    /// If the nesting is too deep, or an owner appears twice.
    pub fn nested(owner: OwnerId, ancestors: &[OwnerId]) -> Result<Self, Error> {
        if ancestors.len() > limits::ANCESTORS {
            let what = format!("owners nest at most {} deep", limits::ANCESTORS);
            return Err(Error::invalid(ErrorKind::Limit, what));
        }
        let repeats = |(at, id): (usize, &OwnerId)| *id == owner || ancestors[..at].contains(id);
        if ancestors.iter().enumerate().any(repeats) {
            let what = "an owner cannot be its own ancestor";
            return Err(Error::invalid(ErrorKind::InvalidOption, what));
        }
        let ancestors = (!ancestors.is_empty()).then(|| Arc::from(ancestors));
        Ok(Self { owner, ancestors })
    }

    /// The owner itself.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Its ancestors, nearest first.
    #[must_use]
    pub fn ancestors(&self) -> &[OwnerId] {
        self.ancestors.as_deref().unwrap_or_default()
    }

    /// The owner, then its ancestors.
    pub fn all(&self) -> impl Iterator<Item = OwnerId> + '_ {
        std::iter::once(self.owner).chain(self.ancestors().iter().copied())
    }

    /// Whether `other` is this owner or one of its ancestors.
    #[must_use]
    pub fn includes(&self, other: OwnerId) -> bool {
        self.owner == other || self.ancestors().contains(&other)
    }
}

/// Where in the code a claim was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In this process.
    Here(&'static Location<'static>),
    /// As another process told it.
    Told(Arc<str>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(location) => write!(f, "{}:{}", location.file(), location.line()),
            Self::Told(text) => f.write_str(text),
        }
    }
}

/// What travels with a claim for people to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct About {
    /// The host's name.
    pub host: Arc<str>,
    /// The process.
    pub pid: u32,
    /// The place in the code, where it is known.
    pub place: Option<Place>,
    /// A free label.
    pub label: Option<Label>,
    /// How the deadlock detector treats the claim.
    pub conduct: Conduct,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.pid)?;
        if let Some(label) = &self.label {
            write!(f, " '{label}'")?;
        }
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        Ok(())
    }
}

/// The name of this host.
pub(crate) fn host_name() -> Arc<str> {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    // Printed to terminals: control characters could move the cursor.
    name.chars().filter(|c| !c.is_control()).take(64).collect::<String>().into()
}

/// A short free text shown with a claim: at most 128 bytes, no control characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for Label {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        check_text("label", text, limits::LABEL_BYTES)?;
        Ok(Self(Arc::from(text)))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Refuses text that is too long or could deceive its reader.
pub(crate) fn check_text(what: &str, text: &str, most: usize) -> Result<(), Error> {
    let problem: Cow<'static, str> = if text.len() > most {
        format!("a {what} has at most {most} bytes, this one has {}", text.len()).into()
    } else if text.chars().any(deceives) {
        format!("a {what} must not contain control or text-direction characters").into()
    } else {
        return Ok(());
    };
    Err(Error::invalid(ErrorKind::InvalidOption, problem).with_help("use a short printable text"))
}

/// Whether a claim that cannot be granted at once joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Refuse at once. Never jumps the queue.
    Try,
    /// Wait in the queue until granted, withdrawn or expired.
    Wait,
}

/// One request for weight on one slot or on a set of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Made by the caller; repeating a living claim by its id renews it.
    pub id: ClaimId,
    /// The session that is notified of the grant. Detached claims belong to no session and live by
    /// their lease alone.
    pub session: Option<SessionId>,
    /// The owner, and its ancestors.
    pub lineage: Lineage,
    /// The names, with the shape and weight of each.
    pub parts: Parts,
    /// How long it lives without a renewal.
    pub lease: Duration,
    /// How long its slots stay closed if it ends by expiry while it holds.
    pub lock_delay: Duration,
    /// Whether it waits.
    pub patience: Patience,
    /// A claim of the same owner that ends when this one is granted (upgrade, downgrade).
    pub replaces: Option<ClaimId>,
    /// For people to see.
    pub about: About,
}

impl Claim {
    /// What a store needs to find this claim again.
    #[must_use]
    pub fn to_ref(&self) -> ClaimRef {
        ClaimRef { id: self.id, parts: self.parts.clone(), lease: self.lease }
    }
}

/// What a store needs to find a claim again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// The claim.
    pub id: ClaimId,
    /// Its slots.
    pub parts: Parts,
    /// Its lease.
    pub lease: Duration,
}

/// A request to give a claim back, or to withdraw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which claim.
    pub claim: ClaimRef,
    /// It was sent more than once or its answer is unknown: a copy may still arrive and must be
    /// refused then.
    pub uncertain: bool,
}

/// A forced release: exactly the grant with this fence, with a reason that its holder learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The slot.
    pub name: Name,
    /// The fence of the grant to end.
    pub fence: super::Fence,
    /// Why. At most 512 bytes, no control characters.
    pub reason: Arc<str>,
}

impl Eviction {
    /// A checked eviction.
    ///
    /// # Errors
    /// If the reason is empty, too long, or contains control characters.
    pub fn new(name: Name, fence: super::Fence, reason: &str) -> Result<Self, Error> {
        check_text("reason", reason, limits::REASON_BYTES).map_err(|error| error.on(&name))?;
        if reason.trim().is_empty() {
            let what = "a forced release needs a reason";
            return Err(Error::invalid(ErrorKind::InvalidOption, what)
                .on(&name)
                .with_help("say why: the holder is shown the reason"));
        }
        Ok(Self { name, fence, reason: Arc::from(reason) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    #[test]
    fn sets_are_sorted_and_each_name_stands_once() {
        let parts = Parts::set([
            Part::write(name("b")),
            Part::write(name("c")),
            Part::read(name("b")),
            Part::permits(name("a"), 1, 3).unwrap(),
            Part::permits(name("a"), 2, 3).unwrap(),
        ])
        .unwrap();
        let seen: Vec<_> =
            parts.as_slice().iter().map(|p| (p.name().as_str(), p.weight())).collect();
        assert_eq!(seen, [("a", 3), ("b", limits::FULL_WEIGHT), ("c", limits::FULL_WEIGHT)]);
    }

    #[test]
    fn sets_that_make_no_sense_are_refused() {
        let kind = |parts: Vec<Part>| Parts::set(parts).unwrap_err().kind();
        assert_eq!(kind(vec![]), ErrorKind::InvalidOption);
        let two = || Part::permits(name("a"), 2, 3).unwrap();
        assert_eq!(kind(vec![Part::read(name("a")), two()]), ErrorKind::Shape);
        assert_eq!(kind(vec![two(), two()]), ErrorKind::InvalidOption);
        let many = (0..65).map(|n| Part::write(name(&format!("n{n}")))).collect();
        assert_eq!(kind(many), ErrorKind::Limit);
    }

    #[test]
    fn an_owner_is_never_its_own_ancestor() {
        let (a, b) = (OwnerId::new(), OwnerId::new());
        assert!(Lineage::nested(a, &[a]).is_err());
        assert!(Lineage::nested(a, &[b, b]).is_err());
        assert!(Lineage::nested(a, &vec![b; limits::ANCESTORS + 1]).is_err());
        assert!(Lineage::nested(a, &[b]).unwrap().includes(b));
    }

    #[test]
    fn a_forced_release_needs_an_honest_reason() {
        for reason in ["", "  ", "a\nb", &"x".repeat(513)] {
            assert!(Eviction::new(name("a"), super::super::Fence::new(1), reason).is_err());
        }
    }
}

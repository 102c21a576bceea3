//! The order checker of a process: compares each lock that is to be acquired with what its flow of
//! control holds already.
//!
//! ```text
//! check(request) -> nothing held: done
//!                -> levels: an error if the new lock is not below every lock that is held
//!                -> each pair (held class, wanted class): known? one lookup, no allocation
//!                                                         never seen? learn it (learning.rs)
//! hold(claim)    -> the flow holds it, until the guard's mark is dropped (holds.rs)
//! ```
//!
//! Known pairs are in a map of their own behind a read-write lock, so that they never wait for a
//! pair that is being learned. The verdict about a pair is in that map too: in mode `deny` a pair
//! that closed a cycle is refused each time, while it is reported once.
//!
//! A try-lock waits for nothing and adds no pair, but what it acquired counts as held for the next
//! lock. A lock that the same owner holds already is entered again, which waits for nothing either.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, RwLock, Weak};

use super::builds::default_build;
use super::classes::ClassNames;
use super::document::OrderGraph;
use super::finder::EdgeKey;
use super::habits::HoldTimer;
use super::holds::{FlowKey, HeldLock, HoldMark, held_by, hold_nothing};
use super::learning::Learned;
use super::name_order::NameOrders;
use super::report::{OrderReport, ReportKind};
use super::settings::{LockOrder, OrderMode, default_service};
use super::share::Rereads;
use crate::contract::{About, Claim, Error, ErrorKind, Lineage, Name, Part, Parts, Place, Verb};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Clock;

/// The order checker of one or several [`Tenure`](crate::Tenure)s. Cheap to clone; clones share
/// what was learned. See [`LockOrder`] for an example.
#[derive(Clone)]
pub struct OrderChecker(pub(super) Arc<CheckerState>);

pub(super) struct CheckerState {
    /// From 1; 0 stands for the locks of a parent process.
    pub(super) id: u64,
    pub(super) settings: LockOrder,
    pub(super) service: String,
    pub(super) classes: Mutex<ClassNames>,
    pub(super) known: RwLock<HashMap<u64, KnownPair, BuildHasherDefault<CodeHasher>>>,
    pub(super) learned: Mutex<Learned>,
    /// The store has no cells: sharing is over.
    pub(super) alone: AtomicBool,
    /// When the store is to be told again that this build was seen, or what it was not told yet, in
    /// seconds since 1970; 0 until something was to be shared.
    pub(super) next_seen: AtomicU64,
    /// That time has come.
    pub(super) seen_is_due: AtomicBool,
    pub(super) rereads: Rereads,
    places: Mutex<HashSet<(ReportKind, u64)>>,
    /// The place whose unlimited wait was looked at last: most come again and again.
    last_place: AtomicU64,
    reports: Mutex<Vec<OrderReport>>,
}

/// What is known of a pair of classes.
#[derive(Clone, Debug)]
pub(super) struct KnownPair {
    /// Why the pair is refused, in mode `deny`.
    pub(super) refused: Option<Arc<OrderReport>>,
    /// Of a pair of one class: the orders of names that are no news.
    pub(super) orders: NameOrders,
}

/// A lock that is to be acquired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderRequest<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) lineage: &'a Lineage,
    /// The owner is that of a scope, or was given.
    pub(crate) scoped: bool,
    pub(crate) level: Option<&'a Arc<str>>,
    pub(crate) wait: WaitLimit,
    /// A reader becomes the writer: it waits for the other readers, also where it is one.
    pub(crate) upgrades: bool,
    /// Where in the code, and in which process.
    pub(crate) about: &'a About,
}

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all.
    Try,
    /// With a time limit.
    Bounded,
    /// Until it is granted.
    Unlimited,
}

/// A pair that was looked at.
pub(super) struct ClassPair<'a> {
    pub(super) key: EdgeKey,
    pub(super) held: &'a HeldLock,
    pub(super) held_name: &'a Name,
    pub(super) acquired_name: &'a Name,
}

impl OrderChecker {
    /// A checker with these settings.
    #[must_use]
    pub fn new(settings: impl Into<LockOrder>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let settings = settings.into();
        let service = settings.service.clone().unwrap_or_else(default_service);
        let inner = Arc::new(CheckerState {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            service,
            alone: AtomicBool::new(!settings.shared),
            next_seen: AtomicU64::new(0),
            seen_is_due: AtomicBool::new(false),
            settings,
            classes: Mutex::default(),
            known: RwLock::default(),
            learned: Mutex::default(),
            rereads: Rereads::default(),
            places: Mutex::default(),
            last_place: AtomicU64::new(0),
            reports: Mutex::default(),
        });
        lock(&ALL).insert(inner.id, Arc::downgrade(&inner));
        Self(inner)
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> OrderMode {
        self.0.settings.mode
    }

    /// The reports so far, the oldest first; at most 256.
    #[must_use]
    pub fn reports(&self) -> Vec<OrderReport> {
        lock(&self.0.reports).clone()
    }

    /// The edges that this process has learned by itself, to be written to a file that
    /// `tenure order check` reads.
    ///
    /// # Examples
    /// ```
    /// use tenure::{OrderMode, Tenure};
    ///
    /// # tenure::block_on(async {
    /// let tenure = Tenure::builder().order(OrderMode::Warn).connect("memory:").await?;
    /// let first = tenure.mutex("account:1")?.lock().await?;
    /// let second = tenure.mutex("ledger")?.lock().await?;
    /// let text = tenure.order().unwrap().graph().to_text();
    /// assert!(text.contains("account:*") && text.contains("ledger"));
    /// # drop((first, second));
    /// # Ok::<(), tenure::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn graph(&self) -> OrderGraph {
        lock(&self.0.learned).own_graph()
    }

    /// Whether there is anything to check: if not, locks need not ask.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.settings.is_idle()
    }

    pub(crate) fn levels(&self) -> Option<&super::levels::Levels> {
        self.0.settings.levels.as_ref()
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn learns(&self) -> bool {
        self.mode() != OrderMode::Off
    }

    pub(super) fn by_id(id: u64) -> Option<Self> {
        lock(&ALL).get(&id).and_then(Weak::upgrade).map(Self)
    }

    /// The build of the service.
    pub(super) fn build(&self) -> &str {
        self.0.settings.build.as_deref().unwrap_or_else(|| default_build())
    }

    /// Checks a lock before it is waited for. Returns whether there is something to tell the store:
    /// then [`share`](Self::share) does it.
    pub(crate) fn check(
        &self,
        request: &OrderRequest<'_>,
        task: Option<FlowKey>,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let lineage = request.scoped.then_some(request.lineage);
        if hold_nothing(lineage, task) {
            return Ok(false);
        }
        let held = held_by(lineage, task, Some(self.0.id));
        if held.is_empty() {
            return Ok(false);
        }
        self.check_against(request, &held, clock)
    }

    /// Checks a lock against these that are held.
    pub(super) fn check_against(
        &self,
        request: &OrderRequest<'_>,
        held: &[HeldLock],
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        self.check_levels(request, held)?;
        if !self.learns() || request.wait == WaitLimit::Try {
            return Ok(false);
        }
        let mut news = false;
        let mut waits = false;
        for part in request.parts.as_slice() {
            if part.name().is_reserved() || request.enters_again(part, held) {
                continue;
            }
            waits = true;
            for one in held.iter().filter(|one| !one.claim.parts.first_name().is_reserved()) {
                news |= self.check_part(request, part, one, clock)?;
            }
        }
        if waits && request.wait == WaitLimit::Unlimited {
            self.unlimited_wait(request, held);
        }
        Ok((self.is_seen_due(clock) || news) && !self.0.alone.load(Ordering::Relaxed))
    }

    /// Compares one part of a request with one lock that is held.
    fn check_part(
        &self,
        request: &OrderRequest<'_>,
        part: &Part,
        held: &HeldLock,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let Some(acquired) = self.class(part.name()) else { return Ok(false) };
        let mut news = false;
        for held_part in held.claim.parts.as_slice() {
            // The same name again, without a scope: the session reports that it waits for itself.
            if held_part.name() == part.name() {
                continue;
            }
            let Some(class) = self.class(held_part.name()) else { continue };
            let key = EdgeKey {
                held: class,
                acquired,
                held_shared: held_part.is_shared(),
                acquired_shared: part.is_shared(),
            };
            let (held_name, acquired_name) = (held_part.name(), part.name());
            let pair = ClassPair { key, held, held_name, acquired_name };
            news |= self.check_pair(request, &pair, clock)?;
        }
        Ok(news)
    }

    fn check_pair(
        &self,
        request: &OrderRequest<'_>,
        pair: &ClassPair<'_>,
        clock: &dyn Clock,
    ) -> Result<bool, Error> {
        let code = pair.code(request.wait);
        let orders = pair.orders();
        let known = {
            let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
            known.get(&code).map(|known| {
                let refused = known.refused.as_ref().filter(|_| self.mode() == OrderMode::Deny);
                (known.orders.and(orders) == known.orders, refused.cloned())
            })
        };
        match known {
            Some((_, Some(report))) => Err(request.refusal(&report)),
            Some((true, None)) => Ok(false),
            Some((false, None)) | None => {
                let at = clock.wall_micros() / 1_000_000;
                let refused = self.learn(request, pair, at);
                match refused.filter(|_| self.mode() == OrderMode::Deny) {
                    Some(report) => Err(request.refusal(&report)),
                    None => Ok(true),
                }
            }
        }
    }

    /// Refuses what is not below every lock that is held.
    fn check_levels(&self, request: &OrderRequest<'_>, held: &[HeldLock]) -> Result<(), Error> {
        let Some(levels) = self.levels() else { return Ok(()) };
        let said = request.level.map(|level| &**level);
        for part in request.parts.as_slice() {
            let Some(wanted) = levels.level_of(said, part.name()) else { continue };
            if request.enters_again(part, held) {
                continue;
            }
            for one in held {
                for held_name in one.claim.parts.names() {
                    let level = levels.level_of(one.level.as_deref(), held_name);
                    let Some(level) = level.filter(|level| wanted <= *level) else { continue };
                    let what = format!(
                        "level {:?} is not below level {:?}: {:?} of level {:?} is held since \
                         {}, and {:?} of level {:?} would be acquired at {}",
                        levels.name(wanted),
                        levels.name(level),
                        held_name,
                        levels.name(level),
                        place_text(&one.claim.about),
                        part.name(),
                        levels.name(wanted),
                        place_text(request.about),
                    );
                    let help = if wanted == level {
                        "acquire several locks of one level at once, as a lock_set"
                    } else {
                        "acquire the higher level first"
                    };
                    return Err(Error::new(ErrorKind::Order, what)
                        .during(Verb::Claim)
                        .on(part.name())
                        .with_help(help));
                }
            }
        }
        Ok(())
    }

    /// Notes that the lock is held. The mark belongs to its guard.
    pub(crate) fn hold(
        &self,
        claim: &Arc<Claim>,
        scoped: bool,
        level: Option<&Arc<str>>,
        task: Option<FlowKey>,
        clock: &Arc<dyn Clock>,
    ) -> Option<HoldMark> {
        if claim.parts.first_name().is_reserved() {
            return None;
        }
        let owner = || FlowKey::of_owner(claim.lineage.owner());
        let flow = if scoped { owner() } else { task? };
        let limit = self.0.settings.long_hold;
        let timer = limit.map(|limit| Arc::new(HoldTimer::new(self, clock, claim, limit)));
        let (claim, level) = (Arc::clone(claim), level.cloned());
        Some(HoldMark::new(flow, HeldLock { checker: self.0.id, claim, level, timer }))
    }

    /// Whether this is the first report of its kind for a place in the code.
    pub(super) fn first_at(&self, kind: ReportKind, place: Option<&Place>) -> bool {
        let number = place_number(place);
        if kind == ReportKind::UnlimitedWaitWhileHolding
            && self.0.last_place.swap(number, Ordering::Relaxed) == number
            && number != 0
        {
            return false;
        }
        self.first_of(kind, number)
    }

    /// Whether this is the first report of its kind for a number.
    pub(super) fn first_of(&self, kind: ReportKind, number: u64) -> bool {
        let mut places = lock(&self.0.places);
        places.len() < limits::ORDER_PLACES && places.insert((kind, number))
    }

    /// Logs a report, keeps it, and tells the listener.
    pub(super) fn emit(&self, report: OrderReport) {
        tracing::warn!(kind = report.kind.word(), "{report}");
        if let Some(listener) = &self.0.settings.listener {
            listener(&report);
        }
        let mut reports = lock(&self.0.reports);
        if reports.len() < limits::ORDER_REPORTS {
            reports.push(report);
        }
    }
}

impl OrderRequest<'_> {
    /// The error for a request that goes against the order. No wait began, nothing was sent.
    pub(super) fn refusal(&self, report: &OrderReport) -> Error {
        Error::new(ErrorKind::Order, report.to_string())
            .during(Verb::Claim)
            .on(self.parts.first_name())
            .with_help(
                "acquire the classes in one order everywhere, or several at once as a lock_set",
            )
    }

    /// Whether the owner holds the name already, and enters it again.
    fn enters_again(&self, part: &Part, held: &[HeldLock]) -> bool {
        let same = |one: &HeldLock| {
            self.lineage.includes(one.claim.lineage.owner())
                && one.claim.parts.names().any(|name| name == part.name())
        };
        !self.upgrades && self.scoped && part.shape().reentrant() && held.iter().any(same)
    }
}

impl ClassPair<'_> {
    /// The pair as a number, with the kind of wait.
    pub(super) fn code(&self, wait: WaitLimit) -> u64 {
        code(self.key, wait == WaitLimit::Bounded)
    }

    /// Of a pair of one class, the orders of names that it agrees with.
    pub(super) fn orders(&self) -> NameOrders {
        if self.key.held == self.key.acquired {
            NameOrders::of_pair(self.held_name.as_str(), self.acquired_name.as_str())
        } else {
            NameOrders::ALL
        }
    }
}

/// An edge and its kind of wait as a number: classes have at most 28 bits.
pub(super) fn code(key: EdgeKey, bounded: bool) -> u64 {
    let flags =
        u64::from(key.held_shared) << 2 | u64::from(key.acquired_shared) << 1 | u64::from(bounded);
    (u64::from(key.held) << 32) | (u64::from(key.acquired) << 3) | flags
}

/// Spreads the number of a pair: it is made of small numbers, and no user chooses it.
#[derive(Default)]
pub(super) struct CodeHasher(u64);

impl Hasher for CodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().copied().fold(self.0, hash_byte);
    }

    fn write_u64(&mut self, code: u64) {
        let mixed = (code ^ (code >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A place in the code as a number: no text is made for a place that is known.
pub(super) fn place_number(place: Option<&Place>) -> u64 {
    match place {
        None => 0,
        Some(Place::Here(location)) => std::ptr::from_ref(*location).addr() as u64,
        Some(Place::Told(text)) => text.bytes().fold(1, hash_byte),
    }
}

/// One step of FNV-1a.
pub(super) fn hash_byte(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

/// A place in the code for people.
pub(super) fn place_text(about: &About) -> String {
    match (&about.place, &about.label) {
        (Some(place), _) => place.to_string(),
        // A helper process, such as that of `tenure run`, has no place that explains anything.
        (None, Some(label)) => format!("'{label}' in process {}", about.pid),
        (None, None) => format!("process {}", about.pid),
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The checkers of this process, for what knows only their number.
static ALL: std::sync::LazyLock<Mutex<HashMap<u64, Weak<CheckerState>>>> =
    std::sync::LazyLock::new(Mutex::default);

impl Drop for CheckerState {
    fn drop(&mut self) {
        lock(&ALL).remove(&self.id);
    }
}

impl fmt::Debug for OrderChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OrderChecker").field(&self.0.settings).finish()
    }
}

const _: () = assert!(limits::ORDER_CLASSES < 1 << 28);

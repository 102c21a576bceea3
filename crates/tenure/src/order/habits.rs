//! Habits that end in deadlock sooner or later. Each is told once for each place in the code; a
//! hold that takes too long as soon as the keeper sees it, and at the latest when it ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::checker::{OrderChecker, OrderRequest, lock, place_text};
use super::holds::{FlowKey, HeldLock, held_by, overdue};
use super::report::{OrderReport, ReportKind};
use crate::contract::{Claim, Lineage, Place, short};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Tick};

impl OrderChecker {
    /// Tells of a wait without a limit while other locks are held.
    pub(super) fn unlimited_wait(&self, request: &OrderRequest<'_>, held: &[HeldLock]) {
        if !self.first_at(ReportKind::UnlimitedWaitWhileHolding, request.about.place.as_ref()) {
            return;
        }
        let detail = format!(
            "{:?} at {} waits without a limit while {}; set a timeout, or acquire both as one \
             lock_set",
            request.parts.first_name(),
            place_text(request.about),
            holding(held),
        );
        self.habit(ReportKind::UnlimitedWaitWhileHolding, detail);
    }

    fn habit(&self, kind: ReportKind, detail: String) {
        self.emit(OrderReport { kind, edges: Vec::new(), detail });
    }
}

/// Tells of an owner that is sent to another service while it holds locks: the other service's
/// waits become waits of the callers that want these locks.
pub(crate) fn owner_sent(lineage: &Lineage, place: &'static std::panic::Location<'static>) {
    let held = held_by(Some(lineage), FlowKey::current(), None);
    let mut told: SmallVec<[u64; 1]> = SmallVec::new();
    for one in held.iter().filter(|one| one.checker != 0) {
        if told.contains(&one.checker) {
            continue;
        }
        told.push(one.checker);
        let Some(checker) = OrderChecker::by_id(one.checker) else { continue };
        let place = Place::Here(place);
        if checker.learns() && checker.first_at(ReportKind::HeldAcrossCall, Some(&place)) {
            let detail = format!("the owner was sent at {place} while {}", holding(&held));
            checker.habit(ReportKind::HeldAcrossCall, detail);
        }
    }
}

/// The locks that are held, with their places, for people.
fn holding(held: &[HeldLock]) -> String {
    let one = |held: &HeldLock| {
        let claim = &held.claim;
        format!("{:?} ({})", claim.parts.first_name(), place_text(&claim.about))
    };
    let all: Vec<String> = held.iter().map(one).collect();
    format!("{} is held", all.join(" and "))
}

impl OrderChecker {
    /// What a keeper calls when it wakes, if long holds are told: it reports those that go on. A
    /// keeper wakes to renew whatever is held, so that a flow that hangs is told of as well.
    pub(crate) fn hold_watch(&self) -> Option<impl Fn(Tick) + Send + Sync + use<>> {
        /// A look goes through all that is held.
        const LOOK_EVERY: Duration = Duration::from_millis(500);
        self.0.settings.long_hold?;
        let checker = self.clone();
        let next = Mutex::new(Tick::ZERO);
        Some(move |now| {
            let mut next = lock(&next);
            if now < *next {
                return;
            }
            *next = now + LOOK_EVERY;
            drop(next);
            for timer in overdue(checker.id()) {
                timer.report("is");
            }
        })
    }
}

/// Measures one hold: it says if that takes too long, while the lock is held or when it ends.
pub(super) struct HoldTimer {
    checker: OrderChecker,
    clock: Arc<dyn Clock>,
    claim: Arc<Claim>,
    since: Tick,
    limit: Duration,
    told: AtomicBool,
}

impl HoldTimer {
    pub(super) fn new(
        checker: &OrderChecker,
        clock: &Arc<dyn Clock>,
        claim: &Arc<Claim>,
        limit: Duration,
    ) -> Self {
        let (clock, claim) = (Arc::clone(clock), Arc::clone(claim));
        let told = AtomicBool::new(false);
        Self { checker: checker.clone(), since: clock.now(), clock, claim, limit, told }
    }

    /// Whether the hold has taken too long, which was not told yet.
    pub(super) fn is_due(&self) -> bool {
        self.held_for() > self.limit && !self.told.load(Ordering::Relaxed)
    }

    fn held_for(&self) -> Duration {
        self.clock.now().since(self.since)
    }

    fn report(&self, verb: &str) {
        let place = self.claim.about.place.as_ref();
        if !self.is_due()
            || self.told.swap(true, Ordering::Relaxed)
            || !self.checker.first_at(ReportKind::LongHold, place)
        {
            return;
        }
        let detail = format!(
            "{:?} of {} {verb} held for {}, longer than {}",
            self.claim.parts.first_name(),
            place_text(&self.claim.about),
            short(self.held_for()),
            short(self.limit),
        );
        self.checker.habit(ReportKind::LongHold, detail);
    }
}

impl Drop for HoldTimer {
    fn drop(&mut self) {
        self.report("was");
    }
}

impl fmt::Debug for HoldTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldTimer").field("since", &self.since).finish_non_exhaustive()
    }
}

//! The deadlock detector of a waiting caller. Runs inside the caller's own future, and only after
//! the claim has waited for a while: the path of a lock that is free never comes here.
//!
//! ```text
//! wait_for_grant -- delay passes --> look: inspect(Reach) -> deadlock::find
//!       ^                              |-> not stuck: look again later, less often each time
//!       |                              |-> stuck: report; in mode `break`: refuse_victim
//!       '------------------------------'
//! ```
//!
//! - **Who looks.** A waiter whose owner holds something, or is nested in another owner; of claims
//!   without a scope, one whose task or thread holds something: that one only reports.
//! - **While it looks, it goes on waiting.** Both futures are polled together, so a grant that
//!   arrives meanwhile is returned at once and the look is dropped.
//! - **Who is refused.** Any member of the deadlock, chosen by all detectors alike; the store
//!   compares the facts and notifies the victim's session. If the victim is this claim itself, the
//!   wait ends here and does not depend on the notification.
//! - **Other flows.** If another task releases a lock of the owner while it waits, the owner has
//!   another flow of control: the waiter holds the owner's marker from then on until its wait ends,
//!   and counts as able to run for every detector.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::attempt::Attempt;
use super::entry::{EndReason, Entry, Phase};
use super::errors::victim_error;
use super::park::{WaitOutcome, wait_for_grant};
use super::request::{AcquireRequest, Outcome, Wait};
use super::{Core, Event, Share, WaitEnd};
use crate::contract::{
    About, Claim, ClaimId, Conduct, DeadlockCase, DeadlockHandling, Error, Lineage, Loss, OwnerId,
    Page, Part, Parts, Query, Snapshot, Verb, VictimVerdict, concurrency_marker,
};
use crate::deadlock::{self, Deadlock};
use crate::limits;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::Tick;

/// What a session does about deadlocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadlockMode {
    /// Does not look for them, and its waits are never refused.
    Off,
    /// Looks and reports; its waits are never refused.
    Observe,
    /// Looks, reports, and refuses one wait of each deadlock, where the engine can compare the
    /// facts and refuse in one step.
    #[default]
    Break,
}

/// The settings of the detector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlockSettings {
    pub(crate) mode: DeadlockMode,
    /// How long a claim waits before it looks.
    pub(crate) delay: Duration,
}

impl Default for DeadlockSettings {
    fn default() -> Self {
        Self { mode: DeadlockMode::Break, delay: limits::DEADLOCK_DELAY }
    }
}

/// A wait goes on for at most so many delays between two looks.
const RAREST: u32 = 8;

/// How often a verdict is repeated at once if a fact has changed: the deadlock may still stand,
/// with other facts.
const VERDICTS: usize = 3;

/// A waiting claim that is registered with the session's table, so that a release by another flow
/// of its owner can be noticed.
#[derive(Debug)]
pub(super) struct WatchedWait {
    pub(super) claim: ClaimId,
    /// Another flow of the owner has released something meanwhile.
    released: Arc<AtomicBool>,
}

impl Attempt<'_> {
    /// Waits until the claim is granted, its wait ends without a grant, or the deadline passes; and
    /// looks for a deadlock now and then.
    pub(super) async fn wait(&mut self, deadline: Tick) -> WaitOutcome {
        let core = Arc::clone(self.core);
        let settings = core.settings.deadlocks;
        let unseen = core.engine.promises().deadlocks == DeadlockHandling::Unseen;
        if settings.mode == DeadlockMode::Off || unseen {
            return wait_for_grant(&core, self.id(), deadline).await;
        }
        let first = core.clock.now() + core.with_jitter(settings.delay);
        if first < deadline || deadline == Tick::NEVER {
            // Boxed, so that the future of a plain lock stays small.
            return Box::pin(self.wait_and_look(&core, first, deadline)).await;
        }
        wait_for_grant(&core, self.id(), deadline).await
    }

    async fn wait_and_look(
        &mut self,
        core: &Arc<Core>,
        first: Tick,
        deadline: Tick,
    ) -> WaitOutcome {
        let id = self.id();
        let watched = Registration::new(core, &self.claim, self.scoped);
        let mut marker: Option<Share> = None;
        let (mut next, mut pause) = (first, 1);
        loop {
            let until = next.min(deadline);
            let waited = wait_or_released(core, id, until, &watched, marker.is_some()).await;
            let Some(outcome) = waited else {
                let claim = Arc::clone(&self.claim);
                let hold = Box::pin(async { core.hold_marker(&claim).await });
                match wait_while(core, id, deadline, hold).await {
                    Waited::Over(outcome) => return outcome,
                    // Best effort: without the marker the owner still has what the store sees.
                    Waited::Done(held) => marker = held.ok(),
                }
                continue;
            };
            match outcome {
                WaitOutcome::TimedOut(_) if until < deadline => {}
                other => return other,
            }
            if core.may_be_deadlocked(&self.claim, self.scoped) {
                let look = Box::pin(core.look(&self.claim, self.scoped));
                match wait_while(core, id, deadline, look).await {
                    Waited::Over(outcome) => return outcome,
                    Waited::Done(LookOutcome::Refused(words)) => {
                        return WaitOutcome::Ended(EndReason::Revoked(Loss::Deadlock { words }));
                    }
                    Waited::Done(LookOutcome::Found(suspicion)) => {
                        self.report(suspicion);
                        pause = 1;
                    }
                    Waited::Done(LookOutcome::Nothing) => self.suspected = None,
                }
            }
            next = core.clock.now() + core.with_jitter(core.settings.deadlocks.delay * pause);
            pause = (pause * 2).min(RAREST);
        }
    }

    /// Takes a claim out of the table that the store has refused to break a deadlock. A hold that
    /// it should have replaced goes on.
    pub(super) fn refused_as_victim(&mut self, words: &str) -> Error {
        self.core.emit(&self.claim, || Event::Withdrawn { why: WaitEnd::Deadlock });
        self.done = true;
        let mut table = self.core.lock();
        table.remove(self.claim.id);
        if let Some(old) = self.claim.replaces {
            table.update(old, |entry| entry.extras_mut().successor = None);
        }
        drop(table);
        victim_error(words).during(Verb::Claim).on(self.claim.parts.first_name())
    }

    /// Reports a deadlock that was found, once for the same words but for the times in them.
    fn report(&mut self, suspicion: Suspicion) {
        if self.suspected.is_none() {
            let (name, words) = (self.claim.parts.first_name(), &suspicion.words);
            tracing::warn!(%name, deadlock = %words, advice = suspicion.advice, "deadlock");
            self.core.emit(&self.claim, || Event::Deadlock { words: Arc::clone(words) });
        }
        self.suspected = Some(suspicion);
    }
}

/// A deadlock that was found and not broken, for the error of a wait that times out.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub(super) words: Arc<str>,
    /// What to do about it.
    pub(super) advice: &'static str,
}

impl Suspicion {
    fn new(found: &Deadlock) -> Self {
        // One of the waits may be refused, but the step failed, or it is too large for one.
        let advice = "it could not be broken: take the locks at once as a set, or in one order";
        Self { words: found.words().into(), advice: found.advice().unwrap_or(advice) }
    }
}

/// What a look came to.
enum LookOutcome {
    /// The claim is not stuck.
    Nothing,
    /// The claim is in a deadlock, or stuck behind one, and was not refused.
    Found(Suspicion),
    /// The claim itself was refused.
    Refused(Arc<str>),
}

/// A wait and a call beside it: which of them was done first.
enum Waited<T> {
    Over(WaitOutcome),
    Done(T),
}

/// Waits for the grant and polls a call beside it.
async fn wait_while<T>(
    core: &Core,
    id: ClaimId,
    deadline: Tick,
    mut call: Pin<Box<impl Future<Output = T>>>,
) -> Waited<T> {
    let mut wait = pin!(wait_for_grant(core, id, deadline));
    poll_fn(move |cx| {
        if let Poll::Ready(outcome) = wait.as_mut().poll(cx) {
            return Poll::Ready(Waited::Over(outcome));
        }
        call.as_mut().poll(cx).map(Waited::Done)
    })
    .await
}

/// Waits for the grant. Returns `None` if another flow of the owner has released something and the
/// owner's marker is not held yet.
async fn wait_or_released(
    core: &Core,
    id: ClaimId,
    until: Tick,
    watched: &Registration,
    is_marked: bool,
) -> Option<WaitOutcome> {
    let mut wait = pin!(wait_for_grant(core, id, until));
    poll_fn(move |cx| {
        if let Poll::Ready(outcome) = wait.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        // Taken, so that a marker which could not be had is not asked for again and again.
        let released = !is_marked && watched.released.swap(false, Ordering::SeqCst);
        if released { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// The registration of a waiting claim in the session's table, until it is dropped.
struct Registration {
    core: Arc<Core>,
    owner: OwnerId,
    claim: ClaimId,
    released: Arc<AtomicBool>,
}

impl Registration {
    fn new(core: &Arc<Core>, claim: &Claim, scoped: bool) -> Self {
        let released = Arc::new(AtomicBool::new(false));
        let (owner, id) = (claim.lineage.owner(), claim.id);
        if scoped {
            let watched = WatchedWait { claim: id, released: Arc::clone(&released) };
            core.lock().watched.entry(owner).or_default().push(watched);
        }
        Self { core: Arc::clone(core), owner, claim: id, released }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        let mut table = self.core.lock();
        if let Some(waits) = table.watched.get_mut(&self.owner) {
            waits.retain(|wait| wait.claim != self.claim);
            if waits.is_empty() {
                table.watched.remove(&self.owner);
            }
        }
    }
}

impl super::table::Table {
    /// Notes that a lock of this owner was released. Returns the wakers of the owner's waits, which
    /// have another flow of control beside them.
    pub(super) fn released_by(&mut self, owner: OwnerId) -> Vec<Waker> {
        // Empty unless a claim with a scope waits.
        let Some(waits) = self.watched.get(&owner) else { return Vec::new() };
        waits.iter().for_each(|wait| wait.released.store(true, Ordering::SeqCst));
        let ids: Vec<ClaimId> = waits.iter().map(|wait| wait.claim).collect();
        let waker = |id| self.update(id, |entry| entry.waker.take()).flatten();
        ids.into_iter().filter_map(waker).collect()
    }
}

impl Core {
    /// Adds up to a quarter, so that waiters which began together do not look together.
    fn with_jitter(&self, delay: Duration) -> Duration {
        delay + delay / 4 * u32::from(self.jitter()) / 256
    }

    /// Whether the owner of a waiting claim holds something that others could wait for: without
    /// that it cannot be in a deadlock, only behind one.
    fn may_be_deadlocked(&self, claim: &Claim, scoped: bool) -> bool {
        if scoped && !claim.lineage.ancestors().is_empty() || claim.replaces.is_some() {
            return true;
        }
        let table = self.lock();
        let flow = table.get(claim.id).and_then(|entry| entry.flow);
        let own = |entry: &Entry| {
            let same = entry.claim.lineage.owner() == claim.lineage.owner()
                || !scoped && !entry.scoped && flow.is_some() && entry.flow == flow;
            same && matches!(entry.phase, Phase::Held { .. } | Phase::Granted { .. })
        };
        table.any_entry(own) || claim.parts.as_slice().len() > 1
    }

    /// Looks for a deadlock that the claim is stuck in or behind, and breaks it if that is wanted
    /// and possible.
    async fn look(self: &Arc<Self>, claim: &Claim, scoped: bool) -> LookOutcome {
        let mut standing = LookOutcome::Nothing;
        for _ in 0..VERDICTS {
            let found = if scoped {
                self.find_deadlock(claim.lineage.owner()).await
            } else {
                self.find_suspected(claim).await
            };
            let found = match found {
                Ok(Some(found)) => found,
                Ok(None) => return LookOutcome::Nothing,
                Err(error) => {
                    tracing::debug!(%error, "cannot look for a deadlock");
                    return LookOutcome::Nothing;
                }
            };
            let breaks = self.settings.deadlocks.mode == DeadlockMode::Break;
            let verdicts = self.engine.deadlocks().filter(|_| breaks);
            let case = found.case().filter(DeadlockCase::fits);
            let (Some(verdicts), Some(case)) = (verdicts, case) else {
                return LookOutcome::Found(Suspicion::new(&found));
            };
            let verdict = self.limited(Verb::RefuseVictim, || verdicts.refuse_victim(&case)).await;
            match verdict {
                Ok(VictimVerdict::Refused) if case.victim.claim == claim.id => {
                    return LookOutcome::Refused(case.words);
                }
                Ok(VictimVerdict::Refused) => {
                    tracing::info!(deadlock = %case.words, "deadlock broken");
                    return LookOutcome::Nothing;
                }
                // A fact changed before the verdict: look again. If every look finds a deadlock and
                // none is broken, the last one is reported.
                Ok(VictimVerdict::Changed) => standing = LookOutcome::Found(Suspicion::new(&found)),
                Err(error) => {
                    tracing::debug!(%error, "cannot break a deadlock");
                    return LookOutcome::Found(Suspicion::new(&found));
                }
            }
        }
        standing
    }

    /// Returns the first deadlock that an owner is stuck in or behind, else the first that it seems
    /// to be.
    async fn find_deadlock(&self, owner: OwnerId) -> Result<Option<Deadlock>, Error> {
        let query = Query::Reach(owner);
        let seen = self.limited(Verb::Inspect, || self.engine.inspect(&query)).await?;
        if let Some(found) = deadlock::find_around(&seen, owner).into_iter().next() {
            return Ok(Some(found));
        }
        Ok(deadlock::find_suspected_around(&seen, owner).into_iter().next())
    }

    /// Returns a deadlock among claims without a scope that this claim waits in.
    async fn find_suspected(&self, claim: &Claim) -> Result<Option<Deadlock>, Error> {
        let seen = self.contended().await?;
        let mine = |found: &Deadlock| {
            let wait = |wait: &deadlock::MemberWait| wait.claim == claim.id;
            found.members.iter().any(|member| member.wait.as_ref().is_some_and(wait))
        };
        Ok(deadlock::find_suspected(&seen).into_iter().find(mine))
    }

    /// Reads all slots that have a queue.
    pub(crate) async fn contended(&self) -> Result<Snapshot, Error> {
        let mut all = Snapshot::default();
        let mut page = Page { contended: true, reserved: true, ..Page::default() };
        loop {
            let query = Query::Page(page.clone());
            let seen = self.limited(Verb::Inspect, || self.engine.inspect(&query)).await?;
            all.slots.extend(seen.slots);
            match seen.more_after {
                Some(last) if all.slots.len() < limits::REACH_SLOTS => page.after = Some(last),
                more => {
                    all.truncated = more.is_some();
                    return Ok(all);
                }
            }
        }
    }

    /// Finds all deadlocks of the namespace. Each was there in two snapshots, or in one that the
    /// store made in one step.
    pub(crate) async fn all_deadlocks(&self) -> Result<Vec<Deadlock>, Error> {
        let mut confirmed: Vec<Deadlock> = Vec::new();
        let seen = self.contended().await?;
        for found in deadlock::find(&seen) {
            let Some(owner) = found.members.iter().find(|one| one.wait.is_some()) else { continue };
            let query = Query::Reach(owner.owner);
            let seen = self.limited(Verb::Inspect, || self.engine.inspect(&query)).await?;
            let again = deadlock::find_around(&seen, owner.owner).into_iter();
            confirmed.extend(again.filter(|one| one.same_waits(&found)));
        }
        let suspected = deadlock::find_suspected(&seen);
        if !suspected.is_empty() {
            let again = deadlock::find_suspected(&self.contended().await?);
            let stands = |one: &Deadlock| suspected.iter().any(|found| found.same_waits(one));
            confirmed.extend(again.into_iter().filter(stands));
        }
        Ok(confirmed)
    }

    /// Holds the marker of a claim's owner: from now on the owner counts as able to run.
    pub(super) async fn hold_marker(self: &Arc<Self>, claim: &Claim) -> Result<Share, Error> {
        let owner = claim.lineage.owner();
        let about = About { conduct: Conduct::default(), ..claim.about.clone() };
        let ask = AcquireRequest {
            parts: Parts::one(Part::read(concurrency_marker(owner))),
            lineage: Lineage::root(OwnerId::new()),
            scoped: false,
            lease: claim.lease,
            wait: Wait::Try,
            max_hold: None,
            lock_delay: Duration::ZERO,
            replaces: None,
            about,
        };
        // Readers of one name never exclude each other.
        match Box::pin(self.acquire_one(ask, Tick::NEVER, None)).await? {
            Outcome::Held(share) => Ok(share),
            Outcome::No => Err(super::closed_error(Verb::Claim)),
        }
    }
}

impl Share {
    /// Says that the guard leaves the flow of its owner: the owner counts as able to run until the
    /// guard is released.
    pub(crate) async fn detach(&mut self) -> Result<(), Error> {
        let claim = Arc::clone(self.hold().claim());
        if self.marker().is_none() && claim.about.conduct.flow == 0 {
            let core = Arc::clone(self.core());
            let marker = core.hold_marker(&claim).await?;
            core.lock().update(claim.id, |entry| entry.extras_mut().detached = true);
            self.set_marker(marker);
        }
        Ok(())
    }
}

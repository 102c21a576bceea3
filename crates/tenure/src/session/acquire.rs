//! The acquire path. Sends one claim request; if the slot is taken, waits in the queue until the
//! grant is pushed, the timeout expires or the future is dropped. Contains no engine-specific code
//! and no admission rules.
//!
//! ```text
//! reenter -> Attempt::begin -> Attempt::claim -> granted: return the share
//!                  ^               |-> refused: "no", or an error
//!                  |               '-> queued: wait_for_grant -> granted, timeout, or
//!                  '------------- new claim id <---------------- the ticket has expired
//! ```
//!
//! An [`Attempt`] is one claim id. Its entry is in the table before the claim is sent, so that a
//! push which overtakes the reply finds it; dropping the attempt, at any await, removes the entry
//! and withdraws the claim. A reply that does not come is requested again under the same id, which
//! makes it the same claim (promise 5), until an earlier copy of it may have expired: then the
//! attempt is dropped and the next one has a fresh id.

use std::sync::Arc;

use super::effects::{Effects, PendingRelease};
use super::entry::{EndReason, Entry, Flow, Phase};
use super::errors::refusal_error;
use super::joint::Joint;
use super::one_by_one;
use super::park::{WaitOutcome, wait_for_grant, within};
use super::request::{AcquireRequest, Outcome, Wait};
use super::retry::Retry;
use super::signals::revoke;
use super::{Core, Event, Hold, Share, WaitEnd, closed_error, unanswered};
use crate::contract::{
    Claim, ClaimId, Effect, Error, ErrorKind, Grant, Loss, Patience, Queued, Refusal, Verb, Verdict,
};
use crate::process::is_blocked;
use crate::sync::thread;
use crate::time::Tick;

impl Core {
    /// Acquires the requested parts.
    ///
    /// Dropping the future withdraws the claim; if it was granted meanwhile, it is released.
    pub(crate) async fn acquire(self: Arc<Self>, ask: AcquireRequest) -> Result<Outcome, Error> {
        self.check_process(Verb::Claim).map_err(|error| error.on(ask.parts.first_name()))?;
        if ask.parts.as_slice().len() > 1 && !self.engine.promises().atomic_sets {
            // Boxed, so that the future of a plain lock stays small.
            return Box::pin(one_by_one::acquire(self, ask)).await;
        }
        self.acquire_one(&ask, self.deadline(ask.wait), None).await
    }

    /// Acquires by one claim. `behind` are the grants that were acquired for the same set before.
    pub(super) async fn acquire_one(
        self: &Arc<Self>,
        ask: &AcquireRequest,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        match self.settings.replicas {
            None => self.claim_until_granted(ask, deadline, behind).await,
            Some(wanted) => self.acquire_confirmed(wanted, ask, deadline, behind).await,
        }
    }

    /// Returns when a wait that begins now times out.
    pub(crate) fn deadline(&self, wait: Wait) -> Tick {
        match wait {
            Wait::Limit(limit) | Wait::TryFor(limit) => self.clock.now() + limit,
            Wait::Try | Wait::Unlimited => Tick::NEVER,
        }
    }

    /// Claims, and waits until the claim is granted or refused, or the wait is over.
    pub(super) async fn claim_until_granted(
        self: &Arc<Self>,
        ask: &AcquireRequest,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        if let Some(lease) = self.reenter(ask)? {
            return Ok(Outcome::Held(lease));
        }
        let mut retry = Retry::new(ask.wait, deadline, self.clock.now());
        let mut anew = None;
        loop {
            let ask = anew.as_ref().unwrap_or(ask);
            let mut attempt = Attempt::begin(self, ask, behind)?;
            match attempt.claim(&mut retry).await? {
                ClaimReply::Granted(lease) => return Ok(Outcome::Held(lease)),
                ClaimReply::Refused(Refusal::Held { .. }) if ask.wait == Wait::Try => {
                    return Ok(Outcome::No);
                }
                ClaimReply::Refused(refusal) => return Err(attempt.refused(refusal)),
                // Dropping the attempt withdraws the claim: a copy that arrives later is refused.
                ClaimReply::Stale => {
                    attempt.end = WaitEnd::ClaimedAnew;
                    anew = Some(ask.anew());
                    continue;
                }
                ClaimReply::Queued => {}
            }
            attempt.report_own_hold();
            match attempt.wait(deadline).await {
                WaitOutcome::Granted(hold) => return Ok(Outcome::Held(attempt.into_share(hold))),
                WaitOutcome::Ended(EndReason::TicketExpired) if ask.replaces.is_none() => {
                    attempt.end = WaitEnd::ClaimedAnew;
                    retry.answered(self.clock.now());
                }
                // The place in the queue is gone, but the wait is not over: claim anew until the
                // store answers.
                WaitOutcome::Ended(EndReason::Unreachable(error))
                    if ask.replaces.is_none() && error.kind() == ErrorKind::Unavailable =>
                {
                    attempt.end = WaitEnd::ClaimedAnew;
                    let silence = |entry: &Entry| (entry.sent_at, entry.failures);
                    let silence = self.lock().get(attempt.id()).map(silence);
                    let (since, failures) = silence.unwrap_or((self.clock.now(), 1));
                    retry.cut_off(since, failures);
                    anew = Some(ask.anew());
                }
                WaitOutcome::Ended(EndReason::Revoked(Loss::Deadlock { words })) => {
                    return Err(attempt.refused_as_victim(&words));
                }
                WaitOutcome::Ended(over) => {
                    attempt.end = WaitEnd::Ended;
                    return Err(attempt.wait_failed(over));
                }
                WaitOutcome::TimedOut(place) => {
                    attempt.end = WaitEnd::TimedOut;
                    return attempt.timed_out(place).await;
                }
            }
        }
    }
}

/// The store's reply to one claim.
enum ClaimReply {
    Granted(Share),
    Queued,
    Refused(Refusal),
    /// There was no reply for a lease: claim again under another id.
    Stale,
}

/// One claim id, from before the claim is sent. Dropping it withdraws the claim.
pub(super) struct Attempt<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) claim: Arc<Claim>,
    /// The claim was handed on or refused: dropping the attempt withdraws nothing.
    pub(super) done: bool,
    pub(super) own_hold: Option<Arc<Claim>>,
    pub(super) wait: Wait,
    /// When the claim was first sent.
    sent: Tick,
    /// Why the claim is withdrawn, if it is.
    end: WaitEnd,
    /// The owner is a scope or was given.
    pub(super) scoped: bool,
    /// The deadlock that the last look found, in words.
    pub(super) suspected: Option<super::deadlock::Suspicion>,
}

impl<'a> Attempt<'a> {
    /// Puts a fresh claim into the table, so that an early push is kept.
    fn begin(
        core: &'a Arc<Core>,
        ask: &AcquireRequest,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Self, Error> {
        let flow = flow();
        let mut about = ask.about.clone();
        if !ask.scoped {
            about.conduct.flow = flow.map_or(0, Flow::number);
        }
        let claim = Arc::new(Claim {
            id: ClaimId::new(),
            session: Some(core.id),
            lineage: ask.lineage.clone(),
            parts: ask.parts.clone(),
            lease: ask.lease,
            lock_delay: ask.lock_delay,
            patience: if ask.wait == Wait::Try { Patience::Try } else { Patience::Wait },
            replaces: ask.replaces,
            about,
        });
        core.emit(&claim, || Event::Sent);
        // The send time is read before anything that could take time.
        let sent = core.clock.now();
        let mut entry = Entry::new(Arc::clone(&claim), ask.scoped, flow, sent);
        entry.max_hold = ask.max_hold;
        if let Some(behind) = behind {
            entry.extras_mut().behind = Some(Arc::clone(behind));
        }
        let mut table = core.lock();
        if table.closed {
            return Err(closed_error(Verb::Claim).on(ask.parts.first_name()));
        }
        table.insert(entry);
        if let Some(old) = claim.replaces {
            table.update(old, |entry| entry.extras_mut().successor = Some(claim.id));
        }
        drop(table);
        let end = WaitEnd::Dropped;
        Ok(Self {
            core,
            claim,
            done: false,
            own_hold: None,
            wait: ask.wait,
            sent,
            end,
            scoped: ask.scoped,
            suspected: None,
        })
    }

    pub(super) fn id(&self) -> ClaimId {
        self.claim.id
    }

    /// Sends the claim. A call without a reply is repeated: the id makes it the same claim.
    async fn claim(&mut self, retry: &mut Retry) -> Result<ClaimReply, Error> {
        let core = self.core;
        let mut sent = self.sent;
        loop {
            let limit = (sent + core.settings.call).min(retry.deadline());
            let answer = within(core, limit, core.engine.claim(&self.claim)).await;
            core.check_process(Verb::Claim)?;
            let error = match answer {
                Some(Ok(verdict)) => {
                    retry.answered(sent);
                    return self.handle_reply(verdict, sent);
                }
                Some(Err(error)) => error.during(Verb::Claim).on(self.claim.parts.first_name()),
                None => {
                    let waited = core.clock.now().since(sent);
                    let error = unanswered(Verb::Claim, waited).on(self.claim.parts.first_name());
                    if limit == retry.deadline() { retry.cut_short(error) } else { error }
                }
            };
            if error.effect() == Effect::None {
                core.lock().update(self.claim.id, |entry| entry.void_sends += 1);
            }
            let again = retry.failed(core, error)?;
            // A claim without a reply is never granted; the wait only ends early if the session is
            // closed.
            drop(wait_for_grant(core, self.id(), again).await);
            core.check_process(Verb::Claim)?;
            retry.check(core)?;
            sent = core.clock.now();
            if self.exchange_is_over() {
                return Err(retry.give_up(sent));
            }
            if self.is_stale(sent) {
                return Ok(ClaimReply::Stale);
            }
            self.sent_again()?;
        }
    }

    /// Returns whether a ticket of an earlier copy of this claim may have expired by now. Another
    /// copy would then join the end of the queue under the same id, and a copy that is still in
    /// flight could bring back a ticket that expired later; so a fresh id is needed.
    fn is_stale(&self, now: Tick) -> bool {
        let void = |entry: &Entry| entry.is_void();
        self.claim.replaces.is_none()
            && now >= self.sent + self.claim.lease
            && !self.core.lock().get(self.claim.id).is_some_and(void)
    }

    /// Returns whether the claim that this one should replace was lost meanwhile.
    fn exchange_is_over(&self) -> bool {
        self.claim.replaces.is_some_and(|old| self.core.lock().get(old).is_none())
    }

    fn sent_again(&mut self) -> Result<(), Error> {
        let again = |entry: &mut Entry| {
            entry.sends += 1;
            !matches!(entry.phase, Phase::Ended(_))
        };
        match self.core.lock().update(self.claim.id, again) {
            Some(true) => Ok(()),
            _ => Err(closed_error(Verb::Claim).on(self.claim.parts.first_name())),
        }
    }

    fn handle_reply(&mut self, verdict: Verdict, sent: Tick) -> Result<ClaimReply, Error> {
        match verdict {
            Verdict::Granted(grant) => self.handle_grant(grant, sent),
            Verdict::Queued(queued) => {
                self.handle_queued(&queued, sent);
                Ok(ClaimReply::Queued)
            }
            Verdict::Refused(refusal) => {
                self.core.emit(&self.claim, || Event::Refused { why: refusal.clone() });
                // A refused claim leaves nothing in the store, so there is nothing to withdraw.
                self.done = true;
                self.forget_refused(&refusal);
                Ok(ClaimReply::Refused(refusal))
            }
        }
    }

    /// Takes a refused claim out of the table.
    fn forget_refused(&self, refusal: &Refusal) {
        let now = self.core.clock.now();
        let mut effects = Effects::default();
        let mut table = self.core.lock();
        let entry = table.remove(self.claim.id);
        if let Some(entry) = entry.filter(|entry| entry.sends > 1) {
            // An earlier copy may still be in flight and must be refused too.
            table.begin_release(self.claim.lease, now);
            effects.give_back.push(PendingRelease::of(&entry));
        }
        if let Some(old) = self.claim.replaces {
            table.update(old, |entry| entry.extras_mut().successor = None);
            if *refusal == Refusal::NothingToReplace {
                table.lose(old, Loss::Forgotten, now, &mut effects);
            }
        }
        drop(table);
        self.core.apply(effects);
    }

    fn handle_grant(&mut self, grant: Grant, sent: Tick) -> Result<ClaimReply, Error> {
        let core = self.core;
        let now = core.clock.now();
        let late = now >= core.safe_until(sent, self.claim.lease);
        let mut effects = Effects::default();
        let mut table = core.lock();
        let granted = table.update(self.claim.id, |entry| {
            if matches!(entry.phase, Phase::Ended(_)) {
                return None;
            }
            entry.answered_at(sent, grant.arrival);
            entry.renew_at = sent + self.claim.lease / 3;
            let hold = core.make_hold(entry, grant, now);
            entry.phase = if late {
                // The reply took longer than the lease: renew before the guard is returned.
                entry.renew_at = now;
                Phase::Granted { hold: Arc::clone(&hold), give_back_at: now + self.claim.lease }
            } else {
                Phase::Held { hold: Arc::clone(&hold), guards: 1 }
            };
            Some((hold, entry.ended_early(now)))
        });
        let granted = granted.flatten();
        if granted.is_some() {
            table.retire_replaced(self.claim.id, &mut effects);
        }
        if let Some((_, Some(loss))) = &granted {
            revoke(&mut table, self.claim.id, loss.clone(), now, &mut effects);
        }
        drop(table);
        core.apply(effects);
        match granted {
            Some(_) if late => Ok(ClaimReply::Queued),
            Some((_, Some(loss))) => Err(self.wait_failed(EndReason::Revoked(loss))),
            Some((hold, None)) => {
                self.done = true;
                Ok(ClaimReply::Granted(Share::new(Arc::clone(core), hold, self.wait.timeout())))
            }
            None => Err(closed_error(Verb::Claim).on(self.claim.parts.first_name())),
        }
    }

    fn handle_queued(&mut self, queued: &Queued, sent: Tick) {
        let core = self.core;
        core.emit(&self.claim, || Event::Queued { place: queued.place });
        let mut effects = Effects::default();
        let mut table = core.lock();
        // Read under the lock: a push that arrived before is a grant of this instant, and the event
        // of the release that made it is older.
        let now = core.clock.now();
        let answered = table.update(self.claim.id, |entry| {
            if matches!(entry.phase, Phase::Ended(_)) {
                return (false, None);
            }
            entry.set_queued(queued, sent, now);
            // A push that overtook this reply counts if it names the same arrival.
            let early = entry.early.take().filter(|early| early.arrival == queued.arrival);
            let granted = early.is_some();
            if let Some(early) = early {
                core.record_grant(entry, *early, now, &mut effects);
            }
            (granted, entry.ended_early(now))
        });
        let (granted, ended) = answered.unwrap_or_default();
        if granted {
            table.retire_replaced(self.claim.id, &mut effects);
        }
        if let Some(loss) = ended {
            revoke(&mut table, self.claim.id, loss, now, &mut effects);
        }
        drop(table);
        core.apply(effects);
    }

    /// Hands the grant to the caller.
    pub(super) fn into_share(mut self, hold: Arc<Hold>) -> Share {
        self.done = true;
        Share::new(Arc::clone(self.core), hold, self.wait.timeout())
    }

    /// Warns if the task or thread that waits holds the lock itself, under another owner.
    fn report_own_hold(&mut self) {
        let Some(flow) = flow() else { return };
        let owner = self.claim.lineage.owner();
        let table = self.core.lock();
        // Permits of a semaphore add up, so holding some and waiting for more is no mistake.
        let mut parts = self.claim.parts.as_slice().iter().filter(|part| part.shape().reentrant());
        let hold = parts.find_map(|part| table.own_hold(flow, part.name(), owner));
        drop(table);
        let Some(hold) = hold else { return };
        tracing::warn!(
            name = %self.claim.parts.first_name(),
            waits = %self.claim.about,
            holds = %hold.claim().about,
            "a task waits for a lock that it took itself; use a scope to re-enter it"
        );
        let held_by = hold.claim();
        self.core.emit(&self.claim, || Event::WaitsForItself { held_by: Arc::clone(held_by) });
        self.own_hold = Some(Arc::clone(held_by));
    }

    fn wait_failed(&self, over: EndReason) -> Error {
        let name = self.claim.parts.first_name();
        match over {
            EndReason::Closed => closed_error(Verb::Claim).on(name),
            EndReason::Unreachable(error) => error.on(name),
            EndReason::Revoked(loss) => {
                Error::new(ErrorKind::Lost, format!("the wait was ended: {loss}"))
                    .during(Verb::Claim)
                    .on(name)
                    .because_of(loss)
            }
            EndReason::TicketExpired => {
                let what = "what should be upgraded or downgraded is no longer held";
                Error::new(ErrorKind::Lost, what)
                    .during(Verb::Claim)
                    .on(name)
                    .because_of(Loss::Forgotten)
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> Error {
        let part = &self.claim.parts.as_slice()[0];
        let error = refusal_error(refusal, part.shape()).during(Verb::Claim);
        if error.name().is_some() { error } else { error.on(part.name()) }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.done || self.core.is_inherited() {
            return;
        }
        let now = self.core.clock.now();
        let mut effects = Effects::default();
        let mut table = self.core.lock();
        let Some(entry) = table.remove(self.claim.id) else { return };
        let void = entry.is_void();
        if !void {
            table.begin_release(self.claim.lease, now);
        }
        if let Some(old) = self.claim.replaces.filter(|_| void) {
            // The store has nothing of the exchange, so the old hold goes on.
            table.update(old, |entry| entry.extras_mut().successor = None);
        } else if let Some(old) = self.claim.replaces {
            // The store may have made the exchange already, and releasing the new claim would then
            // leave nothing. So the old hold ends first.
            table.lose(old, Loss::ExchangeGivenUp, now, &mut effects);
        }
        drop(table);
        self.core.apply(effects);
        self.core.emit(&self.claim, || Event::Withdrawn { why: self.end });
        if let Phase::Granted { hold, .. } | Phase::Held { hold, .. } = &entry.phase {
            hold.end(Loss::Released);
        }
        // A grant that ended the wait was released when it ended; but only the store knows whether
        // the ticket is still queued.
        self.core.send_back(vec![PendingRelease { void, ..PendingRelease::of(&entry) }]);
    }
}

/// Returns the current task or thread, where it is certain which one that is.
fn flow() -> Option<Flow> {
    if is_blocked() {
        return Some(Flow::Thread(thread::current().id()));
    }
    if let Some(task) = tokio::task::try_id() {
        return Some(Flow::Task(task));
    }
    // Inside a runtime but in no task: the future that the runtime was started with, which never
    // leaves its thread.
    tokio::runtime::Handle::try_current().is_ok().then(|| Flow::Thread(thread::current().id()))
}

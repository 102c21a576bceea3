//! One attempt to acquire: a claim with an id of its own, from before it is sent until it is
//! granted, refused or withdrawn. `acquire.rs` decides when there is another.
//!
//! The entry of an [`Attempt`] is in the table before the claim is sent, so that a push which
//! overtakes the reply finds it. Dropping the attempt, at any await, removes the entry and
//! withdraws the claim. A reply that does not come is requested again under the same id, which
//! makes it the same claim (promise 5), until an earlier copy of it may have expired:
//! [`ClaimReply::Stale`].

use std::sync::Arc;
use std::time::Duration;

use super::acquire::AfterWait;
use super::effects::{Effects, PendingRelease};
use super::entry::{EndReason, Entry, Flow, Phase};
use super::errors::{own_hold_help, refusal_error};
use super::joint::Joint;
use super::park::{WaitOutcome, wait_for_grant, within};
use super::request::{AcquireRequest, Wait};
use super::retry::Retry;
use super::signals::revoke;
use super::{Core, Event, Hold, Share, WaitEnd, closed_error, unanswered};
use crate::contract::{
    Claim, ClaimId, Effect, Error, ErrorKind, Grant, Loss, Patience, Queued, Refusal, Verb, Verdict,
};
use crate::process::is_blocked;
use crate::sync::thread;
use crate::time::Tick;

/// The store's reply to one claim.
pub(crate) enum ClaimReply {
    Granted(Share),
    Queued,
    Refused(Refusal),
    /// There was no reply for a lease: claim again under another id.
    Stale,
}

/// One claim id, from before the claim is sent. Dropping it withdraws the claim.
pub(crate) struct Attempt<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) claim: Arc<Claim>,
    /// The claim was handed on or refused: dropping the attempt withdraws nothing.
    pub(super) done: bool,
    pub(super) own_hold: Option<Arc<Claim>>,
    pub(super) wait: Wait,
    max_hold: Option<Duration>,
    /// When the claim was first sent.
    pub(super) sent: Tick,
    /// Why the claim is withdrawn, if it is.
    pub(super) end: WaitEnd,
    /// The owner is a scope or was given.
    pub(super) scoped: bool,
    /// The deadlock that the last look found, in words.
    pub(super) suspected: Option<super::deadlock::Suspicion>,
}

impl<'a> Attempt<'a> {
    /// Puts a fresh claim into the table, so that an early push is kept.
    pub(super) fn begin(
        core: &'a Arc<Core>,
        ask: AcquireRequest,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Self, Error> {
        let AcquireRequest { scoped, wait, max_hold, replaces, mut about, .. } = ask;
        let flow = flow();
        if !scoped {
            about.conduct.flow = flow.map_or(0, Flow::number);
        }
        let claim = Arc::new(Claim {
            id: ClaimId::new(),
            session: Some(core.id),
            lineage: ask.lineage,
            parts: ask.parts,
            lease: ask.lease,
            lock_delay: ask.lock_delay,
            patience: if wait == Wait::Try { Patience::Try } else { Patience::Wait },
            replaces,
            about,
        });
        core.emit(&claim, || Event::Sent);
        // The send time is read before anything that could take time.
        let sent = core.clock.now();
        let mut entry = Entry::new(Arc::clone(&claim), scoped, flow, sent);
        entry.max_hold = max_hold;
        if let Some(behind) = behind {
            entry.extras_mut().behind = Some(Arc::clone(behind));
        }
        let mut table = core.lock();
        if table.closed {
            return Err(closed_error(Verb::Claim).on(claim.parts.first_name()));
        }
        table.insert(entry);
        if let Some(old) = replaces {
            table.update(old, |entry| entry.extras_mut().successor = Some(claim.id));
        }
        drop(table);
        Ok(Self {
            core,
            claim,
            done: false,
            own_hold: None,
            wait,
            max_hold,
            sent,
            end: WaitEnd::Dropped,
            scoped,
            suspected: None,
        })
    }

    /// The request for another claim of the same owner.
    pub(super) fn request(&self) -> AcquireRequest {
        let Claim { lineage, parts, lease, lock_delay, replaces, about, .. } = &*self.claim;
        AcquireRequest {
            parts: parts.clone(),
            lineage: lineage.clone(),
            scoped: self.scoped,
            lease: *lease,
            wait: self.wait,
            max_hold: self.max_hold,
            lock_delay: *lock_delay,
            replaces: *replaces,
            about: about.clone(),
        }
    }

    /// Says what follows from the end of the wait for a grant.
    pub(super) fn wait_ended(
        &mut self,
        outcome: WaitOutcome,
        retry: &mut Retry,
    ) -> Result<AfterWait, Error> {
        let again = self.claim.replaces.is_none();
        match outcome {
            WaitOutcome::Granted(hold) => Ok(AfterWait::Granted(hold)),
            WaitOutcome::Ended(EndReason::TicketExpired) if again => {
                retry.answered(self.core.clock.now());
                Ok(AfterWait::Again(Box::new(self.request())))
            }
            // The place in the queue is gone, but the wait is not over: claim anew until the store
            // answers.
            WaitOutcome::Ended(EndReason::Unreachable(error))
                if again && error.kind() == ErrorKind::Unavailable =>
            {
                let silence = |entry: &Entry| (entry.sent_at, entry.failures);
                let silence = self.core.lock().get(self.id()).map(silence);
                let (since, failures) = silence.unwrap_or((self.core.clock.now(), 1));
                retry.cut_off(since, failures);
                Ok(AfterWait::Again(Box::new(self.request().anew())))
            }
            WaitOutcome::Ended(EndReason::Revoked(Loss::Deadlock { words })) => {
                Err(self.refused_as_victim(&words))
            }
            WaitOutcome::Ended(over) => {
                self.end = over.wait_end();
                Err(self.wait_failed(over))
            }
            WaitOutcome::TimedOut(place) => {
                self.end = WaitEnd::TimedOut;
                Ok(AfterWait::TimedOut(place))
            }
        }
    }

    pub(super) fn id(&self) -> ClaimId {
        self.claim.id
    }

    /// Sends the claim. A call without a reply is repeated: the id makes it the same claim.
    pub(super) async fn claim(&mut self, retry: &mut Retry) -> Result<ClaimReply, Error> {
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

    pub(super) fn handle_grant(&mut self, grant: Grant, sent: Tick) -> Result<ClaimReply, Error> {
        let core = self.core;
        let now = core.clock.now();
        let late = now >= core.safe_until(sent, self.claim.lease);
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
        let ended = granted.as_ref().and_then(|(_, loss)| loss.clone());
        if granted.is_some() && (self.claim.replaces.is_some() || ended.is_some()) {
            let mut effects = Effects::default();
            table.retire_replaced(self.claim.id, &mut effects);
            if let Some(loss) = ended {
                revoke(&mut table, self.claim.id, loss, now, &mut effects);
            }
            drop(table);
            core.apply(effects);
        } else {
            drop(table);
            core.events.deliver();
        }
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
    pub(super) fn report_own_hold(&mut self) {
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
            EndReason::Closed => self.with_own_hold(closed_error(Verb::Claim).on(name)),
            EndReason::Unreachable(error) => self.with_own_hold(error.on(name)),
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

    /// Adds to the advice of an error that the lock is held by the task or thread that waited.
    fn with_own_hold(&self, error: Error) -> Error {
        let Some(own) = self.own_hold.as_deref() else { return error };
        let help = match error.help() {
            "" => own_hold_help(own),
            help => format!("{help}; {}", own_hold_help(own)),
        };
        error.with_help(help)
    }

    pub(super) fn refused(&self, refusal: Refusal) -> Error {
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
        self.core.send_back([PendingRelease { void, ..PendingRelease::of(&entry) }]);
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

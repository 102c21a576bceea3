//! From asking to holding: one call when the lock is free, a place in line when it is not. Owns the
//! loop and the `match`; knows no store and no rules.

use std::sync::Arc;
use std::time::Duration;

use super::ask::{Ask, Outcome, Wait};
use super::entry::{Entry, Flow, Over, Phase};
use super::joint::Joint;
use super::one_by_one;
use super::park::{Woken, granted, within};
use super::retry::Retry;
use super::table::{Giving, Work};
use super::words::{TooLate, refusal_error, timed_out_error};
use super::{Core, Event, Hold, Lease, closed_error, hear_ended, unanswered};
use crate::contract::{
    Claim, ClaimId, Effect, Error, ErrorKind, Grant, Loss, Name, Patience, Query, Queued, Refusal,
    SlotView, Verb, Verdict,
};
use crate::process::is_blocked;
use crate::sync::thread;
use crate::time::Tick;

impl Core {
    /// Acquires what is asked for.
    ///
    /// Dropping the future withdraws the claim; if it was granted meanwhile it is given back.
    pub(crate) async fn acquire(self: Arc<Self>, ask: Ask) -> Result<Outcome, Error> {
        self.check_process(Verb::Claim).map_err(|error| error.on(ask.parts.first_name()))?;
        if ask.parts.as_slice().len() > 1 && !self.engine.promises().atomic_sets {
            // Boxed, so that the future of a plain lock has not to carry its room.
            return Box::pin(one_by_one::acquire(self, ask)).await;
        }
        self.acquire_by(&ask, self.deadline(ask.wait), None).await
    }

    /// When a wait that begins now is over.
    pub(super) fn deadline(&self, wait: Wait) -> Tick {
        match wait {
            Wait::Limit(limit) | Wait::TryFor(limit) => self.clock.now() + limit,
            Wait::Try | Wait::Unlimited => Tick::NEVER,
        }
    }

    /// Gets by one claim what is asked for from the store. `behind` is what was taken for the same
    /// set before.
    pub(super) async fn take(
        self: &Arc<Self>,
        ask: &Ask,
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
                Answer::Granted(lease) => return Ok(Outcome::Held(lease)),
                Answer::Refused(Refusal::Held { .. }) if ask.wait == Wait::Try => {
                    return Ok(Outcome::No);
                }
                Answer::Refused(refusal) => return Err(attempt.refused(refusal)),
                // Dropping the attempt withdraws it: a copy of it that arrives later is refused.
                Answer::Stale => {
                    anew = Some(ask.anew());
                    continue;
                }
                Answer::Queued => {}
            }
            attempt.report_own_hold();
            match granted(self, attempt.id(), deadline).await {
                Woken::Granted(hold) => return Ok(Outcome::Held(attempt.into_lease(hold))),
                Woken::Over(Over::Lapsed) if ask.replaces.is_none() => {
                    retry.answered(self.clock.now());
                }
                // The place in the queue is gone, but the wait is not over: claim anew until the
                // store answers.
                Woken::Over(Over::CutOff(error))
                    if ask.replaces.is_none() && error.kind() == ErrorKind::Unavailable =>
                {
                    let silence = |entry: &Entry| (entry.sent_at, entry.failures);
                    let silence = self.lock().get(attempt.id()).map(silence);
                    let (since, failures) = silence.unwrap_or((self.clock.now(), 1));
                    retry.cut_off(since, failures);
                    anew = Some(ask.anew());
                }
                Woken::Over(over) => return Err(attempt.wait_failed(over)),
                Woken::Deadline(place) => return attempt.timed_out(place).await,
            }
        }
    }

    /// What the store shows of a slot to whoever has come too late: `Some(None)` is an empty one.
    /// To look is a courtesy, for which nobody waits long.
    pub(super) async fn look_at(&self, name: &Name, until: Tick) -> Option<Option<SlotView>> {
        let query = Query::Slot(name.clone());
        let seen = within(self, until, self.engine.inspect(&query)).await?.ok()?;
        Some(seen.slots.into_iter().find(|slot| slot.name == *name))
    }

    /// Until when to wait for a look at the store.
    pub(super) fn patience_to_look(&self) -> Tick {
        self.clock.now() + self.settings.call.min(Duration::from_millis(250))
    }
}

/// What one claim call came to.
enum Answer {
    Granted(Lease),
    Queued,
    Refused(Refusal),
    /// There was no answer for a lease: to be claimed anew, under another id.
    Stale,
}

/// One claim, from before it is sent. Dropping it withdraws the claim.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    claim: Arc<Claim>,
    /// The claim is no longer ours to withdraw.
    done: bool,
    own_hold: Option<Arc<Claim>>,
    wait: Wait,
    /// When it was first sent.
    sent: Tick,
}

impl<'a> Attempt<'a> {
    /// Puts a fresh claim into the table, so that an early push is kept.
    fn begin(core: &'a Arc<Core>, ask: &Ask, behind: Option<&Arc<Joint>>) -> Result<Self, Error> {
        let claim = Arc::new(Claim {
            id: ClaimId::new(),
            session: Some(core.id),
            lineage: ask.lineage.clone(),
            parts: ask.parts.clone(),
            lease: ask.lease,
            lock_delay: ask.lock_delay,
            patience: if ask.wait == Wait::Try { Patience::Try } else { Patience::Wait },
            replaces: ask.replaces,
            about: ask.about.clone(),
        });
        core.saw(&claim, Event::Sent);
        // The send time is read before anything that could take time.
        let sent = core.clock.now();
        let mut entry = Entry::new(Arc::clone(&claim), ask.scoped, flow(), sent);
        entry.max_hold = ask.max_hold;
        if let Some(behind) = behind {
            entry.rare_mut().behind = Some(Arc::clone(behind));
        }
        let mut table = core.lock();
        if table.closed {
            return Err(closed_error(Verb::Claim).on(ask.parts.first_name()));
        }
        table.insert(entry);
        if let Some(old) = claim.replaces {
            table.update(old, |entry| entry.rare_mut().successor = Some(claim.id));
        }
        drop(table);
        Ok(Self { core, claim, done: false, own_hold: None, wait: ask.wait, sent })
    }

    fn id(&self) -> ClaimId {
        self.claim.id
    }

    /// Sends the claim. An unanswered call is simply repeated: the id makes it the same claim.
    async fn claim(&mut self, retry: &mut Retry) -> Result<Answer, Error> {
        let core = self.core;
        let mut sent = self.sent;
        loop {
            let limit = (sent + core.settings.call).min(retry.deadline());
            let answer = within(core, limit, core.engine.claim(&self.claim)).await;
            core.check_process(Verb::Claim)?;
            let error = match answer {
                Some(Ok(verdict)) => {
                    retry.answered(sent);
                    return self.answered(verdict, sent);
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
            // Nothing is granted to a claim without an answer; but closing ends the pause.
            drop(granted(core, self.id(), again).await);
            core.check_process(Verb::Claim)?;
            retry.check(core)?;
            sent = core.clock.now();
            if self.exchange_is_over() {
                return Err(retry.give_up(sent));
            }
            if self.is_stale(sent) {
                return Ok(Answer::Stale);
            }
            self.sent_again()?;
        }
    }

    /// Whether a ticket that an earlier copy of this claim took may have expired by now. Another
    /// copy would then stand at the end of the queue under the same id, and a copy that is still on
    /// its way could bring back a ticket that expired later; so the claim is made anew.
    fn is_stale(&self, now: Tick) -> bool {
        let void = |entry: &Entry| entry.is_void();
        self.claim.replaces.is_none()
            && now >= self.sent + self.claim.lease
            && !self.core.lock().get(self.claim.id).is_some_and(void)
    }

    /// Whether what the claim should replace was lost meanwhile: it can only be refused then.
    fn exchange_is_over(&self) -> bool {
        self.claim.replaces.is_some_and(|old| self.core.lock().get(old).is_none())
    }

    fn sent_again(&mut self) -> Result<(), Error> {
        let again = |entry: &mut Entry| {
            entry.sends += 1;
            !matches!(entry.phase, Phase::Over(_))
        };
        match self.core.lock().update(self.claim.id, again) {
            Some(true) => Ok(()),
            _ => Err(closed_error(Verb::Claim).on(self.claim.parts.first_name())),
        }
    }

    fn answered(&mut self, verdict: Verdict, sent: Tick) -> Result<Answer, Error> {
        match verdict {
            Verdict::Granted(grant) => self.granted(grant, sent),
            Verdict::Queued(queued) => {
                self.queued(&queued, sent);
                Ok(Answer::Queued)
            }
            Verdict::Refused(refusal) => {
                self.core.saw(&self.claim, Event::Refused);
                // Refused claims leave nothing behind in the store, so there is nothing to undo.
                self.done = true;
                self.forget_refused(&refusal);
                Ok(Answer::Refused(refusal))
            }
        }
    }

    /// Takes a refused claim out of the table.
    fn forget_refused(&self, refusal: &Refusal) {
        let now = self.core.clock.now();
        let mut work = Work::default();
        let mut table = self.core.lock();
        let entry = table.remove(self.claim.id);
        if let Some(entry) = entry.filter(|entry| entry.sends > 1) {
            // An earlier copy may still be on its way and must be refused too.
            table.on_its_way(self.claim.lease, now);
            work.give_back.push(Giving::of(&entry));
        }
        if let Some(old) = self.claim.replaces {
            table.update(old, |entry| entry.rare_mut().successor = None);
            if *refusal == Refusal::NothingToReplace {
                table.lose(old, Loss::Forgotten, now, &mut work);
            }
        }
        drop(table);
        self.core.announce(work);
    }

    fn granted(&mut self, grant: Grant, sent: Tick) -> Result<Answer, Error> {
        let core = self.core;
        let now = core.clock.now();
        let late = now >= core.safe_until(sent, self.claim.lease);
        let mut work = Work::default();
        let mut table = core.lock();
        let granted = table.update(self.claim.id, |entry| {
            if matches!(entry.phase, Phase::Over(_)) {
                return None;
            }
            entry.answered_at(sent, grant.arrival);
            entry.renew_at = sent + self.claim.lease / 3;
            let hold = core.make_hold(entry, grant, now);
            entry.phase = if late {
                // The answer took longer than the lease: renew before anybody may trust it.
                entry.renew_at = now;
                Phase::Granted { hold: Arc::clone(&hold), give_back_at: now + self.claim.lease }
            } else {
                Phase::Held { hold: Arc::clone(&hold), guards: 1 }
            };
            Some((hold, entry.ended_early(now)))
        });
        let granted = granted.flatten();
        if granted.is_some() {
            table.retire_replaced(self.claim.id, &mut work);
        }
        if let Some((_, Some(loss))) = &granted {
            hear_ended(&mut table, self.claim.id, loss.clone(), now, &mut work);
        }
        drop(table);
        core.announce(work);
        match granted {
            Some(_) if late => Ok(Answer::Queued),
            Some((_, Some(loss))) => Err(self.wait_failed(Over::Ended(loss))),
            Some((hold, None)) => {
                self.done = true;
                Ok(Answer::Granted(Lease::new(Arc::clone(core), hold, self.wait.timeout())))
            }
            None => Err(closed_error(Verb::Claim).on(self.claim.parts.first_name())),
        }
    }

    fn queued(&mut self, queued: &Queued, sent: Tick) {
        let core = self.core;
        core.saw(&self.claim, Event::Queued { place: queued.place });
        let now = core.clock.now();
        let mut work = Work::default();
        let mut table = core.lock();
        let answered = table.update(self.claim.id, |entry| {
            if matches!(entry.phase, Phase::Over(_)) {
                return (false, None);
            }
            entry.queued(queued, sent, now);
            // A push that overtook this answer counts if it speaks of the same arrival.
            let early = entry.early.take().filter(|early| early.arrival == queued.arrival);
            let granted = early.is_some();
            if let Some(early) = early {
                core.granted(entry, *early, now, &mut work);
            }
            (granted, entry.ended_early(now))
        });
        let (granted, ended) = answered.unwrap_or_default();
        if granted {
            table.retire_replaced(self.claim.id, &mut work);
        }
        if let Some(loss) = ended {
            hear_ended(&mut table, self.claim.id, loss, now, &mut work);
        }
        drop(table);
        core.announce(work);
    }

    /// The grant is in the caller's hands from here on.
    fn into_lease(mut self, hold: Arc<Hold>) -> Lease {
        self.done = true;
        Lease::new(Arc::clone(self.core), hold, self.wait.timeout())
    }

    /// A task that waits for a lock it holds itself waits in vain: say so once.
    fn report_own_hold(&mut self) {
        let Some(flow) = flow() else { return };
        let owner = self.claim.lineage.owner();
        let table = self.core.lock();
        // Permits add up: to hold some and wait for more is nothing to re-enter.
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
        self.core.saw(&self.claim, Event::WaitsForItself { held_by });
        self.own_hold = Some(Arc::clone(held_by));
    }

    fn wait_failed(&self, over: Over) -> Error {
        let name = self.claim.parts.first_name();
        match over {
            Over::Closed => closed_error(Verb::Claim).on(name),
            Over::CutOff(error) => error.on(name),
            Over::Ended(loss) => Error::new(ErrorKind::Lost, format!("the wait was ended: {loss}"))
                .during(Verb::Claim)
                .on(name)
                .because_of(loss),
            Over::Lapsed => {
                let what = "what should be upgraded or downgraded is no longer held";
                Error::new(ErrorKind::Lost, what)
                    .during(Verb::Claim)
                    .on(name)
                    .because_of(Loss::Forgotten)
            }
        }
    }

    /// The slot whose line we stand in; of a set, the first of those.
    async fn what_is_waited_for(&self) -> Option<SlotView> {
        let until = self.core.patience_to_look();
        for name in self.claim.parts.names() {
            let slot = self.core.look_at(name, until).await?;
            // Where there is no line, whoever holds is in the way.
            let waits = |slot: &SlotView| {
                let stands = slot.queue.iter().any(|one| one.claim == self.id());
                stands || !self.core.engine.promises().queue && !slot.holders.is_empty()
            };
            if slot.as_ref().is_some_and(waits) {
                return slot;
            }
        }
        None
    }

    /// The wait limit has passed: says who holds the lock and where we stood. A grant that comes
    /// while we look is taken all the same.
    async fn timed_out(self, place: usize) -> Result<Outcome, Error> {
        let core = self.core;
        if self.wait.may_refuse() {
            return Ok(Outcome::No);
        }
        let slot = self.what_is_waited_for().await;
        core.check_process(Verb::Claim)?;
        if let Woken::Granted(hold) = granted(core, self.id(), Tick::ZERO).await {
            return Ok(Outcome::Held(self.into_lease(hold)));
        }
        let name = slot.as_ref().map_or(self.claim.parts.first_name(), |slot| &slot.name).clone();
        // Others may have given up since the last heartbeat told us our place.
        let line = slot.as_ref().map(|slot| &slot.queue);
        let at = line.and_then(|line| line.iter().position(|one| one.claim == self.claim.id));
        let place = at.map_or(place, |at| at + 1);
        let trouble = core.lock().get(self.id()).and_then(|entry| entry.trouble().map(Box::from));
        Err(timed_out_error(TooLate {
            wait: self.wait,
            name: &name,
            holders: slot.map(|slot| slot.holders).unwrap_or_default(),
            place: (place > 0).then_some(place),
            own_hold: self.own_hold.as_deref(),
            trouble,
        }))
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
        let mut work = Work::default();
        let mut table = self.core.lock();
        let Some(entry) = table.remove(self.claim.id) else { return };
        let void = entry.is_void();
        if !void {
            table.on_its_way(self.claim.lease, now);
        }
        if let Some(old) = self.claim.replaces.filter(|_| void) {
            // Nothing has come of the exchange, so the old right stands.
            table.update(old, |entry| entry.rare_mut().successor = None);
        } else if let Some(old) = self.claim.replaces {
            // The store may have made the exchange already; giving the new claim back would then
            // leave nothing. So the old right ends first.
            table.lose(old, Loss::ExchangeGivenUp, now, &mut work);
        }
        drop(table);
        self.core.announce(work);
        self.core.saw(&self.claim, Event::Withdrawn);
        if let Phase::Granted { hold, .. } | Phase::Held { hold, .. } = &entry.phase {
            hold.end(Loss::Released);
        }
        // A wait that is over was given back by whoever ended it, if it had been granted; but only
        // the store knows whether the ticket still stands.
        self.core.send_back(vec![Giving { void, ..Giving::of(&entry) }]);
    }
}

/// The task or thread we run in, where it is certain which one that is.
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

//! From asking to holding: one call when the lock is free, a place in line when it is not. Owns the
//! loop and the `match`; knows no store and no rules.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Flow, Over, Phase};
use super::joint::Joint;
use super::one_by_one;
use super::park::{Woken, granted, nap, on_blocking_thread, within};
use super::table::{Giving, Work};
use super::words::{TooLate, refusal_error, timed_out_error};
use super::{Core, Event, Hold, Lease, closed_error, unanswered};
use crate::contract::{
    About, Claim, ClaimId, Error, ErrorKind, Grant, Lineage, Loss, Name, Parts, Patience, Query,
    Queued, Refusal, SlotView, Verb, Verdict,
};
use crate::limits;
use crate::sync::thread;
use crate::time::Tick;

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) parts: Parts,
    pub(crate) lineage: Lineage,
    /// The owner is a scope or was given: look for a hold to re-enter.
    pub(crate) scoped: bool,
    pub(crate) lease: Duration,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) replaces: Option<ClaimId>,
    pub(crate) about: About,
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: "no" is an answer.
    Try,
    /// This long; then it is an error.
    Limit(Duration),
    /// Until it is granted.
    Unlimited,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The lock is held.
    Held(Lease),
    /// A try found it taken.
    No,
}

impl Core {
    /// Acquires what is asked for.
    ///
    /// Dropping the future withdraws the claim; if it was granted meanwhile it is given back.
    pub(crate) async fn acquire(self: Arc<Self>, ask: Ask) -> Result<Outcome, Error> {
        if ask.parts.as_slice().len() > 1 && !self.engine.promises().atomic_sets {
            // Boxed, so that the future of a plain lock has not to carry its room.
            return Box::pin(one_by_one::acquire(self, ask)).await;
        }
        self.acquire_by(&ask, self.deadline(ask.wait), None).await
    }

    /// When a wait that begins now is over.
    pub(super) fn deadline(&self, wait: Wait) -> Tick {
        match wait {
            Wait::Limit(limit) => self.clock.now() + limit,
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
        loop {
            let mut attempt = Attempt::begin(self, ask, behind)?;
            match attempt.claim(deadline).await? {
                Answer::Granted(lease) => return Ok(Outcome::Held(lease)),
                Answer::Refused(Refusal::Held { .. }) if ask.wait == Wait::Try => {
                    return Ok(Outcome::No);
                }
                Answer::Refused(refusal) => return Err(attempt.refused(refusal)),
                Answer::Queued => {}
            }
            attempt.report_own_hold();
            match granted(self, attempt.id(), deadline).await {
                Woken::Granted(hold) => return Ok(Outcome::Held(attempt.into_lease(hold))),
                Woken::Over(Over::Lapsed) if ask.replaces.is_none() => {}
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

    /// Enters a hold of the same owner once more, without a call.
    fn reenter(self: &Arc<Self>, ask: &Ask) -> Result<Option<Lease>, Error> {
        let [part] = ask.parts.as_slice() else { return Ok(None) };
        if !ask.scoped || ask.replaces.is_some() {
            return Ok(None);
        }
        let mut table = self.lock();
        if table.closed {
            return Err(closed_error(Verb::Claim).on(part.name()));
        }
        let hold = table.reenter(ask.lineage.owner(), part, self.clock.now());
        drop(table);
        Ok(hold.map(|hold| Lease::new(Arc::clone(self), hold, ask.wait)))
    }
}

/// What one claim call came to.
enum Answer {
    Granted(Lease),
    Queued,
    Refused(Refusal),
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
    async fn claim(&mut self, deadline: Tick) -> Result<Answer, Error> {
        let core = self.core;
        let mut tries = 1;
        let mut sent = self.sent;
        loop {
            let limit = (sent + core.settings.call).min(deadline);
            let answer = within(core, limit, core.engine.claim(&self.claim)).await;
            let error = match answer {
                Some(Ok(verdict)) => return self.answered(verdict, sent),
                Some(Err(error)) => error.during(Verb::Claim).on(self.claim.parts.first_name()),
                None => {
                    let waited = core.clock.now().since(sent);
                    unanswered(Verb::Claim, waited).on(self.claim.parts.first_name())
                }
            };
            let now = core.clock.now();
            let give_up = tries >= limits::CLAIM_TRIES || now >= deadline || !error.is_retryable();
            if give_up {
                return Err(error);
            }
            let pause = Duration::from_millis(20 << tries) * (128 + u32::from(core.jitter())) / 256;
            nap(core, (now + pause).min(deadline)).await;
            tries += 1;
            sent = core.clock.now();
            self.sent_again()?;
        }
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
            table.giving += 1;
            work.give_back.push(Giving::of(&entry, now));
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
        let hold = table.update(self.claim.id, |entry| {
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
            Some(hold)
        });
        let hold = hold.flatten();
        if hold.is_some() {
            table.retire_replaced(self.claim.id, &mut work);
        }
        drop(table);
        core.announce(work);
        match hold {
            Some(_) if late => Ok(Answer::Queued),
            Some(hold) => {
                self.done = true;
                Ok(Answer::Granted(Lease::new(Arc::clone(core), hold, self.wait)))
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
        let granted = table.update(self.claim.id, |entry| {
            if matches!(entry.phase, Phase::Over(_)) {
                return false;
            }
            entry.queued(queued, sent, now);
            // A push that overtook this answer counts if it speaks of the same arrival.
            match entry.early.take().filter(|early| early.arrival == queued.arrival) {
                Some(early) => {
                    core.granted(entry, *early, now, &mut work);
                    true
                }
                None => false,
            }
        });
        if granted == Some(true) {
            table.retire_replaced(self.claim.id, &mut work);
        }
        drop(table);
        core.announce(work);
    }

    /// The grant is in the caller's hands from here on.
    fn into_lease(mut self, hold: Arc<Hold>) -> Lease {
        self.done = true;
        Lease::new(Arc::clone(self.core), hold, self.wait)
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
                let stands = slot.line.iter().any(|one| one.claim == self.id());
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
        let slot = self.what_is_waited_for().await;
        if let Woken::Granted(hold) = granted(core, self.id(), Tick::ZERO).await {
            return Ok(Outcome::Held(self.into_lease(hold)));
        }
        let name = slot.as_ref().map_or(self.claim.parts.first_name(), |slot| &slot.name).clone();
        // Others may have given up since the last heartbeat told us our place.
        let line = slot.as_ref().map(|slot| &slot.line);
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
        if self.done {
            return;
        }
        let now = self.core.clock.now();
        let mut work = Work::default();
        let mut table = self.core.lock();
        let Some(entry) = table.remove(self.claim.id) else { return };
        table.giving += 1;
        if let Some(old) = self.claim.replaces {
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
        self.core.send_back(vec![Giving::of(&entry, now)]);
    }
}

/// The task or thread we run in, where it is certain which one that is.
fn flow() -> Option<Flow> {
    if on_blocking_thread() {
        return Some(Flow::Thread(thread::current().id()));
    }
    if let Some(task) = tokio::task::try_id() {
        return Some(Flow::Task(task));
    }
    // Inside a runtime but in no task: the future that the runtime was started with, which never
    // leaves its thread.
    tokio::runtime::Handle::try_current().is_ok().then(|| Flow::Thread(thread::current().id()))
}

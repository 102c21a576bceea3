//! The keeper: one thread that renews, gives back, and declares loss. Knows calls and their time
//! limits; what is due when is the table's business.
//!
//! It has a thread and a suspend-proof timer of its own, because a busy runtime must not cost a
//! lock. That a wedged program keeps its lock is what `max_hold` is for.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::entry::{Over, Phase};
use super::table::{Giving, Table, Work};
use super::{Core, Event};
use crate::contract::{ClaimId, ClaimRef, Error, ErrorKind, Grant, Loss, Released, Renewed, Verb};
use crate::limits;
use crate::seeded::{self, Bug};
use crate::sync::thread;
use crate::time::{Alarm, Tick};

/// Starts the keeper's thread. It ends when the session is gone and everything was given back.
pub(super) fn start(core: Arc<Core>) -> Result<(), Error> {
    let thread = thread::Builder::new().name("tenure-keeper".to_owned());
    let guarded = move || {
        let watched = Arc::clone(&core);
        let run = AssertUnwindSafe(|| Keeper::new(core).run());
        if catch_unwind(run).is_err() {
            // An engine, a waker or a witness panicked. Nothing is renewed from here on, so
            // everybody has to know now: what is held is lost, what waits is over.
            tracing::error!("the keeper of a session panicked; the session is closed");
            watched.abandon();
        }
    };
    match thread.spawn(guarded) {
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::new(ErrorKind::Unavailable, "cannot start the keeper's thread")
            .during(Verb::Connect)
            .with_help("raise the limit on threads")
            .caused_by(cause)),
    }
}

/// So many release calls are under way at most for each part of a store. A crowd of callers that
/// leave at once would otherwise fill the connection, and renewals and claims would wait behind
/// their withdrawals.
const RELEASES: usize = 4;

struct Keeper {
    core: Arc<Core>,
    calls: Vec<Call>,
    /// What waits to be given back, by the part of the store: first what the store has answered
    /// for, because that may be a hold.
    outbox: BTreeMap<u32, VecDeque<Giving>>,
}

/// A call on its way.
struct Call {
    future: Pin<Box<dyn Future<Output = Reply> + Send>>,
    limit: Tick,
    about: Batch,
}

/// What a call was made for.
enum Batch {
    Renew { claims: Vec<ClaimRef>, sent: Tick },
    Release { part: u32, givings: Vec<Giving> },
}

/// What came back.
enum Reply {
    Renewed(Result<Vec<Renewed>, Error>),
    Released(Result<Vec<Released>, Error>),
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        Self { core, calls: Vec::new(), outbox: BTreeMap::new() }
    }

    fn run(mut self) {
        let waker = Waker::from(Arc::new(Bell(Arc::clone(&self.core.alarm))));
        loop {
            self.start_what_is_due();
            let progress = self.poll_calls(&waker);
            if progress {
                continue;
            }
            let table = self.core.lock();
            if table.orphaned && table.is_empty() && table.is_drained() {
                return;
            }
            drop(table);
            self.core.alarm.wait();
        }
    }

    fn start_what_is_due(&mut self) {
        let now = self.core.clock.now();
        let limit = self.calls.iter().map(|call| call.limit).min().unwrap_or(Tick::NEVER);
        let mut work = self.core.lock().collect(now, limit);
        let (renewals, releases) = (take(&mut work.renew), take(&mut work.release));
        self.core.announce(work);
        for claims in self.batches(renewals) {
            self.renew(claims, now);
        }
        let (uncertain, certain): (Vec<_>, Vec<_>) =
            releases.into_iter().partition(|giving| giving.release.uncertain);
        // From behind, so that they stay in their order: a set is given back in reverse.
        for giving in certain.into_iter().rev() {
            self.outbox_of(&giving).push_front(giving);
        }
        for giving in uncertain {
            self.outbox_of(&giving).push_back(giving);
        }
        self.start_releases(now);
    }

    /// What waits to be given back to the part of the store that a claim belongs to.
    fn outbox_of(&mut self, giving: &Giving) -> &mut VecDeque<Giving> {
        let part = self.core.engine.part_of(giving.release.claim.parts.first_name());
        self.outbox.entry(part).or_default()
    }

    /// Cuts what is to be renewed into calls: apart what may fail apart, and at most a batch each.
    fn batches(&self, claims: Vec<ClaimRef>) -> Vec<Vec<ClaimRef>> {
        let mut parts: BTreeMap<(u32, bool), Vec<ClaimRef>> = BTreeMap::new();
        for claim in claims {
            let part = self.core.engine.part_of(claim.parts.first_name());
            let asks_anew = self.asks_anew(claim.id);
            parts.entry((part, asks_anew)).or_default().push(claim);
        }
        parts.into_values().flat_map(Work::batches).collect()
    }

    /// Sends what waits to be given back, as far as there is room: a batch with each call.
    fn start_releases(&mut self, now: Tick) {
        for (part, mut outbox) in take(&mut self.outbox) {
            while !outbox.is_empty() && self.releases(part) < RELEASES {
                let rest = outbox.split_off(outbox.len().min(limits::BATCH));
                self.release(part, Vec::from(outbox), now);
                outbox = rest;
            }
            if !outbox.is_empty() {
                self.outbox.insert(part, outbox);
            }
        }
    }

    /// How many release calls are under way to a part of the store.
    fn releases(&self, part: u32) -> usize {
        let to =
            |call: &&Call| matches!(&call.about, Batch::Release { part: at, .. } if *at == part);
        self.calls.iter().filter(to).count()
    }

    /// Where there is no line, whoever waits is tried anew, which may take long: nobody who holds
    /// shall wait for that.
    fn asks_anew(&self, claim: ClaimId) -> bool {
        let table = self.core.lock();
        let phase = table.get(claim).map(|entry| &entry.phase);
        !self.core.engine.promises().queue && matches!(phase, Some(Phase::Waiting { .. }))
    }

    fn renew(&mut self, claims: Vec<ClaimRef>, sent: Tick) {
        let engine = Arc::clone(&self.core.engine);
        let batch = claims.clone();
        // At least three tries fit into what is left of the shortest lease.
        let shortest = claims.iter().map(|claim| claim.lease).min().unwrap_or_default();
        let limit = sent + (shortest / 6).min(self.core.settings.call);
        self.calls.push(Call {
            future: Box::pin(async move { Reply::Renewed(engine.renew(&batch).await) }),
            limit,
            about: Batch::Renew { claims, sent },
        });
    }

    fn release(&mut self, part: u32, givings: Vec<Giving>, now: Tick) {
        let (givings, forgotten): (Vec<_>, Vec<_>) =
            givings.into_iter().partition(|giving| now < giving.until);
        if !forgotten.is_empty() {
            // They waited here for a lease: the store has forgotten them by itself.
            self.core.released(Giving::count(&forgotten));
        }
        if givings.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.core.engine);
        let batch: Vec<_> = givings.iter().map(|giving| giving.release.clone()).collect();
        self.calls.push(Call {
            future: Box::pin(async move { Reply::Released(engine.release(&batch).await) }),
            limit: now + self.core.settings.call,
            about: Batch::Release { part, givings },
        });
    }

    /// Polls every call. Returns whether one of them ended.
    fn poll_calls(&mut self, waker: &Waker) -> bool {
        let mut cx = Context::from_waker(waker);
        let mut progress = false;
        let mut at = 0;
        while at < self.calls.len() {
            let reply = match self.calls[at].future.as_mut().poll(&mut cx) {
                Poll::Ready(reply) => Some(reply),
                Poll::Pending if self.core.clock.now() >= self.calls[at].limit => None,
                Poll::Pending => {
                    at += 1;
                    continue;
                }
            };
            let call = self.calls.swap_remove(at);
            progress = true;
            self.core.call_ended(call.about, reply);
        }
        if !self.calls.is_empty() {
            // A call that has just begun may have to be given up before anything else is due.
            let limit = self.calls.iter().map(|call| call.limit).min().unwrap_or(Tick::NEVER);
            self.core.lock().alarm_by(limit);
        }
        progress
    }
}

impl Core {
    fn call_ended(&self, about: Batch, reply: Option<Reply>) {
        match (about, reply) {
            (Batch::Renew { claims, sent }, Some(Reply::Renewed(Ok(answers))))
                if answers.len() == claims.len() =>
            {
                self.renewed(&claims, answers, sent);
            }
            (Batch::Renew { claims, .. }, reply) => {
                let error = match reply {
                    Some(Reply::Renewed(Err(error))) => error.during(Verb::Renew),
                    Some(Reply::Renewed(Ok(_))) => {
                        let what = "the store answered for another number of claims than asked";
                        Error::new(ErrorKind::Corrupt, what).during(Verb::Renew).effect_unknown()
                    }
                    _ => Error::new(ErrorKind::Unavailable, "no answer in time")
                        .during(Verb::Renew)
                        .effect_unknown(),
                };
                self.renewal_failed(&claims, &error);
            }
            (Batch::Release { givings, .. }, Some(Reply::Released(Ok(_)))) => {
                self.released(Giving::count(&givings));
            }
            (Batch::Release { givings, .. }, _) => self.release_failed(givings),
        }
    }

    fn renewed(&self, claims: &[ClaimRef], answers: Vec<Renewed>, sent: Tick) {
        let now = self.clock.now();
        let mut work = Work::default();
        let mut unanswered: BTreeMap<String, Vec<ClaimRef>> = BTreeMap::new();
        let mut table = self.lock();
        // One step of randomness for the whole batch: it stays together, away from others.
        let jitter = u32::from(self.jitter());
        for (claim, answer) in claims.iter().zip(answers) {
            // Whoever left the table meanwhile has been released: the reply is of no concern.
            if table.get(claim.id).is_none() {
                continue;
            }
            if let Renewed::Unanswered(why) = answer {
                unanswered.entry(why).or_default().push(claim.clone());
                continue;
            }
            let next = sent + claim.lease / 3 - claim.lease * jitter / (30 * 256);
            table.update(claim.id, |entry| {
                entry.renewing = false;
                entry.renew_at = next;
                entry.ask_at = Tick::NEVER;
            });
            match answer {
                Renewed::Held(grant) => {
                    self.renewed_held(&mut table, claim.id, grant, sent, &mut work);
                }
                Renewed::Waiting(queued) => {
                    let current = table.update(claim.id, |entry| {
                        if matches!(entry.phase, Phase::Waiting { .. }) {
                            entry.queued(&queued, sent, now);
                        }
                        entry.arrival == Some(queued.arrival)
                    });
                    // The same arrival was granted since this answer was given: it is only late.
                    if current != Some(true) {
                        Self::disowned(&mut table, claim.id, Loss::Forgotten, now, &mut work);
                    }
                }
                Renewed::Gone(loss) => {
                    if let Some(Phase::Waiting { .. }) = table.get(claim.id).map(|e| &e.phase) {
                        let over = match loss {
                            Loss::Evicted { .. } => Over::Ended(loss),
                            _ => Over::Lapsed,
                        };
                        table.wait_over(claim.id, over, now, &mut work);
                    } else {
                        Self::disowned(&mut table, claim.id, loss, now, &mut work);
                    }
                }
                // Kept apart above.
                Renewed::Unanswered(_) => {}
            }
        }
        drop(table);
        self.announce(work);
        for (why, claims) in unanswered {
            let error = Error::new(ErrorKind::Unavailable, why).during(Verb::Renew);
            self.renewal_failed(&claims, &error.effect_unknown());
        }
    }

    fn renewed_held(
        &self,
        table: &mut Table,
        id: ClaimId,
        grant: Grant,
        sent: Tick,
        work: &mut Work,
    ) {
        let now = self.clock.now();
        let refused = table.update(id, |entry| {
            let safe_until = self.safe_until(sent, entry.claim.lease);
            match &entry.phase {
                Phase::Held { hold, .. } | Phase::Granted { hold, .. } => {
                    let note = || self.saw(&entry.claim, Event::Renewed { safe_until });
                    let refused = if matches!(entry.phase, Phase::Held { .. }) {
                        hold.renewed(safe_until, &grant, note).err()
                    } else {
                        let refused = hold.revived(safe_until, &grant).err();
                        note();
                        refused
                    };
                    entry.joints().iter().for_each(|joint| joint.follow());
                    entry.answered_at(sent, grant.arrival);
                    // Somebody may be waiting for the grant to be trustworthy.
                    work.wake.extend(entry.waker.take());
                    refused
                }
                Phase::Waiting { .. } if seeded::on(Bug::LostPushNeverRead) => None,
                Phase::Waiting { .. } => {
                    entry.answered_at(sent, grant.arrival);
                    self.granted(entry, grant, now, work);
                    None
                }
                Phase::Sent | Phase::Over(_) => None,
            }
        });
        match refused.flatten() {
            Some(loss) => table.lose(id, loss, now, work),
            None => table.retire_replaced(id, work),
        }
    }

    /// The store does not know the grant we have.
    fn disowned(table: &mut Table, id: ClaimId, loss: Loss, now: Tick, work: &mut Work) {
        let held = matches!(
            table.get(id).map(|entry| &entry.phase),
            Some(Phase::Held { .. } | Phase::Granted { .. })
        );
        if held && !table.asks_successor(id, now) {
            table.lose(id, loss, now, work);
        }
    }

    fn renewal_failed(&self, claims: &[ClaimRef], error: &Error) {
        let now = self.clock.now();
        let mut work = Work::default();
        let mut table = self.lock();
        for claim in claims {
            let jitter = self.jitter();
            let cut_off = table.update(claim.id, |entry| {
                entry.renewal_failed(now, jitter);
                let waiting = matches!(entry.phase, Phase::Waiting { .. });
                if waiting {
                    entry.rare_mut().trouble = Some(error.without_help());
                }
                waiting && now >= self.safe_until(entry.sent_at, entry.claim.lease)
            });
            if cut_off == Some(true) {
                // The place in line is gone by now, and nobody answers.
                let error = error.clone().with_help("check that the store is up and reachable");
                table.wait_over(claim.id, Over::CutOff(error), now, &mut work);
            }
        }
        drop(table);
        tracing::warn!(%error, claims = claims.len(), "renewal failed; trying again");
        self.announce(work);
    }

    fn released(&self, count: usize) {
        let drained = self.lock().given(count);
        drained.into_iter().for_each(Waker::wake);
    }

    /// Again a little later, until the store forgets the claims by itself.
    fn release_failed(&self, givings: Vec<Giving>) {
        let now = self.clock.now();
        let count = Giving::count(&givings);
        let mut table = self.lock();
        let pause = Duration::from_millis(100 + u64::from(self.jitter()));
        for mut giving in givings.into_iter().filter(|giving| !giving.void) {
            giving.not_before = now + pause;
            giving.release.uncertain = true;
            if giving.not_before < giving.until {
                table.releases.push(giving);
            }
        }
        drop(table);
        self.released(count);
    }
}

/// Wakes the keeper when one of its calls can go on.
struct Bell(Arc<dyn Alarm>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

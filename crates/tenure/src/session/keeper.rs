//! The keeper: one thread per session that renews claims, sends releases and declares loss.
//!
//! Each turn of its loop collects what is due from the table ([`Table::collect`]), starts the calls
//! for it, polls the calls in flight, and sleeps until the next deadline or until a waker rings the
//! alarm. Calls are futures of the engine that this thread polls itself: a runtime that is busy or
//! blocked must not cost a lock, and the timer goes on while the machine is suspended. (That a
//! program which hangs keeps its lock is what `max_hold` is for.)
//!
//! Renewals: everything due within a short window goes in one batch per part of the store, so that
//! 10,000 locks cost tens of calls, and one slow part of a cluster does not delay the others. A
//! renewal has at most a sixth of the shortest lease in its batch, so that at least three attempts
//! fit into what is left of that lease. After a failure the claims are retried with back-off and
//! jitter until their safe-until has passed; then they are lost.
//!
//! Releases: at most [`MAX_RELEASE_CALLS`] calls per part of the store are in flight, the rest
//! waits in `outbox`. A release that fails is retried until the lease has ended in the store.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::effects::{Effects, PendingRelease};
use super::entry::{EndReason, Phase};
use super::table::Table;
use super::{Core, Event};
use crate::contract::{
    ClaimId, ClaimRef, Error, ErrorKind, Grant, Loss, Queued, Released, Renewed, Verb,
};
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
            // An engine, a waker or a witness panicked. Nothing is renewed from here on, so every
            // hold is lost and every wait ends now.
            tracing::error!("the keeper thread panicked; the session is closed");
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

/// The maximum number of release calls in flight for each part of a store. Thousands of callers
/// that give up at once would otherwise fill the connection, and renewals and claims would queue
/// behind their withdrawals.
const MAX_RELEASE_CALLS: usize = 4;

struct Keeper {
    core: Arc<Core>,
    calls: Vec<Call>,
    /// Releases to be sent, by part of the store. Claims that had a reply come first, because they
    /// may hold; withdrawals of claims without a reply come after them.
    outbox: BTreeMap<u32, VecDeque<PendingRelease>>,
}

/// A call in flight.
struct Call {
    future: Pin<Box<dyn Future<Output = Reply> + Send>>,
    limit: Tick,
    about: Batch,
}

/// The claims that a call was made for.
enum Batch {
    Renew { claims: Vec<ClaimRef>, sent: Tick },
    Release { part: u32, pending: Vec<PendingRelease> },
}

/// The reply to a call.
enum Reply {
    Renewed(Result<Vec<Renewed>, Error>),
    Released(Result<Vec<Released>, Error>),
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        Self { core, calls: Vec::new(), outbox: BTreeMap::new() }
    }

    fn run(mut self) {
        let waker = Waker::from(Arc::new(AlarmWaker(Arc::clone(&self.core.alarm))));
        loop {
            self.start_due_calls();
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

    fn start_due_calls(&mut self) {
        let now = self.core.clock.now();
        if let Some(hook) = &self.core.settings.on_wake {
            hook.call(now);
        }
        let limit = self.calls.iter().map(|call| call.limit).min().unwrap_or(Tick::NEVER);
        let mut effects = self.core.lock().collect(now, limit);
        let (renewals, releases) = (take(&mut effects.renew), take(&mut effects.release));
        self.core.apply(effects);
        for claims in self.batches(renewals) {
            self.renew(claims, now);
        }
        let (uncertain, certain): (Vec<_>, Vec<_>) =
            releases.into_iter().partition(|pending| pending.release.uncertain);
        // In reverse, so that they stay in order at the front: a set is released in reverse order.
        for pending in certain.into_iter().rev() {
            self.outbox_of(&pending).push_front(pending);
        }
        for pending in uncertain {
            self.outbox_of(&pending).push_back(pending);
        }
        self.start_releases(now);
    }

    /// The queue of releases for the part of the store that the claim is in.
    fn outbox_of(&mut self, pending: &PendingRelease) -> &mut VecDeque<PendingRelease> {
        let part = self.core.partition_of(&pending.release.claim);
        self.outbox.entry(part).or_default()
    }

    /// Splits renewals into calls: one per part of the store, of at most a batch each. Where the
    /// engine has no queue, renewing a waiting claim tries to acquire it, which may take long; such
    /// claims get calls of their own, so that no holder's renewal waits for them.
    fn batches(&self, claims: Vec<ClaimRef>) -> Vec<Vec<ClaimRef>> {
        let separate_waiting = !self.core.engine.promises().queue;
        let mut parts: BTreeMap<(u32, bool), Vec<ClaimRef>> = BTreeMap::new();
        let table = separate_waiting.then(|| self.core.lock());
        for claim in claims {
            let entry = table.as_ref().and_then(|table| table.get(claim.id));
            let waits = entry.is_some_and(|entry| matches!(entry.phase, Phase::Waiting { .. }));
            let part = self.core.partition_of(&claim);
            parts.entry((part, waits)).or_default().push(claim);
        }
        drop(table);
        parts.into_values().flat_map(Effects::batches).collect()
    }

    /// Sends queued releases, a batch with each call, up to the limit of calls in flight.
    fn start_releases(&mut self, now: Tick) {
        for (part, mut outbox) in take(&mut self.outbox) {
            while !outbox.is_empty() && self.releases(part) < MAX_RELEASE_CALLS {
                let rest = outbox.split_off(outbox.len().min(limits::BATCH));
                self.release(part, Vec::from(outbox), now);
                outbox = rest;
            }
            if !outbox.is_empty() {
                self.outbox.insert(part, outbox);
            }
        }
    }

    /// Returns how many release calls to a part of the store are in flight.
    fn releases(&self, part: u32) -> usize {
        let to =
            |call: &&Call| matches!(&call.about, Batch::Release { part: at, .. } if *at == part);
        self.calls.iter().filter(to).count()
    }

    fn renew(&mut self, claims: Vec<ClaimRef>, sent: Tick) {
        let engine = Arc::clone(&self.core.engine);
        let batch = claims.clone();
        // At least three attempts fit into what is left of the shortest lease.
        let shortest = claims.iter().map(|claim| claim.lease).min().unwrap_or_default();
        let limit = sent + (shortest / 6).min(self.core.settings.call);
        self.calls.push(Call {
            future: Box::pin(async move { Reply::Renewed(engine.renew(&batch).await) }),
            limit,
            about: Batch::Renew { claims, sent },
        });
    }

    fn release(&mut self, part: u32, pending: Vec<PendingRelease>, now: Tick) {
        let (pending, expired): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|pending| now < pending.until);
        if !expired.is_empty() {
            // They waited in the outbox for a lease, which has ended them in the store.
            self.core.released(PendingRelease::count(&expired));
        }
        if pending.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.core.engine);
        let batch: Vec<_> = pending.iter().map(|pending| pending.release.clone()).collect();
        self.calls.push(Call {
            future: Box::pin(async move { Reply::Released(engine.release(&batch).await) }),
            limit: now + self.core.settings.call,
            about: Batch::Release { part, pending },
        });
    }

    /// Polls every call in flight. Returns whether one of them ended.
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
            // A call that has just begun may time out before anything else is due.
            let limit = self.calls.iter().map(|call| call.limit).min().unwrap_or(Tick::NEVER);
            self.core.lock().alarm_by(limit);
        }
        progress
    }
}

impl Core {
    /// The part of the store that keeps a claim; 0 if the store has no parts.
    fn partition_of(&self, claim: &ClaimRef) -> u32 {
        let name = claim.parts.first_name();
        self.engine.partitions().map_or(0, |partitions| partitions.partition_of(name))
    }

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
                        let what = "the reply has another number of claims than the request";
                        Error::new(ErrorKind::Corrupt, what).during(Verb::Renew).effect_unknown()
                    }
                    _ => Error::new(ErrorKind::Unavailable, "no reply in time")
                        .during(Verb::Renew)
                        .effect_unknown(),
                };
                self.renewal_failed(&claims, &error);
            }
            (Batch::Release { pending, .. }, Some(Reply::Released(Ok(_)))) => {
                self.released(PendingRelease::count(&pending));
            }
            (Batch::Release { pending, .. }, _) => self.release_failed(pending),
        }
    }

    fn renewed(&self, claims: &[ClaimRef], replies: Vec<Renewed>, sent: Tick) {
        let now = self.clock.now();
        let mut effects = Effects::default();
        let mut unanswered: BTreeMap<String, Vec<ClaimRef>> = BTreeMap::new();
        let mut table = self.lock();
        // One jitter for the whole batch: it stays together, apart from other batches.
        let jitter = u32::from(self.jitter());
        for (claim, reply) in claims.iter().zip(replies) {
            // A claim that has left the table was released meanwhile: the reply is stale.
            if table.get(claim.id).is_none() {
                continue;
            }
            if let Renewed::Unanswered(why) = reply {
                unanswered.entry(why).or_default().push(claim.clone());
                continue;
            }
            let next = sent + claim.lease / 3 - claim.lease * jitter / (30 * 256);
            table.update(claim.id, |entry| {
                entry.renewing = false;
                entry.renew_at = next;
                entry.ask_at = Tick::NEVER;
            });
            match reply {
                Renewed::Held(grant) => {
                    self.renewed_held(&mut table, claim.id, grant, sent, &mut effects);
                }
                Renewed::Waiting(queued) => {
                    renewed_waiting(&mut table, claim.id, &queued, sent, now, &mut effects);
                }
                Renewed::Gone(loss) => {
                    renewed_gone(&mut table, claim.id, loss, now, &mut effects);
                }
                // Collected above.
                Renewed::Unanswered(_) => {}
            }
        }
        drop(table);
        self.apply(effects);
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
        effects: &mut Effects,
    ) {
        let now = self.clock.now();
        let refused = table.update(id, |entry| {
            let safe_until = self.safe_until(sent, entry.claim.lease);
            match &entry.phase {
                Phase::Held { hold, .. } | Phase::Granted { hold, .. } => {
                    let note = || {
                        let slack = hold.safe_until().since(now);
                        let renewed = || Event::Renewed { safe_until, slack };
                        self.events.push(&entry.claim, now, renewed);
                    };
                    let refused = if matches!(entry.phase, Phase::Held { .. }) {
                        hold.renewed(safe_until, &grant, note).err()
                    } else {
                        let lapses = hold.safe_until();
                        let refused = hold.revived(safe_until, &grant).err();
                        note();
                        // Its safe-until had passed before its caller picked it up: for a witness
                        // it is granted anew.
                        if refused.is_none() && now >= lapses {
                            let fences = grant.fences.clone();
                            let granted = || Event::Granted { fences, safe_until };
                            self.events.push(&entry.claim, now, granted);
                        }
                        refused
                    };
                    entry.joints().iter().for_each(|joint| joint.follow());
                    entry.answered_at(sent, grant.arrival);
                    // The caller may be waiting for a safe-until that has not passed.
                    effects.wake.extend(entry.waker.take());
                    refused
                }
                Phase::Waiting { .. } if seeded::on(Bug::LostPushNeverRead) => None,
                Phase::Waiting { .. } => {
                    entry.answered_at(sent, grant.arrival);
                    self.record_grant(entry, grant, now, effects);
                    None
                }
                Phase::Sent | Phase::Ended(_) => None,
            }
        });
        match refused.flatten() {
            Some(loss) => table.lose(id, loss, now, effects),
            None => table.retire_replaced(id, effects),
        }
    }

    fn renewal_failed(&self, claims: &[ClaimRef], error: &Error) {
        let now = self.clock.now();
        let mut effects = Effects::default();
        let mut table = self.lock();
        // One jitter for the whole batch: it is retried as a batch, not claim by claim.
        let jitter = self.jitter();
        for claim in claims {
            let cut_off = table.update(claim.id, |entry| {
                entry.renewal_failed(now, jitter);
                let waiting = matches!(entry.phase, Phase::Waiting { .. });
                if waiting {
                    entry.extras_mut().trouble = Some(error.without_help());
                }
                waiting && now >= self.safe_until(entry.sent_at, entry.claim.lease)
            });
            if cut_off == Some(true) {
                // The ticket has expired by now, and the store does not reply.
                let error = error.clone().with_help("check that the store is up and reachable");
                table.end_wait(claim.id, EndReason::Unreachable(error), now, &mut effects);
            }
        }
        drop(table);
        tracing::warn!(%error, claims = claims.len(), "renewal failed; retrying");
        self.apply(effects);
    }

    pub(super) fn released(&self, count: usize) {
        let drained = self.lock().releases_done(count);
        drained.into_iter().for_each(Waker::wake);
    }

    /// Retries releases a little later, until their leases have ended in the store.
    fn release_failed(&self, pending: Vec<PendingRelease>) {
        let now = self.clock.now();
        let count = PendingRelease::count(&pending);
        let mut table = self.lock();
        let pause = Duration::from_millis(100 + u64::from(self.jitter()));
        for mut pending in pending.into_iter().filter(|pending| !pending.void) {
            pending.not_before = now + pause;
            pending.release.uncertain = true;
            if pending.not_before < pending.until {
                table.releases.push(pending);
            }
        }
        drop(table);
        self.released(count);
    }
}

/// A waiting claim was renewed: it is still queued, at this place.
fn renewed_waiting(
    table: &mut Table,
    id: ClaimId,
    queued: &Queued,
    sent: Tick,
    now: Tick,
    effects: &mut Effects,
) {
    let current = table.update(id, |entry| {
        if matches!(entry.phase, Phase::Waiting { .. }) {
            entry.set_queued(queued, sent, now);
        }
        entry.arrival == Some(queued.arrival)
    });
    // If the same arrival was granted after this reply was sent, the reply is only late.
    if current != Some(true) {
        disowned(table, id, Loss::Forgotten, now, effects);
    }
}

/// A claim could not be renewed: the store does not know it any more.
fn renewed_gone(table: &mut Table, id: ClaimId, loss: Loss, now: Tick, effects: &mut Effects) {
    if let Some(Phase::Waiting { .. }) = table.get(id).map(|entry| &entry.phase) {
        let reason = match loss {
            Loss::Evicted { .. } | Loss::Deadlock { .. } => EndReason::Revoked(loss),
            _ => EndReason::TicketExpired,
        };
        table.end_wait(id, reason, now, effects);
    } else {
        disowned(table, id, loss, now, effects);
    }
}

/// Ends a grant that the store does not know any more, unless a successor may explain that.
fn disowned(table: &mut Table, id: ClaimId, loss: Loss, now: Tick, effects: &mut Effects) {
    let held = matches!(
        table.get(id).map(|entry| &entry.phase),
        Some(Phase::Held { .. } | Phase::Granted { .. })
    );
    if held && !table.asks_successor(id, now) {
        table.lose(id, loss, now, effects);
    }
}

/// Wakes the keeper when one of its calls can make progress.
struct AlarmWaker(Arc<dyn Alarm>);

impl Wake for AlarmWaker {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

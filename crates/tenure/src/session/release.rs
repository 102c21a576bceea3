//! Giving back: by `release`, by dropping a guard, by closing. Knows the way out, not the way in.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::entry::{Entry, Over, Phase};
use super::table::{Giving, Work};
use super::{Ask, Core, Event, Hold, Session, Wait};
use crate::contract::{Error, ErrorKind, Loss, Part, Parts, Release, Released, Verb};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// One guard's share of a grant. Dropping it asks for release in the background.
pub(crate) struct Lease {
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// How long its caller was ready to wait, and will be for an upgrade.
    wait: Wait,
    done: bool,
}

impl Lease {
    pub(super) fn new(core: Arc<Core>, hold: Arc<Hold>, wait: Wait) -> Self {
        Self { core, hold, wait, done: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Asks for `part` instead, for the same owner: what is held now ends when that is granted. A
    /// hold that was entered more than once, or that is part of a set, stays beside the new one.
    pub(crate) fn ask_instead(&self, part: Part) -> Ask {
        let claim = self.hold.claim();
        let table = self.core.lock();
        let entry = table.get(claim.id);
        let sole = matches!(entry.map(|e| &e.phase), Some(Phase::Held { guards: 1, .. }));
        let scoped = entry.is_some_and(|entry| entry.scoped);
        drop(table);
        let replaces = (sole && claim.parts.as_slice().len() == 1).then_some(claim.id);
        Ask {
            parts: Parts::one(part),
            lineage: claim.lineage.clone(),
            scoped,
            lease: claim.lease,
            wait: if self.wait == Wait::Try { Wait::Unlimited } else { self.wait },
            max_hold: self.hold.hold_left(),
            lock_delay: claim.lock_delay,
            replaces,
            about: claim.about.clone(),
        }
    }

    /// Gives the lock back and confirms it.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        self.done = true;
        let now = self.core.clock.now();
        let lost = self.hold.check_at(now).err();
        let safe_until = self.hold.safe_until();
        if seeded::on(Bug::RenewAfterReleaseIsLoss) {
            return self.release_before_forgetting().await;
        }
        let Some(entry) = self.core.let_go(&self.hold, now) else {
            // Another guard of the same owner still holds it, or the keeper gave it back already.
            return lost.map_or(Ok(()), Err);
        };
        let core = Arc::clone(&self.core);
        let until = now + entry.claim.lease;
        let mut way = WayBack { core, release: Some(entry.to_release()), until };
        let answer = way.send(now).await;
        match (lost, answer) {
            (Some(lost), _) => Err(lost),
            (None, Ok(Released::Done)) => Ok(()),
            // The release took longer than the lease: the right ended before, when we let go.
            (None, Ok(Released::Gone)) if self.core.clock.now() >= safe_until => Ok(()),
            (None, Ok(Released::Gone)) => {
                let why = Loss::Forgotten;
                Err(Error::new(ErrorKind::Lost, format!("the lock was lost: {why}"))
                    .during(Verb::Release)
                    .on(entry.claim.parts.first_name())
                    .because_of(why)
                    .next("what was done under this lock may have overlapped with another holder"))
            }
            (None, Err(error)) => Err(error),
        }
    }
}

impl Lease {
    /// What a seeded bug does: leaves the claim in the table while its release is on its way.
    async fn release_before_forgetting(&self) -> Result<(), Error> {
        let batch = [Release { claim: self.hold.claim().to_ref(), uncertain: true }];
        let answer = self.core.limited(Verb::Release, self.core.engine.release(&batch)).await;
        self.hold.check()?;
        if self.core.let_go(&self.hold, self.core.clock.now()).is_some() {
            drop(self.core.lock().given(1));
        }
        answer.map(drop)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let now = self.core.clock.now();
        if let Some(entry) = self.core.let_go(&self.hold, now) {
            self.core.send_back(vec![Giving::of(&entry, now)]);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

impl Core {
    /// One guard less. Takes the claim out of the table when it was the last: from here on no
    /// renewal is sent for it. The right ends here, before the store can hear of it; the caller has
    /// to send the claim back.
    fn let_go(&self, hold: &Arc<Hold>, now: Tick) -> Option<Entry> {
        let id = hold.claim().id;
        let mut table = self.lock();
        let last = table.update(id, |entry| match &mut entry.phase {
            Phase::Held { guards, .. } => {
                *guards -= 1;
                *guards == 0
            }
            _ => false,
        });
        if last != Some(true) {
            return None;
        }
        let entry = table.remove(id)?;
        // Counted as on its way from here on: the keeper must not end in between.
        table.giving += 1;
        drop(table);
        self.saw(hold.claim(), Event::Released);
        hold.end_at(now, Loss::Released);
        Some(entry)
    }

    /// Hands claims that were counted as on their way to the keeper, all in one step, so that
    /// they go in one batch.
    pub(super) fn send_back(&self, givings: Vec<Giving>) {
        if givings.is_empty() {
            return;
        }
        let count = givings.len();
        let mut table = self.lock();
        for giving in givings {
            table.push_release(giving);
        }
        let drained = table.given(count);
        drop(table);
        drained.into_iter().for_each(Waker::wake);
    }
}

/// A release on its way. If it is dropped before it was confirmed, the keeper takes over.
struct WayBack {
    core: Arc<Core>,
    release: Option<Release>,
    until: Tick,
}

impl WayBack {
    async fn send(&mut self, now: Tick) -> Result<Released, Error> {
        let Some(release) = self.release.clone() else { return Ok(Released::Gone) };
        let name = release.claim.parts.first_name().clone();
        let batch = [release];
        let core = Arc::clone(&self.core);
        match core.limited_from(now, Verb::Release, core.engine.release(&batch)).await {
            Ok(answers) => {
                self.release = None;
                Ok(answers.first().copied().unwrap_or(Released::Gone))
            }
            Err(error) => {
                let next = "it is released in the background; the lease is the backstop";
                Err(error.on(&name).next(next))
            }
        }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Some(mut release) = self.release.take() {
            // Whether the call went out is not known.
            release.uncertain = true;
            let now = self.core.clock.now();
            let giving = Giving { release, until: self.until, not_before: now };
            return self.core.send_back(vec![giving]);
        }
        let drained = self.core.lock().given(1);
        drained.into_iter().for_each(Waker::wake);
    }
}

impl Session {
    /// Ends every wait, gives everything back and refuses whatever comes after. Returns when the
    /// store has confirmed, or its leases have run out.
    pub(crate) async fn close(&self) {
        let core = self.core();
        if core.process != std::process::id() {
            // A child that was forked without `exec`: the keeper stayed with the parent, whose
            // locks these are.
            core.abandon();
            return;
        }
        core.close_table();
        poll_fn(|cx| {
            let mut table = core.lock();
            if table.is_drained() {
                return Poll::Ready(());
            }
            if !table.drained.iter().any(|waker| waker.will_wake(cx.waker())) {
                table.drained.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Core {
    /// The keeper is gone: nothing is renewed or given back any more. Ends everything here; the
    /// leases end it in the store.
    pub(super) fn abandon(&self) {
        self.close_table();
        let mut table = self.lock();
        table.releases.clear();
        table.giving = 0;
        let drained = std::mem::take(&mut table.drained);
        drop(table);
        drained.into_iter().for_each(Waker::wake);
    }

    /// Ends every wait and every hold, and puts what was held on its way back.
    fn close_table(&self) {
        let now = self.clock.now();
        let mut work = Work::default();
        let mut table = self.lock();
        table.closed = true;
        for id in table.ids() {
            match table.get(id).map(|entry| &entry.phase) {
                Some(Phase::Held { .. }) => table.lose(id, Loss::Closed, now, &mut work),
                Some(Phase::Sent | Phase::Waiting { .. }) => {
                    if let Some(entry) = table.get(id) {
                        let mut giving = Giving::of(entry, now);
                        giving.release.uncertain = true;
                        work.give_back.push(giving);
                    }
                    table.giving += 1;
                    table.wait_over(id, Over::Closed, now, &mut work);
                }
                Some(Phase::Granted { .. }) => {
                    table.lose(id, Loss::Closed, now, &mut work);
                    table.wait_over(id, Over::Closed, now, &mut work);
                }
                _ => {}
            }
        }
        drop(table);
        self.announce(work);
        self.alarm.ring();
    }
}

//! Giving back: by `release`, by dropping a guard, by closing. Knows the way out, not the way in.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use super::entry::{Entry, Over, Phase};
use super::joint::Joint;
use super::park::within;
use super::table::{Giving, Work};
use super::{Ask, Core, Event, Hold, Session, Wait};
use crate::contract::{Error, ErrorKind, Loss, Name, Part, Parts, Release, Released, Verb};
use crate::seeded::{self, Bug};
use crate::time::Tick;

/// One guard's share of a grant. Dropping it asks for release in the background.
pub(crate) struct Lease {
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// What it is made of, if it is several grants held as one.
    joint: Option<Arc<Joint>>,
    /// The timeout of its caller, which an upgrade has again. Not a [`Wait`]: that takes more room
    /// in every guard.
    timeout: Option<Duration>,
    done: bool,
}

impl Lease {
    pub(super) fn new(core: Arc<Core>, hold: Arc<Hold>, timeout: Option<Duration>) -> Self {
        Self { core, hold, joint: None, timeout, done: false }
    }

    /// The guard's share of several grants that are held as one.
    pub(super) fn of_joint(core: Arc<Core>, joint: Arc<Joint>, timeout: Option<Duration>) -> Self {
        let hold = Arc::clone(joint.hold());
        Self { core, hold, joint: Some(joint), timeout, done: false }
    }

    /// The share now belongs to somebody else.
    pub(super) fn hand_over(mut self) {
        self.done = true;
    }

    /// Gives the share up. What nobody holds any more has to be sent back.
    fn leave(&self, now: Tick) -> SmallVec<[Release; 1]> {
        match &self.joint {
            Some(joint) => self.core.take_apart(joint, now),
            None => self.core.let_go(&self.hold, now).iter().map(Entry::to_release).collect(),
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// How many guards the owner has on the name of this one, in this process.
    pub(crate) fn depth(&self) -> u32 {
        if self.core.is_inherited() {
            return 0;
        }
        let claim = self.hold.claim();
        self.core.depth(claim.parts.first_name(), claim.lineage.owner())
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Asks for `part` instead, for the same owner: what is held now ends when that is granted. A
    /// hold that was entered more than once, or that is part of a set, stays beside the new one.
    pub(crate) fn ask_instead(&self, part: Part) -> Ask {
        let claim = self.hold.claim();
        let (mut sole, mut scoped) = (false, false);
        if !self.core.is_inherited() {
            let table = self.core.lock();
            let entry = table.get(claim.id);
            sole = matches!(entry.map(|e| &e.phase), Some(Phase::Held { guards: 1, .. }));
            scoped = entry.is_some_and(|entry| entry.scoped);
        }
        let sole = sole && self.joint.is_none() && claim.parts.as_slice().len() == 1;
        let replaces = sole.then_some(claim.id);
        Ask {
            parts: Parts::one(part),
            lineage: claim.lineage.clone(),
            scoped,
            lease: claim.lease,
            wait: self.timeout.map_or(Wait::Unlimited, Wait::Limit),
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
        if let Some(error) = lost.as_ref().filter(|_| self.core.is_inherited()) {
            return Err(error.clone());
        }
        let safe_until = self.hold.safe_until();
        if seeded::on(Bug::RenewAfterReleaseIsLoss) && self.joint.is_none() {
            return self.release_before_forgetting().await;
        }
        let Some(mut way) = WayBack::new(&self.core, self.leave(now)) else {
            // Another guard of the same owner still holds it, or the keeper gave it back already.
            return lost.map_or(Ok(()), Err);
        };
        let answer = way.send(now).await;
        match (lost, answer) {
            (Some(lost), _) => Err(lost),
            (None, Ok(None)) => Ok(()),
            // The release took longer than the lease: the right ended before, when we let go.
            (None, Ok(Some(_))) if self.core.clock.now() >= safe_until => Ok(()),
            (None, Ok(Some(gone))) => {
                let why = Loss::Forgotten;
                Err(Error::new(ErrorKind::Lost, format!("the lock was lost: {why}"))
                    .during(Verb::Release)
                    .on(&gone)
                    .because_of(why)
                    .with_help(
                        "what was done under this lock may have overlapped with another holder",
                    ))
            }
            (None, Err(error)) => Err(error),
        }
    }
}

impl Lease {
    /// What a seeded bug does: leaves the claim in the table while its release is on its way.
    async fn release_before_forgetting(&self) -> Result<(), Error> {
        let batch = [Release { claim: self.hold.claim().to_ref(), uncertain: true }];
        let answer = self.core.limited(Verb::Release, || self.core.engine.release(&batch)).await;
        self.hold.check()?;
        if self.core.let_go(&self.hold, self.core.clock.now()).is_some() {
            drop(self.core.lock().given(1));
        }
        answer.map(drop)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.done || self.core.is_inherited() {
            return;
        }
        let now = self.core.clock.now();
        let givings = self.leave(now).into_iter().map(Giving::new);
        self.core.send_back(givings.collect());
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
        table.on_its_way(entry.claim.lease, now);
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
        let count = Giving::count(&givings);
        let mut table = self.lock();
        for giving in givings {
            table.push_release(giving);
        }
        let drained = table.given(count);
        drop(table);
        drained.into_iter().for_each(Waker::wake);
    }
}

/// Releases on their way, in one call. If it is dropped before they were confirmed, the keeper
/// takes over.
struct WayBack {
    core: Arc<Core>,
    releases: SmallVec<[Release; 1]>,
    /// How many were counted as on their way.
    count: usize,
}

impl WayBack {
    /// The way back for what was let go. `None` if that is nothing.
    fn new(core: &Arc<Core>, releases: SmallVec<[Release; 1]>) -> Option<Self> {
        let count = releases.len();
        (count > 0).then(|| Self { core: Arc::clone(core), releases, count })
    }

    /// Sends them. Returns the name of the first that the store did not know, if there is one.
    async fn send(&mut self, now: Tick) -> Result<Option<Name>, Error> {
        let batch = self.releases.clone();
        let name = |at: usize| batch.get(at).map(|one| one.claim.parts.first_name().clone());
        let core = Arc::clone(&self.core);
        match core.limited_from(now, Verb::Release, core.engine.release(&batch)).await {
            Ok(answers) => {
                self.releases.clear();
                // A batch that was answered for fewer than were sent leaves the rest unknown.
                let done = answers.iter().take_while(|answer| **answer == Released::Done).count();
                Ok(name(done))
            }
            Err(error) => {
                let next = "it is released in the background; the lease is the backstop";
                let error = error.with_help(next);
                Err(match name(0) {
                    Some(name) => error.on(&name),
                    None => error,
                })
            }
        }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        if self.releases.is_empty() {
            let drained = self.core.lock().given(self.count);
            return drained.into_iter().for_each(Waker::wake);
        }
        let giving = |mut release: Release| {
            // Whether the call went out is not known.
            release.uncertain = true;
            Giving::new(release)
        };
        let givings = std::mem::take(&mut self.releases).into_iter().map(giving);
        self.core.send_back(givings.collect());
    }
}

/// Whether the store confirmed that a closed [`Tenure`](crate::Tenure) gave everything back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Nothing is held or waited for any more.
    Confirmed,
    /// The store did not confirm in time. The locks were given up all the same: their guards are
    /// lost, they are not renewed, and their releases are sent again in the background while the
    /// process lives.
    Unconfirmed {
        /// How many claims are not confirmed as released.
        claims: usize,
        /// When the leases of all of them have ended, at the latest, and the locks are free.
        free_within: Duration,
    },
}

impl Session {
    /// Ends every wait, gives everything back and refuses whatever comes after. Holders and waiters
    /// are told before anything is sent. Returns when the store has confirmed all releases, or
    /// after the time limit of closing.
    pub(crate) async fn close(&self) -> Closed {
        let core = self.core();
        if core.is_inherited() {
            // Nothing here is this process's to give back, and every guard is lost already.
            return Closed::Confirmed;
        }
        core.close_table();
        let drained = poll_fn(|cx| {
            let mut table = core.lock();
            if table.is_drained() {
                return Poll::Ready(());
            }
            if !table.drained.iter().any(|waker| waker.will_wake(cx.waker())) {
                table.drained.push(cx.waker().clone());
            }
            Poll::Pending
        });
        let limit = core.clock.now() + core.settings.close;
        match within(core, limit, drained).await {
            Some(()) => Closed::Confirmed,
            None if core.is_inherited() => Closed::Confirmed,
            None => core.unconfirmed(),
        }
    }
}

impl Core {
    /// What the store has not confirmed by now.
    fn unconfirmed(&self) -> Closed {
        let table = self.lock();
        match table.unconfirmed() {
            0 => Closed::Confirmed,
            claims => {
                let free_within = table.forgotten_at().since(self.clock.now());
                Closed::Unconfirmed { claims, free_within }
            }
        }
    }

    /// The keeper is gone: nothing is renewed or given back any more. Ends everything here; the
    /// leases end it in the store.
    pub(super) fn abandon(&self) {
        self.close_table();
        let drained = self.lock().abandon();
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
                    if let Some(entry) = table.get(id).filter(|entry| !entry.is_void()) {
                        let mut giving = Giving::of(entry);
                        giving.release.uncertain = true;
                        table.on_its_way(giving.release.claim.lease, now);
                        work.give_back.push(giving);
                    }
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

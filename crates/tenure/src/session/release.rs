//! Releasing claims: the call that a guard makes, what the keeper takes over, and closing a
//! session.
//!
//! Order matters, because a holder must never overlap with the next one:
//!
//! 1. The claim leaves the table, so that no renewal is sent for it any more. In the same step it
//!    is counted as in flight (`Table::begin_release`), so that neither `close` nor the keeper ends
//!    before its release is confirmed.
//! 2. The hold ends: `fence()` is an error and `lost()` resolves from here on.
//! 3. The release is sent, by the caller ([`ReleaseCall`]) or by the keeper (`Core::send_back`). A
//!    call that is dropped or fails is repeated by the keeper until the store confirms it or the
//!    lease has ended in the store.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use super::effects::{Effects, PendingRelease};
use super::entry::{EndReason, Entry, Extras, Phase};
use super::park::within;
use super::{Core, Event, Hold, Session};
use crate::contract::{Claim, Error, Loss, Name, Release, Released, Verb};
use crate::time::Tick;

impl Core {
    /// Removes one guard's share. If it was the last, takes the claim out of the table, ends the
    /// hold and returns the release, which the caller has to send.
    pub(super) fn let_go(&self, hold: &Arc<Hold>, now: Tick) -> Option<LastShare> {
        let claim = hold.claim();
        let mut table = self.lock();
        let last = table.drop_share(claim.id)?;
        // Counted as in flight from here on: the keeper must not end in between.
        table.begin_release(claim.lease, now);
        // Another flow of an owner that waits: see `deadlock.rs`. Of a guard that said that it left
        // this was known, and it is over.
        let owner = claim.lineage.owner();
        let waiting = if last.detached() { Vec::new() } else { table.released_by(owner) };
        drop(table);
        waiting.into_iter().for_each(Waker::wake);
        self.emit(claim, || Event::Released);
        hold.end_at(now, Loss::Released);
        Some(last)
    }

    /// Releases a claim that has left the table, if the engine can do that without waiting.
    pub(super) fn release_at_once(&self, claim: &Claim, last: &LastShare) -> bool {
        let immediate = self.engine.immediate().filter(|_| !last.uncertain);
        let released = immediate.is_some_and(|engine| engine.release_lone(claim));
        if released {
            self.released(1);
        }
        released
    }

    /// Queues releases that were counted as in flight for the keeper: all in one step, so that they
    /// go in one batch.
    pub(super) fn send_back(&self, pending: impl IntoIterator<Item = PendingRelease>) {
        let mut pending = pending.into_iter().peekable();
        if pending.peek().is_none() {
            return;
        }
        let mut count = 0;
        let mut table = self.lock();
        for pending in pending {
            count += usize::from(!pending.void);
            table.push_release(pending);
        }
        let drained = table.releases_done(count);
        drop(table);
        drained.into_iter().for_each(Waker::wake);
    }
}

/// What the release of a claim's last share has to say.
pub(super) struct LastShare {
    /// Another copy of the claim may still be on its way to the store.
    uncertain: bool,
    /// What the claim's entry had. Dropped after the table's lock.
    extras: Option<Box<Extras>>,
}

impl LastShare {
    /// Of an entry that is about to be removed.
    pub(super) fn of(entry: &mut Entry) -> Self {
        Self { uncertain: entry.is_uncertain(), extras: entry.take_extras() }
    }

    /// Whether the guard had said that it left the flow of its owner.
    fn detached(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.detached)
    }

    /// The release of the claim.
    pub(super) fn to_release(&self, claim: &Claim) -> Release {
        Release { claim: claim.to_ref(), uncertain: self.uncertain }
    }
}

/// A release call that a guard makes itself. If it is dropped before the store has confirmed, the
/// keeper repeats it.
pub(super) struct ReleaseCall {
    core: Arc<Core>,
    releases: SmallVec<[Release; 1]>,
    /// How many releases were counted as in flight.
    count: usize,
}

impl ReleaseCall {
    /// Returns `None` if there is nothing to release.
    pub(super) fn new(core: &Arc<Core>, releases: SmallVec<[Release; 1]>) -> Option<Self> {
        let count = releases.len();
        (count > 0).then(|| Self { core: Arc::clone(core), releases, count })
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Sends the releases. Returns the name of the first claim that the store did not know, if any.
    pub(super) async fn send(&mut self, now: Tick) -> Result<Option<Name>, Error> {
        let batch = self.releases.clone();
        let name = |at: usize| batch.get(at).map(|one| one.claim.parts.first_name().clone());
        let core = Arc::clone(&self.core);
        match core.limited_from(now, Verb::Release, core.engine.release(&batch)).await {
            Ok(answers) => {
                self.releases.clear();
                // A reply for fewer claims than were sent leaves the rest unknown.
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

impl Drop for ReleaseCall {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        if self.releases.is_empty() {
            let drained = self.core.lock().releases_done(self.count);
            return drained.into_iter().for_each(Waker::wake);
        }
        let pending = |mut release: Release| {
            // The store may or may not have received the call.
            release.uncertain = true;
            PendingRelease::new(release)
        };
        let pending = std::mem::take(&mut self.releases).into_iter().map(pending);
        self.core.send_back(pending);
    }
}

/// Whether the store has confirmed the releases of a closed [`Tenure`](crate::Tenure).
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
    /// Ends every wait, releases every hold and refuses all later calls. Holders and waiters are
    /// notified before anything is sent. Returns when the store has confirmed all releases, or
    /// after the close limit.
    pub(crate) async fn close(&self) -> Closed {
        let core = self.core();
        if core.is_inherited() {
            // The claims belong to the parent process, and every guard here is lost already.
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
    /// Returns what the store has not confirmed by now.
    fn unconfirmed(&self) -> Closed {
        let table = self.lock();
        match table.unconfirmed() {
            0 => Closed::Confirmed,
            claims => {
                let free_within = table.leases_end_at().since(self.clock.now());
                Closed::Unconfirmed { claims, free_within }
            }
        }
    }

    /// Ends every wait and hold after the keeper's thread has panicked: nothing is renewed or
    /// released any more, and the leases end the claims in the store.
    pub(super) fn abandon(&self) {
        self.close_table();
        let drained = self.lock().abandon();
        drained.into_iter().for_each(Waker::wake);
    }

    /// Marks the session as closed, ends every wait and every hold, and queues their releases.
    fn close_table(&self) {
        let now = self.clock.now();
        let mut effects = Effects::default();
        let mut table = self.lock();
        table.closed = true;
        effects.wake.extend(table.wake_sleepers());
        for id in table.ids() {
            match table.get(id).map(|entry| &entry.phase) {
                Some(Phase::Held { .. }) => table.lose(id, Loss::Closed, now, &mut effects),
                Some(Phase::Sent | Phase::Waiting { .. }) => {
                    if let Some(entry) = table.get(id).filter(|entry| !entry.is_void()) {
                        let mut pending = PendingRelease::of(entry);
                        pending.release.uncertain = true;
                        table.begin_release(pending.release.claim.lease, now);
                        effects.give_back.push(pending);
                    }
                    table.end_wait(id, EndReason::Closed, now, &mut effects);
                }
                Some(Phase::Granted { .. }) => {
                    table.lose(id, Loss::Closed, now, &mut effects);
                    table.end_wait(id, EndReason::Closed, now, &mut effects);
                }
                _ => {}
            }
        }
        drop(table);
        self.apply(effects);
        self.alarm.ring();
    }
}

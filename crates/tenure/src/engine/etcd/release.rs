//! The verbs that end claims: release, forced release, and the end of those that nobody renews.
//! Knows tombstones and letters.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::{Halt, LEASES, TRIES, crowded};
use super::client::{KeyValue, RequestOp, ResponseOp};
use super::errors::Trouble;
use super::keys::{Kind, Tag};
use super::leases::{Lease, Term, Who};
use super::link::Answer;
use super::picture::Picture;
use super::renew::TOGETHER;
use super::roll::{AGAIN, Due, DueKey, Entry, Phase};
use super::step::{Change, Step, picture, reads};
use crate::contract::{
    ClaimId, ClaimRef, Error, Evicted, Eviction, Name, Parts, Release, Released, Verb,
};
use crate::time::Tick;

impl Inner {
    /// Gives claims back or withdraws them.
    pub(super) async fn release(
        self: &Arc<Self>,
        batch: &[Release],
        since: Tick,
    ) -> Result<Vec<Released>, Error> {
        if let [release] = batch {
            let answer = self.release_one(release, since).await;
            return Ok(vec![answer.map_err(|halt| halt.into_error(Verb::Release))?]);
        }
        // Beside each other: one after the other a full batch would take longer than a call may.
        let mut answers = Vec::with_capacity(batch.len());
        let mut under_way = Vec::with_capacity(batch.len());
        for (at, release) in batch.iter().enumerate() {
            // A claim that the batch names twice is released by the first of the two.
            if batch[..at].iter().any(|earlier| earlier.claim.id == release.claim.id) {
                for one in under_way.drain(..) {
                    answers.push(one.await?);
                }
            }
            let (inner, release) = (Arc::clone(self), release.clone());
            under_way.push(self.tasks.run(async move {
                let answer = inner.release_one(&release, since).await;
                answer.map_err(|halt| halt.into_error(Verb::Release))
            }));
        }
        for one in under_way {
            answers.push(one.await?);
        }
        Ok(answers)
    }

    async fn release_one(
        self: &Arc<Self>,
        release: &Release,
        since: Tick,
    ) -> Result<Released, Halt> {
        let claim = &release.claim;
        let unsent = release.uncertain && self.crowd.withdraw(claim.id);
        let entry = self.roll.get(claim.id);
        if unsent && entry.is_none() {
            return Ok(Released::Gone);
        }
        self.waits.end(self, claim.id);
        let quick = match entry.as_ref().map(|entry| entry.phase) {
            Some(Phase::Held { by: Some(by), waited }) if !release.uncertain => Some((by, waited)),
            _ => None,
        };
        let mut released = None;
        if let (Some((by, waited)), Some(entry)) = (quick, &entry) {
            released = self.release_fast(claim, entry, by, waited).await?;
        }
        let released = if let Some(released) = released {
            released
        } else {
            let (inner, release, entry) = (Arc::clone(self), release.clone(), entry.clone());
            let judged = async move {
                if let Some(entry) = entry.as_ref().filter(|_| release.uncertain)
                    && let Some(released) = inner.withdraw_alone(entry, since).await?
                {
                    return Ok(released);
                }
                inner.release_by_rules(&release, since).await
            };
            self.tasks.apart(Box::pin(judged)).await??
        };
        if release.uncertain {
            // The answer to its request may have come since, and begun a wait.
            self.waits.end(self, claim.id);
        }
        self.roll.leave(claim.id);
        if let Some(entry) = entry.filter(|entry| entry.own.claim.session.is_none())
            && !release.uncertain
        {
            // The lease was there for this claim alone.
            let inner = Arc::clone(self);
            self.tasks.spawn(async move {
                inner.leases.revoke(&entry.own.lease).await;
                if let Some(delay) = &entry.own.delay {
                    inner.leases.revoke(delay).await;
                }
            });
        }
        Ok(released)
    }

    /// One call: if nobody has touched the holds since this revision made them, they are deleted.
    /// A release that comes late meets another revision, or nothing.
    async fn release_fast(
        &self,
        claim: &ClaimRef,
        entry: &Entry,
        by: u64,
        waited: bool,
    ) -> Result<Option<Released>, Halt> {
        let (tag, mut change) = (entry.own.tag, Change::default());
        for name in claim.parts.names() {
            let hold = self.keys.claim(name, Kind::Hold, tag);
            change.unwritten(hold.clone(), by);
            change.delete(hold);
            if waited {
                change.delete(self.keys.claim(name, Kind::Wait, tag));
                change.delete(self.keys.claim(name, Kind::Kin, tag));
            }
            if entry.own.delay.is_some() {
                change.delete(self.keys.claim(name, Kind::Delay, tag));
            }
        }
        let answer = self.link.when(change.compares, change.writes, Vec::new()).await?;
        Ok(answer.held.then_some(Released::Done))
    }

    async fn release_by_rules(
        self: &Arc<Self>,
        release: &Release,
        since: Tick,
    ) -> Result<Released, Halt> {
        let claim = &release.claim;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = if release.uncertain {
            let all = reads(&self.keys, &names, &[]);
            let answer = self.withdraw(all, claim.id, claim.lease, since).await?;
            picture(&self.keys, self.epoch(), answer, &names, &[])?
        } else {
            self.look(&names, &[]).await?
        };
        for attempt in 0..TRIES {
            let now = self.now();
            let mut rules = found.rules(now, 0);
            let step = Step::new(&self.keys, &found, &mut rules);
            let released = rules.release(std::slice::from_ref(release), now).pop();
            let change = step.change(&mut rules, None, now.wall_micros)?;
            let released = released.unwrap_or(Released::Gone);
            if change.is_empty() {
                return Ok(released);
            }
            let answer = self.end_with(change, &reads(&self.keys, &names, &[])).await?;
            if answer.held {
                return Ok(released);
            }
            found = picture(&self.keys, self.epoch(), answer, &names, &[])?;
            self.pause(attempt).await;
        }
        Err(crowded(claim.parts.first_name()).into())
    }

    /// Makes a change that ends claims: in one transaction, or in two if it is that of a large set.
    async fn end_with(
        &self,
        mut change: Change,
        otherwise: &[RequestOp],
    ) -> Result<Answer, Trouble> {
        if let Some(first) = change.take_excess(&self.keys) {
            let answer = self.link.when(first.compares, first.writes, otherwise.to_vec()).await?;
            if !answer.held {
                return Ok(answer);
            }
        }
        self.link.when(change.compares, change.writes, otherwise.to_vec()).await
    }

    /// Withdraws a claim on one name whose keys are known, without reading those of others: how
    /// long the queue is does not matter. None if there is more to it.
    async fn withdraw_alone(
        self: &Arc<Self>,
        entry: &Entry,
        since: Tick,
    ) -> Result<Option<Released>, Halt> {
        let claim = &entry.own.claim;
        let [part] = claim.parts.as_slice() else { return Ok(None) };
        if claim.replaces.is_some() || !claim.lineage.ancestors().is_empty() {
            return Ok(None);
        }
        let name = part.name();
        let mut tags: Vec<Tag> = vec![Tag::FIRST];
        tags.extend(entry.tags().filter(|tag| *tag != Tag::FIRST));
        let mut keys = Vec::new();
        for tag in tags.iter().copied() {
            keys.extend(Kind::ALL.map(|kind| RequestOp::get(self.keys.claim(name, kind, tag))));
        }
        let answer = self.withdraw(keys, claim.id, claim.lease, since).await?;
        // The tag is noted before a request is sent. What has arrived before the tombstone was sent
        // before its answer came, perhaps with a tag that was not known above.
        let noted = self.roll.get(claim.id);
        if noted.is_some_and(|noted| noted.tags().any(|tag| !tags.contains(&tag))) {
            return Ok(None);
        }
        let kvs: Vec<KeyValue> =
            answer.replies.into_iter().flat_map(ResponseOp::into_kvs).collect();
        let mut found = Picture::new(answer.revision, self.epoch());
        found.add(&self.keys, name, &kvs)?;
        let mut own = found.slots.remove(name).unwrap_or_default();
        own.retain(|seen| seen.id == claim.id);
        if !own.iter().any(|seen| seen.kind == Kind::Hold) {
            // The lock delay of a hold that has expired stands.
            own.retain(|seen| seen.kind != Kind::Delay);
        }
        if own.is_empty() {
            return Ok(Some(Released::Gone));
        }
        if own.iter().any(|seen| seen.record.group.is_some()) {
            return Ok(None);
        }
        let mut change = Change::default();
        for seen in &own {
            change.unwritten(seen.key.clone(), seen.written);
            change.delete(seen.key.clone());
        }
        let answer = self.link.when(change.compares, change.writes, Vec::new()).await?;
        Ok(answer.held.then_some(Released::Done))
    }

    /// Writes the tombstone of a claim, and reads what stands of it in the same transaction.
    ///
    /// A request of the claim may still be under way. Every write of a claim compares that it has
    /// no tombstone, so from here on none of them can succeed: all that stands of the claim is in
    /// the answer. In the other order, a look and then the tombstone, a request that arrives in
    /// between would leave a hold that its own process does not know of.
    async fn withdraw(
        &self,
        reads: Vec<RequestOp>,
        id: ClaimId,
        lease: Duration,
        since: Tick,
    ) -> Result<Answer, Halt> {
        let mut attempts = 0;
        let mut answer = loop {
            let mut change = Change::default();
            let on = self.bury(&mut change, id, lease, b"", since).await?;
            change.writes.extend(reads.iter().cloned());
            match self.link.when(Vec::new(), change.writes, Vec::new()).await {
                Err(Trouble::LeaseGone) if attempts < LEASES => {
                    self.leases.forget(&on);
                    attempts += 1;
                }
                answer => break answer?,
            }
        };
        // The reply to the write comes first.
        answer.replies.remove(0);
        Ok(answer)
    }

    /// Adds a tombstone, which stands for a lease. Returns the lease that it hangs on.
    async fn bury(
        &self,
        change: &mut Change,
        id: ClaimId,
        lease: Duration,
        reason: &[u8],
        since: Tick,
    ) -> Result<Arc<Lease>, Halt> {
        let term = Term { who: Who::Engine, length: lease, extra: Duration::ZERO };
        let on = self.leases.ensure(term, since).await?;
        let key = self.keys.tomb(id);
        change.put(key.clone(), reason.to_vec(), on.id);
        self.roll.delete_at(since + lease, DueKey::Own(key));
        Ok(on)
    }

    /// Ends exactly the grant with this fence.
    pub(super) async fn evict(
        self: &Arc<Self>,
        eviction: &Eviction,
        since: Tick,
    ) -> Result<Evicted, Error> {
        let ended = self.evict_by_rules(eviction, since).await;
        ended.map_err(|halt| halt.into_error(Verb::Evict).on(&eviction.name))
    }

    async fn evict_by_rules(
        self: &Arc<Self>,
        eviction: &Eviction,
        since: Tick,
    ) -> Result<Evicted, Halt> {
        let nobody = ClaimId::from_u128(0);
        let mut found = self.look(std::slice::from_ref(&eviction.name), &[nobody]).await?;
        for attempt in 0..TRIES {
            let seen = found.slots.get(&eviction.name).into_iter().flatten();
            let claims: Vec<ClaimId> = seen.map(|seen| seen.id).collect();
            found = self.with_parts(found, &claims, nobody).await?;
            self.measure(&mut found).await;
            let now = self.now();
            let mut rules = found.rules(now, 0);
            let step = Step::new(&self.keys, &found, &mut rules);
            let evicted = rules.evict(eviction, now);
            let Evicted::Done(ended) = &evicted else { return Ok(evicted) };
            let mut change = step.change(&mut rules, None, now.wall_micros)?;
            for view in ended {
                let seen = found.seen(&eviction.name, Kind::Hold, view.claim);
                let lease = seen.map(|seen| seen.record.claim.lease).unwrap_or_default();
                let reason = eviction.reason.as_bytes();
                self.bury(&mut change, view.claim, lease, reason, since).await?;
                if let Some(session) = view.session {
                    let term = Term { who: Who::Engine, length: lease, extra: Duration::ZERO };
                    let on = self.leases.ensure(term, since).await?;
                    let key = self.keys.letter(session, view.claim);
                    change.put(key.clone(), reason.to_vec(), on.id);
                    self.roll.delete_at(since + lease, DueKey::Own(key));
                }
            }
            let names: Vec<Name> = found.slots.keys().cloned().collect();
            let answer = self.end_with(change, &reads(&self.keys, &names, &[nobody])).await?;
            if answer.held {
                return Ok(evicted);
            }
            found = picture(&self.keys, self.epoch(), answer, &names, &[nobody])?;
            self.pause(attempt).await;
        }
        Err(crowded(&eviction.name).into())
    }

    /// Takes a claim out of all its slots as an expiry does: its group keeps its name, and its lock
    /// delays stand. Returns these, to be deleted when they have passed.
    pub(super) async fn end_claim(&self, parts: &Parts, id: ClaimId) -> Result<Vec<DueKey>, Halt> {
        let names: Vec<Name> = parts.names().cloned().collect();
        let found = self.look(&names, &[]).await?;
        self.end_found(found, &names, id).await
    }

    /// Does the work of [`end_claim`](Self::end_claim) with what was found in the slots.
    async fn end_found(
        &self,
        mut found: Picture,
        names: &[Name],
        id: ClaimId,
    ) -> Result<Vec<DueKey>, Halt> {
        for attempt in 0..TRIES {
            let (mut change, mut delays) = (Change::default(), Vec::new());
            for (name, all) in &found.slots {
                for seen in all.iter().filter(|seen| seen.id == id) {
                    if seen.kind == Kind::Delay {
                        delays.push(DueKey::Delay(seen.key.clone(), seen.written));
                        continue;
                    }
                    // Only as it was seen: its keys may be those of others by the time this
                    // arrives.
                    change.unwritten(seen.key.clone(), seen.written);
                    change.delete(seen.key.clone());
                    if found.seen(name, Kind::Hold, id).is_none() {
                        // The step that makes it hold may arrive first, and writes nothing at its
                        // ticket.
                        change.absent(self.keys.claim(name, Kind::Hold, seen.tag));
                    }
                }
            }
            if change.is_empty() {
                return Ok(delays);
            }
            let otherwise = reads(&self.keys, names, &[]);
            let answer = self.link.when(change.compares, change.writes, otherwise).await?;
            if answer.held {
                return Ok(delays);
            }
            found = picture(&self.keys, self.epoch(), answer, names, &[])?;
            self.pause(attempt).await;
        }
        Err(crowded(&names[0]).into())
    }

    /// Ends what nobody has renewed in time.
    pub(super) async fn end_due(self: &Arc<Self>, due: Due) {
        let (delays, own): (Vec<_>, Vec<_>) =
            due.keys.into_iter().partition(|key| matches!(key, DueKey::Delay(..)));
        // Each delay by itself: one that is gone already must not keep the others.
        for keys in delays.chunks(1).chain(own.chunks(TOGETHER)) {
            self.delete_due(keys).await;
        }
        for entry in due.claims {
            let claim = &entry.own.claim;
            self.waits.end(self, claim.id);
            match self.end_entry(&entry).await {
                Ok(delays) => {
                    // They hang on a lease that other claims of the session keep alive.
                    let at = entry.expires() + claim.lock_delay;
                    for delay in delays {
                        self.roll.delete_at(at, delay);
                    }
                    self.roll.leave(claim.id);
                }
                Err(_) => self.roll.again(claim.id, self.clock.now()),
            }
        }
    }

    /// Deletes keys in one call; once more later if there is no answer, because the lease that they
    /// hang on may be kept alive for others.
    async fn delete_due(&self, keys: &[DueKey]) {
        let mut change = Change::default();
        for key in keys {
            match key {
                DueKey::Own(key) => change.delete(key.clone()),
                DueKey::Delay(key, written) => {
                    change.unwritten(key.clone(), *written);
                    change.delete(key.clone());
                }
            }
        }
        if self.link.when(change.compares, change.writes, Vec::new()).await.is_err() {
            let at = self.clock.now() + AGAIN;
            for key in keys {
                self.roll.delete_at(at, key.clone());
            }
        }
    }

    /// Ends a claim whose time is up. If it never had an answer its request may still be under way,
    /// and what it would write hangs on a lease that other claims keep alive. Whether it had one is
    /// not known any more if an earlier end failed.
    async fn end_entry(&self, entry: &Entry) -> Result<Vec<DueKey>, Halt> {
        let (claim, since) = (&entry.own.claim, self.clock.now());
        if matches!(entry.phase, Phase::Waiting | Phase::Held { .. }) {
            return self.end_claim(&claim.parts, claim.id).await;
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let all = reads(&self.keys, &names, &[]);
        let answer = self.withdraw(all, claim.id, claim.lease, since).await?;
        let found = picture(&self.keys, self.epoch(), answer, &names, &[])?;
        self.end_found(found, &names, claim.id).await
    }
}

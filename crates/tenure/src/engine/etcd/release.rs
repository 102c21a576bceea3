//! The verbs that end claims: release, forced release, and the end of those that nobody renews.
//! Knows tombstones and letters.

use std::sync::Arc;

use etcd_client::TxnOp;

use super::Inner;
use super::claim::{Halt, TRIES, crowded};
use super::keys::Kind;
use super::leases::{Term, Who};
use super::roll::{Due, Entry, Phase};
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
        let mut answers = Vec::with_capacity(batch.len());
        for release in batch {
            let answer = self.release_one(release, since).await;
            answers.push(answer.map_err(|halt| halt.into_error(Verb::Release))?);
        }
        Ok(answers)
    }

    async fn release_one(
        self: &Arc<Self>,
        release: &Release,
        since: Tick,
    ) -> Result<Released, Halt> {
        let claim = &release.claim;
        let entry = self.roll.get(claim.id);
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
            let (inner, release) = (Arc::clone(self), release.clone());
            let judged = async move { inner.release_by_rules(&release, since).await };
            self.tasks.apart(Box::pin(judged)).await??
        };
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
                change.delete(self.keys.delay(name, claim.id));
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
        let mut found = self.look(&names, &[]).await?;
        for attempt in 0..TRIES {
            let now = self.now();
            let mut rules = found.rules(now, 0);
            let step = Step::new(&self.keys, &found, &mut rules);
            let released = rules.release(std::slice::from_ref(release), now).pop();
            let mut change = step.change(&mut rules, None, now.wall_micros)?;
            if release.uncertain {
                self.bury(&mut change, claim.id, claim.lease, b"", since).await?;
            }
            let released = released.unwrap_or(Released::Gone);
            if change.is_empty() {
                return Ok(released);
            }
            let otherwise = reads(&self.keys, &names, &[]);
            let answer = self.link.when(change.compares, change.writes, otherwise).await?;
            if answer.held {
                return Ok(released);
            }
            found = picture(&self.keys, self.epoch, answer, &names, &[])?;
            self.pause(attempt).await;
        }
        Err(crowded(claim.parts.first_name()).into())
    }

    /// Adds a tombstone, which stands for a lease.
    async fn bury(
        &self,
        change: &mut Change,
        id: ClaimId,
        lease: std::time::Duration,
        reason: &[u8],
        since: Tick,
    ) -> Result<(), Halt> {
        let term = Term { who: Who::Engine, length: lease, extra: std::time::Duration::ZERO };
        let on = self.leases.ensure(term, since).await?;
        let key = self.keys.tomb(id);
        change.put(key.clone(), reason.to_vec(), on.id);
        self.roll.delete_at(since + lease, key);
        Ok(())
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
                    let term =
                        Term { who: Who::Engine, length: lease, extra: std::time::Duration::ZERO };
                    let on = self.leases.ensure(term, since).await?;
                    let key = self.keys.letter(session, view.claim);
                    change.put(key.clone(), reason.to_vec(), on.id);
                    self.roll.delete_at(since + lease, key);
                }
            }
            let names: Vec<Name> = found.slots.keys().cloned().collect();
            let otherwise = reads(&self.keys, &names, &[nobody]);
            let answer = self.link.when(change.compares, change.writes, otherwise).await?;
            if answer.held {
                return Ok(evicted);
            }
            found = picture(&self.keys, self.epoch, answer, &names, &[nobody])?;
            self.pause(attempt).await;
        }
        Err(crowded(&eviction.name).into())
    }

    /// Takes a claim out of all its slots as an expiry does: its group keeps its name, and its lock
    /// delay stands.
    pub(super) async fn end_claim(&self, parts: &Parts, id: ClaimId) -> Result<(), Halt> {
        let names: Vec<Name> = parts.names().cloned().collect();
        let mut found = self.look(&names, &[]).await?;
        for attempt in 0..TRIES {
            let mut change = Change::default();
            let all = found.slots.values().flatten();
            for seen in all.filter(|seen| seen.id == id && seen.kind != Kind::Delay) {
                // Only as it was seen: its keys may be those of others by the time this arrives.
                change.unwritten(seen.key.clone(), seen.written);
                change.delete(seen.key.clone());
            }
            if change.is_empty() {
                return Ok(());
            }
            let otherwise = reads(&self.keys, &names, &[]);
            let answer = self.link.when(change.compares, change.writes, otherwise).await?;
            if answer.held {
                return Ok(());
            }
            found = picture(&self.keys, self.epoch, answer, &names, &[])?;
            self.pause(attempt).await;
        }
        Err(crowded(parts.first_name()).into())
    }

    /// Ends what nobody has renewed in time.
    pub(super) async fn end_due(self: &Arc<Self>, due: Due) {
        for key in due.keys {
            // If this fails, the lease ends it.
            let _ = self.link.when(Vec::new(), vec![TxnOp::delete(key, None)], Vec::new()).await;
        }
        for entry in due.claims {
            let claim = &entry.own.claim;
            self.waits.end(self, claim.id);
            match self.end_claim(&claim.parts, claim.id).await {
                Ok(()) => {
                    self.delay_ends_later(&entry);
                    self.roll.leave(claim.id);
                }
                Err(_) => self.roll.again(claim.id, self.clock.now()),
            }
        }
    }

    /// The marks of its lock delay hang on a lease that its sisters keep alive: they are deleted
    /// when the delay has passed.
    fn delay_ends_later(&self, entry: &Entry) {
        let claim = &entry.own.claim;
        if entry.own.delay.is_none() {
            return;
        }
        let at = entry.expires() + claim.lock_delay;
        for name in claim.parts.names() {
            self.roll.delete_at(at, self.keys.delay(name, claim.id));
        }
    }
}

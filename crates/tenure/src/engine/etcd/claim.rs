//! The claim verb: one call if all its slots are empty, otherwise a look and a step of the rules.
//! Knows leases and conditions; the rules are the ledger's.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::client::{Compare, CompareResult, ResponseOp};
use super::errors::Trouble;
use super::keys::{Kind, Tag};
use super::leases::{Lease, Standing, Term, Who};
use super::picture::{Epoch, Picture, Rules, settle_arrival, settle_grant};
use super::record::{FenceAt, Record};
use super::roll::Phase;
use super::step::{Change, Own, Step, last_two, picture, reads, reads_some};
use crate::contract::{
    Claim, ClaimId, Error, ErrorKind, Fence, Grant, Name, Renewed, Verb, Verdict, short,
};
use crate::ledger::seam::Shelf;
use crate::time::Tick;

/// How often a step is tried that others keep getting ahead of.
pub(super) const TRIES: usize = 64;

/// How many keys of a slot are read before it is known that they are needed.
const FEW: i64 = 64;

/// How often a lease is made anew that ended while it was used.
pub(super) const LEASES: usize = 3;

impl Inner {
    /// Makes a claim that was asked for at `since`. A copy of a claim that is still under way here
    /// shares its answer: a store that is slow because of a crowd must not get the crowd twice.
    pub(super) async fn claim(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<Verdict, Error> {
        let under_way = match self.crowd.join(claim.id) {
            Ok(under_way) => under_way,
            Err(shared) => {
                return shared.await.unwrap_or_else(|_| {
                    let what = "the runtime on which the claim was made has ended";
                    let error = Error::new(ErrorKind::Unavailable, what).effect_unknown();
                    Err(error.during(Verb::Claim).with_help("call again"))
                });
            }
        };
        let answer = match under_way.turn().await {
            Ok(_) if self.clock.now() >= since + claim.lease => {
                Err(too_late(claim.lease).during(Verb::Claim))
            }
            // The permit is kept until there is an answer.
            Ok(_turn) => self.claim_alone(claim, since).await,
            Err(withdrawn) => Err(withdrawn.during(Verb::Claim)),
        };
        under_way.answered(&answer);
        answer
    }

    async fn claim_alone(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<Verdict, Error> {
        for _ in 0..LEASES {
            let answer = match self.own(claim, since).await {
                Ok((own, stale)) => {
                    // Beside each other: what the claim rests on is answered for when both are.
                    let (kept, answer) =
                        tokio::join!(self.kept(stale, since), self.claim_with(&own, since));
                    let answer = answer.and_then(|verdict| kept.map(|()| verdict));
                    if matches!(answer, Err(Halt::Trouble(Trouble::LeaseGone))) {
                        self.leases.forget(&own.lease);
                        own.delay.iter().for_each(|lease| self.leases.forget(lease));
                    }
                    answer
                }
                Err(halt) => Err(halt),
            };
            match answer {
                Err(Halt::Trouble(Trouble::LeaseGone)) => {}
                answer => return answer.map_err(|halt| halt.into_error(Verb::Claim)),
            }
        }
        Err(Trouble::LeaseGone.into_error().during(Verb::Claim))
    }

    /// The leases of a claim, and those of them that have to be kept alive beside it.
    async fn own(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        since: Tick,
    ) -> Result<(Own, Vec<Arc<Lease>>), Halt> {
        let who = claim.session.map_or(Who::Claim(claim.id), Who::Session);
        let term = |extra| Term { who, length: claim.lease, extra };
        let mut stale = Vec::new();
        let mut lease = async |term| {
            Ok::<_, Halt>(match self.leases.standing(term, since) {
                Standing::Fresh(lease) => lease,
                Standing::Stale(lease) => {
                    stale.push(Arc::clone(&lease));
                    lease
                }
                Standing::None => {
                    let inner = Arc::clone(self);
                    let made = async move { inner.leases.ensure(term, since).await };
                    self.tasks.apart(Box::pin(made)).await??
                }
            })
        };
        // The longer one first, here and when they are kept alive: it must outlive the other.
        let delay = if claim.lock_delay.is_zero() {
            None
        } else {
            Some(lease(term(claim.lock_delay)).await?)
        };
        let lease = lease(term(Duration::ZERO)).await?;
        let tag = self.roll.get(claim.id).map_or(Tag::FIRST, |entry| entry.own.tag);
        Ok((Own { claim: Arc::clone(claim), lease, delay, tag }, stale))
    }

    /// Keeps leases alive that others rest on as well.
    async fn kept(self: &Arc<Self>, leases: Vec<Arc<Lease>>, since: Tick) -> Result<(), Halt> {
        if leases.is_empty() {
            return Ok(());
        }
        let inner = Arc::clone(self);
        let kept = async move { inner.keep(&leases, since).await };
        Ok(self.tasks.apart(Box::pin(kept)).await??)
    }

    /// Keeps leases alive, one after the other.
    pub(super) async fn keep(&self, leases: &[Arc<Lease>], since: Tick) -> Result<(), Trouble> {
        for lease in leases {
            self.leases.keep_alive(lease, since).await?;
        }
        Ok(())
    }

    async fn claim_with(self: &Arc<Self>, own: &Own, since: Tick) -> Result<Verdict, Halt> {
        self.crowd.wanted(own.claim.id)?;
        let before = self.roll.get(own.claim.id);
        let repeated = before.is_some();
        if !self.roll.enter(own, since) {
            // Its time was up a moment ago: it must be gone before it can come anew.
            let (inner, claim) = (Arc::clone(self), Arc::clone(&own.claim));
            let ended = async move { inner.end_claim(&claim.parts, claim.id).await };
            self.tasks.apart(Box::pin(ended)).await??;
            self.roll.leave(own.claim.id);
            self.roll.enter(own, since);
        }
        let answer = if !repeated && self.has_line(&own.claim) {
            Ok(Fast::Look(None))
        } else {
            self.claim_fast(own).await
        };
        let verdict = match answer {
            Ok(Fast::Granted(grant)) => Ok(Verdict::Granted(grant)),
            Ok(Fast::Look(found)) => {
                let (inner, own) = (Arc::clone(self), own.clone());
                let judged = async move { inner.claim_contended(own, found, repeated).await };
                self.tasks.apart(Box::pin(judged)).await.map_err(Halt::from).flatten()
            }
            Err(trouble) => Err(trouble),
        };
        match &verdict {
            Ok(Verdict::Refused(_)) => {
                // A refused copy says nothing of a claim that stands.
                if self.roll.get(own.claim.id).is_some_and(|entry| entry.phase == Phase::Asked) {
                    self.roll.leave(own.claim.id);
                }
            }
            // The answer may have come after the claim's time was up and everything was ended.
            Ok(_) if self.roll.get(own.claim.id).is_none() => {
                self.roll.enter(own, since);
            }
            Ok(_) | Err(_) => {}
        }
        // The leader may have changed: what the claim has must hang on leases that were made since.
        let elsewhere = before.is_some_and(|before| before.own.lease.id != own.lease.id);
        if matches!(verdict, Ok(Verdict::Granted(_) | Verdict::Queued(_)))
            && (elsewhere || self.is_old(own))
        {
            let entries: Vec<_> = self.roll.get(own.claim.id).into_iter().collect();
            let inner = Arc::clone(self);
            let moved = async move { inner.move_keys(entries, since).await };
            self.tasks.apart(Box::pin(moved)).await??;
        }
        verdict
    }

    /// One call: if nobody holds or waits and nothing keeps the slots closed, the claim holds.
    /// Otherwise the same call tells what stands there.
    async fn claim_fast(&self, own: &Own) -> Result<Fast, Halt> {
        let (claim, wall) = (&own.claim, self.clock.wall_micros());
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        if claim.replaces.is_some() {
            // There is something to replace, so the slots are not empty.
            return Ok(Fast::Look(Some(self.look(&names, &[claim.id]).await?)));
        }
        let otherwise = reads_some(&self.keys, &names, &[claim.id], FEW);
        let mut change = Change::default();
        change.absent(self.keys.tomb(claim.id));
        let epoch = self.epoch();
        let fence = FenceAt::Created(epoch.raised);
        let value = Record { fence, ..Record::new(claim, wall) }.write();
        for name in &names {
            let slot = self.keys.slot(name);
            let empty = Compare::create_revision(slot.from, CompareResult::Equal, 0);
            change.compares.push(empty.with_range(slot.to));
            change.put(self.keys.claim(name, Kind::Hold, own.tag), value.clone(), own.lease.id);
            if let Some(delay) = &own.delay {
                let key = self.keys.claim(name, Kind::Delay, own.tag);
                change.put(key, value.clone(), delay.id);
            }
        }
        let answer = self.when_agreed(epoch, change, otherwise).await?;
        if answer.held {
            let grant = grant_at(&names, epoch, answer.revision);
            let by = Some(answer.revision);
            self.roll.stands(claim.id, Phase::Held { by, waited: false });
            return Ok(Fast::Granted(grant));
        }
        if answer.replies.iter().any(ResponseOp::is_cut) {
            // A crowd stands there, which is looked at only if need be.
            return Ok(Fast::Look(None));
        }
        let found = picture(&self.keys, self.epoch(), answer, &names, &[claim.id])?;
        Ok(Fast::Look(Some(found)))
    }

    pub(super) async fn claim_by_rules(
        self: &Arc<Self>,
        mut own: Own,
        found: Option<Picture>,
    ) -> Result<Verdict, Halt> {
        let claim = &Arc::clone(&own.claim);
        let mut found = self.found_or_look(found, claim).await?;
        for attempt in 0..TRIES {
            self.wanted(claim)?;
            found = self.with_replaced(found, claim).await?;
            own.tag = found.tag_for(claim, own.tag, attempt);
            self.roll.tag(claim.id, own.tag);
            let now = self.now();
            let mut rules = found.rules(now, 0);
            let step = Step::new(&self.keys, &found, &mut rules);
            let verdict = rules.claim(claim, now);
            let mut change = step.change(&mut rules, Some(&own), now.wall_micros)?;
            let mut revision = found.revision;
            if !change.is_empty() {
                if let (Verdict::Queued(_), [part]) = (&verdict, claim.parts.as_slice()) {
                    change.writes.push(last_two(self.keys.kind(part.name(), Kind::Wait)));
                }
                let names: Vec<Name> = found.slots.keys().cloned().collect();
                let otherwise = reads(&self.keys, &names, &[claim.id]);
                let answer = self.when_agreed(found.epoch, change, otherwise).await?;
                if !answer.held {
                    found = picture(&self.keys, self.epoch(), answer, &names, &[claim.id])?;
                    self.pause(attempt).await;
                    continue;
                }
                revision = answer.revision;
                // Others may have come to the line since we looked. Without them all of us would
                // watch the same ticket.
                for key in answer.replies.into_iter().flat_map(ResponseOp::into_kvs) {
                    found.add_ticket(&self.keys, claim.parts.first_name(), &key, claim.id);
                }
            }
            return Ok(match verdict {
                Verdict::Granted(grant) => {
                    let grant = settle_grant(&grant, found.epoch, revision);
                    self.now_held(claim, &grant, &found, &mut rules);
                    self.waits.held(self, claim.id);
                    Verdict::Granted(grant)
                }
                Verdict::Queued(mut queued) => {
                    queued.arrival = settle_arrival(queued.arrival, revision);
                    self.roll.stands(claim.id, Phase::Waiting);
                    // A newcomer may move its kin ahead of the line, and itself with them.
                    rules.admit_at_most(1);
                    let id = claim.id;
                    claim.parts.names().for_each(|name| rules.serve(name, now));
                    let moves = match rules.stands(id, &claim.parts, now) {
                        Some(Renewed::Waiting(after)) => after.place != queued.place,
                        _ => true,
                    };
                    self.begin_wait(&own, queued.arrival, &found);
                    if moves {
                        self.evaluate(id).await;
                        return self.settled(&own, Verdict::Queued(queued)).await;
                    }
                    Verdict::Queued(queued)
                }
                refused @ Verdict::Refused(_) => refused,
            });
        }
        Err(crowded(claim.parts.first_name()).into())
    }

    async fn found_or_look(&self, found: Option<Picture>, claim: &Claim) -> Result<Picture, Halt> {
        if let Some(found) = found {
            return Ok(found);
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        self.look(&names, &[claim.id]).await
    }

    /// How a claim stands after it was served in the same breath.
    async fn settled(&self, own: &Own, otherwise: Verdict) -> Result<Verdict, Halt> {
        let claim = &own.claim;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let found = self.look(&names, &[claim.id]).await?;
        let now = self.now();
        Ok(match found.rules(now, 0).stands(claim.id, &claim.parts, now) {
            Some(Renewed::Held(grant)) => Verdict::Granted(grant),
            Some(Renewed::Waiting(queued)) => Verdict::Queued(queued),
            _ => otherwise,
        })
    }

    /// The same picture with the other slots of the claim that is to be replaced.
    async fn with_replaced(&self, found: Picture, claim: &Claim) -> Result<Picture, Halt> {
        let Some(old) = claim.replaces else { return Ok(found) };
        self.with_parts(found, &[old], claim.id).await
    }

    /// The same picture with all slots of these claims, if it has some of them.
    pub(super) async fn with_parts(
        &self,
        found: Picture,
        claims: &[ClaimId],
        tomb: ClaimId,
    ) -> Result<Picture, Halt> {
        let mut found = found;
        loop {
            let seen = found.slots.values().flatten();
            let concerned = seen.filter(|seen| claims.contains(&seen.id));
            let all = concerned.flat_map(|seen| seen.record.claim.parts.names());
            let mut names: Vec<Name> = all.chain(found.slots.keys()).cloned().collect();
            names.sort();
            names.dedup();
            if names.len() == found.slots.len() {
                return Ok(found);
            }
            found = self.look(&names, &[tomb]).await?;
        }
    }

    /// Reads slots and tombstones, all at one revision.
    pub(super) async fn look(&self, names: &[Name], tombs: &[ClaimId]) -> Result<Picture, Halt> {
        let answer = self.link.read(reads(&self.keys, names, tombs)).await?;
        Ok(picture(&self.keys, self.epoch(), answer, names, tombs)?)
    }

    /// A little time for others to get their step done, once they were faster a few times.
    pub(super) async fn pause(&self, attempt: usize) {
        if attempt >= 4 {
            let millis = u64::from(crate::sync::random_bytes()[0]) % (attempt as u64);
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Remembers how a claim came to hold, for a quick release.
    pub(super) fn now_held(
        &self,
        claim: &Claim,
        grant: &Grant,
        found: &Picture,
        rules: &mut Rules,
    ) {
        let id = claim.id;
        let mut fences = grant.fences.as_slice().iter();
        let first = fences.next().copied();
        let same = fences.all(|fence| Some(*fence) == first);
        let fresh =
            first.map(|fence| found.epoch.revision(fence)).filter(|by| *by > found.revision);
        if fresh.is_none() && self.roll.holds(id) {
            return;
        }
        // Whoever shares a fence takes its name out of the group when it goes.
        let alone = claim.parts.names().all(|name| {
            let slot = rules.shelf().peek(name);
            let hold = slot.and_then(|slot| slot.holds.iter().find(|hold| hold.claim.id == id));
            hold.is_some_and(|hold| hold.group.is_none())
        });
        let waited = found.slots.keys().any(|name| found.ticket(name, id).is_some());
        self.roll.stands(id, Phase::Held { by: fresh.filter(|_| same && alone), waited });
    }
}

/// A grant of names that were all empty.
fn grant_at(names: &[Name], epoch: Epoch, revision: u64) -> Grant {
    let fence = Fence::new(epoch.fence(revision));
    let fences = names.iter().map(|_| fence).collect();
    Grant { fences, arrival: crate::contract::Arrival(revision) }
}

enum Fast {
    Granted(Grant),
    /// What stands there; none if that was too much to read.
    Look(Option<Picture>),
}

/// Why a verb has no answer.
#[derive(Debug)]
pub(super) enum Halt {
    Trouble(Trouble),
    Error(Error),
}

impl Halt {
    pub(super) fn into_error(self, verb: Verb) -> Error {
        match self {
            Self::Trouble(trouble) => trouble.into_error().during(verb),
            Self::Error(error) => error.during(verb),
        }
    }
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Others were faster too often.
pub(super) fn crowded(name: &Name) -> Error {
    Error::new(ErrorKind::Unavailable, "others changed this lock faster than we could look at it")
        .on(name)
        .with_help("call again; if it happens often, spread the load over several names")
}

/// The error of a claim whose lease passed before it was sent.
pub(super) fn too_late(lease: Duration) -> Error {
    let what = format!("the claim was not sent: its turn came after its lease of {}", short(lease));
    Error::new(ErrorKind::Unavailable, what)
        .with_help("call again; if it happens often, use longer leases or fewer claims at once")
}

//! The renew verb: keep-alives for the leases and a look at the keys, beside each other. Knows
//! batches; what a claim's turn in line is worth is decided in `waits.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::{Halt, TRIES, crowded};
use super::client::{RequestOp, ResponseOp};
use super::errors::Trouble;
use super::keys::{Kind, Tag};
use super::leases::{Lease, Leases, Term, Who};
use super::picture::{Picture, Seen, settle_renewed};
use super::roll::{Entry, Phase};
use super::step::{Own, Step, picture, reads};
use crate::contract::{ClaimId, ClaimRef, Error, Loss, Name, Renewed, Verb};
use crate::time::Tick;

/// How many keys are read or deleted in one call. etcd takes 128 operations at most, if it is not
/// told more.
pub(super) const TOGETHER: usize = 100;

impl Inner {
    /// Keeps claims alive that were asked for at `since`.
    pub(super) async fn renew(
        self: &Arc<Self>,
        batch: &[ClaimRef],
        since: Tick,
    ) -> Result<Vec<Renewed>, Error> {
        let entries: HashMap<ClaimId, Entry> =
            batch.iter().filter_map(|one| Some((one.id, self.roll.get(one.id)?))).collect();
        let leases = distinct(entries.values());
        let (kept, found) =
            tokio::join!(self.keep_all(&leases, since), self.look_at_holds(batch, &entries));
        let failed = |halt: Halt| halt.into_error(Verb::Renew);
        let gone = kept.map_err(|trouble| failed(trouble.into()))?;
        let mut found = found.map_err(failed)?;
        let ids: Vec<ClaimId> = batch.iter().map(|claim| claim.id).collect();
        self.move_old(&ids, since).await.map_err(failed)?;
        found.extend(self.look_at_lines(batch, &entries).await.map_err(failed)?);
        let mut answers = Vec::with_capacity(batch.len());
        for claim in batch {
            let entry = entries.get(&claim.id);
            let lost = entry.is_some_and(|entry| gone.contains(&entry.own.lease.id));
            let plain = found.remove(&claim.id).filter(|_| !lost);
            let answer = match plain {
                Some(held) => Ok(held),
                None => self.renew_one(claim, entry, since).await,
            };
            answers.push(answer.map_err(failed)?);
        }
        Ok(answers)
    }

    /// Keeps all these leases alive, and says which are gone. The first trouble of another kind is
    /// the answer for all: they share the connection.
    async fn keep_all(&self, leases: &[Arc<Lease>], since: Tick) -> Result<HashSet<i64>, Trouble> {
        let mut gone = HashSet::new();
        for lease in leases {
            match self.leases.keep_alive(lease, since).await {
                Ok(()) => {}
                Err(Trouble::LeaseGone) => {
                    gone.insert(lease.id);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(gone)
    }

    /// The answers for claims that hold as far as we know and share their fences with nobody: their
    /// keys say all there is to say.
    async fn look_at_holds(
        &self,
        batch: &[ClaimRef],
        entries: &HashMap<ClaimId, Entry>,
    ) -> Result<HashMap<ClaimId, Renewed>, Halt> {
        let held = |claim: &&ClaimRef| {
            let phase = entries.get(&claim.id).map(|entry| entry.phase);
            matches!(phase, Some(Phase::Held { .. }))
        };
        let tag = |claim: &ClaimRef| entries.get(&claim.id).map_or(Tag::FIRST, |one| one.own.tag);
        let key = |claim: &ClaimRef, name: &Name| self.keys.claim(name, Kind::Hold, tag(claim));
        let claims: Vec<&ClaimRef> = batch.iter().filter(held).collect();
        let mut wanted: Vec<RequestOp> = Vec::new();
        for claim in &claims {
            wanted.extend(claim.parts.names().map(|name| RequestOp::get(key(claim, name))));
        }
        let mut replies = Vec::with_capacity(wanted.len());
        for some in wanted.chunks(TOGETHER) {
            replies.extend(self.link.read(some.to_vec()).await?.replies);
        }
        let mut replies = replies.into_iter().map(ResponseOp::into_kvs);
        let mut answers = HashMap::new();
        for claim in claims {
            let mut picture = Picture::new(0, self.epoch());
            for name in claim.parts.names() {
                let found = replies.next().unwrap_or_default();
                picture.add(&self.keys, name, &found)?;
            }
            // What hangs on another lease than the one that is kept alive has to be moved first.
            let lease = entries.get(&claim.id).map(|entry| entry.own.lease.id);
            let alone = |seen: &Seen| {
                seen.record.group.is_none() && !seen.record.reserved && Some(seen.lease) == lease
            };
            let now = self.now();
            if picture.slots.values().all(|all| all.len() == 1 && all.iter().all(alone))
                && let Some(answer) = picture.rules(now, 0).stands(claim.id, &claim.parts, now)
            {
                answers.insert(claim.id, answer);
            }
        }
        Ok(answers)
    }

    /// The answers for claims that wait behind others for the same name: one look for all of them.
    async fn look_at_lines(
        &self,
        batch: &[ClaimRef],
        entries: &HashMap<ClaimId, Entry>,
    ) -> Result<HashMap<ClaimId, Renewed>, Halt> {
        let mut lines: HashMap<&Name, Vec<&ClaimRef>> = HashMap::new();
        for claim in batch {
            let waits = entries.get(&claim.id).is_some_and(|one| one.phase == Phase::Waiting);
            if waits && claim.parts.as_slice().len() == 1 && self.waits.contains(claim.id) {
                lines.entry(claim.parts.first_name()).or_default().push(claim);
            }
        }
        let mut answers = HashMap::new();
        for (name, claims) in lines.into_iter().filter(|(_, claims)| claims.len() > 1) {
            let found = self.look(std::slice::from_ref(name), &[]).await?;
            let now = self.now();
            let mut rules = found.rules(now, 0);
            for claim in claims {
                // The turn of the first may have come without a word.
                if let Some(answer @ Renewed::Waiting(_)) =
                    rules.stands(claim.id, &claim.parts, now)
                    && matches!(&answer, Renewed::Waiting(queued) if queued.place > 1)
                {
                    answers.insert(claim.id, answer);
                }
            }
        }
        Ok(answers)
    }

    /// The long way: a look at all its slots and a step of the rules.
    async fn renew_one(
        self: &Arc<Self>,
        claim: &ClaimRef,
        entry: Option<&Entry>,
        since: Tick,
    ) -> Result<Renewed, Halt> {
        if entry.is_some_and(|entry| entry.phase == Phase::Ended) {
            return Ok(Renewed::Gone(self.epitaph(claim.id).await?));
        }
        // Its turn may have come without a word.
        self.evaluate(claim.id).await;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = self.look(&names, &[claim.id]).await?;
        match entry {
            None => self.keep_alive_of(claim, &found, since).await?,
            Some(_) => self.move_strays(claim.id, &found, since).await?,
        }
        let was_held = matches!(entry.map(|entry| entry.phase), Some(Phase::Held { .. }));
        for attempt in 0..TRIES {
            let now = self.now();
            let holds = |name: &Name| found.seen(name, Kind::Hold, claim.id).is_some();
            if was_held && !names.iter().all(holds) {
                // Somebody deleted a hold by hand. Its ticket must not make it hold once more.
                self.end_claim(&claim.parts, claim.id).await?;
                self.forget_claim(claim.id);
                return Ok(Renewed::Gone(self.epitaph(claim.id).await?));
            }
            let mut rules = found.rules(now, 0);
            let step = Step::new(&self.keys, &found, &mut rules);
            let answer = rules.renew(std::slice::from_ref(claim), now).pop();
            let answer = answer.unwrap_or(Renewed::Gone(Loss::Forgotten));
            let change = step.change(&mut rules, None, now.wall_micros)?;
            let mut revision = found.revision;
            if !change.is_empty() {
                let otherwise = reads(&self.keys, &names, &[claim.id]);
                let done = self.when_agreed(found.epoch, change, otherwise).await?;
                if !done.held {
                    found = picture(&self.keys, self.epoch(), done, &names, &[claim.id])?;
                    self.pause(attempt).await;
                    continue;
                }
                revision = done.revision;
            }
            let answer = settle_renewed(answer, found.epoch, revision);
            match &answer {
                Renewed::Held(_) if !self.roll.holds(claim.id) => {
                    self.roll.stands(claim.id, Phase::Held { by: None, waited: true });
                }
                Renewed::Held(_) | Renewed::Unanswered(_) => {}
                Renewed::Waiting(queued) => {
                    self.go_on_waiting(claim, queued.arrival, &found, since);
                }
                Renewed::Gone(_) => self.forget_claim(claim.id),
            }
            return Ok(answer);
        }
        Err(crowded(claim.parts.first_name()).into())
    }

    /// Keeps a claim alive that another process made.
    async fn keep_alive_of(
        &self,
        claim: &ClaimRef,
        found: &Picture,
        since: Tick,
    ) -> Result<(), Halt> {
        let seen = found.slots.values().flatten().filter(|seen| seen.id == claim.id);
        let mut leases: Vec<(bool, i64)> =
            seen.map(|seen| (seen.kind != Kind::Delay, seen.lease)).collect();
        leases.sort_unstable();
        leases.dedup();
        // Those of lock delays first: they must outlive the others.
        for (_, lease) in leases {
            match self.leases.keep_alive_by_id(lease, since).await {
                Ok(()) | Err(Trouble::LeaseGone) => {}
                Err(trouble) => return Err(trouble.into()),
            }
        }
        Ok(())
    }

    /// Looks after a ticket that nobody looks after: another process made it, or trouble ended it.
    fn go_on_waiting(
        self: &Arc<Self>,
        claim: &ClaimRef,
        arrival: crate::contract::Arrival,
        found: &Picture,
        since: Tick,
    ) {
        if self.waits.contains(claim.id) {
            return;
        }
        let own = if let Some(entry) = self.roll.get(claim.id) {
            entry.own
        } else {
            let mut all = found.slots.keys();
            let Some(seen) = all.find_map(|name| found.ticket(name, claim.id)) else { return };
            let (who, extra) = (Who::Claim(claim.id), Duration::ZERO);
            let term = Term { who, length: claim.lease, extra };
            let lease = Leases::adopt(seen.lease, term, since);
            Own { claim: Arc::clone(&seen.record.claim), lease, delay: None, tag: seen.tag }
        };
        self.begin_wait(&own, arrival, found);
    }

    /// Why a claim is gone, as far as the store remembers.
    async fn epitaph(&self, id: ClaimId) -> Result<Loss, Halt> {
        let found = self.look(&[], &[id]).await?;
        Ok(match found.tombs.get(&id) {
            Some(Some(reason)) => Loss::Evicted { reason: Arc::clone(reason) },
            _ => Loss::Forgotten,
        })
    }

    /// The claim is not in the store any more.
    pub(super) fn forget_claim(self: &Arc<Self>, id: ClaimId) {
        self.waits.end(self, id);
        self.roll.leave(id);
    }
}

/// The leases of these claims, those of lock delays first, because they must outlive the others.
fn distinct<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Arc<Lease>> {
    let (mut delays, mut leases): (Vec<Arc<Lease>>, Vec<Arc<Lease>>) = (Vec::new(), Vec::new());
    for entry in entries.filter(|entry| entry.phase != Phase::Ended) {
        let known = |all: &[Arc<Lease>], one: &Lease| all.iter().any(|lease| lease.id == one.id);
        if let Some(delay) = entry.own.delay.as_ref().filter(|one| !known(&delays, one)) {
            delays.push(Arc::clone(delay));
        }
        if !known(&leases, &entry.own.lease) {
            leases.push(Arc::clone(&entry.own.lease));
        }
    }
    delays.extend(leases);
    delays
}

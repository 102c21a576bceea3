//! Claims that wait: what each of them watches, and the step that makes it hold when its turn has
//! come. Knows tickets of this engine alone; those of others are served by theirs.
//!
//! A waiter watches only what decides. Behind another ticket that is the ticket before it; at the
//! head of the line it is whoever holds. Only claims with kin in the slot watch all of it.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Inner;
use super::claim::Halt;
use super::client::{Compare, CompareResult, RangeRequest, ResponseOp};
use super::crowd::LocalQueue;
use super::errors::Trouble;
use super::keys::Kind;
use super::leases::Lease;
use super::picture::{Picture, Rules, line_of, part_of, settle_grant};
use super::record::{FenceAt, Record};
use super::roll::Phase;
use super::step::{Change, Own, Step, number};
use super::watching::Spec;
use crate::contract::{Arrival, ClaimId, Fence, Grant, IdMap, Name, Renewed, Signal};
use crate::ledger::Now;
use crate::ledger::seam::{Line, Shelf};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// How long to wait before a turn is tried again that got no answer.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Most tries of one turn.
const TRIES: usize = 64;

/// The waiting claims of an engine.
#[derive(Default)]
pub(super) struct Waits {
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) waits: IdMap<ClaimId, Wait>,
    by_watch: HashMap<i64, ClaimId>,
    /// Claims that wait for the same name, one behind the other.
    pub(super) lines: HashMap<Name, LocalQueue>,
    /// Names at whose slots a newcomer looks, and who waits for that.
    pub(super) leaders: HashMap<Name, Vec<oneshot::Sender<()>>>,
}

pub(super) struct Wait {
    pub(super) own: Own,
    /// The revision of its ticket.
    pub(super) arrival: u64,
    /// What is watched.
    pub(super) watches: Vec<(Spec, i64)>,
    /// The line that it stands in, if it does.
    pub(super) line: Option<Name>,
    /// Somebody looks after it just now; and must look once more.
    busy: bool,
    again: bool,
    /// Nothing but a ticket before it decides: it may try to hold without a look.
    plain: bool,
}

impl Wait {
    pub(super) fn new(own: &Own, arrival: u64, plain: bool) -> Self {
        let (own, watches, line) = (own.clone(), Vec::new(), None);
        Self { own, arrival, watches, line, busy: false, again: false, plain }
    }
}

/// Whether a wait goes on.
enum Turn {
    /// It holds.
    Holds,
    /// It waits, and these decide.
    Waits { specs: Vec<Spec>, plain: bool },
    /// It is not in line any more.
    Gone,
}

impl Waits {
    /// Which claim waits on a watch.
    pub(super) fn of_watch(&self, watch: i64) -> Option<ClaimId> {
        self.lock().by_watch.get(&watch).copied()
    }

    /// The claims that wait for something in the store, not for another claim of this engine.
    pub(super) fn watching(&self) -> Vec<ClaimId> {
        let state = self.lock();
        let watches = |wait: &Wait| wait.line.is_none() || !wait.watches.is_empty() || wait.busy;
        state.waits.iter().filter(|(_, wait)| watches(wait)).map(|(id, _)| *id).collect()
    }

    /// The claim waits no more: it is not in the queue.
    pub(super) fn end(&self, inner: &Arc<Inner>, id: ClaimId) {
        self.finish(inner, id, false);
    }

    /// The claim waits no more: it holds.
    pub(super) fn held(&self, inner: &Arc<Inner>, id: ClaimId) {
        self.finish(inner, id, true);
    }

    fn finish(&self, inner: &Arc<Inner>, id: ClaimId, held: bool) {
        let mut state = self.lock();
        let Some(wait) = state.waits.remove(&id) else { return };
        for (_, watch) in &wait.watches {
            state.by_watch.remove(watch);
            inner.watching.remove(*watch);
        }
        let name = wait.line.as_ref();
        let next = name.and_then(|name| state.leave(name, wait.arrival, wait.own.tag));
        drop(state);
        if let Some(next) = next {
            inner.promote(next, &wait, held);
        }
    }

    /// Says on which leases the keys of a claim hang now.
    pub(super) fn hang(&self, id: ClaimId, lease: &Arc<Lease>, delay: Option<&Arc<Lease>>) {
        if let Some(wait) = self.lock().waits.get_mut(&id) {
            wait.own.lease = Arc::clone(lease);
            wait.own.delay = delay.cloned();
        }
    }

    pub(super) fn contains(&self, id: ClaimId) -> bool {
        self.lock().waits.contains_key(&id)
    }

    /// Begins to look after a claim, unless somebody does already: then that one looks again.
    fn take(&self, id: ClaimId) -> Option<(Own, Option<u64>)> {
        let mut state = self.lock();
        let wait = state.waits.get_mut(&id)?;
        if wait.busy {
            wait.again = true;
            return None;
        }
        wait.busy = true;
        Some((wait.own.clone(), wait.plain.then_some(wait.arrival)))
    }

    /// Ends a look. True if another one was asked for meanwhile.
    fn put_back(&self, id: ClaimId) -> bool {
        let mut state = self.lock();
        let Some(wait) = state.waits.get_mut(&id) else { return false };
        let again = std::mem::take(&mut wait.again);
        wait.busy = again;
        again
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A claim has taken its place in line: watch what decides. What it was decided from is told by
    /// `found`, in which its own ticket need not be.
    pub(super) fn begin_wait(&self, own: &Own, arrival: Arrival, found: &Picture) {
        let id = own.claim.id;
        let mut state = self.waits.lock();
        state.waits.entry(id).or_insert_with(|| Wait::new(own, arrival.0, false));
        drop(state);
        let now = self.now();
        let mut rules = found.rules(now, 0);
        let known = own.claim.parts.names().any(|name| found.ticket(name, id).is_some());
        if !known {
            rules.claim(&own.claim, now);
        }
        let (specs, plain) = self.deciding(own, found, &mut rules);
        if plain && self.stand_in_line(own, arrival.0) {
            return;
        }
        self.watch(id, specs, plain);
    }

    /// Puts a claim into the line of its name. True if another claim of this engine is before it,
    /// so that it has nothing to watch.
    fn stand_in_line(&self, own: &Own, arrival: u64) -> bool {
        let (id, name) = (own.claim.id, own.claim.parts.first_name());
        let mut state = self.waits.lock();
        if state.waits.get(&id).is_none_or(|wait| wait.arrival != arrival) {
            return false;
        }
        let first = state.join(name, arrival, id, own.tag);
        if let Some(wait) = state.waits.get_mut(&id) {
            wait.line = Some(name.clone());
            wait.plain = true;
        }
        !first
    }

    /// Watches these and nothing else for a claim.
    pub(super) fn watch(&self, id: ClaimId, specs: Vec<Spec>, plain: bool) {
        let mut state = self.waits.lock();
        let Some(wait) = state.waits.get_mut(&id) else { return };
        wait.plain = plain;
        let (keep, drop): (Vec<_>, Vec<_>) = std::mem::take(&mut wait.watches)
            .into_iter()
            .partition(|(spec, _)| specs.contains(spec));
        wait.watches = keep;
        let fresh: Vec<Spec> = specs
            .into_iter()
            .filter(|spec| !wait.watches.iter().any(|(known, _)| known == spec))
            .collect();
        for (_, watch) in drop {
            state.by_watch.remove(&watch);
            self.watching.remove(watch);
        }
        for spec in fresh {
            let watch = self.watching.add(spec.clone());
            state.by_watch.insert(watch, id);
            if let Some(wait) = state.waits.get_mut(&id) {
                wait.watches.push((spec, watch));
            }
        }
    }

    /// A watch stands: is what it watches still as it was?
    pub(super) async fn verify(self: &Arc<Self>, watch: i64, id: ClaimId) {
        let spec = {
            let state = self.waits.lock();
            let wait = state.waits.get(&id);
            wait.and_then(|wait| wait.watches.iter().find(|(_, w)| *w == watch))
                .map(|w| w.0.clone())
        };
        let (key, expected) = match spec {
            None => return,
            Some(Spec::Gone(key, created)) => (key, Some(created)),
            Some(Spec::Written(key)) => (key, None),
            Some(Spec::GoneIn(_) | Spec::All(_)) => return self.evaluate(id).await,
        };
        let wanted = RangeRequest { key, keys_only: true, ..RangeRequest::default() };
        let asked = self.link.read(vec![wanted.into()]).await;
        // Another one may stand at the same key by now.
        let there = asked.map(|answer| {
            let found = answer.replies.into_iter().flat_map(ResponseOp::into_kvs).next();
            found.map(|found| u64::try_from(found.create_revision).unwrap_or(0))
        });
        if there.ok() != Some(expected) {
            self.evaluate(id).await;
        }
    }

    /// Looks whether a claim's turn has come, and makes it hold if so.
    pub(super) async fn evaluate(self: &Arc<Self>, id: ClaimId) {
        let Some((own, plain)) = self.waits.take(id) else { return };
        let mut quick = plain.is_some();
        loop {
            match self.turn(&own, plain, quick).await {
                Ok(Turn::Holds) => self.waits.held(self, id),
                Ok(Turn::Gone) => self.waits.end(self, id),
                Ok(Turn::Waits { specs, plain }) => self.watch(id, specs, plain),
                Err(Halt::Trouble(Trouble::LeaseGone)) => {
                    // Whoever renews it is told.
                    self.leases.forget(&own.lease);
                    self.waits.end(self, id);
                }
                Err(halt) => {
                    tracing::debug!(?halt, "a turn in line could not be looked at; trying again");
                    if self.link.is_restored() {
                        return;
                    }
                    tokio::time::sleep(AGAIN).await;
                    if self.waits.contains(id) {
                        continue;
                    }
                }
            }
            if !self.waits.put_back(id) {
                return;
            }
            quick = false;
        }
    }

    /// Looks at a turn. If nothing but who is before it decides, the arrival is given as `plain`;
    /// then only what stands before it is read, and it may be tried without a look.
    async fn turn(
        self: &Arc<Self>,
        own: &Own,
        plain: Option<u64>,
        quick: bool,
    ) -> Result<Turn, Halt> {
        let claim = &own.claim;
        if self.roll.is_over(claim.id, self.clock.now()) {
            return Ok(Turn::Gone);
        }
        let moved = self.with_current_leases(own).await?;
        let own = &moved;
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = if let Some(arrival) = plain.filter(|_| quick) {
            match self.hold_at_once(own, arrival, &names[0]).await? {
                Ok(grant) => {
                    self.granted(own, grant).await?;
                    return Ok(Turn::Holds);
                }
                Err(found) => found,
            }
        } else {
            let read = self.link.read(self.before(own, plain, &names)).await?;
            self.picture_before(own, plain, read, &names)?
        };
        for attempt in 0..TRIES {
            found = match claim.replaces {
                Some(old) => self.with_parts(found, &[old], claim.id).await?,
                None => found,
            };
            if found.tombs.contains_key(&claim.id) {
                // It is being withdrawn.
                return Ok(Turn::Gone);
            }
            let now = self.now();
            let mut before = found.rules(now, 0);
            match before.stands(claim.id, &claim.parts, now) {
                None => return Ok(Turn::Gone),
                Some(Renewed::Held(grant)) => {
                    self.now_held(claim, &grant, &found, &mut before);
                    return Ok(Turn::Holds);
                }
                Some(_) => {}
            }
            let Some((name, mut rules)) = Self::served(own, &found, now) else {
                let (specs, plain) = self.deciding(own, &found, &mut before);
                return Ok(Turn::Waits { specs, plain });
            };
            let step = Step::new(&self.keys, &found, &mut before);
            let change = step.change(&mut rules, Some(own), now.wall_micros)?;
            let all: Vec<Name> = found.slots.keys().cloned().collect();
            let otherwise = self.before(own, plain, &all);
            let answer = self.when_agreed(found.epoch, change, otherwise).await?;
            if answer.held {
                let stands = rules.stands(claim.id, &claim.parts, now);
                if let Some(Renewed::Held(grant)) = stands {
                    let grant = settle_grant(&grant, found.epoch, answer.revision);
                    self.now_held(claim, &grant, &found, &mut rules);
                    self.granted(own, grant).await?;
                    return Ok(Turn::Holds);
                }
                tracing::trace!(%name, "one more part of a set is reserved");
                found = self.look(&all, &[claim.id]).await?;
            } else {
                found = self.picture_before(own, plain, answer, &all)?;
                self.pause(attempt).await;
            }
        }
        Err(super::claim::crowded(claim.parts.first_name()).into())
    }

    /// The rules after the claim was served in one of its slots; none if it is not its turn.
    fn served(own: &Own, found: &Picture, now: Now) -> Option<(Name, Rules)> {
        own.claim.parts.names().find_map(|name| {
            let mut rules = found.rules(now, 1);
            let waits = |rules: &mut Rules| {
                rules.shelf().peek(name).is_some_and(|slot| slot.line.get(own.claim.id).is_some())
            };
            if !waits(&mut rules) {
                return None;
            }
            // An owner's other tickets come in with it; here each of them comes by itself.
            rules.serve_again(name, own.claim.id, now);
            if waits(&mut rules) {
                rules.serve(name, now);
            }
            let holds = rules
                .shelf()
                .peek(name)
                .is_some_and(|slot| slot.holds.iter().any(|hold| hold.claim.id == own.claim.id));
            holds.then(|| (name.clone(), rules))
        })
    }

    /// One call: if nobody holds, nobody stands ahead, nothing keeps the slot closed and no ticket
    /// is older, the claim holds. Otherwise the same call tells what stands there.
    async fn hold_at_once(
        &self,
        own: &Own,
        arrival: u64,
        name: &Name,
    ) -> Result<Result<Grant, Picture>, Halt> {
        let (claim, wall) = (&own.claim, self.clock.wall_micros());
        let (deciding, tickets) = (self.keys.deciding(name), self.keys.kind(name, Kind::Wait));
        let ticket = self.keys.claim(name, Kind::Wait, own.tag);
        let mut change = Change::default();
        change.absent(self.keys.tomb(claim.id));
        let empty = Compare::create_revision(deciding.from, CompareResult::Equal, 0);
        let oldest =
            Compare::create_revision(tickets.from, CompareResult::Greater, number(arrival - 1));
        change.compares.push(empty.with_range(deciding.to));
        change.compares.push(oldest.with_range(tickets.to));
        change.created(ticket, arrival);
        let epoch = self.epoch();
        let (arrived, fence) = (Some(arrival), FenceAt::Created(epoch.raised));
        let record = Record { arrival: arrived, fence, ..Record::new(claim, wall) }.write();
        change.put(self.keys.claim(name, Kind::Hold, own.tag), record.clone(), own.lease.id);
        if let Some(delay) = &own.delay {
            change.put(self.keys.claim(name, Kind::Delay, own.tag), record, delay.id);
        }
        let names = [name.clone()];
        let otherwise = self.before(own, Some(arrival), &names);
        let answer = self.when_agreed(epoch, change, otherwise).await?;
        if !answer.held {
            return Ok(Err(self.picture_before(own, Some(arrival), answer, &names)?));
        }
        let fence = Fence::new(epoch.fence(answer.revision));
        let grant = Grant { fences: std::iter::once(fence).collect(), arrival: Arrival(arrival) };
        self.roll.stands(claim.id, Phase::Held { by: Some(answer.revision), waited: true });
        Ok(Ok(grant))
    }

    /// The claim with leases of the current raft term, to which its ticket is moved.
    async fn with_current_leases(&self, own: &Own) -> Result<Own, Halt> {
        let id = own.claim.id;
        if self.is_old(own) {
            self.move_old(&[id], self.clock.now()).await?;
        }
        Ok(self.roll.get(id).map_or_else(|| own.clone(), |entry| entry.own))
    }

    /// Tells the session that its claim holds.
    async fn granted(&self, own: &Own, grant: Grant) -> Result<(), Halt> {
        let claim = own.claim.id;
        // The leader may have changed before the hold was made, and the ticket have been moved.
        let entry = self.roll.get(claim);
        if entry.as_ref().is_some_and(|entry| entry.own.lease.id != own.lease.id)
            || self.is_old(own)
        {
            self.move_keys(entry.into_iter().collect(), self.clock.now()).await?;
        }
        if let Some(session) = own.claim.session {
            self.tell(session, Signal::Granted { claim, grant });
        }
        Ok(())
    }

    /// What decides when a claim's turn has come, and whether it is nothing but who is before it.
    fn deciding(&self, own: &Own, found: &Picture, rules: &mut Rules) -> (Vec<Spec>, bool) {
        let (claim, mut specs) = (&own.claim, Vec::new());
        let single = claim.parts.as_slice().len() == 1;
        let mut plain = single && claim.replaces.is_none();
        for name in claim.parts.names() {
            let Some(slot) = rules.shelf().peek(name) else { continue };
            let Some(ticket) = slot.line.get(claim.id) else { continue };
            let owner = claim.lineage.owner();
            let kin = !claim.lineage.ancestors().is_empty()
                || claim.replaces.is_some()
                || ticket.ahead()
                || slot.holds.iter().any(|hold| hold.claim.lineage.includes(owner))
                || slot.line.kin_of(owner).any(|other| other.claim.id != claim.id);
            if kin {
                plain = false;
                specs.push(Spec::All(self.keys.slot(name)));
                continue;
            }
            let line = line_of(slot);
            let before = line.iter().take_while(|other| **other != claim.id).last();
            if let Some(seen) = before.and_then(|id| found.ticket(name, *id)) {
                specs.push(Spec::Gone(seen.key.clone(), seen.created));
                let weight = |of: &super::picture::Seen| {
                    part_of(&of.record.claim, name).map_or(0, |part| u64::from(part.weight()))
                };
                let both = u64::from(ticket.weight) + weight(seen);
                if both <= u64::from(slot.shape.capacity()) {
                    // They fit beside each other: when that one comes in, this one may follow.
                    specs.push(Spec::Written(self.keys.claim(name, Kind::Hold, seen.tag)));
                }
                continue;
            }
            let holds: SmallVec<[ClaimId; 2]> = slot.holds.iter().map(|h| h.claim.id).collect();
            let one = match holds.as_slice() {
                [one] => found.seen(name, Kind::Hold, *one),
                _ => None,
            };
            specs.push(match one {
                Some(one) => Spec::Gone(one.key.clone(), one.created),
                None => Spec::GoneIn(self.keys.kind(name, Kind::Hold)),
            });
            if found.slots.get(name).is_some_and(|all| all.iter().any(|s| s.kind == Kind::Delay)) {
                specs.push(Spec::GoneIn(self.keys.kind(name, Kind::Delay)));
            }
        }
        (specs, plain)
    }
}

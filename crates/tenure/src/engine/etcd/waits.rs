//! Claims that wait: what each of them watches, and the step that makes it hold when its turn has
//! come. Knows tickets of this engine alone; those of others are served by theirs.
//!
//! A waiter watches only what decides. Behind another ticket that is the ticket before it; at the
//! head of the line it is whoever holds. Only claims with kin in the slot watch all of it.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, TxnOp};
use smallvec::SmallVec;

use super::Inner;
use super::claim::Halt;
use super::keys::Kind;
use super::picture::{Picture, Rules, line_of, part_of, settle_grant};
use super::record::Record;
use super::roll::Phase;
use super::step::{Change, Own, Step, found_in, number, picture, reads};
use super::trouble::Trouble;
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
struct State {
    waits: IdMap<ClaimId, Wait>,
    by_watch: std::collections::HashMap<i64, ClaimId>,
}

struct Wait {
    own: Own,
    /// The revision of its ticket.
    arrival: u64,
    /// What is watched.
    watches: Vec<(Spec, i64)>,
    /// Somebody looks after it just now; and must look once more.
    busy: bool,
    again: bool,
    /// Nothing but a ticket before it decides: it may try to hold without a look.
    plain: bool,
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

    /// All claims that wait.
    pub(super) fn all(&self) -> Vec<ClaimId> {
        self.lock().waits.keys().copied().collect()
    }

    /// The claim waits no more.
    pub(super) fn end(&self, inner: &Inner, id: ClaimId) {
        let mut state = self.lock();
        let Some(wait) = state.waits.remove(&id) else { return };
        for (_, watch) in wait.watches {
            state.by_watch.remove(&watch);
            inner.watching.remove(watch);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A claim has taken its place in line: watch what decides. What it was decided from is told by
    /// `found`, in which its own ticket need not be.
    pub(super) fn begin_wait(&self, own: &Own, arrival: Arrival, found: &Picture) {
        let id = own.claim.id;
        let mut state = self.waits.lock();
        state.waits.entry(id).or_insert_with(|| Wait {
            own: own.clone(),
            arrival: arrival.0,
            watches: Vec::new(),
            busy: false,
            again: false,
            plain: false,
        });
        drop(state);
        let now = self.now();
        let mut rules = found.rules(now, 0);
        let known = own.claim.parts.names().any(|name| found.ticket(name, id).is_some());
        if !known {
            rules.claim(&own.claim, now);
        }
        let (specs, plain) = self.deciding(own, found, &mut rules);
        self.watch(id, specs, plain);
    }

    /// Watches these and nothing else for a claim.
    fn watch(&self, id: ClaimId, specs: Vec<Spec>, plain: bool) {
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
        let options = etcd_client::GetOptions::new().with_keys_only();
        let asked = self.link.read(vec![TxnOp::get(key, Some(options))]).await;
        // Another one may stand at the same key by now.
        let there = asked.map(|answer| {
            let found = answer.replies.into_iter().flat_map(found_in).next();
            found.map(|found| u64::try_from(found.create_revision()).unwrap_or(0))
        });
        if there.ok() != Some(expected) {
            self.evaluate(id).await;
        }
    }

    /// Looks whether a claim's turn has come, and makes it hold if so.
    pub(super) async fn evaluate(self: &Arc<Self>, id: ClaimId) {
        let Some((own, mut quick)) = self.waits.take(id) else { return };
        loop {
            match self.turn(&own, quick).await {
                Ok(Turn::Holds | Turn::Gone) => self.waits.end(self, id),
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
            quick = None;
        }
    }

    /// Looks at a turn. If nothing but who is before it decides, it may be tried without a look.
    async fn turn(self: &Arc<Self>, own: &Own, quick: Option<u64>) -> Result<Turn, Halt> {
        let claim = &own.claim;
        if self.roll.is_over(claim.id, self.clock.now()) {
            return Ok(Turn::Gone);
        }
        let names: Vec<Name> = claim.parts.names().cloned().collect();
        let mut found = if let Some(arrival) = quick {
            match self.hold_at_once(own, arrival, &names[0]).await? {
                Ok(grant) => {
                    self.granted(own, grant);
                    return Ok(Turn::Holds);
                }
                Err(found) => found,
            }
        } else {
            self.look(&names, &[claim.id]).await?
        };
        for attempt in 0..TRIES {
            found = match claim.replaces {
                Some(old) => self.with_parts(found, &[old], claim.id).await?,
                None => found,
            };
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
            let otherwise = reads(&self.keys, &all, &[claim.id]);
            let answer = self.link.when(change.compares, change.writes, otherwise).await?;
            if answer.held {
                let stands = rules.stands(claim.id, &claim.parts, now);
                if let Some(Renewed::Held(grant)) = stands {
                    let grant = settle_grant(&grant, self.epoch, answer.revision);
                    self.now_held(claim, &grant, &found, &mut rules);
                    self.granted(own, grant);
                    return Ok(Turn::Holds);
                }
                tracing::trace!(%name, "one more part of a set is reserved");
                found = self.look(&all, &[claim.id]).await?;
            } else {
                found = picture(&self.keys, self.epoch, answer, &all, &[claim.id])?;
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
        let empty = Compare::create_revision(deciding.from, CompareOp::Equal, 0);
        let oldest =
            Compare::create_revision(tickets.from, CompareOp::Greater, number(arrival - 1));
        change.compares.push(empty.with_range(deciding.to));
        change.compares.push(oldest.with_range(tickets.to));
        change.unwritten(ticket, arrival);
        let record = Record { arrival: Some(arrival), ..Record::new(claim, wall) }.write();
        change.put(self.keys.claim(name, Kind::Hold, own.tag), record.clone(), own.lease.id);
        if let Some(delay) = &own.delay {
            change.put(self.keys.delay(name, claim.id), record, delay.id);
        }
        let names = [name.clone()];
        let otherwise = reads(&self.keys, &names, &[claim.id]);
        let answer = self.link.when(change.compares, change.writes, otherwise).await?;
        if !answer.held {
            return Ok(Err(picture(&self.keys, self.epoch, answer, &names, &[claim.id])?));
        }
        let fence = Fence::new(self.epoch.fence(answer.revision));
        let grant = Grant { fences: std::iter::once(fence).collect(), arrival: Arrival(arrival) };
        self.roll.stands(claim.id, Phase::Held { by: Some(answer.revision), waited: true });
        Ok(Ok(grant))
    }

    /// Tells the session that its claim holds.
    fn granted(&self, own: &Own, grant: Grant) {
        let claim = own.claim.id;
        if let Some(session) = own.claim.session {
            self.tell(session, Signal::Granted { claim, grant });
        }
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

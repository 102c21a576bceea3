//! Many claims of one process that wait for one name. Knows their order; makes the one call that
//! puts a claim behind another.
//!
//! A newcomer that finds a claim of this engine in the queue takes its place behind it in one
//! transaction, without reading the slot: on condition that the ticket of that claim still stands,
//! for then the newcomer has to wait as well. So a claim costs the same however long the queue is.
//! While no claim of this engine waits for the name yet, one newcomer at a time looks at the slot
//! ([`Approach::Lead`]), and the others wait for what becomes of it.
//!
//! Only the first claim of this engine in the queue watches the store. Whatever the others wait for
//! includes that this one is done, and then the next one takes over ([`Inner::promote`]). Claims of
//! other processes may stand in between: who is first looks for itself what it has to wait for.
//!
//! Claims wait for one of [`AT_ONCE`] turns before any request is sent ([`UnderWay::turn`]). A
//! withdrawal ([`Crowd::withdraw`]) stops a claim that has no turn yet without any request. A claim
//! that has its turn checks before each further request whether it is still wanted
//! ([`Inner::wanted`]): its tombstone refuses what was sent, but is deleted after the length of a
//! lease. A claim whose lease has passed before it had its turn is not sent either: a session gives
//! up a withdrawal after a lease, because by then the store has forgotten the claim. If the claim
//! were sent later, it would take the lock for a caller that left long ago.
//!
//! A claim takes part only if it asks for one name, replaces nothing, has no ancestors, and if no
//! other claim of its owner is known here: the rules may let such claims pass others.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::Inner;
use super::claim::{Halt, too_late};
use super::client::{RangeRequest, RangeResponse, RequestOp, ResponseOp, SortOrder, SortTarget};
use super::keys::{Kind, Tag};
use super::link::Answer;
use super::picture::{Picture, part_of};
use super::record::Record;
use super::roll::Phase;
use super::step::{Change, Own, get_range, number, picture, reads};
use super::waits::{State, Wait};
use super::watching::Spec;
use crate::contract::{
    Arrival, Claim, ClaimId, Error, ErrorKind, IdMap, Name, Part, Patience, Queued, Verdict,
};
use crate::limits;
use crate::sync::{Mutex, MutexGuard, PoisonError, random_bytes};

/// From how many tags a newcomer chooses at least.
const SEATS: u32 = 64;

/// How many claims are made at a time. More of them at once are not made sooner, and the last of
/// them would not be answered within the time of a call.
pub(super) const AT_ONCE: usize = 64;

/// How many tickets before a waiter are read.
const OLDER: i64 = 4;

/// The claims that are being made.
pub(super) struct Crowd {
    turns: Semaphore,
    under_way: Mutex<IdMap<ClaimId, Making>>,
}

/// A claim that is being made.
#[derive(Default)]
struct Making {
    stage: Stage,
    /// Dropped when the claim is withdrawn: ends its wait for a turn.
    stop: Option<oneshot::Sender<()>>,
    /// Copies of the claim that wait for its answer.
    copies: Vec<oneshot::Sender<Result<Verdict, Error>>>,
}

/// How far a claim has come that is being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It waits for its turn: nothing was sent.
    #[default]
    Queued,
    /// It has its turn: requests may have been sent.
    Sending,
    /// Its caller gave it up.
    Withdrawn,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { turns: Semaphore::new(AT_ONCE), under_way: Mutex::default() }
    }
}

impl Crowd {
    /// Begins a claim; or, if it is under way already, tells where its answer will come.
    pub(super) fn join(
        &self,
        id: ClaimId,
    ) -> Result<UnderWay<'_>, oneshot::Receiver<Result<Verdict, Error>>> {
        let mut under_way = self.lock();
        if let Some(making) = under_way.get_mut(&id) {
            let (tell, told) = oneshot::channel();
            making.copies.push(tell);
            return Err(told);
        }
        under_way.insert(id, Making::default());
        Ok(UnderWay { crowd: self, id })
    }

    /// Stops a claim that is being made, because its caller gave it up. True if nothing was sent.
    pub(super) fn withdraw(&self, id: ClaimId) -> bool {
        let mut under_way = self.lock();
        let Some(making) = under_way.get_mut(&id) else { return false };
        making.stop = None;
        std::mem::replace(&mut making.stage, Stage::Withdrawn) == Stage::Queued
    }

    /// An error if the caller of a claim gave it up: no more of it is sent. The tombstone keeps out
    /// what was sent before, but it stands for the length of a lease only.
    pub(super) fn wanted(&self, id: ClaimId) -> Result<(), Error> {
        match self.lock().get(&id) {
            Some(making) if making.stage == Stage::Withdrawn => Err(withdrawn()),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, IdMap<ClaimId, Making>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that is being made, until it is dropped.
pub(super) struct UnderWay<'a> {
    crowd: &'a Crowd,
    id: ClaimId,
}

impl<'a> UnderWay<'a> {
    /// Waits until not too many claims are being made. An error if the claim is withdrawn before.
    pub(super) async fn turn(&self) -> Result<Option<SemaphorePermit<'a>>, Error> {
        let turn = if let Ok(turn) = self.crowd.turns.try_acquire() {
            Some(turn)
        } else {
            let (stop, stopped) = oneshot::channel();
            if let Some(making) = self.crowd.lock().get_mut(&self.id) {
                making.stop = (making.stage == Stage::Queued).then_some(stop);
            }
            tokio::select! {
                biased;
                // The semaphore is never closed.
                turn = self.crowd.turns.acquire() => turn.ok(),
                _ = stopped => return Err(withdrawn()),
            }
        };
        match self.crowd.lock().get_mut(&self.id) {
            Some(making) if making.stage == Stage::Withdrawn => Err(withdrawn()),
            Some(making) => {
                (making.stage, making.stop) = (Stage::Sending, None);
                Ok(turn)
            }
            None => Ok(turn),
        }
    }

    /// Tells the answer to all copies of the claim.
    pub(super) fn answered(self, answer: &Result<Verdict, Error>) {
        let making = self.crowd.lock().remove(&self.id);
        for copy in making.into_iter().flat_map(|making| making.copies) {
            let _ = copy.send(answer.clone());
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.crowd.lock().remove(&self.id);
    }
}

fn withdrawn() -> Error {
    Error::new(ErrorKind::Unavailable, "the claim was withdrawn while it was being made")
        .with_help("claim anew")
}

/// The claims of this engine that wait for a name, by their arrival, and their tags.
#[derive(Default)]
pub(super) struct LocalQueue {
    queue: BTreeMap<u64, ClaimId>,
    tags: HashSet<Tag>,
}

/// How a newcomer comes to its place in the queue.
pub(super) enum Approach {
    /// Behind a claim of this engine.
    Behind,
    /// By a look at the slot, while the others wait.
    Lead,
    /// Another one looks; this tells when it is done.
    Wait(oneshot::Receiver<()>),
}

/// Ends the look of a newcomer when it is dropped.
pub(super) struct Lead<'a> {
    inner: &'a Inner,
    name: &'a Name,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // Dropping the senders wakes those who wait.
        self.inner.waits.lock().leaders.remove(self.name);
    }
}

/// The name of a claim that may take part.
fn single(claim: &Claim) -> Option<&Name> {
    let plain = claim.replaces.is_none()
        && claim.lineage.ancestors().is_empty()
        && claim.patience == Patience::Wait;
    match claim.parts.as_slice() {
        [part] if plain => Some(part.name()),
        _ => None,
    }
}

impl State {
    /// Puts a claim into its line. True if it is the first.
    pub(super) fn join(&mut self, name: &Name, arrival: u64, id: ClaimId, tag: Tag) -> bool {
        let line = self.lines.entry(name.clone()).or_default();
        line.queue.insert(arrival, id);
        line.tags.insert(tag);
        line.queue.first_key_value().is_some_and(|(_, first)| *first == id)
    }

    /// Takes a claim out of its line. Returns who is first now, if the claim was.
    pub(super) fn leave(&mut self, name: &Name, arrival: u64, tag: Tag) -> Option<ClaimId> {
        let line = self.lines.get_mut(name)?;
        let was_first = line.queue.first_key_value().is_some_and(|(first, _)| *first == arrival);
        line.queue.remove(&arrival);
        line.tags.remove(&tag);
        let next = line.queue.first_key_value().map(|(_, next)| *next);
        if line.queue.is_empty() && line.tags.is_empty() {
            self.lines.remove(name);
        }
        next.filter(|_| was_first)
    }

    /// Gives a tag back that was not used.
    fn give_back(&mut self, name: &Name, tag: Tag) {
        if let Some(line) = self.lines.get_mut(name) {
            line.tags.remove(&tag);
        }
    }

    /// The ticket that a newcomer stands behind, by its tag and arrival, and a tag for the newcomer
    /// that no other claim of this engine has in the slot.
    fn behind(&mut self, name: &Name, part: &Part) -> Option<((Tag, u64), Tag)> {
        let line = self.lines.get_mut(name)?;
        let (arrival, last) = line.queue.last_key_value()?;
        let wait = self.waits.get(last)?;
        let same = part_of(&wait.own.claim, name).is_some_and(|last| last.shape() == part.shape());
        if !same || line.queue.len() >= limits::WAITERS / 2 {
            return None;
        }
        let seats = SEATS + 4 * u32::try_from(line.tags.len()).unwrap_or(u32::MAX / 8);
        let [a, b, c, d, ..] = random_bytes();
        let from = u32::from_le_bytes([a, b, c, d]) % seats;
        let mut tags = (from..seats).chain(1..from).map(Tag::Seat);
        let tag = tags.find(|tag| *tag != Tag::FIRST && !line.tags.contains(tag))?;
        line.tags.insert(tag);
        Some(((wait.own.tag, *arrival), tag))
    }
}

impl Inner {
    /// How a newcomer comes to its place in the queue.
    fn approach(&self, name: &Name) -> Approach {
        let mut state = self.waits.lock();
        if state.lines.get(name).is_some_and(|line| !line.queue.is_empty()) {
            return Approach::Behind;
        }
        if let Some(others) = state.leaders.get_mut(name) {
            let (tell, told) = oneshot::channel();
            others.push(tell);
            return Approach::Wait(told);
        }
        state.leaders.insert(name.clone(), Vec::new());
        Approach::Lead
    }

    /// An error if no more requests of a claim may be sent: its caller gave it up, or its time is
    /// up and its entry is ended.
    pub(super) fn wanted(&self, claim: &Claim) -> Result<(), Error> {
        self.crowd.wanted(claim.id)?;
        let over = self.roll.expires(claim.id).is_none_or(|at| at <= self.clock.now());
        if over { Err(too_late(claim.lease)) } else { Ok(()) }
    }

    /// Makes a claim of which it is known that its slots are not empty.
    pub(super) async fn claim_contended(
        self: &Arc<Self>,
        own: Own,
        found: Option<Picture>,
        repeated: bool,
    ) -> Result<Verdict, Halt> {
        let claim = Arc::clone(&own.claim);
        let Some(name) = single(&claim).filter(|_| !repeated) else {
            return self.claim_by_rules(own, found).await;
        };
        loop {
            match self.approach(name) {
                Approach::Wait(told) => {
                    drop(told.await);
                    self.wanted(&claim)?;
                }
                Approach::Lead => {
                    let _lead = Lead { inner: self, name };
                    return self.claim_by_rules(own, found).await;
                }
                Approach::Behind => {
                    return match self.queue_behind(&own, name).await? {
                        Some(verdict) => Ok(verdict),
                        None => self.claim_by_rules(own, None).await,
                    };
                }
            }
        }
    }

    /// Whether a claim may be put behind another one of this engine without a call before.
    pub(super) fn has_line(&self, claim: &Claim) -> bool {
        let Some(name) = single(claim) else { return false };
        let state = self.waits.lock();
        state.lines.get(name).is_some_and(|line| !line.queue.is_empty())
    }

    /// Puts a claim behind the last one of this engine. None if that is gone meanwhile.
    async fn queue_behind(
        self: &Arc<Self>,
        own: &Own,
        name: &Name,
    ) -> Result<Option<Verdict>, Halt> {
        let claim = &own.claim;
        if self.roll.knows_owner(name, claim) {
            return Ok(None);
        }
        let behind = self.waits.lock().behind(name, &claim.parts.as_slice()[0]);
        let Some(((tag, arrival), own_tag)) = behind else { return Ok(None) };
        let own = Own { tag: own_tag, ..own.clone() };
        self.roll.tag(claim.id, own.tag);
        let mut change = Change::default();
        change.absent(self.keys.tomb(claim.id));
        for kind in Kind::ALL {
            change.absent(self.keys.claim(name, kind, own.tag));
        }
        change.created(self.keys.claim(name, Kind::Wait, tag), arrival);
        let record = Record::new(claim, self.clock.wall_micros()).write();
        change.put(self.keys.claim(name, Kind::Wait, own.tag), record, own.lease.id);
        let tickets = self.keys.kind(name, Kind::Wait);
        let (key, range_end) = (tickets.from, tickets.to);
        let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        change.writes.extend([get_range(self.keys.deciding(name)), count.into()]);
        let answer = self.link.when(change.compares, change.writes, Vec::new()).await;
        let answer = match answer {
            Ok(answer) if answer.held => answer,
            other => {
                self.waits.lock().give_back(name, own.tag);
                return other.map(|_| None).map_err(Halt::from);
            }
        };
        let revision = answer.revision;
        let mut replies = answer.replies.into_iter().skip(1);
        let deciding = replies.next().map(ResponseOp::into_kvs).unwrap_or_default();
        let tickets = replies.next().map_or(0, |reply| reply.count());
        let mut found = Picture::new(revision, self.epoch());
        found.add(&self.keys, name, &deciding)?;
        let queued = self.place_behind(&found, claim, name, tickets, revision);
        self.roll.stands(claim.id, Phase::Waiting);
        if self.roll.get(claim.id).is_some() {
            self.wait_behind(&own, name, revision);
        } else {
            self.waits.lock().give_back(name, own.tag);
        }
        Ok(Some(Verdict::Queued(queued)))
    }

    /// The place of the newest of so many tickets, from what decides in the slot.
    fn place_behind(
        &self,
        found: &Picture,
        claim: &Arc<Claim>,
        name: &Name,
        tickets: usize,
        revision: u64,
    ) -> Queued {
        let all = found.slots.get(name).map_or(&[][..], Vec::as_slice);
        let of = |kind: Kind| all.iter().filter(move |seen| seen.kind == kind);
        let holds = |id: ClaimId| of(Kind::Hold).any(|seen| seen.id == id);
        // Holders that waited keep their tickets.
        let waited = of(Kind::Hold)
            .filter(|seen| seen.record.arrival.is_some_and(|arrival| arrival != seen.created))
            .filter(|seen| !of(Kind::Kin).any(|kin| kin.id == seen.id));
        let ahead = of(Kind::Kin).filter(|seen| !holds(seen.id)).count();
        let place = tickets.saturating_sub(waited.count()) + ahead;
        let now = self.now();
        let first_expiry = match found.rules(now, 0).claim(claim, now) {
            Verdict::Queued(queued) => queued.first_expiry,
            _ => None,
        };
        Queued { place, first_expiry, arrival: Arrival(revision) }
    }

    /// A claim has taken its place behind another one of this engine.
    fn wait_behind(self: &Arc<Self>, own: &Own, name: &Name, arrival: u64) {
        let id = own.claim.id;
        let mut state = self.waits.lock();
        state.waits.entry(id).or_insert_with(|| Wait::new(own, arrival, true));
        let first = state.join(name, arrival, id, own.tag);
        if let Some(wait) = state.waits.get_mut(&id) {
            wait.line = Some(name.clone());
        }
        drop(state);
        if first {
            // Those before it were done while the answer was under way.
            let inner = Arc::clone(self);
            self.tasks.spawn(async move { inner.evaluate(id).await });
        }
    }

    /// The first claim of a line is done: the next one looks after itself from now on.
    pub(super) fn promote(self: &Arc<Self>, next: ClaimId, done: &Wait, held: bool) {
        let Some(name) = &done.line else { return };
        let part = |claim: &Claim| part_of(claim, name).map(|part| (part.weight(), part.shape()));
        let own = self.waits.lock().waits.get(&next).map(|wait| wait.own.clone());
        let Some(own) = own else { return };
        let beside = match (part(&own.claim), part(&done.own.claim)) {
            (Some((next, shape)), Some((done, _))) => {
                u64::from(next) + u64::from(done) <= u64::from(shape.capacity())
            }
            _ => true,
        };
        let specs: Vec<Spec> = if held && !beside {
            // The ticket stays until the hold is given back.
            let ticket = self.keys.claim(name, Kind::Wait, done.own.tag);
            vec![Spec::Gone(ticket, done.arrival)]
        } else if held {
            Vec::new()
        } else {
            // Who left waited for the same.
            done.watches.iter().map(|(spec, _)| spec.clone()).collect()
        };
        if specs.is_empty() {
            let inner = Arc::clone(self);
            self.tasks.spawn(async move { inner.evaluate(next).await });
        } else {
            self.watch(next, specs, true);
        }
    }

    /// What to read for a turn: of a plain claim what decides, its own ticket and those just before
    /// it, otherwise all of its slots; and its tombstone.
    pub(super) fn before(&self, own: &Own, plain: Option<u64>, names: &[Name]) -> Vec<RequestOp> {
        let id = own.claim.id;
        let (Some(arrival), [name]) = (plain, names) else {
            return reads(&self.keys, names, &[id]);
        };
        let tickets = self.keys.kind(name, Kind::Wait);
        // Tickets of holders may be among them, though not behind one that waits.
        let older = RangeRequest {
            key: tickets.from,
            range_end: tickets.to,
            limit: OLDER,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Create.into(),
            max_create_revision: number(arrival - 1),
            ..RangeRequest::default()
        };
        let ticket = RequestOp::get(self.keys.claim(name, Kind::Wait, own.tag));
        let tomb = RequestOp::get(self.keys.tomb(id));
        vec![get_range(self.keys.deciding(name)), older.into(), ticket, tomb]
    }

    /// The picture that an answer to [`before`](Self::before) gives.
    pub(super) fn picture_before(
        &self,
        own: &Own,
        plain: Option<u64>,
        mut answer: Answer,
        names: &[Name],
    ) -> Result<Picture, Halt> {
        let id = own.claim.id;
        if plain.is_some() && names.len() == 1 {
            let tomb = answer.replies.pop();
            let kvs = answer.replies.drain(..).flat_map(ResponseOp::into_kvs).collect();
            let range = RangeResponse { kvs, ..RangeResponse::default() };
            answer.replies.push(range.into());
            answer.replies.extend(tomb);
        }
        Ok(picture(&self.keys, self.epoch(), answer, names, &[id])?)
    }
}

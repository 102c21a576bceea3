//! Many claims of one engine that wait for the same name: a local queue per name.
//!
//! The store has one ticket per waiting claim. To place a ticket, a client would have to read the
//! whole queue; with thousands of waiters in one process that is too much. So this engine keeps its
//! own waiting claims by name, in the order of their arrival, and uses that twice:
//!
//! - **Append.** A new claim is placed behind the last local claim in one transaction, without
//!   reading the slot, on condition that the ticket of that claim still exists: if that one has to
//!   wait, the new one has to wait too. The cost does not depend on the length of the queue.
//! - **One watch.** Only the first claim of the local queue watches the store. Whatever blocks the
//!   others includes that claim. When it is done, the next one takes over
//!   ([`Inner::promote_next`]). Claims of other processes may stand in between: the new first claim
//!   reads what blocks it.
//!
//! While no claim of this engine waits for the name, one new claim at a time reads the slot
//! ([`QueueEntry::ReadSlot`]) and the others wait until it has its verdict; then they append or
//! read in their turn.
//!
//! Only claims whose place depends on nothing but the order of arrival take part: one name, nothing
//! to replace, no ancestors, and no other claim of the same owner in this engine. The ledger may
//! let all others pass claims that arrived before them.
//!
//! Invariants, all under the mutex of [`Waiters`](super::waiters::Waiters):
//!
//! - A claim is in `order` exactly as long as it has an entry in `waiting` with this queue's name.
//! - `tags` has the tags of the claims in `order` and of appends in flight, so that two appends
//!   never choose the same tag. An append that fails gives its tag back.
//! - Every claim that becomes the first of `order` begins to watch or checks its turn: after the
//!   former first one has left (`promote_next`), or by joining an empty queue.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Inner;
use super::claims::ClaimPhase;
use super::client::{RangeRequest, RangeResponse, RequestOp, ResponseOp, SortOrder, SortTarget};
use super::connection::TxnReply;
use super::errors::VerbError;
use super::keys::{KeyKind, Tag};
use super::record::ClaimRecord;
use super::snapshot::{SlotSnapshot, part_of};
use super::transaction::{LocalClaim, Transaction, as_i64, read_ops, read_range, snapshot_of};
use super::waiters::{WaitersState, WaitingClaim};
use super::watches::WatchSpec;
use crate::contract::{Arrival, Claim, ClaimId, Name, Part, Patience, Queued, Verdict};
use crate::engine::common::paths;
use crate::limits;
use crate::sync::random_bytes;

/// From how many tags a new claim chooses at least.
const MIN_TAGS: u32 = 64;

/// How many tickets before a waiter are read to find what blocks it.
const OLDER_TICKETS: i64 = 4;

/// The claims of this engine that wait for a name, by arrival, and the tags in use.
#[derive(Default)]
pub(super) struct LocalQueue {
    order: BTreeMap<u64, ClaimId>,
    tags: HashSet<Tag>,
}

/// How a new claim gets its place in the queue.
pub(super) enum QueueEntry {
    /// Behind the last claim of the local queue.
    Append,
    /// By reading the slot, while other new claims wait.
    ReadSlot,
    /// Another claim reads the slot; the channel is closed when it is done.
    AwaitRead(oneshot::Receiver<()>),
}

/// Marks that a claim reads the slot of a name, until it is dropped.
pub(super) struct SlotReadGuard<'a> {
    inner: &'a Inner,
    name: &'a Name,
}

impl Drop for SlotReadGuard<'_> {
    fn drop(&mut self) {
        // Dropping the senders wakes the claims that wait for this read.
        self.inner.waiters.lock().slot_reads.remove(self.name);
    }
}

/// The name of a claim that may join a local queue; `None` if the claim may not.
fn queueable_name(claim: &Claim) -> Option<&Name> {
    let plain = claim.replaces.is_none()
        && claim.lineage.ancestors().is_empty()
        && claim.patience == Patience::Wait;
    match claim.parts.as_slice() {
        [part] if plain => Some(part.name()),
        _ => None,
    }
}

impl WaitersState {
    /// Adds a claim to the local queue of its name. Returns true if it is the first.
    pub(super) fn join(&mut self, name: &Name, arrival: u64, id: ClaimId, tag: Tag) -> bool {
        let queue = self.queues.entry(name.clone()).or_default();
        queue.order.insert(arrival, id);
        queue.tags.insert(tag);
        queue.order.first_key_value().is_some_and(|(_, first)| *first == id)
    }

    /// Removes a claim from its local queue. If it was the first, returns the one that is now.
    pub(super) fn leave(&mut self, name: &Name, arrival: u64, tag: Tag) -> Option<ClaimId> {
        let queue = self.queues.get_mut(name)?;
        let was_first = queue.order.first_key_value().is_some_and(|(first, _)| *first == arrival);
        queue.order.remove(&arrival);
        queue.tags.remove(&tag);
        let next = queue.order.first_key_value().map(|(_, next)| *next);
        if queue.order.is_empty() && queue.tags.is_empty() {
            self.queues.remove(name);
        }
        next.filter(|_| was_first)
    }

    /// Frees a tag that was chosen for an append that failed.
    fn free_tag(&mut self, name: &Name, tag: Tag) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.tags.remove(&tag);
        }
    }

    /// Returns the last ticket of the local queue, by tag and arrival, and a free tag for the claim
    /// that is appended behind it.
    fn last_ticket(&mut self, name: &Name, part: &Part) -> Option<((Tag, u64), Tag)> {
        let queue = self.queues.get_mut(name)?;
        let (arrival, last) = queue.order.last_key_value()?;
        let wait = self.waiting.get(last)?;
        let same =
            part_of(&wait.local.claim, name).is_some_and(|last| last.shape() == part.shape());
        if !same || queue.order.len() >= limits::WAITERS / 2 {
            return None;
        }
        let choices = MIN_TAGS + 4 * u32::try_from(queue.tags.len()).unwrap_or(u32::MAX / 8);
        let [a, b, c, d, ..] = random_bytes();
        let from = u32::from_le_bytes([a, b, c, d]) % choices;
        let mut tags = (from..choices).chain(1..from).map(Tag::Number);
        let tag = tags.find(|tag| *tag != Tag::FIRST && !queue.tags.contains(tag))?;
        queue.tags.insert(tag);
        Some(((wait.local.tag, *arrival), tag))
    }
}

impl Inner {
    /// Decides how a new claim gets its place in the queue.
    fn plan_entry(&self, name: &Name) -> QueueEntry {
        let mut state = self.waiters.lock();
        if state.queues.get(name).is_some_and(|queue| !queue.order.is_empty()) {
            return QueueEntry::Append;
        }
        if let Some(waiting) = state.slot_reads.get_mut(name) {
            let (sender, receiver) = oneshot::channel();
            waiting.push(sender);
            return QueueEntry::AwaitRead(receiver);
        }
        state.slot_reads.insert(name.clone(), Vec::new());
        QueueEntry::ReadSlot
    }

    /// Makes a claim whose slots are not empty.
    pub(super) async fn claim_contended(
        self: &Arc<Self>,
        local: LocalClaim,
        found: Option<SlotSnapshot>,
        repeated: bool,
    ) -> Result<Verdict, VerbError> {
        let claim = Arc::clone(&local.claim);
        let Some(name) = queueable_name(&claim).filter(|_| !repeated) else {
            return self.claim_by_ledger(local, found).await;
        };
        loop {
            match self.plan_entry(name) {
                QueueEntry::AwaitRead(receiver) => {
                    drop(receiver.await);
                    self.check_wanted(&claim)?;
                }
                QueueEntry::ReadSlot => {
                    let _guard = SlotReadGuard { inner: self, name };
                    return self.claim_by_ledger(local, found).await;
                }
                QueueEntry::Append => {
                    return match self.append_ticket(&local, name).await? {
                        Some(verdict) => {
                            paths::take("etcd claim: behind a local waiter");
                            Ok(verdict)
                        }
                        None => self.claim_by_ledger(local, None).await,
                    };
                }
            }
        }
    }

    /// Whether a claim can be appended to a local queue without a call before.
    pub(super) fn has_local_queue(&self, claim: &Claim) -> bool {
        let Some(name) = queueable_name(claim) else { return false };
        let state = self.waiters.lock();
        state.queues.get(name).is_some_and(|queue| !queue.order.is_empty())
    }

    /// Appends a claim to the local queue of its name. `None` if the last claim of the queue is
    /// gone meanwhile, or the claim may not be appended.
    async fn append_ticket(
        self: &Arc<Self>,
        local: &LocalClaim,
        name: &Name,
    ) -> Result<Option<Verdict>, VerbError> {
        let claim = &local.claim;
        if self.claims.has_other_of_owner(name, claim) {
            return Ok(None);
        }
        let behind = self.waiters.lock().last_ticket(name, &claim.parts.as_slice()[0]);
        let Some(((tag, arrival), own_tag)) = behind else { return Ok(None) };
        let local = LocalClaim { tag: own_tag, ..local.clone() };
        self.claims.set_tag(claim.id, local.tag);
        let mut txn = Transaction::default();
        txn.if_absent(self.keys.tombstone(claim.id));
        for kind in KeyKind::ALL {
            txn.if_absent(self.keys.claim(name, kind, local.tag));
        }
        txn.if_created_by(self.keys.claim(name, KeyKind::Wait, tag), arrival);
        let record = ClaimRecord::new(claim, self.clock.wall_micros()).encode();
        txn.put_ticket(&self.keys, name, KeyKind::Wait, &local, record);
        let tickets = self.keys.kind(name, KeyKind::Wait);
        let (key, range_end) = (tickets.from, tickets.to);
        let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        txn.writes.extend([read_range(self.keys.deciding(name)), count.into()]);
        let reply = self.connection.txn(txn.compares, txn.writes, Vec::new()).await;
        let reply = match reply {
            Ok(reply) if reply.succeeded => reply,
            other => {
                self.waiters.lock().free_tag(name, local.tag);
                return other.map(|_| None).map_err(VerbError::from);
            }
        };
        let revision = reply.revision;
        // The replies to the writes of the ticket and its mark come first.
        let mut replies = reply.replies.into_iter().skip(2);
        let deciding = replies.next().map(ResponseOp::into_kvs).unwrap_or_default();
        let tickets = replies.next().map_or(0, |reply| reply.count());
        let mut found = SlotSnapshot::new(revision, self.epoch());
        found.add(&self.keys, name, &deciding)?;
        let queued = self.place_of_newest(&found, claim, name, tickets, revision);
        self.claims.set_phase(claim.id, ClaimPhase::Waiting);
        if self.claims.get(claim.id).is_none() {
            self.waiters.lock().free_tag(name, local.tag);
            return Ok(Some(Verdict::Queued(queued)));
        }
        self.begin_appended_wait(&local, name, revision);
        let owner = claim.lineage.owner();
        let others = found.slots.get(name).into_iter().flatten().filter(|seen| seen.id != claim.id);
        if others.into_iter().any(|seen| seen.record.claim.lineage.includes(owner)) {
            // The owner holds the slot through another engine, so the claim does not have to wait
            // for the claims before it.
            self.check_turn(claim.id).await;
            let queued = Verdict::Queued(queued);
            return self.verdict_after_check(&local, queued).await.map(Some);
        }
        Ok(Some(Verdict::Queued(queued)))
    }

    /// Computes the place in the queue of the newest of `tickets` tickets. `found` has the deciding
    /// keys of the slot, without plain tickets.
    fn place_of_newest(
        &self,
        found: &SlotSnapshot,
        claim: &Arc<Claim>,
        name: &Name,
        tickets: usize,
        revision: u64,
    ) -> Queued {
        let all = found.slots.get(name).map_or(&[][..], Vec::as_slice);
        let of = |kind: KeyKind| all.iter().filter(move |seen| seen.kind == kind);
        let holds = |id: ClaimId| of(KeyKind::Hold).any(|seen| seen.id == id);
        // Holders that waited keep their tickets, which are not ahead of the new one.
        let waited = of(KeyKind::Hold)
            .filter(|seen| seen.record.arrival.is_some_and(|arrival| arrival != seen.created))
            .filter(|seen| !of(KeyKind::Kin).any(|kin| kin.id == seen.id));
        let ahead = of(KeyKind::Kin).filter(|seen| !holds(seen.id)).count();
        let place = tickets.saturating_sub(waited.count()) + ahead;
        let now = self.now();
        let first_expiry = match found.ledger(now, 0).claim(claim, now) {
            Verdict::Queued(queued) => queued.first_expiry,
            _ => None,
        };
        Queued { place, first_expiry, arrival: Arrival(revision) }
    }

    /// Adds a claim whose ticket is written to the local queue.
    fn begin_appended_wait(self: &Arc<Self>, local: &LocalClaim, name: &Name, arrival: u64) {
        let id = local.claim.id;
        let mut state = self.waiters.lock();
        state.waiting.entry(id).or_insert_with(|| WaitingClaim::new(local, arrival, true));
        let first = state.join(name, arrival, id, local.tag);
        if let Some(wait) = state.waiting.get_mut(&id) {
            wait.queue = Some(name.clone());
        }
        drop(state);
        if first {
            // The claims before it left while the reply was in flight.
            let inner = Arc::clone(self);
            self.tasks.spawn(async move { inner.check_turn(id).await });
        }
    }

    /// Makes the next claim of a local queue watch the store, because the first one is `done`: it
    /// holds (`held`) or has left the queue.
    pub(super) fn promote_next(self: &Arc<Self>, next: ClaimId, done: &WaitingClaim, held: bool) {
        let Some(name) = &done.queue else { return };
        let local = self.waiters.lock().waiting.get(&next).map(|wait| wait.local.clone());
        let Some(local) = local else { return };
        let part = |claim: &Claim| part_of(claim, name).map(|part| (part.weight(), part.shape()));
        let (beside, lighter) = match (part(&local.claim), part(&done.local.claim)) {
            (Some((next, shape)), Some((done, _))) => {
                let both = u64::from(next) + u64::from(done);
                (both <= u64::from(shape.capacity()), next < done)
            }
            _ => (true, true),
        };
        let specs: Vec<WatchSpec> = if held && !beside {
            // The ticket of a holder is deleted together with its hold.
            let ticket = self.keys.claim(name, KeyKind::Wait, done.local.tag);
            vec![WatchSpec::KeyDeleted(ticket, done.arrival)]
        } else if held || lighter {
            // A lighter claim may fit beside the holds that blocked the one that left.
            Vec::new()
        } else {
            // The claim that left was blocked by the same keys.
            done.watches.iter().map(|(spec, _)| spec.clone()).collect()
        };
        if specs.is_empty() {
            let inner = Arc::clone(self);
            self.tasks.spawn(async move { inner.check_turn(next).await });
        } else {
            self.set_watches(next, specs, true);
        }
    }

    /// Builds the reads of a turn check: for a plain claim the deciding keys, its own ticket and
    /// the tickets just before it, otherwise all keys of its slots; and its tombstone.
    pub(super) fn read_before(
        &self,
        local: &LocalClaim,
        plain: Option<u64>,
        names: &[Name],
    ) -> Vec<RequestOp> {
        let id = local.claim.id;
        let (Some(arrival), [name]) = (plain, names) else {
            return read_ops(&self.keys, names, &[id]);
        };
        let tickets = self.keys.kind(name, KeyKind::Wait);
        // A grant keeps its ticket, so the range may include tickets of holders; those are older
        // than every ticket that waits.
        let older = RangeRequest {
            key: tickets.from,
            range_end: tickets.to,
            limit: OLDER_TICKETS,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Create.into(),
            max_create_revision: as_i64(arrival - 1),
            ..RangeRequest::default()
        };
        let ticket = RequestOp::get(self.keys.claim(name, KeyKind::Wait, local.tag));
        let tomb = RequestOp::get(self.keys.tombstone(id));
        vec![read_range(self.keys.deciding(name)), older.into(), ticket, tomb]
    }

    /// Builds the snapshot from a reply to [`read_before`](Self::read_before).
    pub(super) fn snapshot_before(
        &self,
        local: &LocalClaim,
        plain: Option<u64>,
        mut reply: TxnReply,
        names: &[Name],
    ) -> Result<SlotSnapshot, VerbError> {
        let id = local.claim.id;
        if plain.is_some() && names.len() == 1 {
            let tomb = reply.replies.pop();
            let kvs = reply.replies.drain(..).flat_map(ResponseOp::into_kvs).collect();
            let range = RangeResponse { kvs, ..RangeResponse::default() };
            reply.replies.push(range.into());
            reply.replies.extend(tomb);
        }
        Ok(snapshot_of(&self.keys, self.epoch(), reply, names, &[id])?)
    }
}

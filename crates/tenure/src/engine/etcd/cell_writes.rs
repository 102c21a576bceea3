//! Writes of cells: a batch is one transaction, which compares what the batch expects and writes
//! without a read before it. If a comparison fails, the same call returns what is there, and the
//! rules of `ledger::cells` say why: a repeat, a refusal, or neither.
//!
//! What is compared, and why it is enough:
//!
//! - **A version** is the revision of the cell's key, **absence** is revision 0.
//! - **A fence** is compared as text of a fixed length with the value of the fence's key. etcd
//!   calls that false if the key is absent, so the first fenced write of a cell fails, reads that
//!   there is no fence, and is sent again with the revision of the fence's key as its condition.
//! - **An id** has a key for each cell that it wrote. They are compared to be absent, and created
//!   with the write. So a repeat fails, reads that key, and the revision that created it is the
//!   version that the first copy wrote.
//! - **An id that is too old** to be known for certain may be written only over a version that
//!   still stands: then it was not written before. The comparison of that version is part of the
//!   transaction; without such a part the batch is only read.
//!
//! The keys of ids are on leases that live for at least `max_lease` and are never renewed
//! (`leases.rs`), so they end by themselves. A batch of [`limits::CELL_PARTS`] parts has at most
//! three operations for each.
//!
//! A removal of what is absent changes nothing, and etcd counts no revision for it. Its version is
//! drawn by a write to the key `versions`: a version that is given out twice could match a later
//! value.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::cells::read_fence;
use super::claim::{LEASE_ATTEMPTS, MAX_ATTEMPTS};
use super::client::{Compare, CompareResult, KeyValue, RequestOp, ResponseOp};
use super::connection::TxnReply;
use super::errors::{CallError, VerbError, contended};
use super::leases::EtcdLease;
use super::transaction::{OPERATIONS, Transaction, as_i64};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellAction, CellPart, Conflict, ConflictCause, Expect, Fence,
    Version, write_forgotten,
};
use crate::engine::common::paths;
use crate::ledger::cells::{CellState, Judgement, LogEntry, WriteLog, judge};
use crate::limits;

// The value, the fence and the id of each part.
const _: () = assert!(limits::CELL_PARTS * 3 <= OPERATIONS);

/// The leases that the keys of a batch are attached to.
#[derive(Default)]
struct BatchLeases {
    /// For the ids, if the batch has one.
    ids: Option<Arc<EtcdLease>>,
    /// For the values, one for each time to live.
    values: Vec<(Duration, i64)>,
}

/// What was read of one cell.
#[derive(Default)]
struct CellRead {
    value: Option<KeyValue>,
    fence: Option<(Fence, i64)>,
    /// The key of the batch's id.
    write: Option<KeyValue>,
}

/// The outcome of a batch, and whether it is this call that has written it.
struct WriteOutcome {
    verdict: BatchVerdict,
    is_new: bool,
}

impl Inner {
    /// Writes a batch. Gets the leases for it first, again if one of them ends meanwhile.
    pub(super) async fn write_cells(
        self: &Arc<Self>,
        batch: &Batch,
    ) -> Result<BatchVerdict, VerbError> {
        for _ in 0..LEASE_ATTEMPTS {
            let leases = self.batch_leases(batch).await?;
            let outcome = match self.write_cells_on(batch, &leases).await {
                Err(VerbError::Call(CallError::LeaseGone)) => {
                    leases.ids.iter().for_each(|lease| self.leases.forget(lease));
                    continue;
                }
                outcome => outcome,
            };
            // After any other error the batch may have been written, and needs its leases.
            let needs_leases = match &outcome {
                Ok(outcome) => outcome.is_new,
                Err(VerbError::Call(_)) => true,
                Err(VerbError::Error(_)) => false,
            };
            for (_, lease) in leases.values.into_iter().filter(|_| !needs_leases) {
                let inner = Arc::clone(self);
                self.tasks.spawn(async move { inner.leases.revoke_unused(lease).await });
            }
            return Ok(outcome?.verdict);
        }
        Err(CallError::LeaseGone.into())
    }

    async fn batch_leases(&self, batch: &Batch) -> Result<BatchLeases, VerbError> {
        let mut leases = BatchLeases::default();
        if is_only_read(batch, self.stated.max_lease) {
            return Ok(leases);
        }
        if batch.id.is_some() && batch.parts.iter().any(CellPart::writes) {
            let since = self.clock.now();
            leases.ids = Some(self.leases.ensure_rotating(self.stated.max_lease, since).await?);
        }
        for part in &batch.parts {
            if let CellAction::Put { time_to_live: Some(time), .. } = part.action
                && leases.value(time).is_none()
            {
                leases.values.push((time, self.leases.grant_unrenewed(time).await?));
            }
        }
        Ok(leases)
    }

    async fn write_cells_on(
        self: &Arc<Self>,
        batch: &Batch,
        leases: &BatchLeases,
    ) -> Result<WriteOutcome, VerbError> {
        let reads = self.batch_reads(batch);
        let mut known: Option<Vec<CellRead>> = None;
        for attempt in 0..MAX_ATTEMPTS {
            let reply = if is_only_read(batch, self.stated.max_lease) {
                self.connection.read(reads.clone()).await?
            } else {
                let txn = self.batch_transaction(batch, leases, known.as_deref());
                let reply = self.checked_txn(txn, reads.clone()).await?;
                if reply.succeeded {
                    paths::take(match known {
                        None => "etcd write: without a read",
                        Some(_) => "etcd write: after a read",
                    });
                    let version = self.written_version(batch, &reply).await?;
                    let verdict = BatchVerdict::Done(Version(version));
                    return Ok(WriteOutcome { verdict, is_new: true });
                }
                reply
            };
            let found = Self::found_cells(batch, reply)?;
            if let Some(verdict) = self.judge_cells(batch, &found).await? {
                paths::take(match verdict {
                    BatchVerdict::Done(_) => "etcd write: a repeat",
                    BatchVerdict::Refused(_) => "etcd write: refused",
                });
                return Ok(WriteOutcome { verdict, is_new: false });
            }
            known = Some(found);
            self.back_off(attempt).await;
        }
        Err(contended(&batch.parts[0].name).into())
    }

    /// Builds the conditions and writes of a batch. `known` is what a former attempt has read.
    fn batch_transaction(
        &self,
        batch: &Batch,
        leases: &BatchLeases,
        known: Option<&[CellRead]>,
    ) -> Transaction {
        let mut txn = Transaction::default();
        for (at, part) in batch.parts.iter().enumerate() {
            let key = self.keys.cell(&part.name);
            match part.expect {
                Expect::Anything => {}
                Expect::Absent => txn.if_absent(key.clone()),
                Expect::Version(version) => {
                    // No key has the largest revision, so this version is refused.
                    let revision = self.epoch().revision_of(version.0).unwrap_or(u64::MAX);
                    txn.if_unwritten(key.clone(), revision);
                }
                Expect::Fence(fence) => {
                    self.fenced(&mut txn, part, fence, known.map(|known| &known[at]));
                }
            }
            match &part.action {
                CellAction::Check => continue,
                CellAction::Put { value, time_to_live } => {
                    let lease = time_to_live.and_then(|time| leases.value(time)).unwrap_or(0);
                    txn.put(key, value.clone(), lease);
                }
                CellAction::Remove => txn.delete(key),
            }
            if let (Some(id), Some(lease)) = (batch.id, &leases.ids) {
                let key = self.keys.cell_write(&part.name, id);
                txn.if_absent(key.clone());
                txn.put(key, Vec::new(), lease.id);
            }
        }
        txn
    }

    /// Adds the condition that no larger fence has written a cell, and the write of the fence.
    fn fenced(
        &self,
        txn: &mut Transaction,
        part: &CellPart,
        fence: Fence,
        known: Option<&CellRead>,
    ) {
        let key = self.keys.cell_fence(&part.name);
        let stored = match known {
            None => {
                let larger = fence_text(Fence::new(fence.get() + 1));
                txn.compares.push(Compare::value(key.clone(), CompareResult::Less, larger));
                None
            }
            Some(known) => {
                let (stored, revision) = known.fence.unzip();
                txn.if_unwritten(key.clone(), u64::try_from(revision.unwrap_or(0)).unwrap_or(0));
                stored
            }
        };
        if part.writes() && stored != Some(fence) {
            txn.put(key, fence_text(fence), 0);
        }
    }

    /// Builds the reads of what can refuse a batch, in the order in which `found_cells` takes them.
    fn batch_reads(&self, batch: &Batch) -> Vec<RequestOp> {
        let mut reads = Vec::new();
        for part in &batch.parts {
            if shows_value(part) {
                reads.push(RequestOp::get(self.keys.cell(&part.name)));
            }
            if shows_value(part) || matches!(part.expect, Expect::Fence(_)) {
                reads.push(RequestOp::get(self.keys.cell_fence(&part.name)));
            }
            if let Some(id) = batch.id.filter(|_| part.writes()) {
                reads.push(RequestOp::get(self.keys.cell_write(&part.name, id)));
            }
        }
        reads
    }

    fn found_cells(batch: &Batch, reply: TxnReply) -> Result<Vec<CellRead>, VerbError> {
        let mut replies = reply.replies.into_iter();
        let mut next = || replies.next().and_then(|reply| reply.into_kvs().into_iter().next());
        let mut found = Vec::with_capacity(batch.parts.len());
        for part in &batch.parts {
            let mut read = CellRead::default();
            if shows_value(part) {
                read.value = next();
            }
            if (shows_value(part) || matches!(part.expect, Expect::Fence(_)))
                && let Some(key) = next()
            {
                read.fence = Some((read_fence(&part.name, &key)?, key.mod_revision));
            }
            if batch.id.is_some() && part.writes() {
                read.write = next();
            }
            found.push(read);
        }
        Ok(found)
    }

    /// Lets the rules decide on what was read. `None`: the batch may be written.
    async fn judge_cells(
        &self,
        batch: &Batch,
        found: &[CellRead],
    ) -> Result<Option<BatchVerdict>, VerbError> {
        let now_micros = self.clock.now().as_nanos() / 1_000;
        let states: Vec<CellState> =
            found.iter().map(|read| self.state_of(batch, read, now_micros)).collect();
        Ok(Some(match judge(batch, &states, now_micros, self.stated.max_lease) {
            Judgement::Write(_) => return Ok(None),
            Judgement::Repeat(version) => BatchVerdict::Done(version),
            Judgement::Forgotten(name) => return Err(write_forgotten(&name).into()),
            Judgement::Refused(mut conflicts) => {
                for conflict in &mut conflicts {
                    self.read_expiry(batch, found, conflict).await?;
                }
                BatchVerdict::Refused(conflicts)
            }
        }))
    }

    fn state_of(&self, batch: &Batch, read: &CellRead, now_micros: u64) -> CellState {
        let fence = read.fence.map(|(fence, _)| fence);
        let mut log = WriteLog::default();
        if let (Some(id), Some(write)) = (batch.id, &read.write) {
            let version = Version(self.version_of(write.create_revision));
            log.entries.push_back(LogEntry { id: id.as_u128(), version, at_micros: now_micros });
        }
        let present = read.value.clone().map(|value| self.cell_of(value, fence));
        CellState { present, fence, log }
    }

    /// Adds the time that is left to a cell that refuses a batch.
    async fn read_expiry(
        &self,
        batch: &Batch,
        found: &[CellRead],
        conflict: &mut Conflict,
    ) -> Result<(), VerbError> {
        let ConflictCause::Changed(Some(Cell { expires_in, .. })) = &mut conflict.cause else {
            return Ok(());
        };
        let read = batch.parts.iter().zip(found).find(|(part, _)| part.name == conflict.name);
        let lease = read.and_then(|(_, read)| read.value.as_ref()).map_or(0, |key| key.lease);
        if lease != 0 {
            let left = self.leases.remaining_at_most(lease).await?;
            *expires_in = Some(left.unwrap_or(Duration::ZERO));
        }
        Ok(())
    }

    /// The version of a batch that was written. Draws one if the store has counted no revision.
    async fn written_version(&self, batch: &Batch, reply: &TxnReply) -> Result<u64, VerbError> {
        let writes = batch.parts.iter().any(CellPart::writes);
        if !writes || reply.replies.iter().any(ResponseOp::is_change) {
            return Ok(self.version_of(as_i64(reply.revision)));
        }
        paths::take("etcd write: a version is drawn");
        let draw = RequestOp::put(self.keys.versions(), Vec::new(), 0);
        let drawn = self.connection.txn(Vec::new(), vec![draw], Vec::new()).await?;
        Ok(self.version_of(as_i64(drawn.revision)))
    }
}

impl BatchLeases {
    /// The lease for a time to live.
    fn value(&self, time: Duration) -> Option<i64> {
        self.values.iter().find(|(known, _)| *known == time).map(|(_, lease)| *lease)
    }
}

/// Whether a batch cannot be written any more, because its id is too old to tell whether it was
/// written before: no version could prove that it was not.
fn is_only_read(batch: &Batch, keep: Duration) -> bool {
    let proves = |part: &CellPart| part.writes() && matches!(part.expect, Expect::Version(_));
    let writes = batch.parts.iter().any(CellPart::writes);
    batch.id.is_some() && batch.age >= keep && writes && !batch.parts.iter().any(proves)
}

/// Whether a refusal of this part names the value that is there.
fn shows_value(part: &CellPart) -> bool {
    matches!(part.expect, Expect::Absent | Expect::Version(_))
}

/// The text of a fence. All have the same length, so that they sort as numbers do.
fn fence_text(fence: Fence) -> Vec<u8> {
    format!("{:016}", fence.get()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_fences_sort_as_their_numbers() {
        let fences = [0, 1, 9, 10, 999, 1_763_258_112_345_678, limits::FENCE];
        for (one, two) in fences.iter().flat_map(|one| fences.map(|two| (*one, two))) {
            let [text, other] = [one, two].map(|fence| fence_text(Fence::new(fence)));
            assert_eq!(text.cmp(&other), one.cmp(&two));
        }
    }
}

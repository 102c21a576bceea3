//! What all clients of a namespace agree on: one key, `terms`.
//!
//! The key says how fences are computed from revisions, which `max_lease` all clients use, and
//! which cluster wrote it. Every transaction that gives out a fence compares that the key is at the
//! revision its client knows ([`Inner::txn_under_terms`]). If it is not, the client reads the
//! terms, agrees again and repeats the transaction. So raised fences count for all grants after the
//! raise, also of clients that were connected before, and a client that stated another `max_lease`
//! than is written by now gets no lock. The comparison is part of the one transaction of a free
//! lock.
//!
//! `max_lease` is changed when a client states another one and no slot has a key, which the
//! transaction that changes it compares: no claim holds, waits or closes a slot by its lock delay.
//!
//! A restored backup is a cluster with the same keys and an older revision, so fences would fall.
//! It is detected when a client connects, and accepted only if the URL says so. From then on fences
//! have a higher base. A restore is recognised by two signs:
//!
//! - The cluster has another id than the key names. `etcdctl snapshot restore` keeps the id if it
//!   is given the token and the peer URLs of the old cluster.
//! - The raft log is too short. Every revision takes an entry of the log, so the index of the log
//!   grows by at least as much as the revision. A restore keeps the revision of the backup and
//!   begins a new log. The key names the index from just before it was written.
//!
//! `cluster_check.rs` looks for both signs again while a client is connected.

use std::time::Duration;

use super::Inner;
use super::client::{Compare, CompareResult, KeyValue, RangeRequest, RequestOp, ResponseOp};
use super::connection::{ClusterConnection, TxnReply};
use super::errors::{CallError, VerbError};
use super::fences::Epoch;
use super::keys::Keys;
use super::snapshot::SlotSnapshot;
use super::transaction::Transaction;
use crate::contract::{Error, ErrorKind, Fence, Page, Query, Raised};
use crate::engine::common::max_lease;
use crate::ledger::Now;
use crate::limits;
use crate::sync::PoisonError;

/// The version of the layout of keys and values.
const LAYOUT: u64 = 2;

/// How many times terms are read again because other clients change them at the same time.
const MAX_ATTEMPTS: usize = 16;

/// How long to back off before another member is tried: an election may be in progress.
const ELECTION_PAUSE: Duration = Duration::from_millis(300);

/// How far a new base is above the largest fence of the restored store at least, should the wall
/// clock be behind: more revisions than a backup is behind.
const LEAP: u64 = 1 << 32;

/// How many keys are read to name the claims that prevent a change of `max_lease`.
const KEYS_SHOWN: i64 = 200;

/// The value of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamespaceTerms {
    layout: u64,
    max_lease: Duration,
    cluster: u64,
    /// What is added to revisions to compute fences, and the former base.
    base: u64,
    former: u64,
    /// The index of the raft log, as a member reported it just before this was written.
    log: u64,
    /// The amount by which fences were raised since the base was written.
    raised: u64,
    /// The revision that wrote the base; 0 if that is the one that wrote this.
    since: u64,
}

/// What a client states when it connects, and whether it may change the terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatedTerms {
    pub(super) max_lease: Duration,
    /// Whether a restored cluster is accepted.
    pub(super) accepts_restored: bool,
    /// Whether another `max_lease` is written if no claim exists.
    pub(super) changes_max_lease: bool,
}

/// The terms as they were read, and the state of the cluster at that time.
pub(super) struct StoredTerms {
    terms: Option<NamespaceTerms>,
    /// The revision that wrote the terms; 0 if there are none.
    written: u64,
    revision: u64,
    cluster: u64,
    log: u64,
    /// How many connections were opened before the log was read.
    pub(super) opened: u64,
}

/// Whether the raft log cannot be the one that had `known` entries when the terms were written.
/// `revisions` is how many revisions there were since. An index of 0 is unknown.
fn is_another_log(index: u64, known: u64, revisions: u64) -> bool {
    index > 0 && known > 0 && index < known + revisions
}

/// Agrees on the terms with all other clients of the namespace. Returns the current epoch.
pub(super) async fn agree(
    connection: &ClusterConnection,
    keys: &Keys,
    stated: StatedTerms,
    now: Now,
) -> Result<Epoch, Error> {
    let max_lease = stated.max_lease;
    // Each member that fails is skipped once. Everything here can be repeated safely.
    let mut other_members = connection.endpoints().count().saturating_sub(1);
    for _ in 0..MAX_ATTEMPTS {
        let stored = match read_terms(connection, keys).await {
            Err(error) if error.should_switch_member() && other_members > 0 => {
                other_members -= 1;
                tokio::time::sleep(ELECTION_PAUSE).await;
                continue;
            }
            reply => reply.map_err(CallError::into_error)??,
        };
        let (written, log) = (stored.written, stored.log);
        let mut txn = Transaction::default();
        txn.if_unwritten(keys.terms(), written);
        let terms = match stored.terms {
            None => stored.first(max_lease, now),
            Some(terms) if stored.is_restored() => {
                if !stated.accepts_restored {
                    return Err(connection.set_restored().into_error());
                }
                stored.accepted(terms, now)
            }
            Some(terms) if terms.max_lease == max_lease => {
                connection.set_checked(stored.opened);
                return Ok(terms.epoch(written));
            }
            Some(terms) => {
                let epoch = terms.epoch(written);
                if let Err(because) = may_change(connection, keys, stated, epoch, now).await? {
                    return Err(max_lease::refused(terms.max_lease, max_lease, &because));
                }
                let slots = keys.all_slots();
                let empty = Compare::create_revision(slots.from, CompareResult::Equal, 0);
                txn.compares.push(empty.with_range(slots.to));
                NamespaceTerms { max_lease, log, since: epoch.written, ..terms }
            }
        };
        if terms.base > limits::FENCE_FLOOR {
            return Err(Error::new(ErrorKind::Limit, "the fences of this namespace are used up")
                .with_help("use another prefix or namespace"));
        }
        txn.put(keys.terms(), terms.encode().into_bytes(), 0);
        match connection.txn(txn.compares, txn.writes, Vec::new()).await {
            // A restored cluster may have another `max_lease`: then the next round changes it.
            Ok(done) if done.succeeded && terms.max_lease == max_lease => {
                connection.set_checked(stored.opened);
                return Ok(terms.epoch(done.revision));
            }
            // Whether it was written is found by the next read.
            Err(error) if error.should_switch_member() && other_members > 0 => other_members -= 1,
            done => drop(done.map_err(CallError::into_error)?),
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "other clients keep changing the terms of this namespace",
    )
    .with_help("connect again"))
}

/// Raises fences above `to`. Returns the new epoch as well.
async fn raise(
    connection: &ClusterConnection,
    keys: &Keys,
    stated: StatedTerms,
    now: Now,
    to: u64,
) -> Result<(Raised, Epoch), Error> {
    for _ in 0..MAX_ATTEMPTS {
        agree(connection, keys, stated, now).await?;
        let stored = read_terms(connection, keys).await.map_err(CallError::into_error)??;
        let StoredTerms { terms: Some(terms), written, revision, log, .. } = stored else {
            continue;
        };
        let epoch = terms.epoch(written);
        // Every fence so far was given out at a revision up to this one, with this raise or less.
        let highest = epoch.fence(revision);
        if to <= highest {
            return Ok((Raised::NotAbove(Fence::new(highest)), epoch));
        }
        let raised = to - epoch.version(revision);
        let terms = NamespaceTerms { raised, log, since: epoch.written, ..terms };
        let mut txn = Transaction::default();
        txn.if_unwritten(keys.terms(), written);
        txn.put(keys.terms(), terms.encode().into_bytes(), 0);
        let done = connection.txn(txn.compares, txn.writes, Vec::new()).await;
        let done = done.map_err(CallError::into_error)?;
        if done.succeeded {
            return Ok((Raised::Done, terms.epoch(done.revision)));
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "other clients keep changing the terms of this namespace",
    )
    .with_help("call again"))
}

/// Reads the terms and the state of the cluster.
pub(super) async fn read_terms(
    connection: &ClusterConnection,
    keys: &Keys,
) -> Result<Result<StoredTerms, Error>, CallError> {
    let read = connection.read(vec![RequestOp::get(keys.terms())]).await?;
    let cluster = connection.cluster().unwrap_or(0);
    // After the read, so that the log has an entry for every revision up to it.
    let opened = connection.opened();
    let log = raft_index(connection).await?;
    let revision = read.revision;
    let found = read.replies.into_iter().next().map(ResponseOp::into_kvs).unwrap_or_default();
    let terms = match found.first().map(|key| NamespaceTerms::decode(&key.value)) {
        None => None,
        Some(None) => return Ok(Err(damaged())),
        Some(Some(terms)) if terms.layout != LAYOUT => {
            return Ok(Err(unknown_layout(terms.layout)));
        }
        Some(terms) => terms,
    };
    let written = found.first().map_or(0, written);
    Ok(Ok(StoredTerms { terms, written, revision, cluster, log, opened }))
}

/// Checks whether `max_lease` may be changed; the inner error says why not.
async fn may_change(
    connection: &ClusterConnection,
    keys: &Keys,
    stated: StatedTerms,
    epoch: Epoch,
    now: Now,
) -> Result<Result<(), String>, Error> {
    if !stated.changes_max_lease {
        return Ok(Err("a client has changed it since".to_owned()));
    }
    let slots = keys.all_slots();
    let (key, range_end) = (slots.from, slots.to);
    let some = RangeRequest { key, range_end, limit: KEYS_SHOWN, ..RangeRequest::default() };
    let read = connection.read(vec![some.into()]).await.map_err(CallError::into_error)?;
    let mut found = SlotSnapshot::new(read.revision, epoch);
    let all: Vec<KeyValue> = read.replies.into_iter().flat_map(ResponseOp::into_kvs).collect();
    if all.is_empty() {
        return Ok(Ok(()));
    }
    for slot in all.chunk_by(|one, two| keys.slot_of(&one.key) == keys.slot_of(&two.key)) {
        if let Some(name) = keys.slot_of(&slot[0].key) {
            // A damaged slot is reported when that slot is used.
            let _ = found.add(keys, &name, slot);
        }
    }
    let seen = found.ledger(now, 0).inspect(&Query::Page(Page::default()), now);
    let claimed = max_lease::claimed(&seen);
    Ok(Err(claimed.unwrap_or_else(|| "a lock delay has not passed yet".to_owned())))
}

/// The raft index of the member in use. It is 0, which is unknown, if the server refuses to report
/// its status to this client.
async fn raft_index(connection: &ClusterConnection) -> Result<u64, CallError> {
    match connection.call(|client| async move { client.status().await }).await {
        Ok(status) => Ok(status.raft_index),
        Err(CallError::Rejected(error)) => {
            tracing::warn!(
                %error,
                "etcd refuses its status: a restored backup is recognised by its cluster id and \
                 by falling revisions only"
            );
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

fn written(key: &KeyValue) -> u64 {
    u64::try_from(key.mod_revision).unwrap_or(0)
}

impl Inner {
    /// The newest epoch that this client knows.
    pub(super) fn epoch(&self) -> Epoch {
        *self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a transaction that may give out fences of this epoch. It also compares that the terms
    /// are those of the epoch. If they have changed, agrees on them again; the caller repeats.
    pub(super) async fn txn_under_terms(
        &self,
        epoch: Epoch,
        mut txn: Transaction,
        mut otherwise: Vec<RequestOp>,
    ) -> Result<TxnReply, VerbError> {
        let key = self.keys.terms();
        txn.if_unwritten(key.clone(), epoch.terms);
        otherwise.push(RangeRequest { key, keys_only: true, ..RangeRequest::default() }.into());
        let mut reply = self.checked_txn(txn, otherwise).await?;
        if !reply.succeeded {
            let terms = reply.replies.pop().map(ResponseOp::into_kvs).unwrap_or_default();
            if terms.first().map_or(0, written) != epoch.terms {
                self.learn_epoch(
                    agree(&self.connection, &self.keys, self.stated, self.now()).await?,
                );
            }
        }
        Ok(reply)
    }

    /// Raises fences, so that all grants from now on have fences above `to`.
    pub(super) async fn raise_fences(&self, to: Fence) -> Result<Raised, VerbError> {
        let raised = raise(&self.connection, &self.keys, self.stated, self.now(), to.get()).await;
        let (raised, epoch) = raised?;
        self.learn_epoch(epoch);
        Ok(raised)
    }

    fn learn_epoch(&self, epoch: Epoch) {
        let mut known = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        // Replies may arrive out of order.
        if epoch.terms > known.terms {
            *known = epoch;
        }
    }
}

impl StoredTerms {
    /// The terms of a namespace that has none yet.
    fn first(&self, max_lease: Duration, now: Now) -> NamespaceTerms {
        let base = now.wall_micros.min(Epoch::MAX);
        let (layout, former, raised, since) = (LAYOUT, base, 0, 0);
        let Self { cluster, log, .. } = *self;
        NamespaceTerms { layout, max_lease, cluster, base, former, log, raised, since }
    }

    /// The terms of a restored cluster: fences go on above all that it may have given out.
    fn accepted(&self, terms: NamespaceTerms, now: Now) -> NamespaceTerms {
        let highest = terms.base + terms.raised + self.revision;
        let base = now.wall_micros.min(Epoch::MAX).max(highest + LEAP);
        let (former, raised, since) = (terms.base, 0, 0);
        let Self { cluster, log, .. } = *self;
        NamespaceTerms { cluster, base, former, log, raised, since, ..terms }
    }

    /// Whether terms that were written at the same revision are the same. Newer ones are read when
    /// a transaction finds them; none, or older ones, are those of a backup.
    pub(super) fn agrees_with(&self, known: Epoch) -> bool {
        match self.terms {
            Some(terms) if self.written == known.terms => terms.epoch(self.written) == known,
            _ => self.written > known.terms,
        }
    }

    /// Whether this is not the cluster in which the terms were written.
    pub(super) fn is_restored(&self) -> bool {
        let revisions = self.revision.saturating_sub(self.written);
        self.terms.is_some_and(|terms| {
            terms.cluster != self.cluster || is_another_log(self.log, terms.log, revisions)
        })
    }
}

impl NamespaceTerms {
    fn epoch(self, written: u64) -> Epoch {
        let Self { base, former, raised, since, .. } = self;
        let terms = written;
        Epoch { base, former, written: if since == 0 { written } else { since }, raised, terms }
    }

    fn encode(self) -> String {
        let Self { layout, cluster, base, former, log, raised, since, .. } = self;
        let max_lease = self.max_lease.as_micros();
        format!("{layout} {max_lease} {cluster:x} {base} {former} {log} {raised} {since}")
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut fields = text.split(' ');
        let layout = fields.next()?.parse().ok()?;
        let max_lease = Duration::from_micros(fields.next()?.parse().ok()?);
        let cluster = u64::from_str_radix(fields.next()?, 16).ok()?;
        if layout != LAYOUT {
            // The other fields belong to another version.
            let (base, former, log, raised, since) = (0, 0, 0, 0, 0);
            return Some(Self { layout, max_lease, cluster, base, former, log, raised, since });
        }
        let mut number = || fields.next()?.parse().ok();
        let (base, former, log) = (number()?, number()?, number()?);
        // Terms that were written before fences were ever raised have no such fields.
        let (raised, since) = (number().unwrap_or(0), number().unwrap_or(0));
        Some(Self { layout, max_lease, cluster, base, former, log, raised, since })
    }
}

fn unknown_layout(layout: u64) -> Error {
    let what =
        format!("this namespace has layout {layout}, and this version supports {LAYOUT} only");
    Error::new(ErrorKind::Unsupported, what)
        .with_help("use the same version of Tenure everywhere, or another namespace")
}

fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "the terms of this namespace are not ours or are damaged")
        .with_help("inspect the key `terms` below the prefix with etcdctl, or use another prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> NamespaceTerms {
        let (base, former, log, raised, since) = (7_000, 5_000, 90, 11, 3);
        let max_lease = Duration::from_secs(60);
        NamespaceTerms {
            layout: LAYOUT,
            max_lease,
            cluster: u64::MAX,
            base,
            former,
            log,
            raised,
            since,
        }
    }

    #[test]
    fn terms_survive_their_text_and_nothing_else_is_taken_for_them() {
        assert_eq!(NamespaceTerms::decode(terms().encode().as_bytes()), Some(terms()));
        for bad in ["", "2", "x 1 1 1", "2 1 zz 1", "2 1 1", "2 1 1 1 1"] {
            assert_eq!(NamespaceTerms::decode(bad.as_bytes()), None, "{bad}");
        }
        let short = NamespaceTerms::decode(b"2 1 1 7 5 9").unwrap();
        assert_eq!((short.raised, short.since), (0, 0));
        assert_eq!(NamespaceTerms::decode(b"9 60000000 1 what ever").unwrap().layout, 9);
    }

    #[test]
    fn the_base_counts_from_the_revision_that_wrote_it() {
        let first = NamespaceTerms { raised: 0, since: 0, ..terms() }.epoch(20);
        let raised = NamespaceTerms { since: first.written, ..terms() }.epoch(40);
        assert_eq!((first.written, first.terms), (20, 20));
        assert_eq!((raised.written, raised.terms), (20, 40));
        assert_eq!(raised.version(30), first.version(30));
    }

    #[test]
    fn a_log_that_grew_by_less_than_the_revision_is_another_one() {
        for (index, revisions) in [(90, 0), (91, 1), (200, 1), (0, 0), (0, 900)] {
            assert!(!is_another_log(index, 90, revisions), "{index} {revisions}");
        }
        for (index, revisions) in [(8, 0), (95, 20), (100, 11), (89, 0)] {
            assert!(is_another_log(index, 90, revisions), "{index} {revisions}");
        }
        assert!(!is_another_log(8, 0, 40), "nothing is known");
    }
}

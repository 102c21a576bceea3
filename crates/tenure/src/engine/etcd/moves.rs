//! Moves the keys of claims to new leases after a change of leader.
//!
//! Leases are counted by the leader. A leader that was stuck (stopped, a slow disk) for longer than
//! a lease believes, when it goes on, that the lease has ended, though the next leader has kept it
//! alive since; it asks for a revocation, and members before 3.4.31 and 3.5.13 carry it out (etcd
//! #15247; later ones ask once more who leads). The keys on the lease are deleted, the next waiter
//! holds, and the holder would learn it at its next renewal: two holders.
//!
//! A leader knows only leases that were made before it was stuck. So a lease is used in one raft
//! term alone. Responses name the term; when a renewal or a grant finds a newer one, the claim's
//! keys are written once more, on a lease that was made in it, before the renewal or grant counts.
//! Until then the claim is as safe as it was before the election: no leader counts a lease from an
//! earlier instant than the last renewal that it has answered itself.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::claim::{Halt, LEASES, TRIES, crowded};
use super::client::RequestOp;
use super::errors::Trouble;
use super::keys::Kind;
use super::leases::{Lease, Term, Who};
use super::picture::{Picture, see};
use super::roll::{Entry, Phase};
use super::step::{Change, Own};
use crate::contract::ClaimId;
use crate::time::Tick;

/// How many keys are moved in one call. etcd takes 128 operations at most, if it is not told more.
const TOGETHER: usize = 96;

/// A claim whose keys are to hang on these leases.
struct Move {
    entry: Entry,
    lease: Arc<Lease>,
    delay: Option<Arc<Lease>>,
}

impl Inner {
    /// Whether the keys of a claim have to be moved.
    pub(super) fn is_old(&self, own: &Own) -> bool {
        !self.leases.is_current(&own.lease)
    }

    /// Moves the keys of those claims whose leases were made in an earlier raft term.
    pub(super) async fn move_old(&self, claims: &[ClaimId], since: Tick) -> Result<(), Halt> {
        let old = |id: &ClaimId| self.roll.get(*id).filter(|entry| self.is_old(&entry.own));
        let old: Vec<Entry> = claims.iter().filter_map(old).collect();
        self.move_keys(old, since).await
    }

    /// Moves the keys of a claim if one of them was seen on another lease than the claim's: the
    /// step that wrote it was under way when the others were moved.
    pub(super) async fn move_strays(
        &self,
        id: ClaimId,
        found: &Picture,
        since: Tick,
    ) -> Result<(), Halt> {
        let Some(entry) = self.roll.get(id) else { return Ok(()) };
        let seen = found.slots.values().flatten();
        let mut own = seen.filter(|seen| seen.id == id && seen.kind != Kind::Delay);
        if own.any(|seen| seen.lease != entry.own.lease.id) {
            self.move_keys(vec![entry], since).await?;
        }
        Ok(())
    }

    /// Moves the keys of these claims to leases that are made in the current raft term and live for
    /// the length of the claim from `since` on.
    pub(super) async fn move_keys(&self, entries: Vec<Entry>, since: Tick) -> Result<(), Halt> {
        if entries.is_empty() || self.try_move(&entries, since).await? {
            return Ok(());
        }
        // Others write there too: each by itself.
        for entry in entries {
            let mut attempt = 0;
            while !self.try_move(std::slice::from_ref(&entry), since).await? {
                if attempt == TRIES {
                    return Err(crowded(entry.own.claim.parts.first_name()).into());
                }
                self.pause(attempt).await;
                attempt += 1;
            }
        }
        Ok(())
    }

    /// Moves keys unless one of them is written meanwhile. True if it is done.
    async fn try_move(&self, entries: &[Entry], since: Tick) -> Result<bool, Halt> {
        for _ in 0..LEASES {
            let mut moves = Vec::with_capacity(entries.len());
            for entry in entries {
                moves.push(self.plan(entry, since).await?);
            }
            match self.write_moves(&moves).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(Halt::Trouble(Trouble::LeaseGone)) => {
                    for one in &moves {
                        self.leases.forget(&one.lease);
                        one.delay.iter().for_each(|lease| self.leases.forget(lease));
                    }
                    continue;
                }
                Err(halt) => return Err(halt),
            }
            // Another election may have taken place meanwhile.
            if moves.iter().all(|one| self.leases.is_current(&one.lease)) {
                return Ok(true);
            }
        }
        Err(Trouble::LeaseGone.into())
    }

    /// Writes the keys once more that hang elsewhere, a few in each call: each compares nothing but
    /// that its own key is as it was read. False if one was not.
    async fn write_moves(&self, moves: &[Move]) -> Result<bool, Halt> {
        let all: Vec<(&Move, Vec<u8>)> = moves
            .iter()
            .flat_map(|one| self.keys_of(&one.entry).into_iter().map(move |key| (one, key)))
            .collect();
        for some in all.chunks(TOGETHER) {
            let keys = some.iter().map(|(_, key)| RequestOp::get(key.clone()));
            let read = self.link.read(keys.collect()).await?;
            let found = Picture::new(read.revision, self.epoch());
            let mut change = Change::default();
            let mut holds = Vec::new();
            for ((one, _), reply) in some.iter().zip(read.replies) {
                let id = one.entry.own.claim.id;
                let seen = reply.into_kvs().first().and_then(|key| see(&self.keys, key));
                let Some(seen) = seen.filter(|seen| seen.id == id) else { continue };
                let on = match (seen.kind, &one.delay) {
                    (Kind::Delay, Some(delay)) => delay.id,
                    _ => one.lease.id,
                };
                if seen.lease != on {
                    change.unwritten(seen.key.clone(), seen.written);
                    change.put(seen.key.clone(), found.rewritten(&seen).write(), on);
                    holds.extend((seen.kind == Kind::Hold).then_some(id));
                }
            }
            if !change.is_empty() {
                let done = self.link.when(change.compares, change.writes, Vec::new()).await?;
                if !done.held {
                    return Ok(false);
                }
                for id in holds {
                    self.roll.rewritten(id, done.revision);
                }
            }
        }
        for one in moves {
            let id = one.entry.own.claim.id;
            self.roll.hang(id, &one.lease, one.delay.as_ref());
            self.waits.hang(id, &one.lease, one.delay.as_ref());
        }
        Ok(true)
    }

    /// The leases that a claim's keys are to hang on.
    async fn plan(&self, entry: &Entry, since: Tick) -> Result<Move, Halt> {
        let claim = &entry.own.claim;
        let who = claim.session.map_or(Who::Claim(claim.id), Who::Session);
        let term = |extra| Term { who, length: claim.lease, extra };
        // The one of the lock delay first: it must outlive the other.
        let delay = match &entry.own.delay {
            Some(_) => Some(self.leases.ensure(term(claim.lock_delay), since).await?),
            None => None,
        };
        let lease = self.leases.ensure(term(Duration::ZERO), since).await?;
        Ok(Move { entry: entry.clone(), lease, delay })
    }

    /// The keys that a claim may have.
    fn keys_of(&self, entry: &Entry) -> Vec<Vec<u8>> {
        let (claim, tag) = (&entry.own.claim, entry.own.tag);
        let kinds: &[Kind] = match entry.phase {
            Phase::Held { waited: false, .. } => &[Kind::Hold],
            _ => &[Kind::Hold, Kind::Kin, Kind::Wait],
        };
        let mut keys = Vec::new();
        for name in claim.parts.names() {
            keys.extend(kinds.iter().map(|kind| self.keys.claim(name, *kind, tag)));
            keys.extend(entry.own.delay.iter().map(|_| self.keys.claim(name, Kind::Delay, tag)));
        }
        keys
    }
}

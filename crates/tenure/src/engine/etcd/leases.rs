//! Leases of etcd: granted when first needed, one per session and length, and kept alive when the
//! session renews, never in the background.
//!
//! # How etcd's leases and safe-until agree
//!
//! A session counts safe-until from when it sent a claim or renewal. etcd counts a lease from when
//! it received the last grant or keep-alive, which is later than when that was sent. So `answered`
//! is the *send time* of the last answered call, and a claim made at `since` may use a lease
//! without a call only if `answered + life` is at least `since` plus the claim's length
//! ([`LeaseStatus::Fresh`]). Otherwise a keep-alive is sent beside the claim, and the verdict waits
//! for both ([`LeaseStatus::Stale`]). Then the keys always outlive safe-until.
//!
//! # What can interleave
//!
//! - Two claims of a session that need the same new lease: `granting` admits one grant at a time,
//!   and the second finds the lease of the first.
//! - Two keep-alives of a lease: the stream's mutex admits one at a time. The second is not sent if
//!   the first was sent after its `since`.
//! - A lease that ends in etcd: the next call on it reports `LeaseGone`, the lease is forgotten,
//!   and the keys on it are gone too.
//!
//! The ids of writes to cells are on leases that are never kept alive and replaced half-way: all
//! keys on one lease end with it, and none has to be deleted by a client that may be gone.
//!
//! A lease is used only in the raft term in which it was granted; `lease_moves.rs` says why. One
//! that is never kept alive needs no such rule: no leader counts it shorter than it was granted.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use super::client::{KeepAliveStream, LeaseKeepAliveRequest};
use super::connection::ClusterConnection;
use super::errors::CallError;
#[cfg(feature = "conformance")]
use super::testing::Lessor;
use crate::contract::{ClaimId, SessionId};
use crate::sync::{Mutex, PoisonError};
use crate::time::{Clock, Tick};

/// How much longer a lease is than the claims on it at least, so that not every claim needs a
/// keep-alive of its own.
const SPARE: Duration = Duration::from_secs(1);

/// How much longer than it has to a key on a rotating lease lives: a repeat of a request is on its
/// way for so long at most, and clocks may differ by an eighth.
const ROTATION_SPARE: Duration = Duration::from_secs(4);

/// From how many leases on the ended ones are removed from the map.
const SWEEP_FROM: usize = 256;

/// Which claims a lease is for, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseSpec {
    pub(super) owner: LeaseOwner,
    /// The lease of the claims on it.
    pub(super) length: Duration,
    /// How much longer it is: a lock delay.
    pub(super) extra: Duration,
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeaseOwner {
    /// The claims of a session.
    Session(SessionId),
    /// A claim without a session, which has a lease of its own.
    Claim(ClaimId),
    /// A cell with a time to live.
    Cell(ClaimId),
    /// The ids of writes to cells.
    WriteIds,
    /// Tombstones and eviction notices: they outlive the session that they are about.
    Engine,
}

/// One lease in etcd.
pub(super) struct EtcdLease {
    pub(super) id: i64,
    spec: LeaseSpec,
    life: Duration,
    /// The newest raft term that was known when it was requested.
    raft_term: u64,
    state: Mutex<LeaseState>,
    stream: AsyncMutex<Option<KeepAlive>>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseState {
    /// When the last answered grant or keep-alive was sent. Only grows.
    answered: Tick,
    gone: bool,
}

/// An open stream of keep-alives to one member.
struct KeepAlive {
    stream: KeepAliveStream,
    member: usize,
}

/// Whether a lease can be used for a claim.
pub(super) enum LeaseStatus {
    /// It has at least the claim's length left.
    Fresh(Arc<EtcdLease>),
    /// It may be alive, and needs a keep-alive beside the claim.
    Stale(Arc<EtcdLease>),
    /// There is none, or it has ended or is of an earlier raft term.
    Missing,
}

/// All leases of an engine.
pub(super) struct Leases {
    connection: Arc<ClusterConnection>,
    clock: Arc<dyn Clock>,
    all: Mutex<HashMap<LeaseSpec, Arc<EtcdLease>>>,
    /// One grant at a time, so that two claims of a session do not get two leases.
    granting: AsyncMutex<()>,
    #[cfg(feature = "conformance")]
    lessor: Option<Arc<Lessor>>,
}

impl EtcdLease {
    /// How long it lives at least, counted from the last answered call.
    pub(super) fn remaining(&self, now: Tick) -> Duration {
        let state = self.state();
        if state.gone { Duration::ZERO } else { (state.answered + self.life).since(now) }
    }

    fn state(&self) -> LeaseState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut LeaseState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for EtcdLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLease").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Leases {
    pub(super) fn new(connection: Arc<ClusterConnection>, clock: Arc<dyn Clock>) -> Self {
        Self {
            connection,
            clock,
            all: Mutex::default(),
            granting: AsyncMutex::new(()),
            #[cfg(feature = "conformance")]
            lessor: None,
        }
    }

    #[cfg(feature = "conformance")]
    pub(super) fn with_lessor(mut self, lessor: Option<Arc<Lessor>>) -> Self {
        self.lessor = lessor;
        self
    }

    /// Returns the lease for a claim that was made at `since`, and whether it can be used.
    pub(super) fn status(&self, spec: LeaseSpec, since: Tick) -> LeaseStatus {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&spec).filter(|lease| self.is_current(lease)) {
            Some(lease) if lease.remaining(since) >= spec.length + spec.extra => {
                LeaseStatus::Fresh(Arc::clone(lease))
            }
            Some(lease) if !lease.remaining(since).is_zero() => {
                LeaseStatus::Stale(Arc::clone(lease))
            }
            _ => LeaseStatus::Missing,
        }
    }

    /// Whether a lease was granted in the newest raft term that is known.
    pub(super) fn is_current(&self, lease: &EtcdLease) -> bool {
        lease.raft_term >= self.connection.raft_term()
    }

    /// Returns a lease with the whole length left, counted from `since`: an existing one, kept
    /// alive if necessary, or a new one.
    pub(super) async fn ensure(
        &self,
        spec: LeaseSpec,
        since: Tick,
    ) -> Result<Arc<EtcdLease>, CallError> {
        if let LeaseStatus::Fresh(lease) = self.status(spec, since) {
            return Ok(lease);
        }
        let _one = self.granting.lock().await;
        match self.status(spec, since) {
            LeaseStatus::Fresh(lease) => return Ok(lease),
            LeaseStatus::Stale(lease) => match self.keep_alive(&lease, since).await {
                Ok(()) => return Ok(lease),
                Err(CallError::LeaseGone) => {}
                Err(error) => return Err(error),
            },
            LeaseStatus::Missing => {}
        }
        self.grant(spec).await
    }

    /// Keeps a lease alive: returns when a keep-alive that was sent after `since` has been
    /// answered.
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<EtcdLease>,
        since: Tick,
    ) -> Result<(), CallError> {
        let mut stream = lease.stream.lock().await;
        // Another task may have kept it alive while this one waited for the mutex.
        let state = lease.state();
        if state.gone {
            return Err(CallError::LeaseGone);
        }
        if state.answered >= since && state.answered > Tick::ZERO {
            return Ok(());
        }
        let sent = self.clock.now();
        match self.send_keep_alive(lease.id, &mut stream).await {
            Ok(()) => {
                lease.change(|state| state.answered = state.answered.max(sent));
                self.on_kept_alive(lease.id);
                Ok(())
            }
            Err(CallError::LeaseGone) => {
                *stream = None;
                self.forget(lease);
                Err(CallError::LeaseGone)
            }
            Err(error) => {
                *stream = None;
                Err(error)
            }
        }
    }

    /// Keeps a lease alive of which only the id is known.
    pub(super) async fn keep_alive_by_id(&self, id: i64, since: Tick) -> Result<(), CallError> {
        let known = {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.values().find(|lease| lease.id == id).cloned()
        };
        if let Some(lease) = known {
            return self.keep_alive(&lease, since).await;
        }
        self.send_keep_alive(id, &mut None).await?;
        self.on_kept_alive(id);
        Ok(())
    }

    /// Wraps a lease of another process that was just kept alive.
    pub(super) fn adopt(id: i64, spec: LeaseSpec, answered: Tick) -> Arc<EtcdLease> {
        let state = Mutex::new(LeaseState { answered, gone: false });
        let (life, stream) = (spec.length, AsyncMutex::new(None));
        // Its raft term is not known: it counts as old.
        Arc::new(EtcdLease { id, spec, life, raft_term: 0, state, stream })
    }

    /// Forgets a lease that is gone in the store, with all keys on it.
    pub(super) fn forget(&self, lease: &EtcdLease) {
        lease.change(|state| state.gone = true);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&lease.spec).is_some_and(|known| known.id == lease.id) {
            all.remove(&lease.spec);
        }
    }

    /// Revokes a lease, which deletes the keys on it. Best effort: otherwise it ends by itself.
    pub(super) async fn revoke(&self, lease: &EtcdLease) {
        self.forget(lease);
        let id = lease.id;
        let _ =
            self.connection.lease_call(|client| async move { client.lease_revoke(id).await }).await;
    }

    /// Reads how long a lease has left in the store; `None` if it is gone.
    pub(super) async fn remaining(&self, id: i64) -> Result<Option<Duration>, CallError> {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            return Ok(lessor.left(id));
        }
        let request =
            self.connection.lease_call(|client| async move { client.lease_time_to_live(id).await });
        let left = request.await?;
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// Returns how long a lease has left at most: the store rounds down to whole seconds. `None` if
    /// it is gone.
    pub(super) async fn remaining_at_most(&self, id: i64) -> Result<Option<Duration>, CallError> {
        #[cfg(feature = "conformance")]
        if self.lessor.is_some() {
            return self.remaining(id).await;
        }
        Ok(self.remaining(id).await?.map(|left| left + Duration::from_secs(1)))
    }

    /// Returns a lease on which a key lives for at least `keep`, and for little more than twice
    /// that. It is never kept alive: when too little is left of it, the next one is granted.
    pub(super) async fn ensure_rotating(
        &self,
        keep: Duration,
        since: Tick,
    ) -> Result<Arc<EtcdLease>, CallError> {
        let (owner, extra) = (LeaseOwner::WriteIds, keep + ROTATION_SPARE * 2);
        let spec = LeaseSpec { owner, length: keep, extra };
        let usable = || {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let lease = all.get(&spec)?;
            (lease.remaining(since) >= keep + keep / 8 + ROTATION_SPARE).then(|| Arc::clone(lease))
        };
        if let Some(lease) = usable() {
            return Ok(lease);
        }
        let _one = self.granting.lock().await;
        match usable() {
            Some(lease) => Ok(lease),
            None => self.grant(spec).await,
        }
    }

    /// Revokes the lease of a cell that was not written. Best effort: otherwise it ends by itself.
    pub(super) async fn revoke_unused(&self, id: i64) {
        let revoke =
            self.connection.lease_call(|client| async move { client.lease_revoke(id).await });
        let _ = revoke.await;
    }

    /// Grants a lease that is never kept alive, for a cell. Returns its id.
    pub(super) async fn grant_unrenewed(&self, length: Duration) -> Result<i64, CallError> {
        let spec =
            LeaseSpec { owner: LeaseOwner::Cell(ClaimId::new()), length, extra: Duration::ZERO };
        Ok(self.grant(spec).await?.id)
    }

    async fn grant(&self, spec: LeaseSpec) -> Result<Arc<EtcdLease>, CallError> {
        let whole = spec.length + spec.extra;
        let cell = matches!(spec.owner, LeaseOwner::Cell(_));
        let wanted = if cell { whole } else { whole + SPARE.max(whole / 8) };
        let seconds = wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0);
        #[cfg(feature = "conformance")]
        let seconds = if self.lessor.is_some() { super::testing::LIFE.as_secs() } else { seconds };
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let (answered, raft_term) = (self.clock.now(), self.connection.raft_term());
        let granted =
            self.connection.lease_call(|client| async move { client.lease_grant(seconds).await });
        let granted = granted.await?;
        let life = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
        #[cfg(feature = "conformance")]
        let life = self.lessor.as_ref().map_or(life, |lessor| {
            lessor.granted(granted.id, spec);
            whole
        });
        let state = Mutex::new(LeaseState { answered, gone: false });
        let stream = AsyncMutex::new(None);
        let lease = Arc::new(EtcdLease { id: granted.id, spec, life, raft_term, state, stream });
        if cell {
            return Ok(lease);
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SWEEP_FROM {
            let now = self.clock.now();
            all.retain(|_, lease| !lease.remaining(now).is_zero());
        }
        all.insert(spec, Arc::clone(&lease));
        Ok(lease)
    }

    /// Sends one keep-alive and waits for the response, over the open stream or a new one.
    async fn send_keep_alive(
        &self,
        id: i64,
        stream: &mut Option<KeepAlive>,
    ) -> Result<(), CallError> {
        let member = *self.connection.current().borrow();
        if let Some(open) = stream.as_mut().filter(|open| open.member == member) {
            let sent = open.stream.send(LeaseKeepAliveRequest { id });
            match self
                .await_keep_alive(
                    &mut open.stream,
                    sent.map_err(|failure| CallError::from_rpc(&failure)),
                )
                .await
            {
                // The stream broke while it was idle, which says nothing about the lease.
                Err(
                    CallError::Unavailable(_)
                    | CallError::NotConnected(_)
                    | CallError::NotEtcd(_)
                    | CallError::Rejected(_),
                ) => {}
                answered => return answered,
            }
        }
        *stream = None;
        let opened =
            self.connection.lease_call(|client| async move { client.lease_keep_alive(id).await });
        let mut opened = opened.await?;
        self.await_keep_alive(&mut opened, Ok(())).await?;
        *stream = Some(KeepAlive { stream: opened, member });
        Ok(())
    }

    /// Waits for the response to a keep-alive that was sent.
    async fn await_keep_alive(
        &self,
        stream: &mut KeepAliveStream,
        sent: Result<(), CallError>,
    ) -> Result<(), CallError> {
        sent?;
        let Some(response) = self.connection.lease_call(|_| stream.next()).await? else {
            return Err(CallError::Unavailable("the keep-alive stream has ended".to_owned()));
        };
        self.connection.observe_term(response.header.as_ref());
        if response.ttl > 0 { Ok(()) } else { Err(CallError::LeaseGone) }
    }

    #[allow(clippy::unused_self, reason = "used by the conformance suite only")]
    fn on_kept_alive(&self, id: i64) {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            lessor.kept(id);
        }
        let _ = id;
    }
}

//! Leases of etcd, one for each session and length: granted when first needed, kept alive when a
//! session renews, never by themselves. Knows when one was last answered for, not what hangs on it.
//!
//! A session counts safe-until from when it sent a claim; etcd counts from when it last heard a
//! grant or a keep-alive. Both agree because a lease is used for a claim only while it has at least
//! the claim's length left, counted from the send of the last answered call. Otherwise a keep-alive
//! goes out beside the claim and is waited for with it.
//!
//! A lease is used only in the raft term in which it was made; `moves.rs` says why.

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

/// How much longer a lease is than what hangs on it at least, so that not every claim needs a
/// keep-alive of its own.
const SPARE: Duration = Duration::from_secs(1);

/// From how many leases on the ended ones are looked for.
const SWEEP_FROM: usize = 256;

/// Whose lease, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseSpec {
    pub(super) owner: LeaseOwner,
    /// How long a claim on it lives without a renewal.
    pub(super) length: Duration,
    /// How much longer: a lock delay.
    pub(super) extra: Duration,
}

/// For whom things hang on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeaseOwner {
    /// The claims of a session.
    Session(SessionId),
    /// A claim without a session, which lives by its lease alone.
    Claim(ClaimId),
    /// A value that is forgotten after a time.
    Cell(ClaimId),
    /// Tombstones and letters: they outlive the session that they are about.
    Engine,
}

/// One lease.
pub(super) struct EtcdLease {
    pub(super) id: i64,
    spec: LeaseSpec,
    life: Duration,
    /// The raft term that was known before it was asked for.
    raft_term: u64,
    state: Mutex<LeaseState>,
    stream: AsyncMutex<Option<KeepAlive>>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseState {
    /// When the last answered grant or keep-alive was sent.
    answered: Tick,
    gone: bool,
}

/// A stream of keep-alives to one member.
struct KeepAlive {
    stream: KeepAliveStream,
    member: usize,
}

/// How a lease stands for a claim that is to be made now.
pub(super) enum LeaseStatus {
    /// It has the whole length left.
    Fresh(Arc<EtcdLease>),
    /// It may still live, and has to be kept alive beside the claim.
    Stale(Arc<EtcdLease>),
    /// There is none.
    Missing,
}

/// All leases of an engine.
pub(super) struct Leases {
    connection: Arc<ClusterConnection>,
    clock: Arc<dyn Clock>,
    all: Mutex<HashMap<LeaseSpec, Arc<EtcdLease>>>,
    /// One grant at a time, so that two claims of one session do not make two.
    granting: AsyncMutex<()>,
    #[cfg(feature = "conformance")]
    lessor: Option<Arc<Lessor>>,
}

impl EtcdLease {
    /// How long it lives at least, as far as we have been answered.
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
    pub(super) fn on_stage(mut self, lessor: Option<Arc<Lessor>>) -> Self {
        self.lessor = lessor;
        self
    }

    /// How the lease stands for a claim that was asked for at `since`.
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

    /// Whether a lease was made in the raft term that is known now.
    pub(super) fn is_current(&self, lease: &EtcdLease) -> bool {
        lease.raft_term >= self.connection.raft_term()
    }

    /// A lease that lives as long as the term says, counted from `since`.
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

    /// Keeps a lease alive: returns when a keep-alive was answered that was sent after `since`.
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<EtcdLease>,
        since: Tick,
    ) -> Result<(), CallError> {
        let mut stream = lease.stream.lock().await;
        // Somebody else kept it alive while we waited for our turn.
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

    /// Keeps a lease alive of which only the number is known.
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

    /// Takes over a lease that another process made and that was just kept alive.
    pub(super) fn adopt(id: i64, spec: LeaseSpec, answered: Tick) -> Arc<EtcdLease> {
        let state = Mutex::new(LeaseState { answered, gone: false });
        let (life, stream) = (spec.length, AsyncMutex::new(None));
        // In which raft term it was made is not known.
        Arc::new(EtcdLease { id, spec, life, raft_term: 0, state, stream })
    }

    /// A lease is gone in the store: what hangs on it is gone too.
    pub(super) fn forget(&self, lease: &EtcdLease) {
        lease.change(|state| state.gone = true);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&lease.spec).is_some_and(|known| known.id == lease.id) {
            all.remove(&lease.spec);
        }
    }

    /// Gives a lease back, with whatever still hangs on it.
    pub(super) async fn revoke(&self, lease: &EtcdLease) {
        self.forget(lease);
        let id = lease.id;
        // If this fails, it ends by itself.
        let _ =
            self.connection.lease_call(|client| async move { client.lease_revoke(id).await }).await;
    }

    /// How long a lease has left in the store; none if it is gone.
    pub(super) async fn remaining(&self, id: i64) -> Result<Option<Duration>, CallError> {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            return Ok(lessor.left(id));
        }
        let asked =
            self.connection.lease_call(|client| async move { client.lease_time_to_live(id).await });
        let left = asked.await?;
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// A lease that nobody will keep alive. Returns its number.
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

    /// Sends one keep-alive and waits for its response, over the stream that there is or a new one.
    async fn send_keep_alive(
        &self,
        id: i64,
        stream: &mut Option<KeepAlive>,
    ) -> Result<(), CallError> {
        let member = *self.connection.current().borrow();
        if let Some(open) = stream.as_mut().filter(|open| open.member == member) {
            let sent = open.stream.send(LeaseKeepAliveRequest { id });
            match self
                .await_keep_alive(&mut open.stream, sent.map_err(|failure| CallError::of(&failure)))
                .await
            {
                // A stream that broke while it was idle says nothing about the lease.
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
        let Some(answer) = self.connection.lease_call(|_| stream.next()).await? else {
            return Err(CallError::Unavailable("the stream of keep-alives ended".to_owned()));
        };
        self.connection.observe_term(answer.header.as_ref());
        if answer.ttl > 0 { Ok(()) } else { Err(CallError::LeaseGone) }
    }

    #[allow(clippy::unused_self, reason = "only the suite has leases of its own")]
    fn on_kept_alive(&self, id: i64) {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            lessor.kept(id);
        }
        let _ = id;
    }
}

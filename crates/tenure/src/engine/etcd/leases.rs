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
use super::errors::Trouble;
use super::link::Link;
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
pub(super) struct Term {
    pub(super) who: Who,
    /// How long a claim on it lives without a renewal.
    pub(super) length: Duration,
    /// How much longer: a lock delay.
    pub(super) extra: Duration,
}

/// For whom things hang on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
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
pub(super) struct Lease {
    pub(super) id: i64,
    term: Term,
    life: Duration,
    /// The raft term that was known before it was asked for.
    raft_term: u64,
    state: Mutex<State>,
    stream: AsyncMutex<Option<Stream>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// When the last answered grant or keep-alive was sent.
    answered: Tick,
    gone: bool,
}

/// A stream of keep-alives to one member.
struct Stream {
    stream: KeepAliveStream,
    member: usize,
}

/// How a lease stands for a claim that is to be made now.
pub(super) enum Standing {
    /// It has the whole length left.
    Fresh(Arc<Lease>),
    /// It may still live, and has to be kept alive beside the claim.
    Stale(Arc<Lease>),
    /// There is none.
    None,
}

/// All leases of an engine.
pub(super) struct Leases {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    all: Mutex<HashMap<Term, Arc<Lease>>>,
    /// One grant at a time, so that two claims of one session do not make two.
    granting: AsyncMutex<()>,
    #[cfg(feature = "conformance")]
    lessor: Option<Arc<Lessor>>,
}

impl Lease {
    /// How long it lives at least, as far as we have been answered.
    pub(super) fn left(&self, now: Tick) -> Duration {
        let state = self.state();
        if state.gone { Duration::ZERO } else { (state.answered + self.life).since(now) }
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Leases {
    pub(super) fn new(link: Arc<Link>, clock: Arc<dyn Clock>) -> Self {
        Self {
            link,
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
    pub(super) fn standing(&self, term: Term, since: Tick) -> Standing {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&term).filter(|lease| self.is_current(lease)) {
            Some(lease) if lease.left(since) >= term.length + term.extra => {
                Standing::Fresh(Arc::clone(lease))
            }
            Some(lease) if !lease.left(since).is_zero() => Standing::Stale(Arc::clone(lease)),
            _ => Standing::None,
        }
    }

    /// Whether a lease was made in the raft term that is known now.
    pub(super) fn is_current(&self, lease: &Lease) -> bool {
        lease.raft_term >= self.link.raft_term()
    }

    /// A lease that lives as long as the term says, counted from `since`.
    pub(super) async fn ensure(&self, term: Term, since: Tick) -> Result<Arc<Lease>, Trouble> {
        if let Standing::Fresh(lease) = self.standing(term, since) {
            return Ok(lease);
        }
        let _one = self.granting.lock().await;
        match self.standing(term, since) {
            Standing::Fresh(lease) => return Ok(lease),
            Standing::Stale(lease) => match self.keep_alive(&lease, since).await {
                Ok(()) => return Ok(lease),
                Err(Trouble::LeaseGone) => {}
                Err(trouble) => return Err(trouble),
            },
            Standing::None => {}
        }
        self.grant(term).await
    }

    /// Keeps a lease alive: returns when a keep-alive was answered that was sent after `since`.
    pub(super) async fn keep_alive(&self, lease: &Arc<Lease>, since: Tick) -> Result<(), Trouble> {
        let mut stream = lease.stream.lock().await;
        // Somebody else kept it alive while we waited for our turn.
        let state = lease.state();
        if state.gone {
            return Err(Trouble::LeaseGone);
        }
        if state.answered >= since && state.answered > Tick::ZERO {
            return Ok(());
        }
        let sent = self.clock.now();
        match self.ask(lease.id, &mut stream).await {
            Ok(()) => {
                lease.change(|state| state.answered = state.answered.max(sent));
                self.kept(lease.id);
                Ok(())
            }
            Err(Trouble::LeaseGone) => {
                *stream = None;
                self.forget(lease);
                Err(Trouble::LeaseGone)
            }
            Err(trouble) => {
                *stream = None;
                Err(trouble)
            }
        }
    }

    /// Keeps a lease alive of which only the number is known.
    pub(super) async fn keep_alive_by_id(&self, id: i64, since: Tick) -> Result<(), Trouble> {
        let known = {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.values().find(|lease| lease.id == id).cloned()
        };
        if let Some(lease) = known {
            return self.keep_alive(&lease, since).await;
        }
        self.ask(id, &mut None).await?;
        self.kept(id);
        Ok(())
    }

    /// Takes over a lease that another process made and that was just kept alive.
    pub(super) fn adopt(id: i64, term: Term, answered: Tick) -> Arc<Lease> {
        let state = Mutex::new(State { answered, gone: false });
        let (life, stream) = (term.length, AsyncMutex::new(None));
        // In which raft term it was made is not known.
        Arc::new(Lease { id, term, life, raft_term: 0, state, stream })
    }

    /// A lease is gone in the store: what hangs on it is gone too.
    pub(super) fn forget(&self, lease: &Lease) {
        lease.change(|state| state.gone = true);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&lease.term).is_some_and(|known| known.id == lease.id) {
            all.remove(&lease.term);
        }
    }

    /// Gives a lease back, with whatever still hangs on it.
    pub(super) async fn revoke(&self, lease: &Lease) {
        self.forget(lease);
        let id = lease.id;
        // If this fails, it ends by itself.
        let _ = self.link.lease(|client| async move { client.lease_revoke(id).await }).await;
    }

    /// How long a lease has left in the store; none if it is gone.
    pub(super) async fn left(&self, id: i64) -> Result<Option<Duration>, Trouble> {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            return Ok(lessor.left(id));
        }
        let asked = self.link.lease(|client| async move { client.lease_time_to_live(id).await });
        let left = asked.await?;
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }

    /// A lease that nobody will keep alive. Returns its number.
    pub(super) async fn once(&self, length: Duration) -> Result<i64, Trouble> {
        let term = Term { who: Who::Cell(ClaimId::new()), length, extra: Duration::ZERO };
        Ok(self.grant(term).await?.id)
    }

    async fn grant(&self, term: Term) -> Result<Arc<Lease>, Trouble> {
        let whole = term.length + term.extra;
        let cell = matches!(term.who, Who::Cell(_));
        let wanted = if cell { whole } else { whole + SPARE.max(whole / 8) };
        let seconds = wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0);
        #[cfg(feature = "conformance")]
        let seconds = if self.lessor.is_some() { super::testing::LIFE.as_secs() } else { seconds };
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let (answered, raft_term) = (self.clock.now(), self.link.raft_term());
        let granted = self.link.lease(|client| async move { client.lease_grant(seconds).await });
        let granted = granted.await?;
        let life = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
        #[cfg(feature = "conformance")]
        let life = self.lessor.as_ref().map_or(life, |lessor| {
            lessor.granted(granted.id, term);
            whole
        });
        let state = Mutex::new(State { answered, gone: false });
        let stream = AsyncMutex::new(None);
        let lease = Arc::new(Lease { id: granted.id, term, life, raft_term, state, stream });
        if cell {
            return Ok(lease);
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SWEEP_FROM {
            let now = self.clock.now();
            all.retain(|_, lease| !lease.left(now).is_zero());
        }
        all.insert(term, Arc::clone(&lease));
        Ok(lease)
    }

    /// Sends one keep-alive and waits for its response, over the stream that there is or a new one.
    async fn ask(&self, id: i64, stream: &mut Option<Stream>) -> Result<(), Trouble> {
        let member = *self.link.current().borrow();
        if let Some(open) = stream.as_mut().filter(|open| open.member == member) {
            let sent = open.stream.send(LeaseKeepAliveRequest { id });
            match self
                .answered(&mut open.stream, sent.map_err(|failure| Trouble::of(&failure)))
                .await
            {
                // A stream that broke while it was idle says nothing about the lease.
                Err(
                    Trouble::Away(_)
                    | Trouble::Unreached(_)
                    | Trouble::Stranger(_)
                    | Trouble::Refused(_),
                ) => {}
                answered => return answered,
            }
        }
        *stream = None;
        let opened = self.link.lease(|client| async move { client.lease_keep_alive(id).await });
        let mut opened = opened.await?;
        self.answered(&mut opened, Ok(())).await?;
        *stream = Some(Stream { stream: opened, member });
        Ok(())
    }

    /// Waits for the response to a keep-alive that was sent.
    async fn answered(
        &self,
        stream: &mut KeepAliveStream,
        sent: Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        sent?;
        let Some(answer) = self.link.lease(|_| stream.next()).await? else {
            return Err(Trouble::Away("the stream of keep-alives ended".to_owned()));
        };
        self.link.see_term(answer.header.as_ref());
        if answer.ttl > 0 { Ok(()) } else { Err(Trouble::LeaseGone) }
    }

    #[allow(clippy::unused_self, reason = "only the suite has leases of its own")]
    fn kept(&self, id: i64) {
        #[cfg(feature = "conformance")]
        if let Some(lessor) = &self.lessor {
            lessor.kept(id);
        }
        let _ = id;
    }
}

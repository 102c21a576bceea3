//! What the conformance suite needs of the engine: leases on the suite's clock, and a way to know
//! when no task, call or event is in flight. Only in builds with the feature `conformance`.
//!
//! etcd counts leases on a clock that no test can set. So the suite's leases are long in etcd, and
//! a [`Lessor`] counts them on the suite's clock and revokes a lease when its time has passed. To
//! etcd that is the same step as an expiry, in the same log, with the same events.
//!
//! A beacon is a write to a key that every engine watches. Events of one watch stream arrive in the
//! order of their revisions, so an engine that has seen a beacon has seen every earlier event.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::client::RequestOp;
use super::connect::OpenOptions;
use super::leases::{LeaseOwner, LeaseSpec};
use super::watches::WatchNotice;
use super::{EtcdEngine, Inner};
use crate::contract::{ClaimId, Error, SessionId, Verb};
use crate::engine::Terms;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Alarm, Clock, Tick};

/// The length of leases in etcd while a [`Lessor`] counts them.
pub(super) const LIFE: Duration = Duration::from_secs(3_600);

/// The number of the next beacon of this process.
static BEACON: AtomicU64 = AtomicU64::new(1);

/// A gate that every transaction waits for before it is sent, and after its reply has come.
pub(crate) type GatePass = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Counts leases on the suite's clock.
#[derive(Debug)]
pub(crate) struct Lessor {
    clock: Arc<dyn Clock>,
    alarm: Arc<dyn Alarm>,
    state: Mutex<LessorState>,
}

#[derive(Debug, Default)]
struct LessorState {
    leases: HashMap<i64, (LeaseSpec, Tick)>,
    closed: bool,
}

impl Lessor {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let alarm = clock.alarm();
        Arc::new(Self { clock, alarm, state: Mutex::default() })
    }

    /// Blocks until leases have ended, and returns them; `None` after `close`.
    pub(crate) fn wait(&self) -> Option<Vec<i64>> {
        self.alarm.wait();
        let now = self.clock.now();
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let mut ended: Vec<(Tick, i64)> = Vec::new();
        state.leases.retain(|id, (_, until)| {
            let over = *until <= now;
            if over {
                ended.push((*until, *id));
            }
            !over
        });
        self.set(&state);
        ended.sort_unstable();
        Some(ended.into_iter().map(|(_, id)| id).collect())
    }

    /// Ends the thread that calls `wait`.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.alarm.ring();
    }

    /// Ends the leases of a session now; those of lock delays end after the delay. Returns the ids
    /// of the ended ones.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<i64> {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut ended = Vec::new();
        state.leases.retain(|id, (spec, until)| {
            if spec.owner != LeaseOwner::Session(session) {
                return true;
            }
            if spec.extra.is_zero() {
                ended.push(*id);
                return false;
            }
            *until = now + spec.extra;
            true
        });
        self.set(&state);
        ended
    }

    pub(super) fn granted(&self, id: i64, spec: LeaseSpec) {
        let mut state = self.lock();
        state.leases.insert(id, (spec, self.clock.now() + spec.length + spec.extra));
        self.set(&state);
    }

    pub(super) fn kept(&self, id: i64) {
        let mut state = self.lock();
        let now = self.clock.now();
        if let Some((spec, until)) = state.leases.get_mut(&id) {
            *until = now + spec.length + spec.extra;
        }
        self.set(&state);
    }

    pub(super) fn left(&self, id: i64) -> Option<Duration> {
        let now = self.clock.now();
        self.lock().leases.get(&id).map(|(_, until)| until.since(now))
    }

    fn set(&self, state: &LessorState) {
        let next = state.leases.values().map(|(_, until)| *until).min();
        self.alarm.set(next.unwrap_or(Tick::NEVER));
    }

    fn lock(&self) -> MutexGuard<'_, LessorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks this thread, outside any runtime, until a future is done.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    struct ThreadWaker(std::thread::Thread);
    impl std::task::Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl EtcdEngine {
    /// Opens an engine whose leases are counted by this lessor.
    pub(crate) fn on_stage(
        url: &str,
        terms: &Terms,
        lessor: &Arc<Lessor>,
        gate: Option<GatePass>,
    ) -> Result<Self, Error> {
        let options = OpenOptions { lessor: Some(Arc::clone(lessor)), gate };
        block_on(Self::open(url, terms, options))
    }

    /// How many tasks are running, and how many were ever begun.
    pub(crate) fn counts(&self) -> (usize, u64) {
        self.inner.tasks.counts()
    }

    /// Writes a beacon to the namespace. Returns its number.
    pub(crate) fn light(&self) -> Result<u64, Error> {
        let number = BEACON.fetch_add(1, Ordering::SeqCst);
        let put = RequestOp::put(self.inner.keys.beacon(), number.to_string(), 0);
        let lit = self.inner.connection.txn(Vec::new(), vec![put], Vec::new());
        let lit = self.inner.tasks.handle().block_on(lit);
        lit.map_err(|error| error.into_error().during(Verb::Inspect))?;
        Ok(number)
    }

    /// The key of the beacon that this engine watches.
    pub(crate) fn beacon_key(&self) -> Vec<u8> {
        self.inner.keys.beacon()
    }

    /// Whether the event of this beacon has arrived, and so every event before it.
    pub(crate) fn has_seen(&self, number: u64) -> bool {
        self.inner.seen.load(Ordering::SeqCst) >= number
    }

    /// Ends the claims of a session here, as the death of its process would, and returns them. Then
    /// the caller has to end the session's leases, and to call `leave`.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<ClaimId> {
        let ended = self.inner.claims.end_session(session);
        for id in &ended {
            self.inner.waiters.end(&self.inner, *id);
        }
        ended
    }

    /// Removes the entries of claims whose keys are gone.
    pub(crate) fn leave(&self, claims: &[ClaimId]) {
        for id in claims {
            self.inner.claims.remove(*id);
        }
    }

    /// Revokes leases in the store.
    pub(crate) fn revoke(&self, leases: &[i64]) {
        let _busy = self.inner.tasks.guard();
        for id in leases.iter().copied() {
            let revoke = self
                .inner
                .connection
                .lease_call(|client| async move { client.lease_revoke(id).await });
            // The engine may have revoked it already.
            let _ = self.inner.tasks.handle().block_on(revoke);
        }
    }

    /// A reference that does not keep the engine alive.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }
}

impl Inner {
    /// Records the number of a beacon event.
    pub(super) fn beacon(&self, notice: &WatchNotice) {
        let WatchNotice::Events(events) = notice else { return };
        for key in events.iter().filter_map(|event| event.kv.as_ref()) {
            let text = std::str::from_utf8(&key.value).ok();
            let number = text.and_then(|text| text.parse().ok());
            if let Some(number) = number.filter(|_| key.key == self.keys.beacon()) {
                self.seen.fetch_max(number, Ordering::SeqCst);
            }
        }
    }
}

/// A weak reference to an engine.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<EtcdEngine> {
        self.0.upgrade().map(|inner| EtcdEngine { inner })
    }
}

//! What the conformance suite needs of the engine: a clock of its own for leases, and to know when
//! nothing is under way. Knows the engine from inside, and is in no build but the suite's.
//!
//! etcd counts leases on a clock that nobody can set. So on the suite's stage leases are made long,
//! and a [`Lessor`] counts them on the suite's clock: it revokes a lease when its time is up. To
//! etcd that is the same step as an expiry, in the same transaction log, with the same events.

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

/// How long leases are in etcd itself while the suite counts them.
pub(super) const LIFE: Duration = Duration::from_secs(3_600);

/// The largest number that a beacon has told to this process's engines is kept by each of them.
static BEACON: AtomicU64 = AtomicU64::new(1);

/// What every transaction passes before it is sent and when its reply has come.
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

    /// Blocks until leases have ended, and says which; none if the stage is left.
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

    /// Ends the thread that waits.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.alarm.ring();
    }

    /// Ends a session, as if its leases had run out now: lock delays begin.
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

/// Waits on this thread, which no runtime knows.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    struct Bell(std::thread::Thread);
    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Bell(std::thread::current())));
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl EtcdEngine {
    /// Opens a store whose leases are counted by this lessor.
    pub(crate) fn on_stage(
        url: &str,
        terms: &Terms,
        lessor: &Arc<Lessor>,
        gate: Option<GatePass>,
    ) -> Result<Self, Error> {
        let options = OpenOptions { lessor: Some(Arc::clone(lessor)), gate };
        block_on(Self::open(url, terms, options))
    }

    /// How much is under way, and how much was ever begun.
    pub(crate) fn counts(&self) -> (usize, u64) {
        self.inner.tasks.counts()
    }

    /// Lights the beacon of the namespace. Returns its number.
    pub(crate) fn light(&self) -> Result<u64, Error> {
        let number = BEACON.fetch_add(1, Ordering::SeqCst);
        let put = RequestOp::put(self.inner.keys.beacon(), number.to_string(), 0);
        let lit = self.inner.connection.txn(Vec::new(), vec![put], Vec::new());
        let lit = self.inner.tasks.handle().block_on(lit);
        lit.map_err(|error| error.into_error().during(Verb::Inspect))?;
        Ok(number)
    }

    /// Which beacon it sees: that of its namespace.
    pub(crate) fn beacon_key(&self) -> Vec<u8> {
        self.inner.keys.beacon()
    }

    /// Whether the beacon with this number was seen: whatever happened before it has been told.
    pub(crate) fn has_seen(&self, number: u64) -> bool {
        self.inner.seen.load(Ordering::SeqCst) >= number
    }

    /// Ends what this client does for a session, as the death of its process would. Its leases have
    /// to be ended then, and the claims be left.
    pub(crate) fn end_session(&self, session: SessionId) -> Vec<ClaimId> {
        let ended = self.inner.claims.end_session(session);
        for id in &ended {
            self.inner.waiters.end(&self.inner, *id);
        }
        ended
    }

    /// The claims of a session that ended are gone.
    pub(crate) fn leave(&self, claims: &[ClaimId]) {
        for id in claims {
            self.inner.claims.remove(*id);
        }
    }

    /// Ends leases in the store.
    pub(crate) fn revoke(&self, leases: &[i64]) {
        let _busy = self.inner.tasks.guard();
        for id in leases.iter().copied() {
            let revoke = self
                .inner
                .connection
                .lease_call(|client| async move { client.lease_revoke(id).await });
            // It may have been given back meanwhile.
            let _ = self.inner.tasks.handle().block_on(revoke);
        }
    }

    /// The engine, as long as somebody else has it.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }
}

impl Inner {
    /// The beacon was lit, perhaps.
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

/// An engine that may be gone.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<EtcdEngine> {
        self.0.upgrade().map(|inner| EtcdEngine { inner })
    }
}

//! Locks between hosts, in an etcd cluster. The rules are those of the `ledger` room: a step reads
//! what stands under some slots, asks the rules, and writes what they changed in one transaction,
//! on condition that nothing else has changed that matters.
//!
//! ```text
//! callers, keeper ─> claim.rs renew.rs release.rs ─> step.rs ─> link.rs ═══ members
//!                         │        picture.rs <─> ledger            ║
//! sessions <─ waits.rs <──┴──── watching.rs <═══════════════════════╝
//! ```
//!
//! A claim is a key that hangs on a lease of its session (`leases`); creation revisions are the
//! line, and the revision that made a hold is its fence. A free lock is one call, and so is its
//! release. Holding is written, never inferred: each waiter watches what decides (`watching`) and
//! makes itself hold when its turn has come (`waits`).

mod cells;
mod claim;
#[cfg(not(feature = "test-util"))]
mod client;
// Public for `tests/etcd` and for `tenure-bench`, which compares with locks written by hand on it.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod client;
mod crowd;
mod doctor;
mod errors;
mod inspect;
mod keys;
mod leases;
mod link;
mod moves;
mod picture;
mod record;
mod release;
mod renew;
mod roll;
mod step;
mod tasks;
mod terms;
#[cfg(feature = "conformance")]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "conformance"))]
mod tests_ends;
mod url;
mod waits;
mod watching;

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Weak};

use self::claim::Halt;
use self::client::ResponseOp;
use self::crowd::Crowd;
use self::keys::{Keys, Kind};
use self::leases::Leases;
use self::link::Link;
use self::picture::Epoch;
use self::roll::Roll;
use self::tasks::{Front, Tasks};
use self::terms::Stated;
#[cfg(feature = "conformance")]
pub(crate) use self::testing::{GatePass, Lessor, WeakEngine};
use self::url::Location;
use self::waits::Waits;
use self::watching::{News, Spec, Watcher, Watching};
use super::Terms;
use super::runtime::Own;
use crate::contract::{
    Cells, Claim, ClaimId, ClaimRef, Diagnostics, Engine, Error, ErrorKind, Evicted, Eviction,
    Fence, FenceFloor, Fencing, Finding, LocalSessions, Loss, Name, Ownership, OwnershipProof,
    Partitions, Pending, Promises, Query, Raised, Release, Released, Renewed, Replication,
    SessionId, Signal, SignalListener, Snapshot, Survives, Verb, Verdict, Wake,
};
use crate::ledger::Now;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::Clock;

/// What the etcd engine promises.
pub const PROMISES: Promises = Promises {
    engine: "etcd",
    fencing: Fencing::Strict,
    fencing_rests_on: "the cluster's revision; a restored backup is noticed and refused",
    fence_floor: true,
    queue: true,
    sharing: true,
    counting: true,
    atomic_sets: true,
    cells: true,
    wake: Wake::Push,
    survives: &[
        Survives::ClientCrash,
        Survives::StoreRestart,
        Survives::PowerLoss,
        Survives::NodeLoss,
    ],
    replicas: false,
    drift_percent: 10,
    lacks_because: "",
};

/// The etcd engine.
#[derive(Clone)]
pub struct EtcdEngine {
    inner: Arc<Inner>,
}

struct Inner {
    location: Location,
    keys: Keys,
    /// How fences are made, as the terms of the namespace said last.
    epoch: Mutex<Epoch>,
    /// What this client goes by, if the terms have changed.
    stated: Stated,
    link: Arc<Link>,
    leases: Leases,
    roll: Arc<Roll>,
    waits: Waits,
    crowd: Crowd,
    watching: Watching,
    listeners: Mutex<Listeners>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    /// The latest beacon of the suite.
    #[cfg(feature = "conformance")]
    seen: std::sync::atomic::AtomicU64,
    /// The thread on which everything happens. Last, so that the rest ends first.
    #[allow(dead_code, reason = "it lives as long as we do")]
    own: Own,
}

/// Who hears the signals of which session, and through which watch letters to it come.
#[derive(Default)]
struct Listeners {
    listeners: HashMap<SessionId, (Weak<dyn SignalListener>, i64)>,
    by_watch: HashMap<i64, SessionId>,
}

impl std::fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdEngine").field("location", &self.inner.location).finish_non_exhaustive()
    }
}

/// Opens the store that a URL names.
pub(super) async fn connect(url: &str, terms: &Terms) -> Result<Arc<dyn Engine>, Error> {
    let opened = EtcdEngine::open(url, terms, Manner::default()).await;
    Ok(Arc::new(opened.map_err(|error| error.during(Verb::Connect))?))
}

/// What is different on the suite's stage.
#[derive(Clone, Default)]
struct Manner {
    #[cfg(feature = "conformance")]
    lessor: Option<Arc<Lessor>>,
    #[cfg(feature = "conformance")]
    gate: Option<GatePass>,
}

impl EtcdEngine {
    async fn open(url: &str, terms: &Terms, manner: Manner) -> Result<Self, Error> {
        let location = Location::parse(url)?;
        let own = Own::start("tenure-etcd")?;
        let front = Front::find(&own).await;
        let tasks = Tasks::new(own.handle().clone(), front.clone());
        let keys = Keys::new(location.prefix(), &terms.namespace);
        let link = Link::new(&location, front)?;
        #[cfg(feature = "conformance")]
        let link = if manner.lessor.is_some() { link.on_stage(manner.gate) } else { link };
        let link = Arc::new(link);
        let max_lease = terms.max_lease;
        let stated = Stated { max_lease, accepts_restored: false, changes_max_lease: false };
        let epoch = {
            let (link, keys) = (Arc::clone(&link), keys.clone());
            let now = now(&*terms.clock);
            let accepts_restored = location.accepts_restored();
            let stated = Stated { accepts_restored, changes_max_lease: true, ..stated };
            let agreed = async move { terms::agree(&link, &keys, stated, now).await };
            tasks.run(agreed).await?
        };
        let clock = Arc::clone(&terms.clock);
        let leases = Leases::new(Arc::clone(&link), Arc::clone(&clock));
        #[cfg(feature = "conformance")]
        let leases = leases.on_stage(manner.lessor);
        #[cfg(not(feature = "conformance"))]
        let Manner {} = manner;
        let roll = Arc::new(Roll::new(clock.alarm()));
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let watcher = Arc::new(Desk(weak.clone()));
            let watching = Watching::start(Arc::clone(&link), &tasks, &keys.beacon(), watcher);
            let (waits, crowd, listeners) = (Waits::default(), Crowd::default(), Mutex::default());
            let roll = Arc::clone(&roll);
            Inner {
                location,
                keys,
                epoch: Mutex::new(epoch),
                stated,
                link,
                leases,
                roll,
                waits,
                crowd,
                watching,
                listeners,
                clock,
                tasks,
                #[cfg(feature = "conformance")]
                seen: std::sync::atomic::AtomicU64::new(0),
                own,
            }
        });
        attend(&roll, &inner)?;
        let (link, weak) = (Arc::clone(&inner.link), Arc::downgrade(&inner));
        inner.tasks.spawn_lasting(async move {
            link.until_restored().await;
            if let Some(inner) = weak.upgrade() {
                inner.tell_all(&Signal::AllEnded { loss: Loss::Forgotten });
            }
        });
        Ok(Self { inner })
    }

    /// Does the work of a verb on the engine's own thread.
    async fn run<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl Future<Output = Result<T, Halt>> + Send + 'static,
    ) -> Result<T, Error> {
        let work = async move { work.await.map_err(|halt| halt.into_error(verb)) };
        self.inner.tasks.run(work).await
    }
}

fn now(clock: &dyn Clock) -> Now {
    Now { tick: clock.now(), wall_micros: clock.wall_micros() }
}

/// Starts the thread that ends what nobody renews.
fn attend(roll: &Arc<Roll>, inner: &Arc<Inner>) -> Result<(), Error> {
    let (roll, weak) = (Arc::clone(roll), Arc::downgrade(inner));
    let work = move || {
        loop {
            roll.wait();
            let Some(inner) = weak.upgrade() else { return };
            let due = roll.due(inner.clock.now());
            if due.closed {
                return;
            }
            if !due.claims.is_empty() || !due.keys.is_empty() {
                let tasks = inner.tasks.clone();
                tasks.spawn(async move { inner.end_due(due).await });
            }
        }
    };
    let started = std::thread::Builder::new().name("tenure-etcd-roll".to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        Error::new(ErrorKind::Limit, format!("the system gives no thread: {error}"))
            .with_help("raise the limit of threads")
            .caused_by(error)
    })
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.roll.close();
    }
}

impl Inner {
    fn now(&self) -> Now {
        now(&*self.clock)
    }

    /// Tells a session something, if it still listens.
    fn tell(&self, session: SessionId, signal: Signal) {
        let listener =
            self.listeners().listeners.get(&session).and_then(|(listener, _)| listener.upgrade());
        if let Some(listener) = listener {
            listener.on_signal(signal);
        }
    }

    /// Tells every session something.
    fn tell_all(&self, signal: &Signal) {
        let mut listeners = self.listeners();
        let gone: Vec<_> = listeners
            .listeners
            .iter()
            .filter(|(_, listener)| listener.0.strong_count() == 0)
            .collect();
        let gone: Vec<_> =
            gone.into_iter().map(|(session, listener)| (*session, listener.1)).collect();
        for (session, watch) in gone {
            listeners.listeners.remove(&session);
            listeners.by_watch.remove(&watch);
            self.watching.remove(watch);
        }
        let all: Vec<_> =
            listeners.listeners.values().filter_map(|(listener, _)| listener.upgrade()).collect();
        drop(listeners);
        for listener in all {
            listener.on_signal(signal.clone());
        }
    }

    /// A letter says that a claim of this session was ended by force.
    fn read_letter(self: &Arc<Self>, key: &[u8], value: &[u8]) {
        let Some((session, claim)) = self.keys.read_letter(key) else { return };
        let reason = String::from_utf8_lossy(value).into();
        self.forget_claim(claim);
        self.tell(session, Signal::Ended { claim, loss: Loss::Evicted { reason } });
    }

    /// Reads the letters to a session, which may have come before they were watched for.
    async fn read_letters(self: &Arc<Self>, session: SessionId) {
        let read = self.link.read(vec![step::get_range(self.keys.letters(session))]).await;
        let Ok(read) = read else { return };
        for key in read.replies.into_iter().flat_map(ResponseOp::into_kvs) {
            self.read_letter(&key.key, &key.value);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands on what watches tell.
struct Desk(Weak<Inner>);

impl Watcher for Desk {
    fn hear(&self, watch: i64, news: News) {
        let Some(inner) = self.0.upgrade() else { return };
        let session = inner.listeners().by_watch.get(&watch).copied();
        let tasks = inner.tasks.clone();
        match (session, inner.waits.of_watch(watch), news) {
            (Some(session), _, News::Stands) => {
                tasks.spawn(async move { inner.read_letters(session).await });
            }
            (Some(_), _, News::Events(events)) => {
                for event in events.iter().filter(|event| !watching::is_deletion(event)) {
                    if let Some(key) = &event.kv {
                        inner.read_letter(&key.key, &key.value);
                    }
                }
            }
            (None, Some(claim), News::Stands) => {
                tasks.spawn(async move { inner.verify(watch, claim).await });
            }
            (None, Some(claim), News::Events(_)) => {
                tasks.spawn(async move { inner.evaluate(claim).await });
            }
            #[cfg(feature = "conformance")]
            (None, None, news) => inner.beacon(&news),
            #[cfg(not(feature = "conformance"))]
            (None, None, _) => {}
        }
    }

    fn again(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        inner.tell_all(&Signal::Resync);
        for claim in inner.waits.watching() {
            let inner = Arc::clone(&inner);
            inner.tasks.clone().spawn(async move { inner.evaluate(claim).await });
        }
    }
}

impl Engine for EtcdEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            let (inner, claim) = (Arc::clone(&self.inner), Arc::clone(claim));
            let since = inner.clock.now();
            self.inner.tasks.run_here(async move { inner.claim(&claim, since).await }).await
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(async move {
            let (inner, batch) = (Arc::clone(&self.inner), batch.to_vec());
            let since = inner.clock.now();
            // At once, or they would end while this waits for its turn.
            inner.roll.extend(&batch, since);
            self.inner.tasks.run(async move { inner.renew(&batch, since).await }).await
        })
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        Box::pin(async move {
            let (inner, batch) = (Arc::clone(&self.inner), batch.to_vec());
            let since = inner.clock.now();
            self.inner.tasks.run_here(async move { inner.release(&batch, since).await }).await
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move {
            let (inner, query) = (Arc::clone(&self.inner), query.clone());
            self.inner.tasks.run(async move { inner.inspect(&query).await }).await
        })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        Box::pin(async move {
            let (inner, eviction) = (Arc::clone(&self.inner), eviction.clone());
            let since = inner.clock.now();
            self.inner.tasks.run(async move { inner.evict(&eviction, since).await }).await
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        let mut listeners = self.inner.listeners();
        if let Some((_, old)) = listeners.listeners.remove(&session) {
            listeners.by_watch.remove(&old);
            self.inner.watching.remove(old);
        }
        let watch = self.inner.watching.add(Spec::All(self.inner.keys.letters(session)));
        listeners.listeners.insert(session, (listener, watch));
        listeners.by_watch.insert(watch, session);
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn fence_floor(&self) -> Option<&dyn FenceFloor> {
        Some(self)
    }

    fn replication(&self) -> Option<&dyn Replication> {
        None
    }

    fn partitions(&self) -> Option<&dyn Partitions> {
        None
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        Some(self)
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        Some(self)
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        None
    }
}

impl FenceFloor for EtcdEngine {
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised> {
        let inner = Arc::clone(&self.inner);
        Box::pin(self.run(Verb::RaiseFences, async move { inner.raise_fences(to).await }))
    }
}

impl Diagnostics for EtcdEngine {
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async move {
            let inner = Arc::clone(&self.inner);
            self.inner.tasks.run(async move { Ok(inner.doctor().await) }).await
        })
    }
}

impl OwnershipProof for EtcdEngine {
    fn ownership<'a>(&'a self, name: &'a Name, claim: ClaimId) -> Pending<'a, Option<Ownership>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        Box::pin(self.run(Verb::Inspect, async move {
            let found = inner.look(std::slice::from_ref(&name), &[]).await?;
            Ok(found.seen(&name, Kind::Hold, claim).map(|seen| Ownership {
                key: seen.key.clone(),
                revision: step::number(seen.created),
            }))
        }))
    }
}

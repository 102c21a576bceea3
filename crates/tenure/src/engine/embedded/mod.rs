//! The embedded engine: many processes on one host share locks through a directory, without a
//! server. Knows the contract and how its rooms fit together.
//!
//! `embedded:` is the user's own store, the same from a shell, from cron and from a service of that
//! user; `embedded:///path` is the store in that directory. The rules are the ledger's own, run
//! inside write transactions of an LMDB file that every process maps.
//!
//! - A verb is one transaction, run on the caller's thread if the gate is free, else on a helper's.
//! - A release writes a letter to the next holder's session.
//! - A process that dies lets go of its sign of life; whoever waits for it notices at once.
//! - A reboot ends every lock. Cells, and how far fences were given out, outlive it.

mod bytes;
mod cells;
mod codec;
mod durable;
mod errors;
mod files;
mod guard;
mod helper;
mod holders;
mod line;
mod liveness;
mod long;
mod long_holds;
mod lookout;
mod place;
mod post;
mod raise_fences;
mod sessions;
mod shelf;
mod short;
mod store;
#[cfg(any(test, feature = "test-util"))]
mod testing;
mod txn;
mod url;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use self::cells::EmbeddedCells;
use self::place::Root;
use self::sessions::Sessions;
use self::shelf::Pages;
use self::store::{Address, Appetite, Done, WAIT};
pub use self::url::Location;
use super::{Terms, max_lease};
use crate::contract::{
    Cells, Claim, ClaimRef, Diagnostics, Engine, Error, Evicted, Eviction, FenceFloor, Fencing,
    IdMap, LocalSessions, Loss, Name, OwnershipProof, Page, Partitions, Pending, Promises, Query,
    Refusal, Release, Released, Renewed, Replication, SessionId, SignalListener, Snapshot,
    Survives, Verb, Verdict, Wake,
};
pub use crate::ledger::Census;
use crate::ledger::{Ledger, Now};
use crate::time::{Clock, SystemClock};

/// What the embedded engine promises.
pub const PROMISES: Promises = Promises {
    engine: "embedded",
    fencing: Fencing::Strict,
    fencing_rests_on: "a high-water mark on disk, reserved ahead and synced",
    fence_floor: true,
    queue: true,
    sharing: true,
    counting: true,
    atomic_sets: true,
    cells: true,
    wake: Wake::Push,
    survives: &[Survives::ClientCrash],
    replicas: false,
    drift_percent: 0,
    lacks_because: "",
};

/// How many sessions in the way of a waiting claim are watched, in each slot: the holders' and the
/// nearest in line. After a death everybody looks again.
const WATCHED: usize = 4;
/// How many sessions an inspection looks at, whether they live.
const LOOKED_AT: usize = 64;
/// How many claims of a batch one step takes: the others get in between, and a full store has room
/// for it.
const AT_ONCE: usize = 64;
/// How many slots a sweep looks at.
const SWEPT: usize = 256;

/// The embedded engine, bound to one namespace of one store.
pub struct EmbeddedEngine {
    sessions: Arc<Sessions>,
    scope: Scope,
    terms: Terms,
    cells: EmbeddedCells,
    /// Sessions that could not begin, with the reason.
    failed: Mutex<IdMap<SessionId, Error>>,
    joined: Mutex<Vec<SessionId>>,
    /// Where the last sweep ended.
    swept: Arc<Mutex<Option<Name>>>,
}

/// Whose slots, by which clock.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    namespace: u32,
    clock: Arc<dyn Clock>,
}

impl EmbeddedEngine {
    /// Opens the store at a location, and makes it if it is not there yet.
    ///
    /// # Errors
    /// If the directory is not this user's own, can be written by others, is on a network file
    /// system, holds a newer format or something damaged, is used from another pid namespace, or
    /// the disk is full; if the namespace stands with another `max_lease`.
    pub fn open(location: &Location, terms: Terms) -> Result<Self, Error> {
        let root = Root::of(location.path())?;
        let boot = location.boot_id()?;
        let sessions = Sessions::at(&Address { root, boot: boot.clone() })?;
        let namespace = register(&sessions, &terms)?;
        let clock = Arc::clone(&terms.clock);
        let space = terms.namespace.clone();
        let cells = EmbeddedCells::new(Arc::clone(&sessions), clock, space, &boot);
        Ok(Self {
            sessions,
            scope: Scope { namespace, clock: Arc::clone(&terms.clock) },
            terms,
            cells,
            failed: Mutex::default(),
            joined: Mutex::default(),
            swept: Arc::default(),
        })
    }

    /// How much the namespace holds: for leak checks in tests.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn census(&self) -> Result<Census, Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<Pages<'_, '_>>, now| ledger.census(now);
        let done = self.sessions.store().step(namespace, clock, Appetite::Gives, WAIT, step);
        done.map(|(census, _)| census)
    }

    /// Ends everything a session holds or waits for, as if its process had died.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn end_session(&self, session: SessionId) -> Result<(), Error> {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let step = |ledger: &mut Ledger<Pages<'_, '_>>, now| ledger.end_session(session, now);
        let done = self.sessions.store().step(namespace, clock, Appetite::Gives, WAIT, step);
        done.map(|((), signals)| self.sessions.tell(signals, &self.scope))
    }

    /// One verb: on this thread if the gate is free, else on a helper's.
    async fn step<A, T>(
        &self,
        appetite: Appetite,
        given: &A,
        verb: fn(&A, &mut Ledger<Pages<'_, '_>>, Now) -> T,
    ) -> Result<T, Error>
    where
        A: ToOwned + ?Sized + 'static,
        A::Owned: Send + 'static,
        T: Send + 'static,
    {
        let (namespace, clock) = (self.scope.namespace, &*self.scope.clock);
        let store = self.sessions.store();
        let done =
            store.try_step(namespace, clock, appetite, |ledger, now| verb(given, ledger, now))?;
        let answer = match done {
            Some((answer, signals)) => {
                if !signals.is_empty() {
                    self.sessions.tell(signals, &self.scope);
                }
                answer
            }
            None => self.step_later(appetite, given.to_owned(), verb).await?,
        };
        if store.wants_reserve() {
            let sessions = Arc::clone(&self.sessions);
            self.sessions.disk_helper().later(move || {
                if let Err(error) = sessions.store().reserve_ahead() {
                    tracing::warn!(%error, "cannot reserve fences ahead");
                }
            });
        }
        Ok(answer)
    }

    async fn step_later<A, O, T>(
        &self,
        appetite: Appetite,
        given: O,
        verb: fn(&A, &mut Ledger<Pages<'_, '_>>, Now) -> T,
    ) -> Result<T, Error>
    where
        A: ?Sized + 'static,
        O: std::borrow::Borrow<A> + Send + 'static,
        T: Send + 'static,
    {
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let asked = SystemClock.now();
        let job = move || {
            // The time in the queue counts: whoever waits behind a stuck gate waits once, not in
            // turn.
            let left = WAIT.saturating_sub(SystemClock.now().since(asked));
            let step = |ledger: &mut Ledger<Pages<'_, '_>>, now| verb(given.borrow(), ledger, now);
            let clock = &*scope.clock;
            let done: Result<Done<T>, Error> =
                sessions.store().step(scope.namespace, clock, appetite, left, step);
            let (answer, signals) = done?;
            // Told here: the caller may have gone away, the step has been made all the same.
            sessions.tell(signals, &scope);
            Ok(answer)
        };
        self.sessions.helper().run(job).await
    }

    async fn claim_once(&self, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        let verb = |claim: &Arc<Claim>, ledger: &mut Ledger<Pages<'_, '_>>, now| {
            let verdict = ledger.claim(claim, now);
            let in_the_way = match verdict {
                Verdict::Queued(_) => ledger.in_the_way(claim.id, &claim.parts, WATCHED),
                _ => Vec::new(),
            };
            (verdict, in_the_way)
        };
        let (verdict, in_the_way) = self.step(Appetite::Takes, claim, verb).await?;
        self.sessions.watch(&in_the_way, &self.scope);
        if self.sessions.store().sweeps() {
            self.sweep();
        }
        Ok(verdict)
    }

    /// A try that found the lock with a dead process is tried once more.
    async fn claim_now(&self, claim: &Arc<Claim>) -> Result<Verdict, Error> {
        if let Some(session) = claim.session
            && let Some(error) = lock(&self.failed).get(&session)
        {
            return Err(error.clone());
        }
        let verdict = match self.claim_once(claim).await {
            // A full store may be full of what the dead have left behind.
            Err(_) if self.sessions.store().was_full() && self.make_room().await => {
                self.claim_once(claim).await?
            }
            answer => answer?,
        };
        let Verdict::Refused(Refusal::Held { by, .. }) = &verdict else { return Ok(verdict) };
        if self.end_dead(by.iter().filter_map(|holder| holder.session)).await {
            return self.claim_once(claim).await;
        }
        Ok(verdict)
    }

    async fn renew_now(&self, batch: &[ClaimRef]) -> Result<Vec<Renewed>, Error> {
        if !self.sessions.store().check_place() {
            return Ok(vec![Renewed::Gone(Loss::Forgotten); batch.len()]);
        }
        let verb = |batch: &[ClaimRef], ledger: &mut Ledger<Pages<'_, '_>>, now| {
            let answers = ledger.renew(batch, now);
            let mut in_the_way = Vec::new();
            for (claim, answer) in batch.iter().zip(&answers) {
                // Whoever stands further back is told again before it comes to the front.
                if matches!(answer, Renewed::Waiting(queued) if queued.place <= WATCHED) {
                    in_the_way.extend(ledger.in_the_way(claim.id, &claim.parts, WATCHED));
                }
            }
            (answers, in_the_way)
        };
        let (answers, in_the_way) = self.step(Appetite::Gives, batch, verb).await?;
        self.sessions.watch(&in_the_way, &self.scope);
        // A process may have let go of its session and live on: after `exec` nobody is told.
        self.end_dead(in_the_way.into_iter()).await;
        Ok(answers)
    }

    async fn inspect_now(&self, query: &Query) -> Result<Snapshot, Error> {
        let verb =
            |query: &Query, ledger: &mut Ledger<Pages<'_, '_>>, now| ledger.inspect(query, now);
        let seen = self.step(Appetite::Gives, query, verb).await?;
        // The dead are not shown as holders if that can be helped.
        let sessions = seen.sessions().into_iter().filter_map(|view| view.session);
        if self.end_dead(sessions.take(LOOKED_AT)).await {
            return self.step(Appetite::Gives, query, verb).await;
        }
        Ok(seen)
    }

    /// Ends those of these sessions that are dead. Whether there were any.
    async fn end_dead(&self, sessions: impl Iterator<Item = SessionId>) -> bool {
        let dead: Vec<_> = sessions.filter(|session| self.sessions.is_dead(*session)).collect();
        if dead.is_empty() {
            return false;
        }
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let ended = self.sessions.helper().run(move || {
            for session in dead {
                sessions.end_dead(session, &scope);
            }
            Ok(())
        });
        ended.await.is_ok()
    }

    /// Ends every session that is dead. Whether there were any.
    async fn make_room(&self) -> bool {
        self.sweep();
        self.end_dead(self.sessions.others().unwrap_or_default().into_iter()).await
    }

    /// Looks through a few slots for what is dead: nobody may ever ask for their names again.
    fn sweep(&self) {
        let (sessions, scope) = (Arc::clone(&self.sessions), self.scope.clone());
        let swept = Arc::clone(&self.swept);
        self.sessions.helper().later(move || {
            let mut after = lock(&swept);
            let clock = &*scope.clock;
            let step = |ledger: &mut Ledger<Pages<'_, '_>>, now| {
                let names = ledger.shelf().names_after(after.as_ref(), SWEPT);
                ledger.sweep_these(&names, now);
                names.last().cloned()
            };
            let store = sessions.store();
            if let Ok((last, signals)) =
                store.step(scope.namespace, clock, Appetite::Gives, WAIT, step)
            {
                *after = last;
                drop(after);
                sessions.tell(signals, &scope);
            }
        });
    }
}

impl Engine for EmbeddedEngine {
    fn promises(&self) -> &Promises {
        &PROMISES
    }

    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict> {
        Box::pin(async move {
            let answer = self.claim_now(claim).await;
            answer.map_err(|error| error.during(Verb::Claim).on(claim.parts.first_name()))
        })
    }

    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>> {
        Box::pin(
            async move { self.renew_now(batch).await.map_err(|error| error.during(Verb::Renew)) },
        )
    }

    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>> {
        let verb =
            |batch: &[Release], ledger: &mut Ledger<Pages<'_, '_>>, now| ledger.release(batch, now);
        Box::pin(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for some in batch.chunks(AT_ONCE) {
                let released = self.step(Appetite::Gives, some, verb).await;
                let begun = !answers.is_empty();
                answers.extend(released.map_err(|error| {
                    let error = error.during(Verb::Release);
                    if begun { error.effect_unknown() } else { error }
                })?);
            }
            Ok(answers)
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot> {
        Box::pin(async move {
            self.inspect_now(query).await.map_err(|error| error.during(Verb::Inspect))
        })
    }

    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted> {
        let verb = |eviction: &Eviction, ledger: &mut Ledger<Pages<'_, '_>>, now| {
            ledger.evict(eviction, now)
        };
        Box::pin(async move {
            let answer = self.step(Appetite::Gives, eviction, verb).await;
            answer.map_err(|error| error.during(Verb::Evict).on(&eviction.name))
        })
    }

    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>) {
        match self.sessions.join(session, listener) {
            Ok(()) => {
                lock(&self.joined).push(session);
                // From here on it is seen; before, another client may have changed the terms.
                if let Err(error) = register(&self.sessions, &self.terms) {
                    lock(&self.failed).insert(session, error);
                }
            }
            // Told to whoever claims: a session that nobody can wake or watch must not wait.
            Err(error) => {
                let error = sessions::cannot_join(&error, self.sessions.directory());
                lock(&self.failed).insert(session, error);
            }
        }
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(&self.cells)
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
        None
    }

    fn ownership_proof(&self) -> Option<&dyn OwnershipProof> {
        None
    }

    fn local(&self) -> Option<&dyn LocalSessions> {
        Some(&*self.sessions)
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        for session in lock(&self.joined).drain(..) {
            self.sessions.leave(session);
        }
    }
}

impl std::fmt::Debug for EmbeddedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedEngine")
            .field("store", self.sessions.store())
            .finish_non_exhaustive()
    }
}

/// The number of the namespace, if its clients agree on the longest lease. A client that states
/// another one changes it, if no session lives in the store and no claim in the namespace.
///
/// A client that agreed and has no session yet is not seen here; it looks again when it has one,
/// see `listen`.
fn register(sessions: &Sessions, terms: &Terms) -> Result<u32, Error> {
    let clock = &*terms.clock;
    let (store, stated) = (sessions.store(), terms.max_lease);
    let ((number, stands), _) = store.step(0, clock, Appetite::Takes, WAIT, |ledger, _| {
        ledger.shelf().namespace(&terms.namespace, stated, false)
    })?;
    if stands == stated {
        return Ok(number);
    }
    let all = Query::Page(Page::default());
    let change = |ledger: &mut Ledger<Pages<'_, '_>>, now| {
        let living = sessions.living();
        if !living.is_empty() {
            return Err(max_lease::connected(living));
        }
        match max_lease::claimed(&ledger.inspect(&all, now)) {
            Some(claims) => Err(claims),
            None => Ok(ledger.shelf().namespace(&terms.namespace, stated, true)),
        }
    };
    let (changed, _) = store.step(number, clock, Appetite::Takes, WAIT, change)?;
    changed
        .map(|(number, _)| number)
        .map_err(|because| max_lease::refused(stands, stated, &because))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the store that the rest of an `embedded:` URL names.
pub(super) fn connect(rest: &str, terms: Terms) -> Result<Arc<dyn Engine>, Error> {
    let open = || EmbeddedEngine::open(&url::read(rest)?, terms);
    let engine = open().map_err(|error| error.during(Verb::Connect))?;
    Ok(Arc::new(engine))
}

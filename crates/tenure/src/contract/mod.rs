//! The contract between the session and its engines: verbs and replies, no rules and no stores.
//!
//! An engine is the code for one kind of store. It implements five verbs (claim, renew, release,
//! inspect, evict) and pushes [`Signal`]s to the listener of a session. What it guarantees is
//! stated in its [`Promises`]; what only some engines have is an optional object (`cells()`,
//! `jobs()`, ...).
//!
//! A refusal is a value; a failure is an [`Error`] that says whether the store may have acted.

mod batch;
mod cells;
mod claim;
mod class;
mod deadlock;
mod doctor;
mod error;
mod ids;
mod inspect;
mod job_views;
mod jobs;
mod name;
mod new_job;
mod optional;
mod ownership;
mod promises;
mod rates;
#[cfg(any(test, feature = "test-util"))]
pub mod samples;
mod verdict;
mod watch;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

pub(crate) use batch::write_forgotten;
pub use batch::{
    Batch, BatchVerdict, CellAction, CellPart, Conflict, ConflictCause, Put, PutVerdict, WriteId,
};
pub use cells::{Cell, CellQuery, Cells, Expect, Version};
pub(crate) use claim::host_name;
pub use claim::{
    About, Claim, ClaimRef, Eviction, Label, Lineage, Part, Parts, Patience, Place, Release, Shape,
};
pub use class::NameClasses;
pub(crate) use deadlock::MARKER_KIND;
pub use deadlock::{ClaimAt, Conduct, DeadlockCase, Deadlocks, VictimVerdict, concurrency_marker};
pub use doctor::{Finding, Health};
pub use error::{Effect, Error, ErrorKind, Verb};
pub use ids::{Arrival, ClaimId, OwnerId, SessionId};
pub(crate) use ids::{IdHasher, IdMap};
pub use inspect::{
    HolderView, OutsideWait, Page, Pattern, Query, SessionView, SlotView, Snapshot, WaiterView,
    short,
};
pub use job_views::{AttemptError, JobFilter, JobView, QueueCounts};
pub use jobs::{
    AttemptReport, ClaimedJob, JobAttempt, JobChange, JobChanged, JobId, JobOutcome, JobState,
    Jobs, Pushed, QueueSettings, Reported, SqlPlace, Turn, TurnReply, worker_slot,
};
pub use name::{Name, Namespace};
pub(crate) use name::{NameMap, deceives};
pub use new_job::{BackOff, JobDue, KeyMode, Lane, NewJob, UniqueKey};
pub(crate) use optional::optional_objects;
pub use optional::{
    Diagnostics, FenceFloor, Immediate, InlineWait, LocalSessions, OwnershipProof, Partitions,
    Replication,
};
pub use ownership::Ownership;
pub use promises::{DeadlockHandling, Fencing, Promises, Survives, Wake};
pub use rates::{
    RateLevel, RateLevels, RateLimit, RatePace, RateShape, Rates, Settle, Settled, Take, TakeReply,
    TakeVerdict,
};
pub use verdict::{
    Confirmed, Evicted, Fence, Fences, Grant, Loss, Queued, Raised, Refusal, Released, Renewed,
    Signal, Verdict,
};
pub use watch::{CellRange, CellWatcher, Delivery, WeakWatcher};

/// The future that an engine's verbs return. Boxed, so that engines are usable as `dyn Engine`.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The code for one kind of store, bound to one namespace.
///
/// # Rules for engines
/// - A verb is one atomic step in the store. Dropping its future at any point leaves the store as
///   if the call had been made or as if it had not.
/// - Every verb that touches a slot first drops what is dead there and serves the queue.
/// - Repeating a living claim by its id renews it and returns the same reply.
/// - To repeat a claim whose effect is unknown is left to the session. An engine never waits for a
///   lock: it replies and, later, pushes.
/// - Signals are delivered from the engine's own thread or from a caller's, never while the engine
///   holds a lock of its own, and may be lost.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine promises.
    fn promises(&self) -> &Promises;

    /// Requests weight on one slot or on a set of slots. The claim is shared, so that an engine
    /// which keeps it in this process need not copy it.
    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict>;

    /// Renews claims, holders and waiters alike. Returns one reply for each, in their order.
    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>>;

    /// Releases or withdraws claims. Returns one reply for each, in their order.
    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>>;

    /// Inspects slots. Changes nothing but what time has ended already.
    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot>;

    /// Ends exactly the grant with this fence. Its holder learns the reason.
    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted>;

    /// Sends this session's signals to `listener` from now on, until the listener is gone.
    fn listen(&self, session: SessionId, listener: Weak<dyn SignalListener>);

    /// Answers for free locks that need no waiting.
    fn immediate(&self) -> Option<&dyn Immediate>;

    /// Versioned values beside the locks. Promised as [`Promises::cells`].
    fn cells(&self) -> Option<&dyn Cells>;

    /// Queues of jobs. Promised as [`Promises::jobs`].
    fn jobs(&self) -> Option<&dyn Jobs>;
    /// Exact rate limits. Promised as [`Promises::rates`].
    fn rates(&self) -> Option<&dyn Rates>;

    /// The floor under the namespace's fences. Promised as [`Promises::fence_floor`].
    fn fence_floor(&self) -> Option<&dyn FenceFloor>;

    /// Replicas that confirm grants. Promised as [`Promises::replicas`].
    fn replication(&self) -> Option<&dyn Replication>;

    /// Parts of the store that fail independently of each other.
    fn partitions(&self) -> Option<&dyn Partitions>;

    /// A look at the store as an operator would take it. Engines without a server have none.
    fn diagnostics(&self) -> Option<&dyn Diagnostics>;

    /// Transactions of the store in which a grant can be checked.
    fn ownership_proof(&self) -> Option<&dyn OwnershipProof>;

    /// Verdicts on deadlocks. Promised as [`Promises::deadlocks`].
    fn deadlocks(&self) -> Option<&dyn Deadlocks>;

    /// Sessions that are processes of this host.
    fn local(&self) -> Option<&dyn LocalSessions>;
}

/// Receives the signals of one session. Must not block.
pub trait SignalListener: Send + Sync {
    /// Called for each signal.
    fn on_signal(&self, signal: Signal);
}

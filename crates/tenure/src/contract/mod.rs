//! The contract between the session and its engines. Knows verbs and answers, not rules or stores.
//!
//! An engine is our code for one kind of store. It answers four verbs (claim, renew, release,
//! inspect), pushes [`Signal`]s to the session that listens, and can release by force (evict). It
//! keeps [`Cells`] for what is not a lock. What it can and cannot do it says in [`Promises`].
//!
//! Refusal is a value; trouble is an [`Error`] that says whether the store may have acted.

mod cells;
mod claim;
mod doctor;
mod error;
mod ids;
mod inspect;
mod name;
mod ownership;
mod promises;
mod verdict;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use cells::{Cell, Cells, Expect, Put, PutVerdict, Version};
pub(crate) use claim::host_name;
pub use claim::{
    About, Claim, ClaimRef, Eviction, Label, Lineage, Part, Parts, Patience, Place, Release, Shape,
};
pub use doctor::{Finding, Health};
pub use error::{Effect, Error, ErrorKind, Verb};
pub(crate) use ids::IdMap;
pub use ids::{Arrival, ClaimId, OwnerId, SessionId};
pub use inspect::{
    HolderView, Page, Pattern, Query, SessionView, SlotView, Snapshot, WaiterView, short,
};
pub use name::{Name, Namespace};
pub use ownership::Ownership;
pub use promises::{Fencing, Promises, Survives, Wake};
pub use verdict::{
    Confirmed, Evicted, Fence, Fences, Grant, Loss, Queued, Raised, Refusal, Released, Renewed,
    Signal, Verdict,
};

/// What an engine's verbs return: boxed, so that engines can stand behind one pointer.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Our code for one kind of store, bound to one namespace.
///
/// # Rules for engines
/// - A verb is one atomic step in the store. Dropping its future at any point leaves the store as
///   if the call had been made or as if it had not.
/// - Every verb that touches a slot first drops what is dead there and serves the queue.
/// - Repeating a living claim by its id renews it and gives the same answer.
/// - An engine never retries on its own and never waits for a lock: it answers and, later, pushes.
/// - Signals are delivered from the engine's own thread or from a caller's, never while the engine
///   holds a lock of its own, and may be lost.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine promises.
    fn promises(&self) -> &Promises;

    /// Asks for weight on one slot or on a set of slots. Shared, so that an engine of this process
    /// may keep it without a copy.
    fn claim<'a>(&'a self, claim: &'a Arc<Claim>) -> Pending<'a, Verdict>;

    /// Keeps claims alive, holders and waiters alike. One answer for each, in their order.
    fn renew<'a>(&'a self, batch: &'a [ClaimRef]) -> Pending<'a, Vec<Renewed>>;

    /// Gives claims back or withdraws them. One answer for each, in their order.
    fn release<'a>(&'a self, batch: &'a [Release]) -> Pending<'a, Vec<Released>>;

    /// Inspects slots. Changes nothing but what time has ended already.
    fn inspect<'a>(&'a self, query: &'a Query) -> Pending<'a, Snapshot>;

    /// Ends exactly the grant with this fence. Its holder learns the reason.
    fn evict<'a>(&'a self, eviction: &'a Eviction) -> Pending<'a, Evicted>;

    /// Lifts the floor of the namespace's fences: every later grant, of any name and also of a
    /// claim that waits already, has a fence above `to`, which is at most
    /// [`limits::FENCE_FLOOR`](crate::limits::FENCE_FLOOR). Holds keep the fence they have, and
    /// re-entries into them share it. Refused, and nothing changed, unless `to` is above the
    /// largest fence of the namespace, or above a bound of it where the store knows only that; so
    /// with 0 it only tells how far fences have got. Asked only of engines that promise
    /// [`Promises::fence_floor`].
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised>;

    /// Sends this session's signals to `ear` from now on, until the ear is gone.
    fn listen(&self, session: SessionId, ear: Weak<dyn Ear>);

    /// Renews a claim and says how many of the store's replicas have it: once this many do, or
    /// the time is up. Asked only of engines that promise [`Promises::replicas`].
    fn confirm<'a>(
        &'a self,
        _claim: &'a ClaimRef,
        _replicas: u32,
        _within: Duration,
    ) -> Pending<'a, Confirmed> {
        Box::pin(async {
            Err(Error::new(ErrorKind::Unsupported, "this engine cannot ask replicas")
                .with_help("leave `replicas` out, or use an engine that promises it"))
        })
    }

    /// Which part of the store keeps a name, where it has parts that fail apart from each other.
    /// The session puts claims of different parts into different calls, so that trouble with one
    /// costs no lock that another keeps.
    fn part_of(&self, _name: &Name) -> u32 {
        0
    }

    /// The store's cells.
    fn cells(&self) -> &dyn Cells;

    /// Checks the store for an operator: what it is, how it is set up, and what that means for
    /// locks. Changes nothing. What cannot be seen is a finding, not an error.
    fn doctor(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Where a grant stands in the store, for a transaction of the user's own there; none if the
    /// claim does not hold the name.
    fn ownership<'a>(&'a self, name: &'a Name, _claim: ClaimId) -> Pending<'a, Option<Ownership>> {
        let what = "this store has no transactions in which a lock could be checked";
        let error = Error::new(ErrorKind::Unsupported, what).on(name);
        let error = error.with_help("hand the fence to what you protect, and let that check it");
        Box::pin(std::future::ready(Err(error)))
    }

    /// The file whose lock says that the session lives, on engines that notice a death by it.
    ///
    /// A process that acts on behalf of the session holds a shared record lock (`fcntl`) on it too:
    /// the session counts as dead when the last such lock is gone.
    fn liveness_file(&self, _session: SessionId) -> Option<PathBuf> {
        None
    }

    /// How a thread that is blocked anyway can take in signals itself, where the engine offers it.
    fn attendant(&self) -> Option<&dyn Attendant> {
        None
    }
}

/// Lets a blocked caller wait where the signals arrive: one thread less to wake for a hand-off.
pub trait Attendant: Send + Sync {
    /// Waits on this thread until a signal of the session was heard or `interrupt` is called, but
    /// not if `wanted` says, once an interruption can be noticed, that there is nothing to wait
    /// for. Returns at once if another thread attends to the session already: `false`.
    fn attend(&self, session: SessionId, wanted: &dyn Fn() -> bool) -> bool;

    /// Ends the wait of the thread that attends to the session.
    fn interrupt(&self, session: SessionId);
}

/// Hears the signals of one session. Must not block.
pub trait Ear: Send + Sync {
    /// Takes a signal in.
    fn hear(&self, signal: Signal);
}

//! What only some engines have, each as an object that [`Engine`](super::Engine) returns or not.
//!
//! Engines are wrapped: by links that lose calls, by counters, by whatever a user writes. A method
//! with a default body is lost in silence by a wrapper that does not forward it. These accessors
//! have no default, so a wrapper that forgets one does not compile, and `None` is an answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Pending;
use super::claim::{Claim, ClaimRef};
use super::doctor::Finding;
use super::ids::{ClaimId, SessionId};
use super::name::Name;
use super::ownership::Ownership;
use super::verdict::{Confirmed, Fence, Grant, Raised};

/// An engine that can answer for a free lock without waiting: no future, no connection.
///
/// Each method does the whole step or nothing. If it declines, nothing has changed that a caller
/// could notice, and the session makes the ordinary call for the same claim. So a method may
/// decline for any reason, and should for everything that is not the common case. It is called
/// while the session holds no lock of its own, and keeps the rules of [`Engine`](super::Engine).
pub trait Immediate: Send + Sync {
    /// Grants a claim of one name if nothing holds the name, waits for it or keeps it closed. A
    /// grant is the reply of [`Engine::claim`](super::Engine::claim).
    fn claim_free(&self, claim: &Arc<Claim>) -> Option<Grant>;

    /// Releases a claim that holds one name, alone and without a waiter. Returns whether it did:
    /// then the reply of [`Engine::release`](super::Engine::release) is
    /// [`Released::Done`](super::Released::Done).
    fn release_lone(&self, claim: &Claim) -> bool;
}

/// A floor under the fences of a namespace, for moves between stores. Promised as
/// [`Promises::fence_floor`](super::Promises::fence_floor).
pub trait FenceFloor: Send + Sync {
    /// Raises the floor: every later grant, of any name and also of a claim that waits already, has
    /// a fence above `to`, which is at most [`limits::FENCE_FLOOR`](crate::limits::FENCE_FLOOR).
    /// Holds keep the fence they have, and re-entries into them share it. Refused, and nothing
    /// changed, unless `to` is above the largest fence of the namespace, or above a bound of it
    /// where the store knows only that; so with 0 it only returns how far fences have got.
    fn raise_fences(&self, to: Fence) -> Pending<'_, Raised>;
}

/// Replicas that can confirm a grant. Promised as
/// [`Promises::replicas`](super::Promises::replicas).
pub trait Replication: Send + Sync {
    /// Renews a claim and returns how many of the store's replicas have it: once this many do, or
    /// after `within`.
    fn confirm<'a>(
        &'a self,
        claim: &'a ClaimRef,
        replicas: u32,
        within: Duration,
    ) -> Pending<'a, Confirmed>;
}

/// A store whose parts fail independently of each other, such as the nodes of a cluster.
pub trait Partitions: Send + Sync {
    /// Returns the number of the part that keeps a name. The session puts claims of different parts
    /// into different calls, so that an outage of one costs no lock of another.
    fn partition_of(&self, name: &Name) -> u32;
}

/// A store that can be examined as an operator would.
pub trait Diagnostics: Send + Sync {
    /// Returns what the store is, how it is configured, and what that means for locks. Changes
    /// nothing. What cannot be seen is a finding, not an error.
    fn doctor(&self) -> Pending<'_, Vec<Finding>>;
}

/// A store with transactions in which a grant can be checked.
pub trait OwnershipProof: Send + Sync {
    /// Returns where the grant is in the store, for a comparison in the user's own transaction;
    /// `None` if the claim does not hold the name.
    fn ownership<'a>(&'a self, name: &'a Name, claim: ClaimId) -> Pending<'a, Option<Ownership>>;
}

/// An engine whose sessions are processes of this host.
pub trait LocalSessions: Send + Sync {
    /// Returns the file whose lock shows that the session lives.
    ///
    /// A process that acts on behalf of the session holds a shared record lock (`fcntl`) on it too:
    /// the session counts as dead when the last such lock is gone.
    fn liveness_file(&self, session: SessionId) -> Option<PathBuf>;

    /// Returns how a thread that is blocked anyway can receive signals itself, if it can.
    fn inline_wait(&self) -> Option<&dyn InlineWait>;
}

/// Lets a blocked caller wait where signals arrive: one thread less to wake for a hand-off.
pub trait InlineWait: Send + Sync {
    /// Waits on this thread until a signal of the session was delivered or the wait is interrupted.
    /// Does not wait if `wanted` returns false, which is asked once an interruption can be noticed.
    /// Returns `false` at once if another thread waits for the session already.
    fn wait(&self, session: SessionId, wanted: &dyn Fn() -> bool) -> bool;

    /// Interrupts the thread that waits for the session.
    fn interrupt(&self, session: SessionId);
}

/// The accessors of an engine's optional objects as a table. One that is left out does not compile.
///
/// The second form is for an engine around another one, in the field `inner`: it passes on the
/// named objects of the inner engine. Other crates import the macro from the root.
#[doc(hidden)]
#[macro_export]
macro_rules! optional_objects {
    ($engine:ident of $inner:ident: $($accessor:ident),+ $(,)?) => {
        $(optional_objects!(@ $engine $accessor $engine.$inner.$accessor());)+
    };
    ($engine:ident: $($accessor:ident => $object:expr),+ $(,)?) => {
        $(optional_objects!(@ $engine $accessor $object);)+
    };
    (@ $engine:ident immediate $object:expr) => {
        fn immediate(&$engine) -> Option<&dyn $crate::contract::Immediate> { $object }
    };
    (@ $engine:ident cells $object:expr) => {
        fn cells(&$engine) -> Option<&dyn $crate::contract::Cells> { $object }
    };
    (@ $engine:ident jobs $object:expr) => {
        fn jobs(&$engine) -> Option<&dyn $crate::contract::Jobs> { $object }
    };
    (@ $engine:ident rates $object:expr) => {
        fn rates(&$engine) -> Option<&dyn $crate::contract::Rates> { $object }
    };
    (@ $engine:ident fence_floor $object:expr) => {
        fn fence_floor(&$engine) -> Option<&dyn $crate::contract::FenceFloor> { $object }
    };
    (@ $engine:ident replication $object:expr) => {
        fn replication(&$engine) -> Option<&dyn $crate::contract::Replication> { $object }
    };
    (@ $engine:ident partitions $object:expr) => {
        fn partitions(&$engine) -> Option<&dyn $crate::contract::Partitions> { $object }
    };
    (@ $engine:ident diagnostics $object:expr) => {
        fn diagnostics(&$engine) -> Option<&dyn $crate::contract::Diagnostics> { $object }
    };
    (@ $engine:ident ownership_proof $object:expr) => {
        fn ownership_proof(&$engine) -> Option<&dyn $crate::contract::OwnershipProof> { $object }
    };
    (@ $engine:ident deadlocks $object:expr) => {
        fn deadlocks(&$engine) -> Option<&dyn $crate::contract::Deadlocks> { $object }
    };
    (@ $engine:ident local $object:expr) => {
        fn local(&$engine) -> Option<&dyn $crate::contract::LocalSessions> { $object }
    };
}
pub(crate) use optional_objects;

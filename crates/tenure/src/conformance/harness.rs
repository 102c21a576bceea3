//! What the suite has to be told about an engine. Knows stores as stages for scenarios.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::gate::RequestGate;
use super::link::Link;
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::time::Clock;

/// Opens fresh stores of one engine for the suite.
pub trait Harness: Send + Sync {
    /// What the engine promises.
    fn promises(&self) -> Promises;

    /// Whether the engine serves a queue at the very instant at which a claim in its way expires.
    /// Others do so when a verb next touches the slot, which callers cannot tell apart: but the
    /// differential driver can, and lets the ledger do the same.
    fn serves_at_once(&self) -> bool {
        false
    }

    /// How often the paths of this engine that are counted were taken so far in this process, by
    /// name (`paths.rs`).
    ///
    /// # Errors
    /// If the store is not there.
    fn paths(&self) -> Result<Vec<(String, u64)>, Absent> {
        Ok(Vec::new())
    }

    /// Opens a fresh, empty namespace.
    ///
    /// # Errors
    /// If the store is not there. CI counts that as a failure.
    fn open(&self) -> Result<Box<dyn Stage>, Absent>;
}

/// One fresh namespace of a store, with its time.
pub trait Stage: Send + Sync {
    /// A new client of the namespace, as another process would have one.
    fn client(&self) -> Arc<dyn Engine>;

    /// A client of another namespace of the same store, which states this longest lease, or why the
    /// store refuses it; none where the suite has no way to open one.
    fn connect(&self, _: &Namespace, _: Duration) -> Option<Result<Arc<dyn Engine>, Error>> {
        None
    }

    /// Two doors to the store, with a gate for every request that goes through them. An engine
    /// whose verbs are several requests puts its gates where these are sent.
    fn gated(&self, gates: [&Arc<RequestGate>; 2]) -> [Arc<dyn Engine>; 2] {
        let client = self.client();
        gates.map(|gate| Link::gated(Arc::clone(&client), gate) as Arc<dyn Engine>)
    }

    /// A client that only looks. Several looks may share one.
    fn observer(&self) -> Arc<dyn Engine> {
        self.client()
    }

    /// The clock that sessions on this stage count on.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Lets time pass, for the store and for sessions.
    fn pass(&self, time: Duration);

    /// Lets what is under way arrive: pushes, background releases, renewals.
    fn settle(&self);

    /// The lease that scenarios use: on a virtual clock anything, on a real one short enough to
    /// wait for and long enough not to run out by accident.
    fn lease(&self) -> Duration;

    /// Ends a session in the store, as if its process had died and its leases had run out.
    fn end_session(&self, session: SessionId);
}

/// The store is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent(pub String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store absent: {}", self.0)
    }
}

//! What the suite has to be told about an engine. Knows stores as stages for scenarios.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::gate::RequestGate;
use super::link::Link;
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::engine::Terms;
use crate::limits;
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
    fn connect(&self, _: &Namespace, _: Duration) -> Connected {
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
    fn lease(&self) -> Duration {
        Duration::from_secs(6)
    }

    /// Ends a session in the store, as if its process had died and its leases had run out.
    fn end_session(&self, session: SessionId);
}

/// A client of another namespace, or why the store refuses it; none where a stage cannot open one.
pub type Connected = Option<Result<Arc<dyn Engine>, Error>>;

/// Implements the clock of a stage and the passing of time, for a stage that has a `ManualClock`
/// called `clock` and a method `quiet`, which returns when nothing is under way. Every timer fires
/// at its own instant: the clock stops there until all is quiet again.
macro_rules! virtual_time {
    () => {
        fn clock(&self) -> Arc<dyn $crate::time::Clock> {
            Arc::new(self.clock.clone())
        }

        fn pass(&self, time: std::time::Duration) {
            self.quiet();
            self.clock.advance_with(time, || self.quiet());
        }

        fn settle(&self) {
            self.quiet();
        }
    };
}

#[allow(unused_imports, reason = "only stages of servers use it")]
pub(super) use virtual_time;

/// Returns the terms of a namespace that no other stage has.
#[allow(dead_code, reason = "only stages of servers use it")]
pub(super) fn fresh_terms(clock: Arc<dyn Clock>) -> Terms {
    let namespace = format!("stage-{}", SessionId::new().to_hex());
    Terms {
        namespace: Namespace::try_from(&*namespace).expect("a good name"),
        max_lease: limits::DEFAULT_MAX_LEASE,
        clock,
    }
}

/// The store is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent(pub String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store absent: {}", self.0)
    }
}

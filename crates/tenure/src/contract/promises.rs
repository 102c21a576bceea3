//! What an engine promises, as data: the session checks it before it asks, the tests select by it,
//! and the table in the docs is compared with it. Knows claims about engines, not engines.

use std::time::Duration;

use super::error::{Error, ErrorKind};
use crate::limits;

/// What an engine promises.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a promise of its own")]
pub struct Promises {
    /// The engine's name, as in its URL.
    pub engine: &'static str,
    /// How far fences can be trusted to grow.
    pub fencing: Fencing,
    /// What the fences rest on, in a few words for people.
    pub fencing_rests_on: &'static str,
    /// The fences of a namespace can be raised above a number, for a move from another store.
    pub fence_floor: bool,
    /// First come, first served across processes.
    pub queue: bool,
    /// Read-write locks.
    pub sharing: bool,
    /// Semaphores.
    pub counting: bool,
    /// Several names claimed in one atomic step. Without it an engine never sees more than one name
    /// in a claim of a session, which takes sets one by one, sorted.
    pub atomic_sets: bool,
    /// Cells: versioned values for what is not a lock.
    pub cells: bool,
    /// What a list of cells reads in the store, in a few words for people; empty without cells.
    pub lists_rest_on: &'static str,
    /// Queues of jobs.
    pub jobs: bool,
    /// What is done about deadlocks.
    pub deadlocks: DeadlockHandling,
    /// Rates: exact limits for how much is done in how much time.
    pub rates: bool,
    /// Why it has no rates and which engine has; empty if it has them.
    pub no_rates_because: &'static str,
    /// How a waiter learns that it was granted.
    pub wake: Wake,
    /// What a held lock survives.
    pub survives: &'static [Survives],
    /// Can say how many replicas have a grant.
    pub replicas: bool,
    /// How much clocks may drift apart while a lease runs, in percent of the lease.
    pub drift_percent: u32,
    /// Why it does not promise the rest, in a few words for people; empty if nothing is missing.
    pub lacks_because: &'static str,
    /// Why it has no queues of jobs, in a few words for people; empty if it has them.
    pub lacks_jobs_because: &'static str,
}

impl Promises {
    /// The promises of an engine that implements every rule of the ledger: all kinds of locks, fair
    /// queues, sets in one step, cells, and a floor under fences. An engine begins with these
    /// (`..Promises::EVERY_RULE`) and states what depends on its store; what it leaves out is the
    /// weaker promise.
    pub const EVERY_RULE: Self = Self {
        engine: "",
        fencing: Fencing::ClockBounded,
        fencing_rests_on: "",
        fence_floor: true,
        queue: true,
        sharing: true,
        counting: true,
        atomic_sets: true,
        cells: true,
        lists_rest_on: "",
        jobs: false,
        deadlocks: DeadlockHandling::Unseen,
        rates: false,
        no_rates_because: "",
        wake: Wake::Poll,
        survives: &[],
        replicas: false,
        drift_percent: 10,
        lacks_because: "",
        lacks_jobs_because: "",
    };

    /// The margin between the end of a lease and the instant we stop trusting it.
    #[must_use]
    pub fn margin(&self, lease: Duration) -> Duration {
        (lease * self.drift_percent / 100).max(limits::MIN_MARGIN)
    }

    /// The error for something that the engine does not promise, with the reason.
    #[must_use]
    pub fn lacks(&self, what: &str) -> Error {
        let mut text = format!("the {} engine does not promise {what}", self.engine);
        if !self.lacks_because.is_empty() {
            text = format!("{text}: {}", self.lacks_because);
        }
        Error::new(ErrorKind::Unsupported, text)
    }

    /// The error for jobs of an engine that has none, with the reason.
    #[must_use]
    pub fn lacks_jobs(&self) -> Error {
        let (engine, because) = (self.engine, self.lacks_jobs_because);
        let text = format!("the {engine} engine has no queues of jobs: {because}");
        Error::new(ErrorKind::Unsupported, text)
            .with_help("use an engine that promises jobs: `tenure promises` lists them")
    }
}

impl Promises {
    /// The error for a rate at an engine that has none, with the reason.
    #[must_use]
    pub(crate) fn lacks_rates(&self) -> Error {
        let text = format!("the {} engine does not promise rates", self.engine);
        Error::new(ErrorKind::Unsupported, text).with_help(self.no_rates_because)
    }
}

/// How far fences can be trusted to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// Always.
    Strict,
    /// Always while the store keeps its memory; after a loss of it as far as clocks agree.
    ClockBounded,
}

/// What is done about owners that wait for each other for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlockHandling {
    /// Found, and broken: the store compares the facts and refuses one wait in one atomic step.
    Broken,
    /// Found and reported: the store cannot compare all facts in one step, so no wait is refused.
    Reported,
    /// Not found: the store keeps no queue in which waits could be seen.
    Unseen,
}

/// How a waiter learns that it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The store pushes the grant.
    Push,
    /// It polls.
    Poll,
}

/// What a held lock survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survives {
    /// The end of another client's process.
    ClientCrash,
    /// A restart of the store's process.
    StoreRestart,
    /// A loss of power on the store's host.
    PowerLoss,
    /// The loss of a minority of the store's nodes.
    NodeLoss,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_never_below_two_milliseconds() {
        let mut promises = crate::engine::memory::PROMISES.clone();
        promises.drift_percent = 0;
        assert_eq!(promises.margin(Duration::from_secs(30)), Duration::from_millis(2));
        promises.drift_percent = 10;
        assert_eq!(promises.margin(Duration::from_secs(30)), Duration::from_secs(3));
    }
}

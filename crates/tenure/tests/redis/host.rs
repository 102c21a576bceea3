//! What the tests share: sessions that are written down, waiters on threads of their own, and how
//! long to wait for what must happen. Knows no faults.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use servers::{Redis, eventually};
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, What, judge};
use tenure::time::SystemClock;
use tenure::{Builder, Error, MutexGuard, Page, Query, Tenure, Witness};

/// A lease so long that nothing in a test can be its doing: its third is longer than `PATIENCE`.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long a test waits for what must happen at once, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Everything that the sessions of a test do.
#[derive(Clone)]
pub(crate) struct Book {
    pub(crate) recorder: Arc<Recorder>,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self { recorder: Recorder::new(Arc::new(SystemClock)) }
    }

    /// A session that is written down here, with a thread of the engine's own and no other.
    pub(crate) fn session(&self, url: &str, lease: Duration) -> Tenure {
        block_on(self.builder(lease).connect(url)).unwrap()
    }

    pub(crate) fn builder(&self, lease: Duration) -> Builder {
        let witness = Arc::clone(&self.recorder) as Arc<dyn Witness>;
        Tenure::builder().lease(lease).witness(witness)
    }

    /// How often this happened so far.
    pub(crate) fn count(&self, what: impl Fn(&What) -> bool) -> usize {
        self.recorder.history().entries().iter().filter(|entry| what(&entry.what)).count()
    }

    /// Where in the order of things this happened first.
    pub(crate) fn position(&self, what: impl Fn(&What) -> bool) -> Option<usize> {
        self.recorder.history().entries().iter().position(|entry| what(&entry.what))
    }

    pub(crate) fn queued(&self) -> usize {
        self.count(|what| *what == What::Queued)
    }

    pub(crate) fn losses(&self) -> usize {
        self.count(|what| *what == What::Lost)
    }

    /// Waits until holders have been renewed so many times more.
    #[track_caller]
    pub(crate) fn renewals(&self, more: usize) {
        let renewed = || self.count(|what| matches!(what, What::Renewed(_)));
        let before = renewed();
        eventually("holders are renewed", || renewed() >= before + more);
    }

    /// Asks for a mutex on a thread of its own, and returns when it stands in line.
    #[track_caller]
    pub(crate) fn waiter(&self, tenure: &Tenure, name: &str) -> Waiter {
        let (before, mutex) = (self.queued(), tenure.mutex(name).unwrap());
        let (tell, outcome) = channel();
        std::thread::spawn(move || tell.send(block_on(mutex.lock())));
        eventually("the waiter stands in line", || self.queued() > before);
        Waiter(outcome)
    }

    /// The auditor finds nothing: two holders at once, a fence that goes back, a waiter that was
    /// forgotten in line, a use after a loss.
    #[track_caller]
    pub(crate) fn assert_sound(&self, context: &str) {
        let wake_within = Duration::from_secs(5);
        let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
        let verdicts = judge(&self.recorder.history(), &rules);
        println!("{context}: {verdicts}");
        assert!(verdicts.violations.is_empty(), "{context}: {verdicts}");
        assert!(verdicts.grants > 0, "{context}: {verdicts}");
    }
}

/// A caller that waits for a mutex.
pub(crate) struct Waiter(Receiver<Result<MutexGuard, Error>>);

impl Waiter {
    /// It must be served soon.
    #[track_caller]
    pub(crate) fn served(&self) -> MutexGuard {
        self.outcome().unwrap_or_else(|error| panic!("the waiter was not served: {error}"))
    }

    /// It must come to an end soon.
    #[track_caller]
    pub(crate) fn outcome(&self) -> Result<MutexGuard, Error> {
        let outcome = self.0.recv_timeout(PATIENCE);
        outcome.unwrap_or_else(|_| panic!("the waiter has waited for {PATIENCE:?}"))
    }

    /// It waits, and nothing has ended its wait.
    pub(crate) fn still_waits(&self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// The key of a lock in the default namespace.
pub(crate) fn key(name: &str) -> String {
    format!("tenure:{{default/{name}}}")
}

/// Runs a command that must not be refused.
#[track_caller]
pub(crate) fn done(redis: &Redis, words: &[&str]) -> servers::Reply {
    let reply = redis.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert_eq!(reply.error(), None, "{words:?}");
    reply
}

/// Nothing is held and nothing waits, as soon as what was dropped has been given back.
#[track_caller]
pub(crate) fn assert_empty(url: &str, builder: Builder) {
    let tenure = block_on(builder.connect(url)).unwrap();
    let query = Query::Page(Page::default());
    eventually("nothing is left behind", || {
        block_on(tenure.inspect(&query)).is_ok_and(|seen| seen.slots.is_empty())
    });
}

/// The wall clock of a server, in microseconds.
pub(crate) fn micros(redis: &Redis) -> u64 {
    let time = done(redis, &["TIME"]);
    let number = |at: usize| time.list()[at].text().unwrap().parse::<u64>().unwrap();
    number(0) * 1_000_000 + number(1)
}

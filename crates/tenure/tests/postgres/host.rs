//! What the tests share: sessions, waiters on threads of their own, and how long to wait for what
//! must happen. Knows no faults.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::block_on;
use tenure::{Builder, Effect, Error, ErrorKind, MutexGuard, Page, Query, Tenure};

/// A lease so long that nothing in a test can be its doing.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long a test waits for what must happen at once, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How far numbers go beyond the clock at least where earlier ones may have been lost: further than
/// any was given out, in microseconds.
pub(crate) const AHEAD: u64 = 3_900_000;

/// The wall clock of a server, in microseconds.
pub(crate) fn micros(server: &Postgres) -> u64 {
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    server.done(clock).trim().parse().unwrap()
}

/// A session with a lease that no test outlives. Calls may take long on a busy machine.
pub(crate) fn builder() -> Builder {
    Tenure::builder().lease(LONG).call_limit(Duration::from_secs(10))
}

pub(crate) fn session(url: &str) -> Tenure {
    block_on(builder().connect(url)).unwrap()
}

/// A caller that waits for a mutex, on a thread of its own.
pub(crate) struct Waiter(Receiver<Result<MutexGuard, Error>>);

impl Waiter {
    /// Asks, and returns when so many stand in line.
    #[track_caller]
    pub(crate) fn behind(tenure: &Tenure, name: &str, others: usize) -> Self {
        let mutex = tenure.mutex(name).unwrap();
        let (tell, outcome) = channel();
        std::thread::spawn(move || tell.send(block_on(mutex.lock())));
        let query = Query::Slot(name.parse().unwrap());
        eventually("the waiter stands in line", || {
            let seen = block_on(tenure.inspect(&query));
            seen.is_ok_and(|seen| seen.slots.iter().any(|slot| slot.queue.len() > others))
        });
        Self(outcome)
    }

    /// It must be served soon.
    #[track_caller]
    pub(crate) fn served(&self) -> MutexGuard {
        let outcome = self.0.recv_timeout(PATIENCE);
        let outcome = outcome.unwrap_or_else(|_| panic!("it has waited for {PATIENCE:?}"));
        outcome.unwrap_or_else(|error| panic!("the waiter was not served: {error}"))
    }
}

/// Gives back over a connection whose end may not have been noticed yet: then it is not known
/// whether the server heard of it, which is said, and the session goes on with it by itself.
#[track_caller]
pub(crate) fn give_back(guard: MutexGuard) {
    if let Err(error) = block_on(guard.release()) {
        let said = (error.kind(), error.effect());
        assert_eq!(said, (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    }
}

/// Nothing is held and nothing waits, as soon as what was dropped has been given back.
#[track_caller]
pub(crate) fn assert_empty(tenure: &Tenure) {
    let query = Query::Page(Page::default());
    eventually("nothing is left behind", || {
        block_on(tenure.inspect(&query)).is_ok_and(|seen| seen.slots.is_empty())
    });
}

//! What the tests share: sessions, waiters on threads of their own, and how long to wait for what
//! must happen. Knows no faults.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use servers::eventually;
use tenure::blocking::wait;
use tenure::{Builder, Effect, Error, ErrorKind, Guard, Page, Query, Tenure};

/// A lease so long that nothing in a test can be its doing.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long a test waits for what must happen at once, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A session with a lease that no test outlives. Calls may take long on a busy machine.
pub(crate) fn builder() -> Builder {
    Tenure::builder().lease(LONG).call_limit(Duration::from_secs(10))
}

pub(crate) fn session(url: &str) -> Tenure {
    wait(builder().connect(url)).unwrap()
}

/// Somebody who waits for a mutex, on a thread of its own.
pub(crate) struct Waiter(Receiver<Result<Guard, Error>>);

impl Waiter {
    /// Asks, and returns when so many stand in line.
    #[track_caller]
    pub(crate) fn behind(tenure: &Tenure, name: &str, others: usize) -> Self {
        let mutex = tenure.mutex(name).unwrap();
        let (tell, outcome) = channel();
        std::thread::spawn(move || tell.send(wait(mutex.lock())));
        let query = Query::Slot(name.parse().unwrap());
        eventually("the waiter stands in line", || {
            let seen = wait(tenure.inspect(&query));
            seen.is_ok_and(|seen| seen.slots.iter().any(|slot| slot.line.len() > others))
        });
        Self(outcome)
    }

    /// It must be served soon.
    #[track_caller]
    pub(crate) fn served(&self) -> Guard {
        let outcome = self.0.recv_timeout(PATIENCE);
        let outcome = outcome.unwrap_or_else(|_| panic!("it has waited for {PATIENCE:?}"));
        outcome.unwrap_or_else(|error| panic!("the waiter was not served: {error}"))
    }
}

/// Gives back over a connection whose end may not have been noticed yet: then nobody knows whether
/// the server heard of it, which is said, and the session goes on with it by itself.
#[track_caller]
pub(crate) fn give_back(guard: Guard) {
    if let Err(error) = wait(guard.release()) {
        let said = (error.kind(), error.effect());
        assert_eq!(said, (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    }
}

/// Nothing is held and nobody waits, as soon as what was dropped has been given back.
#[track_caller]
pub(crate) fn assert_empty(tenure: &Tenure) {
    let query = Query::Page(Page::default());
    eventually("nothing is left behind", || {
        wait(tenure.inspect(&query)).is_ok_and(|seen| seen.slots.is_empty())
    });
}

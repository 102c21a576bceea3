//! The quorum engine on stage: a namespace of its own at three real servers, with a clock that the
//! suite owns. Knows when nothing is under way between the clients and the nodes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::harness::{Absent, Connected, Harness, Stage, fresh_terms, virtual_time};
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::engine::Terms;
use crate::engine::redlock::{PROMISES, RedlockEngine, WeakEngine};
use crate::time::ManualClock;

/// Opens fresh namespaces at the nodes that a URL names, on a virtual clock.
#[derive(Clone, Debug)]
pub struct RedlockHarness {
    url: String,
}

impl RedlockHarness {
    /// Stages at the nodes of this URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: format!("{url}?new=yes") }
    }
}

impl Harness for RedlockHarness {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        let clock = ManualClock::new();
        let terms = fresh_terms(Arc::new(clock.clone()));
        let first = open(&self.url, &terms).map_err(|error| Absent(error.to_string()))?;
        let clients = Mutex::new(vec![first.downgrade()]);
        Ok(Box::new(RedlockStage { url: self.url.clone(), terms, clock, first, clients }))
    }
}

struct RedlockStage {
    url: String,
    terms: Terms,
    clock: ManualClock,
    /// Looks, and notices an absent server.
    first: RedlockEngine,
    clients: Mutex<Vec<WeakEngine>>,
}

fn open(url: &str, terms: &Terms) -> Result<RedlockEngine, Error> {
    RedlockEngine::on_stage(url, terms)
}

impl RedlockStage {
    /// Adds a client, whose calls `quiet` waits for.
    fn add(&self, client: RedlockEngine) -> Arc<dyn Engine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(client.downgrade());
        Arc::new(client)
    }

    /// The clients that are still there.
    fn clients(&self) -> Vec<RedlockEngine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.upgrade().is_some());
        clients.iter().filter_map(WeakEngine::upgrade).collect()
    }

    /// Returns when no call or answer is under way: round trips on every connection bring nothing
    /// that a caller acts upon.
    fn quiet(&self) {
        let mut before = None;
        loop {
            self.clock.settle();
            let clients = self.clients();
            let now: Vec<u64> = clients.iter().map(RedlockEngine::activity).collect();
            if before.as_ref() == Some(&now) {
                return;
            }
            let trips: Vec<_> =
                clients.iter().map(|client| (client, client.round_trips())).collect();
            for (client, trips) in trips {
                client.wait_for(trips);
            }
            before = Some(now);
        }
    }
}

impl Stage for RedlockStage {
    fn client(&self) -> Arc<dyn Engine> {
        let client = open(&self.url, &self.terms).expect("the nodes are there");
        self.add(client)
    }

    fn connect(&self, namespace: &Namespace, max_lease: Duration) -> Connected {
        let terms = Terms { namespace: namespace.clone(), max_lease, ..self.terms.clone() };
        Some(open(&self.url, &terms).map(|client| self.add(client)))
    }

    fn observer(&self) -> Arc<dyn Engine> {
        Arc::new(self.first.clone())
    }

    virtual_time!();

    fn lease(&self) -> Duration {
        // Long, because keys expire by the servers' real clocks: see `lease` in `redis.rs`.
        Duration::from_secs(20)
    }

    fn end_session(&self, session: SessionId) {
        self.first.end_session(session).expect("ends the session");
    }
}

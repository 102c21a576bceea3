//! The Redis engine on stage: a namespace of its own in a real server, with a clock that the suite
//! owns. Knows when nothing is under way between the clients and the server.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::harness::{Absent, Connected, Harness, Stage, fresh_terms, virtual_time};
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::engine::Terms;
use crate::engine::redis::{CLUSTER_PROMISES, PROMISES, SENTINEL_PROMISES, Staged, on_stage};
use crate::time::{Clock, ManualClock};

/// Opens fresh namespaces in the server that a URL names, on a virtual clock.
#[derive(Clone, Debug)]
pub struct RedisHarness {
    url: String,
}

impl RedisHarness {
    /// Stages in the server with this URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned() }
    }
}

impl Harness for RedisHarness {
    fn promises(&self) -> Promises {
        match self.url.split_once("://") {
            Some((scheme, _)) if scheme.ends_with("sentinel") => SENTINEL_PROMISES,
            Some((scheme, _)) if scheme.ends_with("cluster") => CLUSTER_PROMISES,
            _ => PROMISES,
        }
    }

    fn paths(&self) -> Result<Vec<(String, u64)>, Absent> {
        let absent = |error: Error| Absent(error.to_string());
        open(&self.url, &fresh_terms(Arc::new(ManualClock::new())), &ManualClock::new())
            .map_err(absent)?
            .paths()
            .map_err(absent)
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        let terms = fresh_terms(Arc::new(ManualClock::new()));
        let clock = ManualClock::new();
        let first = open(&self.url, &terms, &clock).map_err(|error| Absent(error.to_string()))?;
        let clients = Mutex::new(vec![Arc::downgrade(&first)]);
        Ok(Box::new(RedisStage { url: self.url.clone(), terms, clock, first, clients }))
    }
}

struct RedisStage {
    url: String,
    terms: Terms,
    clock: ManualClock,
    /// Looks, and notices an absent server.
    first: Arc<dyn Staged>,
    clients: Mutex<Vec<Weak<dyn Staged>>>,
}

fn open(url: &str, terms: &Terms, clock: &ManualClock) -> Result<Arc<dyn Staged>, Error> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    on_stage(url, terms, &clock)
}

impl RedisStage {
    /// Adds a client, whose calls `quiet` waits for.
    fn add(&self, client: Arc<dyn Staged>) -> Arc<dyn Engine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(Arc::downgrade(&client));
        client
    }

    /// The clients that are still there.
    fn clients(&self) -> Vec<Arc<dyn Staged>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.upgrade().is_some());
        clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns when no call, answer or push is under way: round trips on every connection bring
    /// nothing that a caller acts upon. Two, because what was gathered goes out behind the first.
    fn quiet(&self) {
        let mut before = None;
        loop {
            self.clock.settle();
            let clients = self.clients();
            let now: Vec<u64> = clients.iter().map(|client| client.activity()).collect();
            if before.as_ref() == Some(&now) {
                return;
            }
            for _ in 0..2 {
                let trips: Vec<_> =
                    clients.iter().flat_map(|client| client.round_trips()).collect();
                for trip in trips {
                    drop(trip.blocking_recv());
                }
            }
            before = Some(now);
        }
    }
}

impl Stage for RedisStage {
    fn client(&self) -> Arc<dyn Engine> {
        let client = open(&self.url, &self.terms, &self.clock).expect("the server is there");
        self.add(client)
    }

    fn connect(&self, namespace: &Namespace, max_lease: Duration) -> Connected {
        let terms = Terms { namespace: namespace.clone(), max_lease, ..self.terms.clone() };
        Some(open(&self.url, &terms, &self.clock).map(|client| self.add(client)))
    }

    fn observer(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.first) as Arc<dyn Engine>
    }

    virtual_time!();

    fn lease(&self) -> Duration {
        // The clock is virtual, but the server lets keys of lone holders go by its own: on a busy
        // machine more real time passes between two steps than a short lease lasts.
        Duration::from_secs(50)
    }

    fn end_session(&self, session: SessionId) {
        self.first.end_session(session).expect("ends the session");
    }
}

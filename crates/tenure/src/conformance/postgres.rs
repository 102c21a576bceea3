//! The PostgreSQL engine on stage: a namespace of its own in a real server, with a clock that the
//! suite owns. Knows when nothing is under way between the clients and the server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::harness::{Absent, Connected, Harness, Stage, fresh_terms, virtual_time};
use crate::contract::{Engine, Error, Namespace, Promises, SessionId, Wake};
use crate::engine::Terms;
use crate::engine::postgres::{
    PROMISES, PROMISES_BEHIND_POOLER, PostgresEngine, WeakEngine, install_suite_schema,
};
use crate::time::ManualClock;

/// How long what is under way is left alone.
const PAUSE: Duration = Duration::from_micros(200);

/// Opens fresh namespaces in the server that a URL names, on a virtual clock.
#[derive(Clone, Debug)]
pub struct PostgresHarness {
    url: String,
    promises: Promises,
}

impl PostgresHarness {
    /// Stages in the server with this URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        // A schema of its own: its functions go by a clock that is not the server's.
        let mark = if url.contains('?') { '&' } else { '?' };
        // A busy machine may take long to start a server process for each connection.
        let options = "schema=tenure_stage&connect_timeout=60";
        Self { url: format!("{url}{mark}{options}"), promises: PROMISES }
    }

    /// The same behind a pooler, where nothing is pushed.
    #[must_use]
    pub fn behind_pooler(url: &str) -> Self {
        Self { promises: PROMISES_BEHIND_POOLER, ..Self::new(url) }
    }
}

impl Harness for PostgresHarness {
    fn promises(&self) -> Promises {
        self.promises.clone()
    }

    fn paths(&self) -> Result<Vec<(String, u64)>, Absent> {
        let absent = |error: Error| Absent(error.to_string());
        let (terms, pooled) =
            (fresh_terms(Arc::new(ManualClock::new())), self.promises.wake == Wake::Poll);
        let engine = open(&self.url, &terms, &ManualClock::new(), pooled).map_err(absent)?;
        engine.paths().map_err(absent)
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        static FURNISHED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let mut furnished = FURNISHED.lock().unwrap_or_else(PoisonError::into_inner);
        if !furnished.contains(&self.url) {
            install_suite_schema(&self.url).map_err(|error| Absent(error.to_string()))?;
            furnished.push(self.url.clone());
        }
        drop(furnished);
        let terms = fresh_terms(Arc::new(ManualClock::new()));
        let clock = ManualClock::new();
        let pooled = self.promises.wake == Wake::Poll;
        let first =
            open(&self.url, &terms, &clock, pooled).map_err(|error| Absent(error.to_string()))?;
        let clients = Mutex::new(vec![first.downgrade()]);
        Ok(Box::new(PostgresStage {
            url: self.url.clone(),
            pooled,
            terms,
            clock,
            first,
            clients,
            last: Mutex::default(),
        }))
    }
}

struct PostgresStage {
    url: String,
    pooled: bool,
    terms: Terms,
    clock: ManualClock,
    /// Looks, and notices an absent server.
    first: PostgresEngine,
    clients: Mutex<Vec<WeakEngine>>,
    /// What each client had done when all was quiet, and how much had been told.
    last: Mutex<(Vec<u64>, u64)>,
}

fn open(
    url: &str,
    terms: &Terms,
    clock: &ManualClock,
    pooled: bool,
) -> Result<PostgresEngine, Error> {
    PostgresEngine::with_test_clock(url, terms, Arc::new(clock.clone()), pooled)
}

impl PostgresStage {
    /// Adds a client, whose calls `quiet` waits for.
    fn add(&self, client: PostgresEngine) -> Arc<dyn Engine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(client.downgrade());
        Arc::new(client)
    }

    /// The clients that are still there.
    fn clients(&self) -> Vec<PostgresEngine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.upgrade().is_some());
        clients.iter().filter_map(WeakEngine::upgrade).collect()
    }

    /// Returns when no call, answer or push is under way.
    fn quiet(&self) {
        self.clients().iter().for_each(PostgresEngine::poll_waiters);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.clock.settle();
            let clients = self.clients();
            let now: Option<Vec<u64>> = clients.iter().map(PostgresEngine::activity).collect();
            let Some(now) = now else {
                // Not without a pause: the server has to run somewhere, too.
                std::thread::sleep(PAUSE);
                continue;
            };
            if last.0 == now {
                return;
            }
            for woken in clients.iter().map(PostgresEngine::own_thread_barrier).collect::<Vec<_>>()
            {
                drop(woken.blocking_recv());
            }
            let told = clients.iter().map(PostgresEngine::notifies_done).sum();
            if last.1 != told {
                for heard in clients
                    .iter()
                    .filter_map(PostgresEngine::notification_barrier)
                    .collect::<Vec<_>>()
                {
                    drop(heard.blocking_recv());
                }
            }
            *last = (now, told);
        }
    }
}

impl Stage for PostgresStage {
    fn client(&self) -> Arc<dyn Engine> {
        let client =
            open(&self.url, &self.terms, &self.clock, self.pooled).expect("the server is there");
        self.add(client)
    }

    fn connect(&self, namespace: &Namespace, max_lease: Duration) -> Connected {
        let terms = Terms { namespace: namespace.clone(), max_lease, ..self.terms.clone() };
        Some(open(&self.url, &terms, &self.clock, self.pooled).map(|client| self.add(client)))
    }

    fn observer(&self) -> Arc<dyn Engine> {
        Arc::new(self.first.clone())
    }

    virtual_time!();

    fn end_session(&self, session: SessionId) {
        self.first.end_session(session).expect("ends the session");
    }
}

//! The etcd engine on stage: a namespace of its own in a real cluster, with leases that the suite's
//! clock ends. Knows when nothing is under way between the clients and the members.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::gate::RequestGate;
use super::harness::{Absent, Connected, Harness, Stage, fresh_terms, virtual_time};
use super::paths;
use crate::contract::{Engine, Error, Namespace, Promises, SessionId};
use crate::engine::Terms;
use crate::engine::etcd::{EtcdEngine, GatePass, Lessor, PROMISES, WeakEngine};
use crate::time::ManualClock;

/// Opens fresh namespaces in the cluster that a URL names, on a virtual clock.
///
/// etcd counts leases on a clock of its own, which no test can move. On this stage they are counted
/// on the suite's clock instead and revoked when their time is up, which is the same step to etcd
/// as an expiry. That real leases run out by themselves is for tests with real time.
#[derive(Clone, Debug)]
pub struct EtcdHarness {
    url: String,
}

impl EtcdHarness {
    /// Stages in the cluster with this URL.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned() }
    }
}

impl Harness for EtcdHarness {
    fn promises(&self) -> Promises {
        PROMISES
    }

    /// A waiter watches what is in its way, and acts when that is gone.
    fn serves_at_once(&self) -> bool {
        true
    }

    fn paths(&self) -> Result<Vec<(String, u64)>, Absent> {
        Ok(paths::counted_in_process("etcd"))
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        let clock = ManualClock::new();
        let terms = fresh_terms(Arc::new(clock.clone()));
        let lessor = Lessor::new(Arc::new(clock.clone()));
        let open = || EtcdEngine::on_stage(&self.url, &terms, &lessor, None);
        let first = open().map_err(|error: Error| Absent(error.to_string()))?;
        let clients = Arc::new(Mutex::new(vec![first.downgrade()]));
        let (ends, engine) = (Arc::clone(&lessor), first.clone());
        thread::spawn(move || {
            while let Some(leases) = ends.wait() {
                engine.revoke(&leases);
            }
        });
        let (url, settled) = (self.url.clone(), Mutex::default());
        Ok(Box::new(EtcdStage { url, terms, clock, lessor, first, clients, settled }))
    }
}

struct EtcdStage {
    url: String,
    terms: Terms,
    clock: ManualClock,
    lessor: Arc<Lessor>,
    /// Looks, and notices an absent cluster.
    first: EtcdEngine,
    clients: Arc<Mutex<Vec<WeakEngine>>>,
    /// What each client had begun when it was quiet last.
    settled: Mutex<Vec<u64>>,
}

impl EtcdStage {
    /// The clients that are still there.
    fn clients(&self) -> Vec<EtcdEngine> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.upgrade().is_some());
        clients.iter().filter_map(WeakEngine::upgrade).collect()
    }

    /// A new client, whose requests pass a gate.
    fn open(&self, gate: Option<GatePass>) -> EtcdEngine {
        self.open_with(&self.terms, gate).expect("the cluster is there")
    }

    /// A new client of a namespace, which states these terms.
    fn open_with(&self, terms: &Terms, gate: Option<GatePass>) -> Result<EtcdEngine, Error> {
        let client = EtcdEngine::on_stage(&self.url, terms, &self.lessor, gate)?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(client.downgrade());
        Ok(client)
    }

    /// Returns when no call, answer or event is under way: a beacon that all clients of a namespace
    /// have seen was lit after everything else, and none of them has begun anything since.
    ///
    /// Whatever changes the store or tells of a change is begun by a client: where nothing was
    /// begun since it was quiet last, it still is.
    fn quiet(&self) {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.clock.settle();
            let clients = self.clients();
            let counts: Vec<_> = clients.iter().map(EtcdEngine::counts).collect();
            if counts.iter().any(|(busy, _)| *busy > 0) {
                thread::sleep(Duration::from_micros(50));
                continue;
            }
            let begun: Vec<u64> = counts.iter().map(|(_, begun)| *begun).collect();
            if *settled == begun {
                return;
            }
            let mut beacons: HashMap<Vec<u8>, u64> = HashMap::new();
            for client in &clients {
                let lit = || client.light().expect("the cluster is there");
                beacons.entry(client.beacon_key()).or_insert_with(lit);
            }
            let seen = |client: &EtcdEngine| client.has_seen(beacons[&client.beacon_key()]);
            while !clients.iter().all(seen) {
                thread::sleep(Duration::from_micros(50));
            }
            *settled = begun;
        }
    }
}

impl Drop for EtcdStage {
    fn drop(&mut self) {
        self.lessor.close();
    }
}

impl Stage for EtcdStage {
    fn client(&self) -> Arc<dyn Engine> {
        Arc::new(self.open(None))
    }

    fn connect(&self, namespace: &Namespace, max_lease: Duration) -> Connected {
        let terms = Terms { namespace: namespace.clone(), max_lease, ..self.terms.clone() };
        Some(self.open_with(&terms, None).map(|client| Arc::new(client) as _))
    }

    /// A verb is several requests here: each of them passes the gate.
    fn gated(&self, gates: [&Arc<RequestGate>; 2]) -> [Arc<dyn Engine>; 2] {
        gates.map(|gate| {
            let gate = Arc::clone(gate);
            let pass: GatePass = Arc::new(move || {
                let gate = Arc::clone(&gate);
                Box::pin(async move { gate.pass().await })
            });
            Arc::new(self.open(Some(pass))) as Arc<dyn Engine>
        })
    }

    fn observer(&self) -> Arc<dyn Engine> {
        Arc::new(self.first.clone())
    }

    virtual_time!();

    fn end_session(&self, session: SessionId) {
        self.quiet();
        let clients = self.clients();
        let ended: Vec<_> = clients.iter().map(|client| client.end_session(session)).collect();
        let leases = self.lessor.end_session(session);
        self.first.revoke(&leases);
        for (client, claims) in clients.iter().zip(ended) {
            client.leave(&claims);
        }
        self.quiet();
    }
}

//! One lock that many want, each a session of its own: how long a hand-off takes, and how many
//! events the cluster sends for it.
//!
//! A round measures both numbers of clients once, so that a slow moment of the disk meets both.

use std::time::Duration;

use servers::Etcd;
use tenure::{Error, Mutex, Tenure};

use crate::benches::redis::number;
use crate::benches::relay::{Plan, relayed};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(crate) const NAMES: [&str; 4] =
    ["handoff_2", "handoff_64", "wakes_per_handoff_64", "handoff_64_vs_2"];
/// One of them holds the lock, the others wait.
const CLIENTS: [u32; 2] = [2, 64];

/// How long each holder keeps the lock: the one before is in line again by then.
const HOLD: Duration = Duration::from_millis(2);
/// The longest there is by default: nobody renews while we count.
const LEASE: Duration = tenure::limits::DEFAULT_MAX_LEASE;
/// Every event that a member has sent for a watch.
const EVENTS: &str = "etcd_debugging_mvcc_events_total";

pub(crate) fn measure(run: &Run, etcd: &Etcd) -> Result<Vec<Figure>, Error> {
    let rounds = run.count(1, 8);
    let mut crowds = Vec::new();
    for clients in CLIENTS {
        crowds.push(Crowd::gather(run, etcd, clients.min(run.count(8, 64)))?);
    }
    for round in 0..rounds {
        for crowd in &mut crowds {
            crowd.round(run, etcd)?;
        }
        run.progress.step(round + 1, rounds);
    }
    let [few, many] = [&crowds[0], &crowds[1]].map(|crowd| median(&crowd.samples));
    let handoff = |name, value| Figure::new(name, value, "us", "release to next holder, p50");
    let wakes = number(crowds[1].events) / number(crowds[1].served);
    let wakes = Figure::new(NAMES[2], wakes, "events", "for each grant to one who waited");
    let growth = Figure::new(NAMES[3], many / few, "x", "to handoff_2");
    Ok(vec![
        handoff(NAMES[0], few),
        handoff(NAMES[1], many),
        wakes.judged_by(Aim::AtMost(1.1)),
        growth.judged_by(Aim::AtMost(1.5)),
    ])
}

/// Sessions that want one lock, and what was seen of them.
struct Crowd {
    mutexes: Vec<Mutex>,
    samples: Vec<f64>,
    events: u64,
    /// How often somebody who waited was served.
    served: u64,
}

impl Crowd {
    fn gather(run: &Run, etcd: &Etcd, clients: u32) -> Result<Self, Error> {
        let (mut mutexes, url) = (Vec::new(), etcd.url());
        for _ in 0..clients {
            let tenure = run.here(Tenure::builder().lease(LEASE).connect(&url))?;
            let mut mutex = tenure.mutex(format!("handoff:{clients}"))?;
            // Connections stand and leases are granted before anything is counted.
            run.here(mutex.pairs(1))?;
            mutexes.push(mutex);
        }
        Ok(Self { mutexes, samples: Vec::new(), events: 0, served: 0 })
    }

    fn round(&mut self, run: &Run, etcd: &Etcd) -> Result<(), Error> {
        let plan = Plan { handoffs: run.count(5, 60) as usize, hold: HOLD };
        let before = events(etcd);
        let takers = std::mem::take(&mut self.mutexes);
        let outcome;
        (self.mutexes, outcome) = relayed(run, plan, takers)?;
        self.events += events(etcd) - before;
        // The first found the lock free; everybody else was woken.
        self.served += outcome.taken.saturating_sub(1);
        self.samples.extend(outcome.samples);
        Ok(())
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count that a member tells as a decimal number"
)]
fn events(etcd: &Etcd) -> u64 {
    etcd.metric(0, EVENTS) as u64
}

//! One lock that many want, each a session of its own: how long a hand-off takes, how many commands
//! it costs, and whether everybody gets a fair share.
//!
//! A round measures every number of clients once, so that a slow moment of the machine meets all.

use std::time::Duration;

use servers::Redis;
use tenure::{Error, Mutex, Tenure};

use super::takers::Rslock;
use super::{asked, number};
use crate::benches::relay::{Plan, relayed};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(crate) const NAMES: [&str; 7] = [
    "handoff_2",
    "handoff_16",
    "handoff_64",
    "handoff_256",
    "handoff_256_vs_2",
    "jain_256",
    "handoff_2_vs_rslock",
];
/// One of them holds the lock, the others wait.
const CLIENTS: [u32; 4] = [2, 16, 64, 256];

/// How long each holder keeps the lock: the one before is in line again by then.
const HOLD: Duration = Duration::from_millis(2);
/// The longest there is by default: nobody renews while we count commands.
const LEASE: Duration = tenure::limits::DEFAULT_MAX_LEASE;

pub(crate) fn measure(run: &Run, redis: &Redis) -> Result<Vec<Figure>, Error> {
    let rounds = run.count(1, 6);
    let mut crowds = Vec::new();
    for clients in CLIENTS {
        // Hundreds of sessions would need more open files than some systems give to tests.
        crowds.push(Crowd::gather(run, redis, clients.min(run.count(16, 256)))?);
    }
    let mut rslocks = Vec::new();
    let mut rivals = Rslock::rivals(redis, 2);
    for round in 0..rounds {
        for crowd in &mut crowds {
            crowd.round(run, redis)?;
        }
        let plan = Plan { handoffs: run.count(2, 8) as usize, hold: HOLD };
        let outcome;
        (rivals, outcome) = relayed(run, plan, rivals)?;
        rslocks.extend(outcome.samples);
        run.progress.step(round + 1, rounds);
    }
    let jain = crowds.pop().map(|last| last.fairness(run));
    let (jain, last) = jain.transpose()?.unwrap_or((f64::NAN, Crowd::default()));
    crowds.push(last);
    Ok(figures(&crowds, jain, median(&rslocks)))
}

fn figures(crowds: &[Crowd], jain: f64, rslock: f64) -> Vec<Figure> {
    let medians: Vec<f64> = crowds.iter().map(|crowd| median(&crowd.samples)).collect();
    let mut figures = Vec::new();
    for ((name, crowd), median) in NAMES.into_iter().zip(crowds).zip(&medians) {
        let figure = Figure::new(name, *median, "us", "release to next holder, p50");
        figures.push(figure.with_commands(crowd.commands()).judged_by(Aim::AtMost(2.0)));
    }
    let (few, many) = (medians[0], medians[medians.len() - 1]);
    let growth = Figure::new(NAMES[4], many / few, "x", "to handoff_2");
    figures.push(growth.judged_by(Aim::AtMost(1.5)));
    let jain = Figure::new(NAMES[5], jain, "jain", "1 if all have the same share");
    figures.push(jain.judged_by(Aim::AtLeast(0.99)));
    let times = Figure::new(NAMES[6], rslock / few, "x", "rslock's wait to ours");
    figures.push(times.judged_by(Aim::AtLeast(100.0)));
    figures
}

/// Sessions that want one lock, and what was seen of them.
#[derive(Default)]
struct Crowd {
    mutexes: Vec<Mutex>,
    samples: Vec<f64>,
    asked: u64,
    taken: u64,
}

impl Crowd {
    fn gather(run: &Run, redis: &Redis, clients: u32) -> Result<Self, Error> {
        let (mut mutexes, url) = (Vec::new(), redis.url());
        for _ in 0..clients {
            let tenure = run.here(Tenure::builder().lease(LEASE).connect(&url))?;
            let mut mutex = tenure.mutex(format!("handoff:{clients}"))?;
            // Connections are greeted and scripts are loaded before anything is counted.
            run.here(mutex.pairs(1))?;
            mutexes.push(mutex);
        }
        Ok(Self { mutexes, ..Self::default() })
    }

    fn round(&mut self, run: &Run, redis: &Redis) -> Result<(), Error> {
        let plan = Plan { handoffs: run.count(5, 80) as usize, hold: HOLD };
        let before = asked(redis);
        let outcome;
        (self.mutexes, outcome) = relayed(run, plan, std::mem::take(&mut self.mutexes))?;
        // Nobody is in line before and after, so every claim that was counted was granted.
        self.asked += asked(redis) - before;
        self.taken += outcome.taken;
        self.samples.extend(outcome.samples);
        Ok(())
    }

    /// The shares of all while the lock goes round as fast as it can.
    fn fairness(mut self, run: &Run) -> Result<(f64, Self), Error> {
        let laps = run.count(2, 20) as usize;
        let plan = Plan { handoffs: laps * self.mutexes.len(), hold: Duration::ZERO };
        let outcome;
        (self.mutexes, outcome) = relayed(run, plan, self.mutexes)?;
        Ok((jain(&outcome.turns), self))
    }

    fn commands(&self) -> f64 {
        number(self.asked) / number(self.taken)
    }
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let squares: f64 = shares.iter().map(|share| f64::from(*share).powi(2)).sum();
    let count = number(shares.len() as u64);
    sum * sum / (count * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_who_has_all_is_not() {
        assert!((jain(&[7, 7, 7, 7]) - 1.0).abs() < 1e-9);
        assert!((jain(&[28, 0, 0, 0]) - 0.25).abs() < 1e-9);
    }
}

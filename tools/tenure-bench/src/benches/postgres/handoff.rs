//! One lock that many want, in two processes: how long a hand-off from one to the other takes, with
//! few and with many in line, beside a bare notification.
//!
//! A process is one session here, with connections of its own, one of which listens: what counts
//! for the server. A round measures everything once, so that a slow moment of the machine meets
//! all.

use std::time::Duration;

use servers::Postgres;
use tenure::{Error, Mutex, MutexGuard, Tenure};

use super::by_hand::Notified;
use crate::benches::relay::{Plan, relayed};
use crate::benches::taker::Taker;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(crate) const NAMES: [&str; 4] =
    ["handoff_2", "handoff_64", "handoff_64_vs_2", "handoff_vs_notify"];

/// How long each holder keeps the lock: the one before is in line again by then.
const HOLD: Duration = Duration::from_millis(2);
/// Two processes.
const PROCESSES: u32 = 2;

pub(crate) fn measure(run: &Run, server: &Postgres) -> Result<Vec<Figure>, Error> {
    let rounds = run.count(1, 8);
    let sessions = (0..PROCESSES).map(|_| run.here(Tenure::connect(&server.url())));
    let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let mut few = crowd(&sessions, 2)?;
    let mut many = crowd(&sessions, run.count(8, 64))?;
    let mut bare = run.here(Notified::new(server))?;
    let (mut fews, mut manys, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    // Plans are made and caches settle before anything is counted.
    let warm = Plan { handoffs: run.count(2, 40) as usize, hold: HOLD };
    for round in 0..=rounds {
        let plan = Plan { handoffs: run.count(5, 100) as usize, hold: HOLD };
        let plan = if round == 0 { warm } else { plan };
        let (outcome_few, outcome_many);
        (few, outcome_few) = relayed(run, plan, few)?;
        (many, outcome_many) = relayed(run, plan, many)?;
        let samples;
        (bare, samples) = notified(run, plan, bare)?;
        if round > 0 {
            fews.extend(outcome_few.samples);
            manys.extend(outcome_many.samples);
            bares.extend(samples);
            run.progress.step(round, rounds);
        }
    }
    Ok(figures(median(&fews), median(&manys), median(&bares)))
}

fn figures(few: f64, many: f64, bare: f64) -> Vec<Figure> {
    let note = "release to next holder, p50";
    let growth = Figure::new(NAMES[2], many / few, "x", "to handoff_2");
    let times = Figure::new(NAMES[3], few, "us", "x a bare notification");
    vec![
        Figure::new(NAMES[0], few, "us", note),
        Figure::new(NAMES[1], many, "us", note),
        growth.judged_by(Aim::AtMost(1.3)),
        times.relative_to(bare).judged_by(Aim::AtMost(2.5)),
    ]
}

/// One of a process who wants the lock.
struct Rival {
    mutex: Mutex,
    process: u32,
}

impl Taker for Rival {
    type Held = MutexGuard;

    async fn take(&mut self) -> Result<MutexGuard, Error> {
        self.mutex.lock().await
    }

    async fn give(&mut self, held: MutexGuard) -> Result<(), Error> {
        held.release().await
    }

    fn process(&self) -> Option<u32> {
        Some(self.process)
    }
}

/// As many from each process.
fn crowd(sessions: &[Tenure], clients: u32) -> Result<Vec<Rival>, Error> {
    let mut rivals = Vec::new();
    for (session, process) in sessions.iter().cycle().zip((0..PROCESSES).cycle()) {
        if rivals.len() == clients as usize {
            break;
        }
        rivals.push(Rival { mutex: session.mutex(format!("handoff:{clients}"))?, process });
    }
    Ok(rivals)
}

/// As often, and with the same pauses.
fn notified(run: &Run, plan: Plan, mut bare: Notified) -> Result<(Notified, Vec<f64>), Error> {
    run.in_task(async move {
        let mut samples = Vec::new();
        for _ in 0..plan.handoffs {
            samples.push(bare.once().await?);
            tokio::time::sleep(plan.hold).await;
        }
        Ok((bare, samples))
    })
}

//! From the push to the handler on PostgreSQL, one job at a time while the worker is idle. Worker
//! and producer have connections of their own in one process; so have those of peers.

use std::time::{Duration, Instant};

use tenure::{Error, NewJob, Tenure};
use tokio::sync::mpsc::unbounded_channel;

use super::contender::{Contender, Kind};
use super::peers::{Peers, Settings};
use super::{QUEUE, server};
use crate::benches::processes::broken;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::micros;

pub(super) const NAMES: [&str; 2] = ["start_p50_postgres", "start_p99_postgres"];
/// Between two jobs: the worker is asleep again.
const PAUSE: Duration = Duration::from_millis(20);
/// Slots of the idle worker, as peers have by default or fewer.
const SLOTS: usize = 10;

pub(super) fn measure(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let samples = run.count(3, 100);
    let server = server()?;
    let settings = [Settings::Best, Settings::Default];
    let mut contenders = Contender::all(run, &server, peers, &settings)?;
    contenders.retain(|contender| !matches!(contender.kind, Kind::ByHand));
    let worker = run.here(Tenure::connect(&contenders[0].url))?.queue(QUEUE)?;
    let (started, mut starts) = unbounded_channel();
    let work = async move {
        let started = &started;
        worker
            .work(SLOTS, async |_| {
                // The benchmark may be over.
                let _ = started.send(Instant::now());
                Ok(())
            })
            .await
    };
    let worker = run.spawn(work);
    let mut processes = Vec::new();
    for contender in &contenders {
        if let Kind::Peer(peer, settings) = &contender.kind {
            processes.push(peer.start(&["latency", &contender.url, settings.word()])?);
        }
    }
    let mut times = vec![Vec::new(); contenders.len()];
    for sample in 0..samples {
        std::thread::sleep(PAUSE);
        let Kind::Tenure(queue) = &contenders[0].kind else { return Err(broken("no queue")) };
        let start = Instant::now();
        let begun = run.here(async {
            queue.push(NewJob::new([b'x'; 100])).await?;
            starts.recv().await.ok_or_else(|| broken("the worker has stopped"))
        })?;
        times[0].push(micros(begun - start));
        for (process, times) in processes.iter_mut().zip(&mut times[1..]) {
            process.go()?;
            let line = process.hear()?;
            times.push(
                line.trim().parse().map_err(|_| broken("a peer did not say how long it took"))?,
            );
        }
        run.progress.step(sample + 1, samples);
    }
    worker.abort();
    let mut figures = Vec::new();
    for (name, part) in NAMES.into_iter().zip([0.5, 0.99]) {
        let ours = quantile(&mut times[0], part);
        let figure = Figure::new(name, ours, "us", "from the push to the handler");
        figures.push(figure);
        for (contender, times) in contenders.iter().zip(&mut times).skip(1) {
            let graphile = matches!(&contender.kind, Kind::Peer(peer, Settings::Best)
                if peer.name() == "graphile");
            let name = format!("{name}{}", contender.suffix());
            let figure = Figure::new(name, ours, "us", "x the peer");
            let figure = figure.relative_to(quantile(times, part));
            figures.push(figure.judged_by_any(graphile.then_some(Aim::AtMost(0.6))));
        }
    }
    Ok(figures)
}

/// The sample below which this part of them is.
fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    #[expect(clippy::cast_precision_loss, reason = "there are few samples")]
    let index = ((samples.len() as f64 * part) as usize).min(samples.len() - 1);
    samples[index]
}

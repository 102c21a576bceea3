//! Pushes a second on PostgreSQL, one at a time and by 1,000, with payloads of 100 bytes. No worker
//! sleeps, so nothing is notified.

use std::time::Instant;

use tenure::{Error, NewJob};

use super::contender::{BATCH, Contender, Kind};
use super::peers::{Peers, Settings};
use super::{by_hand, server};
use crate::benches::processes::{Process, broken};
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(super) const NAMES: [&str; 2] = ["enqueue_single_postgres", "enqueue_1000_postgres"];
const PAYLOAD: [u8; 100] = [b'x'; 100];

pub(super) fn measure(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(1, 10);
    // How often, and how many jobs each time.
    let shapes = [(run.count(5, 50), 1), (run.count(1, 5), BATCH)];
    let server = server()?;
    let contenders = Contender::all(run, &server, peers, &[Settings::Best])?;
    let mut pushers = Vec::new();
    for contender in &contenders {
        pushers.push(match &contender.kind {
            Kind::Peer(peer, settings) => {
                Some(peer.start(&["enqueue", &contender.url, settings.word()])?)
            }
            _ => None,
        });
    }
    let mut figures = Vec::new();
    for (name, (times, jobs)) in NAMES.into_iter().zip(shapes) {
        let mut rates = vec![Vec::new(); contenders.len()];
        for block in 0..=blocks {
            for ((contender, pusher), rates) in contenders.iter().zip(&mut pushers).zip(&mut rates)
            {
                let seconds = match pusher {
                    Some(process) => peer_seconds(process, times, jobs)?,
                    None => seconds(run, contender, times, jobs)?,
                };
                // The first block fills caches.
                if block > 0 {
                    rates.push(f64::from(times * jobs) / seconds);
                }
            }
            run.progress.step(block, blocks);
        }
        let ours = median(&rates[0]);
        for (contender, rates) in contenders.iter().zip(&rates).skip(1) {
            let (note, aim) = match &contender.kind {
                Kind::Peer(peer, _) if ["graphile", "river"].contains(&peer.name()) => {
                    ("x the peer", Some(Aim::AtLeast(0.9)))
                }
                Kind::Peer(..) => ("x the peer", None),
                _ => ("x an insert by hand", None),
            };
            let name = format!("{name}{}", contender.suffix());
            let figure = Figure::new(name, ours, "1/s", note).relative_to(median(rates));
            figures.push(figure.judged_by_any(aim));
        }
    }
    Ok(figures)
}

/// How long it takes to push so many times so many jobs.
fn seconds(run: &Run, contender: &Contender, times: u32, jobs: u32) -> Result<f64, Error> {
    let start = Instant::now();
    run.here(async {
        for _ in 0..times {
            if let Kind::Tenure(queue) = &contender.kind {
                queue.push_many((0..jobs).map(|_| NewJob::new(PAYLOAD))).await?;
            } else {
                by_hand::push(&contender.client, jobs as usize, &PAYLOAD).await?;
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok(start.elapsed().as_secs_f64())
}

/// The same, by the process of a peer.
fn peer_seconds(process: &mut Process, times: u32, jobs: u32) -> Result<f64, Error> {
    process.say(&format!("{times} {jobs}\n"))?;
    process.hear()?.trim().parse().map_err(|_| broken("a peer did not say how long it took"))
}

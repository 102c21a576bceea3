//! The embedded store, on the disk of the directory for temporary files, beside queues on `SQLite`
//! in files of the same disk.

use std::time::Instant;

use tenure::{Error, NewJob, Tenure};
use tokio::task::JoinSet;

use super::contender::push;
use super::peers::{PeerStore, Peers, Settings};
use super::{QUEUE, SLOTS};
use crate::benches::stores::{StoreKind, failed};
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

/// Tasks that push at once.
const PRODUCERS: u32 = 64;

/// Claims and completions a second of one process.
pub(super) fn throughput(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let remote = run.remote().map_err(|error| failed(&error))?;
    let jobs = run.count(300, 10_000);
    beside(run, peers, "claim_complete_embedded", ("process", jobs), None, |url| {
        remote.in_task(drain(url, jobs))
    })
}

/// Durable pushes a second of 64 tasks, one job each.
pub(super) fn enqueue(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let remote = run.remote().map_err(|error| failed(&error))?;
    let each = run.count(2, 50);
    let jobs = PRODUCERS * each;
    beside(run, peers, "enqueue_64_embedded", ("enqueue64", jobs), Some(5.0), |url| {
        remote.in_task(async move {
            let queue = Tenure::connect(&url).await?.queue(QUEUE)?;
            let start = Instant::now();
            let mut producers = JoinSet::new();
            for _ in 0..PRODUCERS {
                let queue = queue.clone();
                producers.spawn(async move {
                    for _ in 0..each {
                        queue.push(NewJob::new([b'x'; 100])).await?;
                    }
                    Ok::<_, Error>(())
                });
            }
            for pushed in producers.join_all().await {
                pushed?;
            }
            Ok(f64::from(jobs) / start.elapsed().as_secs_f64())
        })
    })
}

/// Adds jobs, and returns how many a second one worker claims and completes.
pub(super) async fn drain(url: String, jobs: u32) -> Result<f64, Error> {
    let queue = Tenure::connect(&url).await?.queue(QUEUE)?;
    push(&queue, jobs, 100).await?;
    let (left, all) = (std::sync::atomic::AtomicU32::new(jobs), tokio::sync::Notify::new());
    let handler = async |_| {
        if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            all.notify_one();
        }
        Ok(())
    };
    let start = Instant::now();
    // The last completions are reported before it returns.
    queue.work_until(SLOTS, all.notified(), handler).await?;
    Ok(f64::from(jobs) / start.elapsed().as_secs_f64())
}

/// Our rate, each time in a store of its own, in turns with those of the peers.
fn beside(
    run: &Run,
    peers: &Peers,
    name: &'static str,
    (verb, jobs): (&str, u32),
    aim: Option<f64>,
    ours: impl Fn(String) -> Result<f64, Error>,
) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(1, 5);
    let settings = [Settings::Best, Settings::Default];
    let peers =
        peers.of(PeerStore::Embedded).flat_map(|peer| settings.map(|setting| (peer, setting)));
    let mut peers: Vec<_> = peers.map(|(peer, setting)| (peer, setting, Vec::new())).collect();
    let mut rates = Vec::new();
    for block in 0..blocks {
        let store = StoreKind::Embedded.start()?;
        rates.push(ours(store.url.clone())?);
        for (peer, setting, rates) in &mut peers {
            let directory = tempfile::tempdir().map_err(|error| failed(&error))?;
            let (path, jobs) = (directory.path().display().to_string(), jobs / 5);
            rates.push(peer.number(&[verb, &path, setting.word(), &jobs.to_string()])?);
        }
        run.progress.step(block + 1, blocks);
    }
    let ours = median(&rates);
    let mut figures = vec![Figure::new(name, ours, "1/s", "jobs of 100 bytes")];
    for (peer, setting, rates) in &peers {
        let best = *setting == Settings::Best;
        let suffix = if best { "" } else { "_default" };
        let name = format!("{name}_vs_{}{suffix}", peer.name());
        let figure = Figure::new(name, ours, "1/s", "x the peer").relative_to(median(rates));
        let aim = best.then(|| Aim::AtLeast(aim.unwrap_or(peer.aim())));
        figures.push(figure.judged_by_any(aim));
    }
    Ok(figures)
}

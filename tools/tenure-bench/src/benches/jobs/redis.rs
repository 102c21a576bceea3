//! Jobs a second of one worker on Redis, on a server without persistence, which a peer uses too.

use servers::Redis;
use tenure::Error;

use super::embedded::drain;
use super::peers::{PeerStore, Peers, Settings};
use crate::benches::stores::failed;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

pub(super) fn measure(run: &Run, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let (blocks, jobs) = (run.count(1, 5), run.count(300, 10_000));
    let server = Redis::builder().try_start().map_err(|why| failed(&why))?;
    let settings = [Settings::Best, Settings::Default];
    let peers = peers.of(PeerStore::Redis).flat_map(|peer| settings.map(|setting| (peer, setting)));
    let mut peers: Vec<_> = peers.map(|(peer, setting)| (peer, setting, Vec::new())).collect();
    let mut ours = Vec::new();
    for block in 0..blocks {
        ours.push(run.in_task(drain(server.url(), jobs))?);
        for (peer, setting, rates) in &mut peers {
            let url = server.url();
            rates.push(peer.number(&["process", &url, setting.word(), &jobs.to_string()])?);
        }
        run.progress.step(block + 1, blocks);
    }
    let ours = median(&ours);
    let mut figures = vec![Figure::new("claim_complete_redis", ours, "1/s", "jobs of 100 bytes")];
    for (peer, setting, rates) in &peers {
        let best = *setting == Settings::Best;
        let suffix = if best { "" } else { "_default" };
        let name = format!("claim_complete_redis_vs_{}{suffix}", peer.name());
        let figure = Figure::new(name, ours, "1/s", "x the peer").relative_to(median(rates));
        figures.push(figure.judged_by_any(best.then(|| Aim::AtLeast(peer.aim()))));
    }
    Ok(figures)
}

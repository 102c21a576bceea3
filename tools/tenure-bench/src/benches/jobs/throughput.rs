//! Claims and completions a second on PostgreSQL: jobs are there, then worker processes start, and
//! the clock runs until none is left.

use tenure::Error;

use super::contender::{Contender, Kind};
use super::peers::{Peers, Settings};
use super::server;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

/// What differs between the figures.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) name: &'static [&'static str],
    workers: u32,
    bytes: usize,
}

pub(super) const SETUPS: [Setup; 4] = [
    Setup { name: &["claim_complete_1_100b_postgres"], workers: 1, bytes: 100 },
    Setup { name: &["claim_complete_1_1kb_postgres"], workers: 1, bytes: 1_024 },
    Setup { name: &["claim_complete_4_100b_postgres"], workers: 4, bytes: 100 },
    Setup { name: &["claim_complete_4_1kb_postgres"], workers: 4, bytes: 1_024 },
];

pub(super) fn measure(run: &Run, setup: &Setup, peers: &Peers) -> Result<Vec<Figure>, Error> {
    let (blocks, jobs) = (run.count(1, 3), run.count(300, 5_000));
    let server = server()?;
    // Defaults do not depend on the payload: measured with the small one.
    let both = [Settings::Best, Settings::Default];
    let settings = if setup.bytes > 100 { &both[..1] } else { &both };
    let contenders = Contender::all(run, &server, peers, settings)?;
    let mut rates = vec![Vec::new(); contenders.len()];
    for block in 0..blocks {
        for (contender, rates) in contenders.iter().zip(&mut rates) {
            let jobs = contender.share(jobs);
            rates.push(contender.rate(run, setup.workers, jobs, setup.bytes)?);
        }
        run.progress.step(block + 1, blocks);
    }
    let ours = median(&rates[0]);
    let figures = contenders.iter().zip(&rates).skip(1).map(|(contender, rates)| {
        let name = format!("{}{}", setup.name[0], contender.suffix());
        let (note, aim) = match &contender.kind {
            Kind::Peer(peer, Settings::Best) => ("x the peer at its best", Some(peer.aim())),
            Kind::Peer(_, Settings::Default) => ("x the peer at its defaults", None),
            _ => ("x a batch by hand", Some(0.6)),
        };
        let figure = Figure::new(name, ours, "1/s", note).relative_to(median(rates));
        figure.judged_by_any(aim.map(Aim::AtLeast))
    });
    Ok(figures.collect())
}

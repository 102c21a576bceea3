//! Who takes part on PostgreSQL: Tenure, the batch by hand, and the peers, each with its settings.
//! Each has a database of its own on the server of the run.

use std::time::{Duration, Instant};

use servers::Postgres;
use tenure::{Error, JobQueue, NewJob, Tenure};
use tokio_postgres::Client;

use super::peers::{Peer, PeerStore, Peers, Settings};
use super::{QUEUE, by_hand};
use crate::benches::processes::Process;
use crate::benches::stores::failed;
use crate::run::Run;

/// How long the jobs of a block may take.
const LIMIT: Duration = Duration::from_secs(180);
/// Between two looks whether jobs are left.
const LOOK: Duration = Duration::from_millis(5);
/// Jobs of one push.
pub(super) const BATCH: u32 = 1_000;

/// One that takes part.
pub(super) struct Contender {
    pub(super) kind: Kind,
    pub(super) url: String,
    pub(super) client: Client,
    /// A query that returns whether no job is left.
    drained: String,
    /// Its tables, for VACUUM.
    tables: String,
}

/// Who it is.
pub(super) enum Kind {
    Tenure(Box<JobQueue>),
    ByHand,
    Peer(Peer, Settings),
}

impl Contender {
    /// Tenure first, then the batch by hand, then the peers.
    pub(super) fn all(
        run: &Run,
        server: &Postgres,
        peers: &Peers,
        settings: &[Settings],
    ) -> Result<Vec<Self>, Error> {
        let (ours, hand) = (database(run, server, "ours")?, database(run, server, "by_hand")?);
        let queue = run.here(async { Tenure::connect(&ours.0).await?.queue(QUEUE) })?;
        run.here(hand.1.batch_execute(by_hand::TABLES)).map_err(|error| failed(&error))?;
        let text = str::to_owned;
        let mut all = vec![
            Self {
                kind: Kind::Tenure(Box::new(queue)),
                url: ours.0,
                client: ours.1,
                drained: text("SELECT NOT EXISTS (SELECT FROM tenure.jobs)"),
                tables: text("tenure.jobs, tenure.loads"),
            },
            Self {
                kind: Kind::ByHand,
                url: hand.0,
                client: hand.1,
                drained: text("SELECT NOT EXISTS (SELECT FROM by_hand)"),
                tables: text("by_hand"),
            },
        ];
        for peer in peers.of(PeerStore::Postgres) {
            for setting in settings {
                let name = format!("{}_{}", peer.name(), setting.word());
                let (url, client) = database(run, server, &name)?;
                peer.call(&["setup", &url])?;
                let drained = peer.call(&["drained"])?;
                let tables = peer.call(&["tables"])?.trim().to_owned();
                all.push(Self {
                    kind: Kind::Peer(peer.clone(), *setting),
                    url,
                    client,
                    drained,
                    tables,
                });
            }
        }
        Ok(all)
    }

    /// What stands behind the name of a figure of ours that is compared with this one.
    pub(super) fn suffix(&self) -> String {
        match &self.kind {
            Kind::Tenure(_) | Kind::ByHand => String::new(),
            Kind::Peer(peer, Settings::Best) => format!("_vs_{}", peer.name()),
            Kind::Peer(peer, Settings::Default) => format!("_vs_{}_default", peer.name()),
        }
    }

    /// The number of jobs in a block, rounded to batches.
    pub(super) fn share(&self, jobs: u32) -> u32 {
        match &self.kind {
            Kind::Peer(_, Settings::Default) => (jobs / 5).max(1),
            Kind::Peer(peer, Settings::Best) => (jobs / peer.slow()).max(1),
            _ => jobs,
        }
    }

    /// Adds jobs in batches.
    pub(super) fn fill(&self, run: &Run, jobs: u32, bytes: usize) -> Result<(), Error> {
        match &self.kind {
            Kind::Tenure(queue) => run.here(push(queue, jobs, bytes)),
            Kind::ByHand => run.here(async {
                for batch in batches(jobs) {
                    by_hand::push(&self.client, batch as usize, &vec![b'x'; bytes]).await?;
                }
                Ok(())
            }),
            Kind::Peer(peer, _) => {
                let (jobs, bytes) = (jobs.to_string(), bytes.to_string());
                peer.call(&["fill", &self.url, &jobs, &bytes]).map(drop)
            }
        }
    }

    /// Starts a worker process, which waits for a line before it works.
    pub(super) fn start_worker(&self) -> Result<Process, Error> {
        match &self.kind {
            Kind::Tenure(_) => Process::start(&["jobs".to_owned(), self.url.clone()]),
            Kind::ByHand => Process::start(&["jobs-by-hand".to_owned(), self.url.clone()]),
            Kind::Peer(peer, settings) => peer.start(&["work", &self.url, settings.word()]),
        }
    }

    /// Adds jobs, and returns how many a second the workers claim and complete.
    pub(super) fn rate(
        &self,
        run: &Run,
        workers: u32,
        jobs: u32,
        bytes: usize,
    ) -> Result<f64, Error> {
        self.fill(run, jobs, bytes)?;
        let vacuum = format!("VACUUM (ANALYZE) {}", self.tables);
        run.here(self.client.batch_execute(&vacuum)).map_err(|error| failed(&error))?;
        let mut processes = Vec::new();
        for _ in 0..workers {
            processes.push(self.start_worker()?);
        }
        let start = Instant::now();
        for process in &mut processes {
            process.go()?;
        }
        self.wait_until_drained(run)?;
        Ok(f64::from(jobs) / start.elapsed().as_secs_f64())
    }

    /// Waits until no job is left.
    pub(super) fn wait_until_drained(&self, run: &Run) -> Result<(), Error> {
        let end = Instant::now() + LIMIT;
        run.here(async {
            loop {
                let row = self.client.query_one(&self.drained, &[]).await;
                if row.map_err(|error| failed(&error))?.get(0) {
                    return Ok(());
                }
                if Instant::now() > end {
                    return Err(failed(&format!("jobs are left{}", self.suffix())));
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }
}

/// Adds jobs in batches.
pub(super) async fn push(queue: &JobQueue, jobs: u32, bytes: usize) -> Result<(), Error> {
    for batch in batches(jobs) {
        queue.push_many((0..batch).map(|_| NewJob::new(vec![b'x'; bytes]))).await?;
    }
    Ok(())
}

fn batches(jobs: u32) -> impl Iterator<Item = u32> {
    (0..jobs).step_by(BATCH as usize).map(move |begin| BATCH.min(jobs - begin))
}

/// Makes a database and connects to it.
fn database(run: &Run, server: &Postgres, name: &str) -> Result<(String, Client), Error> {
    server.sql(&format!("CREATE DATABASE {name}")).map_err(|why| failed(&why))?;
    let url = server.url();
    let (host, _) = url.rsplit_once('/').ok_or_else(|| failed(&"the URL has no database"))?;
    let url = format!("{host}/{name}");
    let client = run.here(by_hand::connect(&url))?;
    Ok((url, client))
}

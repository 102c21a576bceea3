//! An advisory lock and its release, one task: Tenure beside the server's two functions, called
//! bare.

use std::time::Instant;

use servers::Postgres;
use tenure::{Error, ErrorKind};
use tenure_postgres::advisory::{Advisory, Lock};
use tokio_postgres::{Client, NoTls, Statement};

use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::{median, nanos_each};

/// Pairs in a block: short enough that both meet the same moments of the machine.
const PAIRS: u32 = 20;
/// Blocks at the start that are not counted: plans are made, caches settle.
const WARM_UP: u32 = 10;

pub(crate) fn measure(run: &Run, postgres: &Postgres) -> Result<Vec<Figure>, Error> {
    let blocks = run.count(5, 400);
    let ours = run.here(Advisory::connect(&postgres.url()))?.exclusive(1_i64);
    let bare = run.here(Bare::new(postgres)).map_err(|error| failed(&error))?;
    let progress = run.progress.clone();
    run.in_task(async move {
        let (mut tenures, mut bares) = (Vec::new(), Vec::new());
        for number in 0..WARM_UP + blocks {
            let tenure = block(&ours).await?;
            let plain = bare.block().await.map_err(|error| failed(&error))?;
            if number >= WARM_UP {
                tenures.push(tenure);
                bares.push(plain);
                progress.step(number + 1 - WARM_UP, blocks);
            }
        }
        let figure = Figure::new("advisory_pair", median(&tenures), "us", "x the bare calls");
        Ok(vec![figure.relative_to(median(&bares)).judged_by(Aim::AtMost(1.15))])
    })
}

/// Microseconds a pair.
async fn block(lock: &Lock) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        lock.lock().await?.release().await?;
    }
    Ok(nanos_each(start, PAIRS) / 1e3)
}

/// The calls that people make: no guard, nothing that happens when a future is dropped.
struct Bare {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Bare {
    async fn new(server: &Postgres) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Self { client, lock, unlock })
    }

    async fn block(&self) -> Result<f64, tokio_postgres::Error> {
        let start = Instant::now();
        for _ in 0..PAIRS {
            self.client.query_one(&self.lock, &[&2_i64]).await?;
            self.client.query_one(&self.unlock, &[&2_i64]).await?;
        }
        Ok(nanos_each(start, PAIRS) / 1e3)
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("a reference failed: {error}"))
        .with_help("measure again when the machine has less to do")
}

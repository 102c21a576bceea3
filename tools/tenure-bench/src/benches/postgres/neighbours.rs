//! What 10,000 who wait for one name cost those who use others: a pair in a server with such a
//! line, beside the same in a server without.
//!
//! The waiters are as real as any: they have a session, which renews them.

use std::time::Duration;

use servers::Postgres;
use tenure::{Error, ErrorKind, Query, Tenure};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::block;
use crate::figure::{Aim, Figure};
use crate::run::Run;
use crate::stats::median;

/// Pairs in a block: short enough that both meet the same moments of the machine.
const PAIRS: u32 = 10;
/// Blocks at the start that are not counted: plans are made, caches settle.
const WARM_UP: u32 = 10;
/// Looks at the line until it stands. A look takes a while itself.
const LOOKS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(50);
/// How many come at once.
const AT_ONCE: u32 = 1_000;

pub(crate) fn measure(
    run: &Run,
    crowded: &Postgres,
    empty: &Postgres,
) -> Result<Vec<Figure>, Error> {
    let (waiters, blocks) = (run.count(50, 10_000), run.count(5, 600));
    let patient = || Tenure::builder().call_limit(Duration::from_secs(10));
    let crowd = run.here(patient().connect(&crowded.url()))?;
    // Kept until the end: then they leave with their server.
    let line = run.here(form(&crowd, waiters))?;
    let mut with = run.here(patient().connect(&crowded.url()))?.mutex("other")?;
    let mut without = run.here(patient().connect(&empty.url()))?.mutex("other")?;
    let progress = run.progress.clone();
    let figure = run.in_task(async move {
        let (mut withs, mut withouts) = (Vec::new(), Vec::new());
        for number in 0..WARM_UP + blocks {
            let (one, other) = (block(&mut with, PAIRS).await?, block(&mut without, PAIRS).await?);
            if number >= WARM_UP {
                withs.push(one);
                withouts.push(other);
                progress.step(number + 1 - WARM_UP, blocks);
            }
        }
        let figure = Figure::new("neighbours_10k", median(&withs), "us", "x nobody in line");
        Ok::<_, Error>(figure.relative_to(median(&withouts)).judged_by(Aim::AtMost(1.2)))
    })?;
    drop(line);
    Ok(vec![figure])
}

/// So many who wait for one name.
async fn form(tenure: &Tenure, waiters: u32) -> Result<JoinSet<Result<(), Error>>, Error> {
    let mut line = JoinSet::new();
    let query = Query::Slot("wanted".parse()?);
    // A part at a time: a call that waits behind ten thousand others would be given up.
    for part in (0..=waiters).step_by(AT_ONCE as usize) {
        let stand = waiters.min(part + AT_ONCE - 1);
        for _ in part..=stand {
            let mutex = tenure.mutex("wanted")?;
            line.spawn(async move {
                let guard = mutex.lock().await?;
                // The first to come keeps it.
                std::future::pending::<()>().await;
                guard.release().await
            });
        }
        stands(tenure, &query, stand as usize).await?;
    }
    Ok(line)
}

async fn stands(tenure: &Tenure, query: &Query, waiters: usize) -> Result<(), Error> {
    for _ in 0..LOOKS {
        let seen = tenure.inspect(query).await?;
        if seen.slots.iter().any(|slot| slot.queue.len() == waiters) {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
    Err(Error::new(ErrorKind::Unavailable, "the line does not stand"))
}

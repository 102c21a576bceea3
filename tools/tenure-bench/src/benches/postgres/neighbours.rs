//! What 10,000 who wait for one name cost those who use others: a pair in a server with such a
//! line, beside the same in a server without.
//!
//! The waiters are as real as any: they have a session, which renews them.

use std::time::Duration;

use servers::Postgres;
use tenure::{Error, ErrorKind, Query, Tenure};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::benches::lane::{LanePlan, beside, figure};
use crate::figure::{Aim, Figure};
use crate::run::Run;

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
    let with = run.here(patient().connect(&crowded.url()))?.mutex("other")?;
    let without = run.here(patient().connect(&empty.url()))?.mutex("other")?;
    let plan = LanePlan { warm_up: 10, blocks, pairs: 10 };
    let [with, without] = beside(run, plan, with, without)?;
    let figure = figure("neighbours_10k", "x nobody in line", &with, &without);
    drop(line);
    Ok(vec![figure.judged_by(Aim::AtMost(1.2))])
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

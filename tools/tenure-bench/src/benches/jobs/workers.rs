//! The worker processes of Tenure: one that does nothing with each job, one that keeps its job.

use std::time::Duration;

use tenure::{Error, Tenure};

use super::{QUEUE, SLOTS};
use crate::benches::processes::ready;

/// Works on the queue until the process is killed.
pub(crate) async fn work(url: &str) -> Result<(), Error> {
    let queue = Tenure::connect(url).await?.queue(QUEUE)?;
    ready();
    queue
        .work(SLOTS, async |job| {
            std::hint::black_box(job.payload());
            Ok(())
        })
        .await
}

/// Claims one job and keeps it until the process is killed.
pub(crate) async fn keep(url: &str, queue: &str, lease: Duration) -> Result<(), Error> {
    let queue = Tenure::connect(url).await?.queue(queue)?.lease(lease);
    queue
        .work(1, |_| async {
            println!("ready");
            std::future::pending().await
        })
        .await
}

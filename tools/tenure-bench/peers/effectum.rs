//! Drives effectum. `README.md` has the verbs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use tokio::sync::Notify;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Counts the handlers down.
#[derive(Debug)]
struct Left {
    jobs: AtomicU32,
    none: Notify,
}

async fn handle(_job: RunningJob, left: Arc<Left>) -> Result<(), effectum::Error> {
    if left.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
        left.none.notify_one();
    }
    Ok(())
}

fn job() -> Job {
    Job::builder("bench").payload(vec![b'x'; 100]).build()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["version"] => println!("effectum {}", env!("EFFECTUM_VERSION")),
        ["process", directory, settings, jobs] => {
            let jobs: u32 = jobs.parse()?;
            // One job at a time by default: a part of them takes long enough.
            let jobs = if settings == "best" { jobs } else { (jobs / 20).max(20) };
            let queue = Queue::new(&Path::new(directory).join("queue.db")).await?;
            for begin in (0..jobs).step_by(1_000) {
                let batch = (begin..jobs.min(begin + 1_000)).map(|_| job()).collect();
                queue.add_jobs(batch).await?;
            }
            let left = Arc::new(Left { jobs: AtomicU32::new(jobs), none: Notify::new() });
            let runner = JobRunner::builder("bench", handle).build();
            let start = Instant::now();
            let worker = Worker::builder(&queue, Arc::clone(&left)).jobs([runner]);
            let worker = match settings {
                "best" => worker.max_concurrency(256).min_concurrency(128),
                _ => worker,
            };
            let _worker = worker.build().await?;
            left.none.notified().await;
            // The last completions are written when nothing is active any more.
            loop {
                let active = queue.num_active_jobs().await?;
                if active.pending + active.running == 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            println!("{}", f64::from(jobs) / start.elapsed().as_secs_f64());
        }
        ["enqueue64", directory, _, jobs] => {
            let each = (jobs.parse::<u32>()? / 64).max(1);
            let queue = Arc::new(Queue::new(&Path::new(directory).join("queue.db")).await?);
            let start = Instant::now();
            let mut producers = tokio::task::JoinSet::new();
            for _ in 0..64 {
                let queue = Arc::clone(&queue);
                producers.spawn(async move {
                    for _ in 0..each {
                        queue.add_job(job()).await?;
                    }
                    Ok::<_, effectum::Error>(())
                });
            }
            for pushed in producers.join_all().await {
                pushed?;
            }
            println!("{}", f64::from(64 * each) / start.elapsed().as_secs_f64());
        }
        _ => return Err(format!("no verb {words:?}").into()),
    }
    // Its pool of connections panics when it is dropped behind the runtime.
    std::process::exit(0)
}

//! What only a Redis server can do to a queue: evict keys, fill its memory, restart, meet keys of
//! others. The stories run on it as on every engine.

use servers::{Fsync, Redis};
use tenure::{ErrorKind, JobState, KeyMode, NewJob, Tenure};
use tokio::sync::Notify;

use super::{Place, history};

/// The prefix of the keys of the queue `q`.
const QUEUE: &str = "tenure:{default/%01worker%3Aq}:j:";

async fn queue(server: &Redis) -> tenure::JobQueue {
    Tenure::connect(&server.url()).await.unwrap().queue("q").unwrap()
}

#[test]
fn no_job_is_lost_while_processes_are_killed_connections_cut_and_the_server_restarts() {
    let server = Redis::builder().append_only(Fsync::Always).start();
    let place = Place { url: server.url(), _directory: None, _server: None };
    history::play(&place, history::SHORT_LEASE, |fault| match fault {
        4 => server.restart(),
        2 | 7 | 10 => {
            server.cmd(&["CLIENT", "KILL", "SKIPME", "yes"]).unwrap();
        }
        _ => {}
    });
}

#[tokio::test]
async fn a_server_that_may_evict_keys_is_refused() {
    let server = Redis::builder().arg("maxmemory-policy", "allkeys-lru").start();
    let error = queue(&server).await.push("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("may evict keys (allkeys-lru)"), "{error}");
    assert_eq!(server.read(&["EXISTS", &format!("{QUEUE}h")]).int(), Some(0));
}

#[tokio::test]
async fn keys_of_others_and_queues_of_another_version_are_left_alone() {
    let server = Redis::start();
    let queue = queue(&server).await;
    queue.push("x").await.unwrap();
    server.cmd(&["HSET", &format!("{QUEUE}h"), "format", "2"]).unwrap();
    let error = queue.push("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("another version"), "{error}");
    server.cmd(&["HSET", &format!("{QUEUE}h"), "format", "1"]).unwrap();
    server.cmd(&["RENAME", &format!("{QUEUE}i"), "aside"]).unwrap();
    server.cmd(&["SET", &format!("{QUEUE}i"), "foreign"]).unwrap();
    let error = queue.push("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(":j:i"), "{error}");
    server.cmd(&["RENAME", "aside", &format!("{QUEUE}i")]).unwrap();
    assert_eq!(queue.counts().await.unwrap().ready, 1, "nothing was changed");
}

#[tokio::test]
async fn a_full_server_refuses_pushes_and_lets_workers_finish() {
    let server = Redis::start();
    let queue = queue(&server).await;
    let id = queue.push("x").await.unwrap().id();
    let (stop, started, full) = (Notify::new(), Notify::new(), Notify::new());
    let work = queue.work_until(1, stop.notified(), |_| {
        let (started, full) = (&started, &full);
        async move {
            started.notify_one();
            full.notified().await;
            Ok(())
        }
    });
    let fill = async {
        started.notified().await;
        server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let error = queue.push("y").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        full.notify_one();
        super::eventually("the job is done", async || queue.job(id).await.unwrap().is_none()).await;
        stop.notify_one();
    };
    tokio::join!(work, fill).0.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    assert_eq!(queue.counts().await.unwrap().ready, 0, "the push that was refused left nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_restart_of_a_server_with_a_log() {
    let server = Redis::builder().append_only(Fsync::Always).start();
    let queue = queue(&server).await;
    let id = queue.push(NewJob::new("x").max_attempts(1)).await.unwrap().id();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |_| {
        let (stop, server) = (&stop, &server);
        async move {
            // The attempt goes on meanwhile: its worker is not lost, and neither is the job.
            tokio::task::block_in_place(|| server.restart());
            stop.notify_one();
            Err("no".into())
        }
    });
    tokio::time::timeout(std::time::Duration::from_secs(60), work).await.unwrap().unwrap();
    let dead = queue.job(id).await.unwrap().unwrap();
    assert_eq!((dead.state, dead.attempts, dead.payload), (JobState::Dead, 1, b"x".to_vec()));
}

#[tokio::test]
async fn a_job_that_is_gone_leaves_nothing_behind() {
    let server = Redis::start();
    let queue = queue(&server).await;
    let job = NewJob::new("x").key("k".parse().unwrap(), KeyMode::UntilDone);
    queue.push(job.lane("l".parse().unwrap(), 1)).await.unwrap();
    let stop = Notify::new();
    let work = queue.work_until(1, stop.notified(), |_| {
        stop.notify_one();
        async { Ok(()) }
    });
    work.await.unwrap();
    for part in ["j", "p"] {
        let left = server.read(&["HLEN", &format!("{QUEUE}{part}")]).int();
        assert_eq!(left, Some(0), "rows of {part}");
    }
    for field in ["ll", "kk"] {
        let left = server.read(&["HEXISTS", &format!("{QUEUE}h"), field]).int();
        assert_eq!(left, Some(0), "{field}");
    }
    let index = server.read(&["ZCARD", &format!("{QUEUE}i")]).int();
    assert!(index <= Some(1), "no more than a worker that slept: {index:?}");
}

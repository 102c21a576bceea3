//! Many waiters for one name, in one process and in several: what a hand-off costs the nodes, and
//! that every waiter is served. Counts calls, never time.

use std::time::Duration;

use servers::eventually;
use tenure::{ErrorKind, Tenure};

use crate::host::{Book, Nodes};

const LEASE: Duration = Duration::from_secs(30);
/// How long a test waits for what must happen, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many scripts the first node has run.
fn scripts(nodes: &Nodes) -> u64 {
    ["eval", "evalsha"].iter().map(|name| nodes.servers[0].commands(name)).sum()
}

/// So many tasks that take the lock and give it back, all of one session.
fn crowd(tenure: &Tenure, book: &Book, waiters: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let one = || {
        let (mutex, book) = (tenure.mutex("crowd").unwrap().timeout(PATIENCE), book.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            assert!(book.recorder.used(&guard), "the lock was lost");
            guard.release().await.unwrap();
        })
    };
    (0..waiters).map(|_| one()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_try_one_at_a_time() {
    const WAITERS: u32 = 300;
    let (nodes, book) = (Nodes::start(3, 0), Book::new());
    let tenure = book.builder(LEASE).connect(&nodes.new_url()).await.unwrap();
    let first = tenure.mutex("crowd").unwrap().lock().await.unwrap();
    let tasks = crowd(&tenure, &book, WAITERS as usize);
    eventually("all wait", || tenure.claim_count() == WAITERS as usize + 1);
    let before = scripts(&nodes);
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let calls = scripts(&nodes) - before;
    // An acquire and a release; now and then a raise, or an attempt that came too early.
    assert!(calls < 4 * u64::from(WAITERS), "{calls} calls at a node for {WAITERS} hand-offs");
    tenure.close().await;
    book.assert_sound("a crowd in one process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_of_several_processes_are_all_served() {
    let (nodes, book) = (Nodes::start(3, 0), Book::new());
    let url = nodes.new_url();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(book.builder(LEASE).connect(&url).await.unwrap());
    }
    let crowds: Vec<_> = sessions.iter().map(|tenure| crowd(tenure, &book, 40)).collect();
    for task in crowds.into_iter().flatten() {
        task.await.unwrap();
    }
    for tenure in &sessions {
        tenure.close().await;
    }
    book.assert_sound("a crowd in each of three processes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_leave_and_tries_do_not_hold_up_the_rest() {
    let (nodes, book) = (Nodes::start(3, 0), Book::new());
    let tenure = book.builder(LEASE).connect(&nodes.new_url()).await.unwrap();
    let mutex = tenure.mutex("crowd").unwrap();
    let held = mutex.lock().await.unwrap();
    // The first waiter gives up by its limit, the next ones are dropped.
    let error = mutex.clone().timeout(Duration::from_millis(20)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let leaving: Vec<_> = crowd(&tenure, &book, 20);
    let staying = crowd(&tenure, &book, 3);
    eventually("all wait", || tenure.claim_count() == 24);
    // A try asks the nodes and does not queue.
    let before = scripts(&nodes);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(scripts(&nodes) > before);
    for task in leaving {
        task.abort();
        let _ = task.await;
    }
    held.release().await.unwrap();
    for task in staying {
        task.await.unwrap();
    }
    tenure.close().await;
    book.assert_sound("some have left");
}

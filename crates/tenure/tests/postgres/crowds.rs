//! Callers that give up, in crowds and in programs that live for a moment: what they leave behind
//! delays no other name, and does not stay.

use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::Mutex;
use tenure::block_on;

use crate::host::{PATIENCE, assert_empty, builder, session};

/// How many claims may be in flight on a connection.
const AT_ONCE: usize = 48;

/// Begins to lock so often. The futures are polled once.
fn crowd(mutex: &Mutex, times: usize) -> Vec<impl Future> {
    let mut crowd: Vec<_> = (0..times).map(|_| Box::pin(mutex.lock())).collect();
    let mut once = std::task::Context::from_waker(std::task::Waker::noop());
    for one in &mut crowd {
        // The one that is first may be granted at once.
        let _ = one.as_mut().poll(&mut once);
    }
    crowd
}

/// Begins to lock so often, and gives up.
fn give_up(mutex: &Mutex, times: usize) {
    drop(crowd(mutex, times));
}

/// A runtime with two threads.
fn two_workers() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap()
}

/// How many claims the server remembers as withdrawn.
fn tombstones(server: &Postgres, which: &str) -> usize {
    server.done(&format!("SELECT count(*) FROM tenure.tombs WHERE {which}")).trim().parse().unwrap()
}

#[test]
fn callers_that_leave_before_there_is_room_send_nothing() {
    let server = Postgres::start();
    two_workers().block_on(async {
        let tenure = builder().connect(&server.url()).await.unwrap();
        let mutex = tenure.mutex("crowd").unwrap();
        // The session listens from here on.
        mutex.lock().await.unwrap().release().await.unwrap();
        give_up(&mutex, 20_000);
        let guard = mutex.timeout(PATIENCE).lock().await.unwrap();
        guard.release().await.unwrap();
        tenure.close().await;
    });
    // Each claim that went out without an answer is withdrawn, and remembered for its lease.
    let sent = tombstones(&server, "true");
    assert!((1..=AT_ONCE).contains(&sent), "{sent} claims went out");
    assert_empty(&session(&server.url()));
}

/// How many statements of sessions that contain this the server has executed, by its log.
fn statements(server: &Postgres, text: &str) -> usize {
    let log = std::fs::read_to_string(server.dir().join("log")).unwrap();
    let executed = |line: &&str| line.contains("execute ") && line.contains(text);
    log.lines().filter(executed).count()
}

/// The withdrawals of a crowd of callers that gave up once stood before the next claim: after
/// 20,000 of them a lock took 24 s.
#[test]
fn a_lock_does_not_wait_behind_the_withdrawals_of_callers_that_gave_up() {
    const TASKS: u64 = 16;
    const CALLS: u64 = 200;
    let server = Postgres::builder().set("log_statement", "all").start();
    let runtime = two_workers();
    let tenure = runtime.block_on(builder().connect(&server.url())).unwrap();
    runtime.block_on(async {
        let tasks = (0..TASKS).map(|task| {
            let mutex = tenure.mutex("crowd").unwrap();
            tokio::spawn(async move {
                for call in 0..CALLS {
                    // 0.1 to 3 ms, another order in each task.
                    let limit = Duration::from_micros(100 * (1 + (7 * call + 11 * task) % 30));
                    drop(tokio::time::timeout(limit, mutex.lock()).await);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    let before = statements(&server, "");
    let guard = block_on(tenure.mutex("crowd").unwrap().timeout(PATIENCE).lock()).unwrap();
    let meanwhile = statements(&server, "") - before;
    block_on(guard.release()).unwrap();
    assert_empty(&tenure);
    // Statements withdraw many claims at once, so these are counted too: by tombstones, which
    // outlive this test.
    let (claims, withdrawn) = (statements(&server, "claim_one"), tombstones(&server, "true"));
    println!(
        "{claims} claims went out, {withdrawn} were withdrawn; {before} statements by the crowd, \
         {meanwhile} until the next lock was granted"
    );
    assert!(claims > 0 && meanwhile > 0, "the server logs no statements");
    // A few had room and were dropped before they were written.
    assert!(4 * withdrawn <= 5 * claims, "{claims} claims went out, {withdrawn} were withdrawn");
    assert!(meanwhile <= 2 * AT_ONCE, "{meanwhile} statements until the lock was granted");
}

/// Claims and releases once waited for room on the connection in one queue: a release came after
/// the claims of a whole crowd, all of which waited for that release.
#[test]
fn a_release_does_not_wait_for_room_behind_a_crowd_of_claims() {
    let server = Postgres::start();
    two_workers().block_on(async {
        let tenure = builder().connect(&server.url()).await.unwrap();
        let mutex = tenure.mutex("crowd").unwrap();
        let guard = mutex.lock().await.unwrap();
        // No claim of the crowd goes on while it is not polled, so none makes room for another.
        let crowd = crowd(&mutex, 10 * AT_ONCE);
        guard.release().await.unwrap();
        drop(crowd);
        tenure.close().await;
    });
    assert_empty(&session(&server.url()));
}

#[test]
fn programs_that_live_for_a_moment_leave_no_heap_of_tombstones() {
    const PROGRAMS: usize = 8;
    const CLAIMS: usize = 20;
    let server = Postgres::start();
    for _ in 0..PROGRAMS {
        let short = builder().lease(Duration::from_millis(100));
        let tenure = block_on(short.connect(&server.url())).unwrap();
        give_up(&tenure.mutex("job").unwrap(), CLAIMS);
        block_on(tenure.close());
        eventually("the tombstones have expired", || {
            tombstones(&server, "until > tenure.clock()") == 0
        });
    }
    let left = tombstones(&server, "true");
    assert!(left <= 2 * CLAIMS, "{left} tombstones of {PROGRAMS} programs are left");
}

/// What a crash left once stayed for ever where only programs came that live for a moment and never
/// abandon a claim, such as those that cron runs.
#[test]
fn programs_that_only_lock_and_release_delete_what_a_crash_has_left() {
    const LEFT: usize = 3_000;
    let server = Postgres::start();
    block_on(session(&server.url()).close());
    server.done(&format!(
        "INSERT INTO tenure.tombs
             SELECT 1, gen_random_uuid(), n, NULL FROM generate_series(1, {LEFT}) n"
    ));
    let (mut left, mut programs) = (LEFT, 0);
    while left > 0 {
        let tenure = session(&server.url());
        block_on(block_on(tenure.mutex("job").unwrap().lock()).unwrap().release()).unwrap();
        block_on(tenure.close());
        let now = tombstones(&server, "true");
        assert!(now < left, "{now} of {left} are left after one more program");
        (left, programs) = (now, programs + 1);
    }
    assert!(programs > 1, "each deletes a part, so that no handshake takes long");
}

#[test]
fn a_lock_that_was_not_contended_deletes_nothing() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    server.done("INSERT INTO tenure.tombs VALUES (1, gen_random_uuid(), 0, NULL)");
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    assert_eq!(tombstones(&server, "true"), 1);
}

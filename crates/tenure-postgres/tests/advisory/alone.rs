//! Locks on connections of Tenure's own.

use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::block_on;
use tenure::{ErrorKind, Loss};
use tenure_postgres::advisory::{Advisory, Key};

use crate::host::{assert_locks, client, locks, soon};

/// What the name `reports` becomes.
const NUMBER: i64 = 9_162_028_425_427_799_623;

async fn two(server: &Postgres) -> (Advisory, Advisory) {
    (
        Advisory::connect(&server.patient_url()).await.unwrap(),
        Advisory::connect(&server.patient_url()).await.unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_in_a_process_and_between_processes() {
    let server = Postgres::start();
    let (one, two) = two(&server).await;
    let guard = one.exclusive("a").lock().await.unwrap();
    for other in [&one, &two] {
        assert!(other.exclusive("a").try_lock().await.unwrap().is_none());
        assert!(other.shared("a").try_lock().await.unwrap().is_none());
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(locks(&server), (0, 0));
    let guard = two.exclusive("a").try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_live_on_the_first_connections() {
    let server = Postgres::start();
    let one = Advisory::connect(&server.patient_url()).await.unwrap();
    let mut guards = Vec::new();
    for number in 0..1000_i64 {
        guards.push(one.exclusive(number).lock().await.unwrap());
    }
    assert_eq!(locks(&server), (1000, 0));
    let text = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.done(text).trim(), "1");
    drop(guards);
    assert_locks(&server, 0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_pairs_and_names_are_the_servers_own_keys() {
    let server = Postgres::start();
    let one = Advisory::connect(&server.patient_url()).await.unwrap();
    let other = client(&server.url()).await;
    for key in [
        Key::from(i64::MIN),
        Key::from(-1_i64),
        Key::from((i32::MIN, i32::MAX)),
        Key::from((0, -7)),
        Key::from("reports"),
    ] {
        let shown = if key == Key::from("reports") { NUMBER.to_string() } else { key.to_string() };
        let arguments = match shown {
            pair if pair.starts_with('(') => pair,
            number => format!("('{number}'::bigint)"),
        };
        let text = format!("SELECT pg_try_advisory_lock{arguments}");
        let guard = one.exclusive(key.clone()).lock().await.unwrap();
        assert!(!other.query_one(&text, &[]).await.unwrap().get::<_, bool>(0), "{key}");
        guard.release().await.unwrap();
        assert!(other.query_one(&text, &[]).await.unwrap().get::<_, bool>(0), "{key}");
        assert!(one.exclusive(key.clone()).try_lock().await.unwrap().is_none(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_computes_the_same_number_of_a_name() {
    let server = Postgres::start();
    for name in ["reports", "", "Straße", "it's"] {
        let text = format!(
            "SELECT ('x' || encode(substr(sha256(convert_to('{}', 'UTF8')), 1, 8), 'hex'))\
             ::bit(64)::bigint",
            name.replace('\'', "''")
        );
        let number: i64 = server.done(&text).trim().parse().unwrap();
        assert_eq!(Key::from(number), Key::from(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_share_on_one_connection_but_not_past_somebody_who_waits() {
    let server = Postgres::start();
    let (one, two) = two(&server).await;
    let readers: Vec<_> = {
        let mut readers = Vec::new();
        for _ in 0..20 {
            readers.push(soon(one.shared("a").lock()).await.unwrap());
        }
        readers
    };
    assert!(readers[0].is_shared());
    assert_eq!(locks(&server), (1, 0));
    let writer = tokio::spawn(async move { two.exclusive("a").lock().await });
    assert_locks(&server, 1, 1);
    assert!(one.shared("a").try_lock().await.unwrap().is_none(), "it passes the writer");
    let late = one.shared("a");
    let late = tokio::spawn(async move { late.lock().await });
    assert_locks(&server, 1, 2);
    drop(readers);
    let writer = soon(writer).await.unwrap().unwrap();
    assert_locks(&server, 1, 1);
    writer.release().await.unwrap();
    soon(late).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(locks(&server), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_served_when_it_is_released_and_not_after_its_limit() {
    let server = Postgres::start();
    let (one, two) = two(&server).await;
    let guard = one.exclusive((1, 2)).lock().await.unwrap();
    let limit = Duration::from_millis(50);
    for advisory in [&one, &two] {
        let error = soon(advisory.exclusive((1, 2)).timeout(limit).lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("50ms"), "{error}");
    }
    let waiting = two.exclusive((1, 2)).timeout(Duration::from_secs(600));
    let waiter = tokio::spawn(async move { waiting.lock().await });
    assert_locks(&server, 1, 1);
    // Locks on other connections come and go meanwhile.
    two.exclusive("other").lock().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(locks(&server), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_waits_than_connections_all_come_to_an_end() {
    let server = Postgres::start();
    let one = Advisory::connect_at_most(&server.url(), 3).await.unwrap();
    let guards = [1_i64, 2, 3, 4, 5].map(|key| one.exclusive(key));
    let mut held = Vec::new();
    for lock in &guards {
        held.push(lock.lock().await.unwrap());
    }
    let waiters = guards.map(|lock| tokio::spawn(async move { lock.lock().await }));
    assert_locks(&server, 5, 2);
    let text = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tenure %'";
    assert_eq!(server.done(text).trim(), "3");
    let limit = Duration::from_millis(120);
    let error = soon(one.exclusive(5).timeout(limit).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    for guard in held {
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(locks(&server), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_connection_is_told_and_others_are_made() {
    let server = Postgres::start();
    let (one, two) = two(&server).await;
    let guard = one.exclusive("a").lock().await.unwrap();
    let lost = guard.lost();
    assert!(server.terminate_all() > 0);
    assert_eq!(soon(lost).await, Loss::Disconnected);
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Disconnected));
    let next = soon(two.exclusive("a").lock()).await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(one.exclusive("a").try_lock().await.unwrap().is_none());
    next.release().await.unwrap();
    soon(one.exclusive("a").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_on_a_connection_that_ends_is_an_error_and_the_next_one_is_served() {
    let server = Postgres::start();
    let (one, _) = two(&server).await;
    let other = client(&server.url()).await;
    other.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let waiting = one.exclusive(7_i64);
    let waiter = tokio::spawn(async move { waiting.lock().await });
    assert_locks(&server, 1, 1);
    server.kill();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = soon(one.exclusive(7_i64).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart();
    soon(one.exclusive(7_i64).lock()).await.unwrap().release().await.unwrap();
}

#[test]
fn without_a_runtime_it_has_a_thread_of_its_own() {
    let server = Postgres::start();
    let one = block_on(Advisory::connect(&server.patient_url())).unwrap();
    let guard = block_on(one.exclusive("a").lock()).unwrap();
    assert!(block_on(one.exclusive("a").try_lock()).unwrap().is_none());
    let limit = Duration::from_millis(20);
    let error = block_on(one.exclusive("a").timeout(limit).lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    drop(guard);
    assert_locks(&server, 0, 0);
    let guard = block_on(one.exclusive("a").lock()).unwrap();
    drop(one);
    drop(guard);
    assert_locks(&server, 0, 0);
}

#[test]
fn the_end_of_the_runtime_gives_everything_back() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let one = runtime.block_on(Advisory::connect(&server.patient_url())).unwrap();
    let guard = runtime.block_on(one.exclusive("a").lock()).unwrap();
    drop(runtime);
    assert_locks(&server, 0, 0);
    assert!(guard.check().is_err());
    eventually("it is said", || {
        let error = block_on(one.exclusive("a").lock()).unwrap_err();
        error.kind() == ErrorKind::Closed
    });
    drop(guard);
}

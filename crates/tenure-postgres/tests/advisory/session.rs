//! Locks on a client of the caller's own.

use std::time::Duration;

use servers::Postgres;
use tenure::{ErrorKind, Loss};
use tenure_postgres::advisory::{Key, Session};

use crate::host::{assert_locks, client, locks, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_lends_the_client_and_further_locks_are_taken_inside() {
    let server = Postgres::start();
    let mut session = Session::new(client(&server.url()).await);
    let mut guard = session.exclusive("a").lock().await.unwrap();
    assert_eq!(guard.key(), Key::from("a"));
    let transaction = guard.client().transaction().await.unwrap();
    transaction.batch_execute("CREATE TABLE made (id int8)").await.unwrap();
    transaction.commit().await.unwrap();
    {
        let mut inner = guard.session().shared("b").try_lock().await.unwrap().unwrap();
        let error = inner.session().exclusive("a").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert_eq!(locks(&server), (2, 0));
        inner.release().await.unwrap();
    }
    assert_eq!(locks(&server), (1, 0));
    guard.check().unwrap();
    drop(guard);
    // What is said next comes after the release.
    session.client().await.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(locks(&server), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_ends_with_the_wait_and_leaves_no_trace() {
    let server = Postgres::start();
    let mut holder = Session::new(client(&server.url()).await);
    let held = holder.exclusive(7_i64).lock().await.unwrap();
    let mut session = Session::new(client(&server.url()).await);
    session.client().await.batch_execute("SET lock_timeout = '41s'").await.unwrap();
    for _ in 0..3 {
        let limit = Duration::from_millis(20);
        let error = soon(session.shared(7_i64).timeout(limit).lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(session.exclusive(7_i64).try_lock().await.unwrap().is_none());
        let row = session.client().await.query_one("SHOW lock_timeout", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "41s");
    }
    held.release().await.unwrap();
    let limit = Duration::from_secs(30);
    let mut guard = session.exclusive(7_i64).timeout(limit).lock().await.unwrap();
    let row = guard.client().query_one("SHOW lock_timeout", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "41s");
    drop(guard);
    assert_locks(&server, 0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_deadlock_is_ours() {
    let server = Postgres::builder().set("deadlock_timeout", "50ms").start();
    let mut one = Session::new(client(&server.url()).await);
    let mut two = Session::new(client(&server.url()).await);
    let mut has_a = one.exclusive("a").lock().await.unwrap();
    let mut has_b = two.exclusive("b").lock().await.unwrap();
    let outcomes = soon(async {
        tokio::join!(
            async {
                let outcome = has_a.session().exclusive("b").lock().await.map(drop);
                has_a.release().await.unwrap();
                outcome
            },
            async {
                let outcome = has_b.session().exclusive("a").lock().await.map(drop);
                has_b.release().await.unwrap();
                outcome
            }
        )
    })
    .await;
    let errors: Vec<_> = [outcomes.0, outcomes.1].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Deadlock, "{}", errors[0]);
    assert!(errors[0].to_string().contains("waits for ExclusiveLock on advisory lock"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_connection_is_a_loss() {
    let server = Postgres::start();
    let mut session = Session::new(client(&server.url()).await);
    let mut guard = session.exclusive("a").lock().await.unwrap();
    server.terminate_all();
    soon(async {
        while guard.check().is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(guard.check().unwrap_err().loss(), Some(&Loss::Disconnected));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_somebody_else_gave_back_is_a_loss() {
    let server = Postgres::start();
    let mut session = Session::new(client(&server.url()).await);
    let mut guard = session.exclusive("a").lock().await.unwrap();
    guard.client().batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.loss(), Some(&Loss::Forgotten), "{error}");
}

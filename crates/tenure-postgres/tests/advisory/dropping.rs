//! Futures dropped at every await: neither a lock nor a broken connection stays behind.

use std::time::Duration;

use servers::Postgres;
use tenure_postgres::advisory::{Advisory, InTransaction, Session};
use tenure_postgres::lock_rows;
use tokio_postgres::Client;

use crate::host::{assert_locks, client, dropped_after, soon};

/// More than any of our futures has.
const AWAITS: usize = 14;
const KEY: i64 = 7;

/// Another session that holds the lock, or does not.
async fn stranger(server: &Postgres, holds: bool) -> Client {
    let stranger = client(&server.url()).await;
    if holds {
        stranger.batch_execute(&format!("SELECT pg_advisory_lock({KEY})")).await.unwrap();
    }
    stranger
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_connections_of_our_own() {
    let server = Postgres::start();
    for holds in [false, true] {
        let stranger = stranger(&server, holds).await;
        for times in 0..AWAITS {
            let ours = Advisory::connect(&server.patient_url()).await.unwrap();
            let held = ours.exclusive("other").lock().await.unwrap();
            let lock = ours.exclusive(KEY);
            drop(dropped_after(times, lock.lock()).await);
            drop(dropped_after(times, lock.try_lock()).await);
            let limited = lock.clone().timeout(Duration::from_secs(600));
            drop(dropped_after(times, limited.lock()).await);
            drop(dropped_after(times, ours.shared(KEY).lock()).await);
            assert_locks(&server, 1 + usize::from(holds), 0);
            held.check().unwrap();
            if !holds {
                let guard = soon(lock.lock()).await.unwrap();
                let released = dropped_after(times, guard.release()).await;
                assert!(released.is_none_or(|released| released.is_ok()));
                assert_locks(&server, 1, 0);
            }
            held.release().await.unwrap();
        }
        drop(stranger);
        assert_locks(&server, 0, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_client_of_ones_own() {
    let server = Postgres::start();
    for holds in [false, true] {
        let stranger = stranger(&server, holds).await;
        let mut client = client(&server.url()).await;
        for times in 0..AWAITS {
            let mut session = Session::new(&mut client);
            let limit = Duration::from_secs(600);
            drop(dropped_after(times, session.exclusive(KEY).timeout(limit).lock()).await);
            drop(dropped_after(times, session.exclusive(KEY).lock()).await);
            drop(dropped_after(times, session.shared(KEY).try_lock()).await);
            let row = soon(session.client().await.query_one("SHOW lock_timeout", &[])).await;
            assert_eq!(row.unwrap().get::<_, &str>(0), "0");
            assert_locks(&server, usize::from(holds), 0);
            if !holds {
                let guard = soon(session.exclusive(KEY).lock()).await.unwrap();
                drop(dropped_after(times, guard.release()).await);
                assert_locks(&server, 0, 0);
            }
            soon(session.into_client()).await.batch_execute("SELECT 1").await.unwrap();
        }
        drop(stranger);
        assert_locks(&server, 0, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_transaction() {
    let server = Postgres::start();
    for holds in [false, true] {
        let stranger = stranger(&server, holds).await;
        let mut client = client(&server.url()).await;
        for times in 0..AWAITS {
            let transaction = client.transaction().await.unwrap();
            let ours = InTransaction::of(&transaction);
            ours.exclusive("other").lock().await.unwrap();
            let limit = Duration::from_secs(600);
            let done = dropped_after(times, ours.exclusive(KEY).timeout(limit).lock()).await;
            let held = usize::from(holds) + usize::from(done.is_some());
            // It can go on, with what it had before.
            assert_locks(&server, 1 + held, 0);
            let row = soon(transaction.query_one("SHOW lock_timeout", &[])).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), "0");
            soon(transaction.commit()).await.unwrap();
            assert_locks(&server, usize::from(holds), 0);
        }
        drop(stranger);
        assert_locks(&server, 0, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_rows() {
    let server = Postgres::start();
    server.done("CREATE TABLE item (id int8 PRIMARY KEY); INSERT INTO item VALUES (1), (2), (3)");
    let mut other = client(&server.url()).await;
    let mut client = client(&server.url()).await;
    for times in 0..AWAITS {
        let blocking = other.transaction().await.unwrap();
        blocking.batch_execute("SELECT FROM item WHERE id = 2 FOR UPDATE").await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let limit = Duration::from_secs(600);
        let done = lock_rows(&transaction, "item", "id", &[3_i64, 2, 1], limit);
        let done = dropped_after(times, done).await;
        assert!(done.is_none(), "{times}: {done:?}");
        soon(transaction.batch_execute("SELECT 1")).await.unwrap();
        // Nothing is locked by the transaction that goes on.
        soon(blocking.batch_execute("SELECT FROM item FOR UPDATE NOWAIT")).await.unwrap();
        blocking.commit().await.unwrap();
        soon(transaction.commit()).await.unwrap();
    }
}

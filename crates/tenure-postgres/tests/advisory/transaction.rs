//! Locks that end with a transaction.

use std::time::Duration;

use servers::Postgres;
use tenure::ErrorKind;
use tenure_postgres::advisory::InTransaction;

use crate::host::{assert_locks, client, locks, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_and_rollback_give_them_back() {
    let server = Postgres::start();
    let mut client = client(&server.url()).await;
    for commit in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let ours = InTransaction::of(&transaction);
        ours.exclusive("a").lock().await.unwrap();
        assert!(ours.shared((1, 2)).try_lock().await.unwrap());
        assert_eq!(locks(&server), (2, 0));
        if commit { transaction.commit().await } else { transaction.rollback().await }.unwrap();
        assert_eq!(locks(&server), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_leaves_the_transaction_and_its_settings_as_they_were() {
    let server = Postgres::start();
    let (mut one, mut two) = (client(&server.url()).await, client(&server.url()).await);
    let holder = one.transaction().await.unwrap();
    InTransaction::of(&holder).exclusive(7_i64).lock().await.unwrap();
    let transaction = two.transaction().await.unwrap();
    transaction
        .batch_execute("SET LOCAL lock_timeout = '41s'; CREATE TABLE t (id int8)")
        .await
        .unwrap();
    let ours = InTransaction::of(&transaction);
    assert!(!ours.exclusive(7_i64).try_lock().await.unwrap());
    let limit = Duration::from_millis(20);
    let error = soon(ours.shared(7_i64).timeout(limit).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    holder.commit().await.unwrap();
    soon(ours.shared(7_i64).timeout(Duration::from_secs(60)).lock()).await.unwrap();
    let row = transaction.query_one("SHOW lock_timeout", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "41s");
    transaction.commit().await.unwrap();
    assert_eq!(server.done("SELECT count(*) FROM t").trim(), "0");
    assert_locks(&server, 0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_deadlock_is_ours_and_the_other_one_is_served() {
    let server = Postgres::builder().set("deadlock_timeout", "50ms").start();
    let both = ["a", "b"].map(|first| {
        let (url, second) = (server.url(), if first == "a" { "b" } else { "a" });
        async move {
            let mut client = client(&url).await;
            let transaction = client.transaction().await.unwrap();
            let ours = InTransaction::of(&transaction);
            ours.exclusive(first).lock().await.unwrap();
            // Both have their first before either asks for its second.
            loop {
                let text = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
                let row = transaction.query_one(text, &[]).await.unwrap();
                if row.get::<_, i64>(0) >= 2 {
                    break;
                }
            }
            let outcome = ours.exclusive(second).lock().await;
            match outcome {
                Ok(()) => transaction.commit().await.unwrap(),
                Err(_) => transaction.rollback().await.unwrap(),
            }
            outcome.map_err(|error| error.kind())
        }
    });
    let [one, two] = both;
    let outcomes = Box::pin(soon(async { tokio::join!(one, two) })).await;
    let outcomes = [outcomes.0, outcomes.1];
    assert!(outcomes.contains(&Err(ErrorKind::Deadlock)), "{outcomes:?}");
    assert!(outcomes.contains(&Ok(())), "{outcomes:?}");
}

//! Rows locked in the order of their keys.

use std::time::Duration;

use servers::Postgres;
use tenure::ErrorKind;
use tenure_postgres::lock_rows;

use crate::host::{PATIENCE, client, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_back_ascending_and_only_those_that_have_a_row() {
    let server = Postgres::start();
    server.done(
        "CREATE SCHEMA \"my shop\"; CREATE TABLE \"my shop\".\"or\"\"der\" (\"the key\" text);
         INSERT INTO \"my shop\".\"or\"\"der\" VALUES ('b'), ('a'), ('c')",
    );
    let mut client = client(&server.url()).await;
    let transaction = client.transaction().await.unwrap();
    let keys = ["c", "x", "a", "a"].map(String::from);
    let table = ("my shop", "or\"der");
    let found = lock_rows(&transaction, table, "the key", &keys, PATIENCE).await.unwrap();
    assert_eq!(found, ["a", "c"]);
    let none: [String; 0] = [];
    assert!(lock_rows(&transaction, table, "the key", &none, PATIENCE).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_ends_the_wait_but_not_the_transaction() {
    let server = Postgres::start();
    server.done("CREATE TABLE item (id int4 PRIMARY KEY); INSERT INTO item VALUES (1), (2)");
    let (mut one, mut two) = (client(&server.url()).await, client(&server.url()).await);
    let first = one.transaction().await.unwrap();
    lock_rows(&first, "item", "id", &[2], PATIENCE).await.unwrap();
    let second = two.transaction().await.unwrap();
    second.batch_execute("INSERT INTO item VALUES (3)").await.unwrap();
    let limit = Duration::from_millis(20);
    let error = soon(lock_rows(&second, "item", "id", &[1, 2], limit)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // Nor does it hold the first of the two.
    lock_rows(&first, "item", "id", &[1], limit).await.unwrap();
    first.commit().await.unwrap();
    lock_rows(&second, "item", "id", &[1, 2], PATIENCE).await.unwrap();
    second.commit().await.unwrap();
    assert_eq!(server.done("SELECT count(*) FROM item").trim(), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opposite_transfers_never_deadlock_and_money_stays() {
    const PAIRS: i64 = 50;
    let server = Postgres::builder().set("deadlock_timeout", "10ms").start();
    server.done(
        "CREATE TABLE account (id int8 PRIMARY KEY, balance int8);
         INSERT INTO account SELECT n, 1000 FROM generate_series(1, 4) n",
    );
    let transfers = (0..8_i64).map(|number| {
        let url = server.url();
        tokio::spawn(async move {
            let mut client = client(&url).await;
            for round in 0..PAIRS {
                let (from, to) = (1 + (number + round) % 4, 1 + (number * 3 + round + 1) % 4);
                let transaction = client.transaction().await.unwrap();
                let keys = [from, to];
                lock_rows(&transaction, "account", "id", &keys, PATIENCE).await.unwrap();
                for (account, amount) in [(from, -1_i64), (to, 1)] {
                    let text = "UPDATE account SET balance = balance + $1 WHERE id = $2";
                    transaction.execute(text, &[&amount, &account]).await.unwrap();
                }
                transaction.commit().await.unwrap();
            }
        })
    });
    for transfer in transfers.collect::<Vec<_>>() {
        transfer.await.unwrap();
    }
    assert_eq!(server.done("SELECT sum(balance) FROM account").trim(), "4000");
    let text = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'";
    assert_eq!(server.done(text).trim(), "0");
}

//! Rows that refuse a stale writer.

use servers::Postgres;
use tenure::{ErrorKind, Fence};
use tenure_postgres::{FencedTable, Stale, fence_trigger_sql, state_fence};

use crate::host::{client, soon};

#[path = "../../examples/transfer.rs"]
mod transfer;

const ACCOUNT: &str = "CREATE TABLE account (id int8 PRIMARY KEY, balance int8 NOT NULL, \
                       fence int8 NOT NULL DEFAULT 0); INSERT INTO account VALUES (1, 10), (2, 10)";

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_holder_wakes_late_and_its_transfer_is_refused() {
    let server = Postgres::start();
    let told = Box::pin(soon(transfer::story(&server.url()))).await.unwrap();
    assert_eq!(told.balances, [70, 130]);
    assert!(told.stale.ours < told.stale.stands, "{:?}", told.stale);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_takes_equal_and_larger_fences_and_refuses_smaller_ones() {
    let server = Postgres::start();
    server.done(ACCOUNT);
    let mut client = client(&server.url()).await;
    let accounts = FencedTable::new("account", "id");
    let transaction = client.transaction().await.unwrap();
    let more = "balance = balance + $1";
    for number in [5, 5, 7] {
        accounts.update(&transaction, more, &[&1_i64], &1_i64, fence(number)).await.unwrap();
    }
    let error = accounts.update(&transaction, more, &[&1_i64], &1_i64, fence(6)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(Stale::in_error(&error), Some(Stale { ours: fence(6), stands: fence(7) }));
    assert!(error.to_string().contains("fence 7, ours is 6"), "{error}");
    accounts.raise(&transaction, &2_i64, fence(9)).await.unwrap();
    let error = accounts.raise(&transaction, &2_i64, fence(8)).await.unwrap_err();
    assert_eq!(Stale::in_error(&error), Some(Stale { ours: fence(8), stands: fence(9) }));
    let error = accounts.raise(&transaction, &3_i64, fence(8)).await.unwrap_err();
    assert_eq!((error.kind(), Stale::in_error(&error)), (ErrorKind::InvalidOption, None));
    transaction.commit().await.unwrap();
    let said = server.done("SELECT balance, fence FROM account ORDER BY id");
    assert_eq!(said.trim(), "13|7\n10|9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_writer_that_waits_for_the_row_is_refused_when_it_gets_it() {
    let server = Postgres::start();
    server.done(ACCOUNT);
    let (mut one, mut two) = (client(&server.url()).await, client(&server.url()).await);
    let accounts = FencedTable::new("account", "id");
    let fresh = one.transaction().await.unwrap();
    accounts.raise(&fresh, &1_i64, fence(9)).await.unwrap();
    let late = tokio::spawn(async move {
        let stale = two.transaction().await.unwrap();
        let accounts = FencedTable::new("account", "id");
        accounts.update(&stale, "balance = $1", &[&0_i64], &1_i64, fence(8)).await.unwrap_err()
    });
    servers::eventually("it waits for the row", || {
        server.done("SELECT count(*) FROM pg_locks WHERE NOT granted").trim() == "1"
    });
    fresh.commit().await.unwrap();
    let error = soon(late).await.unwrap();
    assert_eq!(Stale::in_error(&error), Some(Stale { ours: fence(8), stands: fence(9) }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_the_trigger_checks_whatever_is_said_to_it() {
    let server = Postgres::start();
    server.done(
        "CREATE SCHEMA \"b k\"; CREATE TABLE \"b k\".\"acc\"\"t$tenure$\" \
         (id int8, balance int8, \"fen\"\"ce\" int8 NOT NULL DEFAULT 0); \
         INSERT INTO \"b k\".\"acc\"\"t$tenure$\" VALUES (1, 10)",
    );
    let sql = fence_trigger_sql(("b k", "acc\"t$tenure$"), "fen\"ce");
    // Twice does no harm.
    server.done(&sql);
    server.done(&sql);
    let mut client = client(&server.url()).await;
    let table = "\"b k\".\"acc\"\"t$tenure$\"";
    let update = format!("UPDATE {table} SET balance = balance + 1");
    for (number, works) in [(5, true), (5, true), (4, false), (6, true), (5, false)] {
        for write in [
            update.clone(),
            format!("INSERT INTO {table} VALUES (2, 0); DELETE FROM {table} WHERE id = 2"),
        ] {
            let transaction = client.transaction().await.unwrap();
            state_fence(&transaction, fence(number)).await.unwrap();
            match transaction.batch_execute(&write).await {
                Ok(()) if works || write != update => transaction.commit().await.unwrap(),
                Ok(()) => panic!("fence {number} wrote"),
                Err(error) => {
                    let stale = Stale::of(&error).expect("refused for its fence");
                    assert!(!works && stale.ours == fence(number), "{stale:?}");
                    assert!(stale.stands > stale.ours, "{stale:?}");
                }
            }
        }
    }
    // A fence ends with its transaction, and without one nothing is written.
    let error = client.batch_execute(&update).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "TNF01");
    assert!(error.message().contains("without a fence"), "{error}");
    // Deletes are writes too.
    let transaction = client.transaction().await.unwrap();
    state_fence(&transaction, fence(1)).await.unwrap();
    let error = transaction.batch_execute(&format!("DELETE FROM {table}")).await.unwrap_err();
    assert_eq!(Stale::of(&error), Some(Stale { ours: fence(1), stands: fence(6) }));
    drop(transaction);
    let said = server.done(&format!("SELECT balance, \"fen\"\"ce\" FROM {table}"));
    assert_eq!(said.trim(), "13|6");
}

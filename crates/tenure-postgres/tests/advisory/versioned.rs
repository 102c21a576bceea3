//! Rows with versions, and transactions that are repeated.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};

use servers::Postgres;
use tenure::ErrorKind;
use tenure_postgres::{Outdated, VersionedTable, retrying};
use tokio_postgres::{IsolationLevel, Transaction};

use crate::host::{client, soon};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_another_writer_changed_is_not_written_over() {
    let server = Postgres::start();
    let accounts = VersionedTable::new("account", "id");
    server.done(
        "CREATE TABLE account (id int8 PRIMARY KEY, balance int8);
         INSERT INTO account VALUES (1, 100), (2, 100)",
    );
    let mut client = client(&server.url()).await;
    for _ in 0..2 {
        client.batch_execute(&accounts.trigger_sql()).await.unwrap();
    }
    let tx = client.transaction().await.unwrap();
    let read = accounts.read(&tx, &1_i64).await.unwrap().expect("a row");
    assert_eq!(read.row.get::<_, i64>("balance"), 100);
    assert!(accounts.read(&tx, &9_i64).await.unwrap().is_none());
    let balance = 90_i64;
    let set = "balance = $1";
    let second = accounts.update(&tx, set, &[&balance], &1_i64, read.version).await.unwrap();
    assert!(second > read.version);
    let refused = accounts.update(&tx, set, &[&balance], &1_i64, read.version).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let cause = refused.source().and_then(|cause| cause.downcast_ref::<Outdated>());
    assert_eq!(cause, Some(&Outdated { read: read.version, present: Some(second) }));
    tx.commit().await.unwrap();

    // A writer that knows nothing of versions raises it too, and a row that comes back has a new
    // one.
    server.done("UPDATE account SET balance = 80 WHERE id = 1");
    let tx = client.transaction().await.unwrap();
    assert!(accounts.update(&tx, set, &[&balance], &1_i64, second).await.is_err());
    let third = accounts.read(&tx, &1_i64).await.unwrap().unwrap().version;
    tx.commit().await.unwrap();
    server.done("DELETE FROM account WHERE id = 1; INSERT INTO account VALUES (1, 80)");
    let tx = client.transaction().await.unwrap();
    assert!(accounts.update(&tx, set, &[&balance], &1_i64, third).await.is_err());
    server.done("DELETE FROM account WHERE id = 2");
    let gone = accounts.update(&tx, set, &[&balance], &2_i64, 1).await.unwrap_err();
    assert!(gone.to_string().contains("the row is gone"), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_without_the_trigger_is_noticed() {
    let server = Postgres::start();
    server.done(
        "CREATE TABLE item (id int4, version int8, n int4); INSERT INTO item VALUES (1, 5, 0)",
    );
    let mut client = client(&server.url()).await;
    let tx = client.transaction().await.unwrap();
    let items = VersionedTable::new("item", "id");
    let error = items.update(&tx, "n = 1", &[], &1_i32, 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("trigger_sql"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn serialization_failures_are_repeated_and_the_sum_is_exact() {
    let server = Postgres::start();
    server.done("CREATE TABLE counter (n int8); INSERT INTO counter VALUES (0)");
    let writers = (0..4).map(|_| {
        let url = server.url();
        tokio::spawn(async move {
            let mut client = client(&url).await;
            for _ in 0..5 {
                let work = async |tx: &Transaction<'_>| -> Result<(), Failure> {
                    let n: i64 = tx.query_one("SELECT n FROM counter", &[]).await?.get(0);
                    tx.execute("UPDATE counter SET n = $1", &[&(n + 1)]).await?;
                    Ok(())
                };
                retrying(&mut client, IsolationLevel::Serializable, work).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        soon(writer).await.unwrap();
    }
    assert_eq!(server.done("SELECT n FROM counter").trim(), "20");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_work_is_returned_and_rolled_back() {
    let server = Postgres::start();
    server.done("CREATE TABLE item (id int4)");
    let mut client = client(&server.url()).await;
    let runs = AtomicU32::new(0);
    let work = async |tx: &Transaction<'_>| -> Result<(), Failure> {
        runs.fetch_add(1, Ordering::SeqCst);
        tx.execute("INSERT INTO item VALUES (1)", &[]).await?;
        Err("no".into())
    };
    let error = retrying(&mut client, IsolationLevel::ReadCommitted, work).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), runs.load(Ordering::SeqCst)), ("no", 1));
    assert_eq!(server.done("SELECT count(*) FROM item").trim(), "0");
}

/// The connection is cut while COMMIT waits: the server may have committed, so nothing is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_not_repeated() {
    let server = Postgres::start();
    // COMMIT waits here until the test lets go, so that its answer can be cut off.
    server.done(
        "CREATE TABLE item (id int4);
         CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON item DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION wait()",
    );
    let (holder, mut writer) = (client(&server.url()).await, client(&server.url()).await);
    holder.execute("SELECT pg_advisory_lock(77)", &[]).await.unwrap();
    let runs = AtomicU32::new(0);
    let work = async |tx: &Transaction<'_>| -> Result<(), Failure> {
        runs.fetch_add(1, Ordering::SeqCst);
        tx.execute("INSERT INTO item VALUES (1)", &[]).await?;
        Ok(())
    };
    let ended = async {
        let waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        loop {
            if let Some(row) = holder.query_opt(waits, &[]).await.unwrap() {
                let pid: i32 = row.get(0);
                holder.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let committed = retrying(&mut writer, IsolationLevel::ReadCommitted, work);
    let (committed, ()) = soon(async { tokio::join!(committed, ended) }).await;
    committed.unwrap_err();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

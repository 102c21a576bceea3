//! The programs on the page are these, and they run.

use std::error::Error;
use std::time::Duration;

use servers::Postgres;
use tenure::{Owner, Tenure};
use tenure_postgres::advisory::{Advisory, InTransaction, Session};
use tenure_postgres::{FencedTable, VersionedTable, lock_rows, retrying};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::host::client;

const PAGE: &str = include_str!("../../../../docs/postgres-locks.md");
const HERE: &str = include_str!("page.rs");

async fn alone(url: &str) -> Result<(), tenure::Error> {
    let advisory = Advisory::connect(url).await?; // once per process
    let lock = advisory.exclusive("nightly report").timeout(Duration::from_secs(10));
    let guard = lock.lock().await?;
    println!("one process at a time is here: {}", guard.key());
    guard.release().await
}

async fn with_a_client(client: &mut Client) -> Result<(), Box<dyn Error>> {
    let mut session = Session::new(client);
    if let Some(mut guard) = session.exclusive("migrations").try_lock().await? {
        let transaction = guard.client().transaction().await?;
        transaction.batch_execute("CREATE TABLE IF NOT EXISTS invoice (id bigint)").await?;
        transaction.commit().await?;
        guard.release().await?;
    }
    Ok(())
}

async fn in_a_transaction(client: &mut Client) -> Result<(), Box<dyn Error>> {
    let transaction = client.transaction().await?;
    InTransaction::of(&transaction).exclusive((4, 17)).lock().await?;
    transaction.batch_execute("INSERT INTO invoice SELECT 1 + count(*) FROM invoice").await?;
    transaction.commit().await?;
    Ok(())
}

async fn with_fences(tenure: &Tenure, client: &mut Client) -> Result<(), Box<dyn Error>> {
    let guard = tenure.mutex("account:17")?.lock().await?;
    let accounts = FencedTable::new("account", "id");
    let transaction = client.transaction().await?;
    let less = "balance = balance - $1";
    accounts.update(&transaction, less, &[&100_i64], &17_i64, guard.fence()?).await?;
    transaction.commit().await?;
    guard.release().await?;
    Ok(())
}

async fn in_order(client: &mut Client, from: i64, to: i64) -> Result<(), Box<dyn Error>> {
    let transaction = client.transaction().await?;
    lock_rows(&transaction, "account", "id", &[from, to], Duration::from_secs(2)).await?;
    transaction.commit().await?;
    Ok(())
}

type Failure = Box<dyn Error + Send + Sync>;

async fn without_a_lock(client: &mut Client) -> Result<(), Failure> {
    let accounts = VersionedTable::new("account", "id");
    client.batch_execute(&accounts.trigger_sql()).await?; // once
    let work = async |transaction: &Transaction<'_>| -> Result<(), Failure> {
        let Some(read) = accounts.read(transaction, &17_i64).await? else { return Ok(()) };
        let balance: i64 = read.row.get("balance");
        let new = balance - 100;
        accounts.update(transaction, "balance = $1", &[&new], &17_i64, read.version).await?;
        Ok(())
    };
    retrying(client, IsolationLevel::Serializable, work).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_the_page_run() {
    let server = Postgres::start();
    let mut client = client(&server.url()).await;
    let (_, sql) = PAGE.split_once("```sql\n").expect("a table");
    server.done(sql.split_once("```").expect("its end").0);
    server.done("INSERT INTO account VALUES (17, 500), (4, 500)");
    alone(&server.url()).await.unwrap();
    with_a_client(&mut client).await.unwrap();
    in_a_transaction(&mut client).await.unwrap();
    let tenure = Tenure::connect(&server.url()).await.unwrap();
    with_fences(&tenure, &mut client).await.unwrap();
    in_order(&mut client, 17, 4).await.unwrap();
    assert_eq!(server.done("SELECT balance FROM account WHERE id = 17").trim(), "400");
    without_a_lock(&mut client).await.unwrap();
    assert_eq!(server.done("SELECT balance FROM account WHERE id = 17").trim(), "300");
}

async fn book(tenure: &Tenure, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    let owner = Owner::new();
    let named = tenure_postgres::name_backend(tenure, client, &owner).await?;
    let transaction = client.transaction().await?;
    transaction.execute("UPDATE account SET balance = 0 WHERE id = 1", &[]).await?;
    let report = tenure.mutex("report")?.owner(&owner).lock().await?;
    transaction.commit().await?;
    report.release().await?;
    Ok(named.release().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_named_by_its_owner() {
    let server = Postgres::start();
    server.done("CREATE TABLE account (id bigint, balance bigint)");
    server.done("INSERT INTO account VALUES (1, 100)");
    let tenure = Tenure::connect(&server.url()).await.unwrap();
    book(&tenure, &mut client(&server.url()).await).await.unwrap();
    assert_eq!(server.done("SELECT balance FROM account").trim(), "0");
}

#[test]
fn each_program_of_the_page_is_one_of_these() {
    let programs: Vec<_> = PAGE.split("```rust\n").skip(1).collect();
    assert_eq!(programs.len(), 7);
    for program in programs {
        let (program, _) = program.split_once("```").expect("its end");
        // The imports stand at the top here; that they suffice, the doctests of the page show.
        let (_, function) = program.split_once("\n\n").expect("imports");
        assert!(HERE.contains(function), "{function}");
    }
}

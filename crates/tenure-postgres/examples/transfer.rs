//! Money from one account to another, and a holder who is paused and wakes too late. Knows a
//! database with a table `account`; makes it, in a schema of its own.
//!
//! ```text
//! cargo run -p tenure-postgres --example transfer --
//! postgres://postgres@localhost/postgres
//! ```

use std::error::Error as StdError;
use std::time::Duration;

use tenure::{LockSetGuard, Part, Tenure};
use tenure_postgres::{FencedTable, Stale, lock_rows};
use tokio_postgres::{Client, NoTls};

type Outcome<T> = Result<T, Box<dyn StdError>>;

/// Long enough for a transfer. A holder that takes longer loses its lock to the next one.
const MAX_HOLD: Duration = Duration::from_secs(1);

/// What is in the accounts 1 and 2 at the end, and how the late one was refused.
#[derive(Debug)]
pub(crate) struct Told {
    /// The balances.
    pub(crate) balances: [i64; 2],
    /// Its fence, and the one it found.
    pub(crate) stale: Stale,
}

/// A holder takes the lock and is paused; another comes after it and transfers; the first one
/// wakes and goes on as if nothing had been.
///
/// # Errors
/// If the database cannot be reached, or the late holder is not refused.
pub(crate) async fn story(url: &str) -> Outcome<Told> {
    let mut client = open_accounts(url).await?;
    let tenure = Tenure::connect(url).await?;

    let paused = hold_both(&tenure).await?;
    let fences = [paused.fence_of("account:1")?, paused.fence_of("account:2")?];
    println!("the first holder has fences {} and {}, and is paused", fences[0], fences[1]);
    paused.lost().await;

    let guard = hold_both(&tenure).await?;
    let ours = [guard.fence_of("account:1")?, guard.fence_of("account:2")?];
    transfer(&mut client, 30, ours).await?;
    println!("the second holder has moved 30, with fences {} and {}", ours[0], ours[1]);
    guard.release().await?;

    // It checked before it was paused, and does not check again.
    let refused = transfer(&mut client, 50, fences).await;
    let Err(refused) = refused else { return Err("a late transfer went through".into()) };
    println!("the first holder wakes: {refused}");
    let stale = refused.downcast_ref::<tenure::Error>().and_then(Stale::in_error);
    let stale = stale.ok_or("refused, but not for its fence")?;

    let rows = client.query("SELECT balance FROM bank.account ORDER BY id", &[]).await?;
    Ok(Told { balances: [rows[0].get(0), rows[1].get(0)], stale })
}

/// Both accounts at once, in whatever order other transfers want them.
async fn hold_both(tenure: &Tenure) -> Outcome<LockSetGuard> {
    let names = ["account:1", "account:2"];
    let parts = names.map(|name| Ok(Part::write(name.parse()?)));
    let parts: Result<Vec<_>, tenure::Error> = parts.into_iter().collect();
    Ok(tenure.lock_set(parts?)?.max_hold(MAX_HOLD).lock().await?)
}

/// Moves an amount from account 1 to account 2, all or nothing.
async fn transfer(client: &mut Client, amount: i64, fences: [tenure::Fence; 2]) -> Outcome<()> {
    let accounts = FencedTable::new(("bank", "account"), "id");
    let transaction = client.transaction().await?;
    // Programs that transfer without our lock lock rows one by one: in one order there is no
    // deadlock.
    let patience = Duration::from_secs(5);
    lock_rows(&transaction, ("bank", "account"), "id", &[1_i64, 2], patience).await?;
    let (less, more) = ("balance = balance - $1", "balance = balance + $1");
    accounts.update(&transaction, less, &[&amount], &1_i64, fences[0]).await?;
    accounts.update(&transaction, more, &[&amount], &2_i64, fences[1]).await?;
    transaction.commit().await?;
    Ok(())
}

async fn open_accounts(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE SCHEMA IF NOT EXISTS bank;
             DROP TABLE IF EXISTS bank.account;
             CREATE TABLE bank.account (
                 id bigint PRIMARY KEY,
                 balance bigint NOT NULL CHECK (balance >= 0),
                 fence bigint NOT NULL DEFAULT 0);
             INSERT INTO bank.account VALUES (1, 100), (2, 100);",
        )
        .await?;
    Ok(client)
}

#[tokio::main]
#[allow(dead_code, reason = "the test calls `story`")]
async fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("usage: transfer postgres://user@host/database")?;
    let told = story(&url).await?;
    println!("{}; balances: {} and {}", told.stale, told.balances[0], told.balances[1]);
    Ok(())
}

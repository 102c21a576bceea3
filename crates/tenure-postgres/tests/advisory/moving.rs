//! A service moves to another store, and the rows that check its fences accept every write.

use std::time::Duration;

use servers::{Direction, Etcd, Postgres, Redis, eventually};
use tenure::{Fence, Tenure};
use tenure_postgres::{FencedTable, Stale};
use tokio_postgres::Client;

use crate::host::{client, soon};

const HOUR: Duration = Duration::from_secs(3_600);

/// A database with an account whose row checks fences.
async fn accounts() -> (Postgres, Client) {
    let database = Postgres::start();
    database.done(
        "CREATE TABLE account (id int8 PRIMARY KEY, balance int8 NOT NULL, \
         fence int8 NOT NULL DEFAULT 0); INSERT INTO account VALUES (1, 10)",
    );
    let client = client(&database.url()).await;
    (database, client)
}

/// Takes the lock of an account, and gives it back. The fence it had.
async fn held(tenure: &Tenure) -> Fence {
    let guard = soon(tenure.mutex("account:1").unwrap().lock()).await.unwrap();
    let fence = guard.fence().unwrap();
    soon(guard.release()).await.unwrap();
    fence
}

/// Writes to the account, with a fence.
async fn write(client: &mut Client, fence: Fence) -> Result<(), tenure::Error> {
    let accounts = FencedTable::new("account", "id");
    let transaction = client.transaction().await.unwrap();
    let more = "balance = balance + $1";
    let wrote = accounts.update(&transaction, more, &[&1_i64], &1_i64, fence).await;
    transaction.commit().await.unwrap();
    wrote.map(drop)
}

/// The new store's clock is an hour behind, so its fences would be smaller than those of the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_accept_every_write_after_a_move_to_a_store_whose_clock_is_behind() {
    let ((database, mut client), redis) = (accounts().await, Redis::builder().clock().start());
    redis.step_clock(HOUR, Direction::Back);
    let old = soon(Tenure::connect(&database.url())).await.unwrap();
    let late = held(&old).await;
    let last = held(&old).await;
    write(&mut client, last).await.unwrap();
    let highest = soon(old.highest_fence()).await.unwrap();
    assert!(highest >= last);
    soon(old.close()).await;

    let new = soon(Tenure::connect(&redis.url())).await.unwrap();
    let behind = held(&new).await;
    let error = write(&mut client, behind).await.unwrap_err();
    assert_eq!(Stale::in_error(&error), Some(Stale { ours: behind, stands: last }));
    soon(new.raise_fences(highest.get())).await.unwrap();
    for _ in 0..5 {
        let fence = held(&new).await;
        write(&mut client, fence).await.unwrap();
    }
    // A writer that slept through the move is harmless.
    let error = write(&mut client, late).await.unwrap_err();
    assert!(Stale::in_error(&error).is_some(), "{error}");
    assert_eq!(database.done("SELECT balance FROM account").trim(), "16");

    // And back again, with the same call: the numbers here are ahead of the clock by now.
    let highest = soon(new.highest_fence()).await.unwrap();
    let old = soon(Tenure::connect(&database.url())).await.unwrap();
    if let Err(error) = soon(old.raise_fences(highest.get())).await {
        assert_eq!(error.kind(), tenure::ErrorKind::Conflict, "{error}");
    }
    let fence = held(&old).await;
    write(&mut client, fence).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_namespace_of_etcd_goes_on_above_the_fences_of_another_store() {
    let ((database, mut client), etcd) = (accounts().await, Etcd::shared());
    let old = soon(Tenure::connect(&database.url())).await.unwrap();
    let mut last = held(&old).await;
    write(&mut client, last).await.unwrap();
    soon(old.close()).await;
    // The fences of a PostgreSQL may be ahead of the clock by the time that a move takes.
    eventually("the clock has passed the last fence there", || {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        now.as_micros() > u128::from(last.get())
    });
    let builder = Tenure::builder().namespace("moved-to");
    let new = soon(builder.connect(&etcd.url())).await.unwrap();
    for _ in 0..3 {
        let fence = held(&new).await;
        assert!(fence > last);
        write(&mut client, fence).await.unwrap();
        last = fence;
    }
}

/// The fences of the old store are ahead of all clocks. Clients that were connected to the new one
/// before its fences are raised must notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_namespace_of_etcd_goes_on_above_them_once_its_fences_are_raised() {
    let ((database, mut client), etcd) = (accounts().await, Etcd::shared());
    let old = soon(Tenure::connect(&database.url())).await.unwrap();
    let far = soon(old.highest_fence()).await.unwrap().get() + 1_000_000_000_000;
    soon(old.raise_fences(far)).await.unwrap();
    let last = held(&old).await;
    write(&mut client, last).await.unwrap();
    let highest = soon(old.highest_fence()).await.unwrap();
    assert!(highest >= last);
    soon(old.close()).await;

    let connect = || async {
        let builder = Tenure::builder().namespace("older");
        soon(builder.connect(&etcd.url())).await.unwrap()
    };
    let (one, two) = (connect().await, connect().await);
    let behind = held(&one).await;
    let error = write(&mut client, behind).await.unwrap_err();
    assert_eq!(Stale::in_error(&error), Some(Stale { ours: behind, stands: last }));
    // A lock that is held meanwhile keeps its fence, and the claim that waits behind it does not.
    let guard = soon(two.mutex("account:2").unwrap().lock()).await.unwrap();
    let fence = guard.fence().unwrap();
    soon(two.raise_fences(highest.get())).await.unwrap();
    assert_eq!(guard.fence().unwrap(), fence);
    let three = connect().await;
    let mut stands = highest;
    for tenure in [&one, &two, &three, &one] {
        let fence = held(tenure).await;
        assert!(fence > stands, "{fence} after {stands}");
        write(&mut client, fence).await.unwrap();
        stands = fence;
    }
    soon(guard.release()).await.unwrap();
    let error = soon(one.raise_fences(highest.get())).await.unwrap_err();
    assert_eq!(error.kind(), tenure::ErrorKind::Conflict, "{error}");
    assert_eq!(database.done("SELECT balance FROM account").trim(), "15");
}

//! What people write by hand: one table, one statement that removes what is done and claims a
//! batch. No fence, no lease, no retry, no due time. Plans are steered to the indexes, as in
//! Tenure's functions.

use std::time::Duration;

use tenure::Error;
use tokio_postgres::{Client, NoTls};

use super::SLOTS;
use crate::benches::processes::ready;
use crate::benches::stores::failed;

/// The tables.
pub(super) const TABLES: &str = "
    CREATE TABLE by_hand (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      state \"char\" NOT NULL DEFAULT 'r', attempts smallint NOT NULL DEFAULT 0,
      payload bytea NOT NULL);
    CREATE INDEX by_hand_ready ON by_hand (id) WHERE state = 'r';";
const STEER: &str = "
    SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off;";
const TURN: &str = "
    WITH done AS (DELETE FROM by_hand WHERE id = ANY ($1)),
      c AS MATERIALIZED (SELECT id FROM by_hand WHERE state = 'r' ORDER BY id LIMIT $2
        FOR UPDATE SKIP LOCKED)
    UPDATE by_hand j SET state = 'w', attempts = attempts + 1 FROM c WHERE j.id = c.id
    RETURNING j.id, j.payload";
const INSERT: &str = "INSERT INTO by_hand (payload) SELECT unnest($1::bytea[])";

/// A connection.
pub(super) async fn connect(url: &str) -> Result<Client, Error> {
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (client, connection) = connected.map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    Ok(client)
}

/// Adds jobs with this payload in one statement.
pub(super) async fn push(client: &Client, jobs: usize, payload: &[u8]) -> Result<(), Error> {
    let payloads = vec![payload; jobs];
    let insert = client.prepare(INSERT).await.map_err(|error| failed(&error))?;
    client.execute(&insert, &[&payloads]).await.map_err(|error| failed(&error))?;
    Ok(())
}

/// A worker process.
pub(crate) async fn work(url: &str) -> Result<(), Error> {
    let client = connect(url).await?;
    client.batch_execute(STEER).await.map_err(|error| failed(&error))?;
    let turn = client.prepare(TURN).await.map_err(|error| failed(&error))?;
    ready();
    let most = i64::try_from(SLOTS).unwrap_or(i64::MAX);
    let mut done: Vec<i64> = Vec::new();
    loop {
        let claimed = client.query(&turn, &[&done, &most]).await;
        // The error of the client alone says only that the server has one.
        let told = |error: tokio_postgres::Error| match error.as_db_error() {
            Some(told) => failed(told),
            None => failed(&error),
        };
        let claimed = claimed.map_err(told)?;
        done.clear();
        for row in &claimed {
            std::hint::black_box(row.get::<_, &[u8]>(1));
            done.push(row.get(0));
        }
        if done.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

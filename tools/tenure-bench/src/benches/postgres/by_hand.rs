//! What people write by hand: two functions over a table of leases, and a bare notification. Knows
//! the client crate, not what is measured.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::time::{Duration, Instant};

use servers::Postgres;
use tenure::contract::SessionId;
use tenure::{Error, ErrorKind};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::benches::taker::Taker;
use crate::stats::micros;

/// As long as Tenure's leases are by default.
const LEASE: Duration = tenure::limits::DEFAULT_LEASE;

/// An upsert that takes a lease which is free or over, and a delete that compares.
const FUNCTIONS: &str = "
    CREATE TABLE leases (name text PRIMARY KEY, owner text NOT NULL, expires timestamptz NOT NULL);
    CREATE FUNCTION take(p_name text, p_owner text, p_lease float8) RETURNS bool
    LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO leases AS l VALUES (p_name, p_owner,
          clock_timestamp() + make_interval(secs => p_lease))
        ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, expires = EXCLUDED.expires
        WHERE l.expires < clock_timestamp();
      RETURN FOUND;
    END $$;
    CREATE FUNCTION give(p_name text, p_owner text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
      DELETE FROM leases WHERE name = p_name AND owner = p_owner;
      RETURN FOUND;
    END $$;";

/// A lease in a table: no fence, no queue, no renewal.
pub(super) struct ByHand {
    client: Client,
    take: Statement,
    give: Statement,
    /// Unguessable, and never the same twice, by a counter behind it.
    owner: String,
    taken: u64,
}

impl ByHand {
    /// Commits are not waited for.
    pub(super) async fn new(server: &Postgres) -> Result<Self, Error> {
        let client = connect(server).await?.0;
        client.batch_execute(FUNCTIONS).await.map_err(failed)?;
        client.batch_execute("SET synchronous_commit = off").await.map_err(failed)?;
        let take = client.prepare("SELECT take($1, $2, $3)").await.map_err(failed)?;
        let give = client.prepare("SELECT give($1, $2)").await.map_err(failed)?;
        Ok(Self { client, take, give, owner: SessionId::new().to_hex(), taken: 0 })
    }
}

impl Taker for ByHand {
    type Held = String;

    async fn take(&mut self) -> Result<String, Error> {
        self.taken += 1;
        let owner = format!("{}-{}", self.owner, self.taken);
        let lease = LEASE.as_secs_f64();
        let row = self.client.query_one(&self.take, &[&"by-hand", &owner, &lease]).await;
        if row.map_err(failed)?.get(0) { Ok(owner) } else { Err(failed("a free lease was taken")) }
    }

    async fn give(&mut self, held: String) -> Result<(), Error> {
        let row = self.client.query_one(&self.give, &[&"by-hand", &held]).await;
        if row.map_err(failed)?.get(0) { Ok(()) } else { Err(failed("a lease was lost")) }
    }
}

/// One connection that notifies, another that listens.
pub(super) struct Notified {
    client: Client,
    notify: Statement,
    _listener: Client,
    heard: UnboundedReceiver<Instant>,
}

impl Notified {
    pub(super) async fn new(server: &Postgres) -> Result<Self, Error> {
        let (listener, heard) = connect(server).await?;
        listener.batch_execute("LISTEN by_hand").await.map_err(failed)?;
        let client = connect(server).await?.0;
        let text = "SELECT pg_notify('by_hand', $1)";
        let notify = client.prepare(text).await.map_err(failed)?;
        Ok(Self { client, notify, _listener: listener, heard })
    }

    /// From the call to the other connection having heard, in microseconds.
    pub(super) async fn once(&mut self) -> Result<f64, Error> {
        let start = Instant::now();
        // As long as what is told of a grant.
        let text = SessionId::new().to_hex();
        self.client.execute(&self.notify, &[&text]).await.map_err(failed)?;
        let heard = self.heard.recv().await;
        let heard = heard.ok_or_else(|| failed("nobody listens any more"))?;
        Ok(micros(heard - start))
    }
}

/// A connection, and when it heard anything.
async fn connect(server: &Postgres) -> Result<(Client, UnboundedReceiver<Instant>), Error> {
    let connected = tokio_postgres::connect(&server.url(), NoTls).await;
    let (client, mut connection) = connected.map_err(failed)?;
    let (tell, heard) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                // Whoever listened may be gone.
                let _ = tell.send(Instant::now());
            }
        }
    });
    Ok((client, heard))
}

fn failed(why: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, format!("a reference failed: {}", why.into()))
        .with_help("measure again when the machine has less to do")
}

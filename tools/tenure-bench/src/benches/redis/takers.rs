//! Those who take a lock and give it back: Tenure, two commands written by hand, and `rslock`. Each
//! as it comes, with its default settings. Knows their interfaces, not what is measured.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script, Value};
use rslock::{LockGuard, LockManager};
use servers::Redis;
use tenure::contract::SessionId;
use tenure::{Error, ErrorKind, Mutex, Tenure};

use crate::benches::taker::Taker;

/// As long as Tenure's leases are by default.
pub(in crate::benches) const LEASE: Duration = tenure::limits::DEFAULT_LEASE;
/// Deletes a key that still has our value.
pub(in crate::benches) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The command that takes a lock written by hand.
pub(in crate::benches) fn set_if_free(key: &str, value: &str) -> redis::Cmd {
    let millis = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).arg("NX").arg("PX").arg(millis);
    set
}

/// `SET NX PX`, and a script that compares and deletes: no fence, no queue, no renewal.
pub(super) struct ByHand {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    key: String,
    /// Unguessable, and never the same twice, by a counter behind it.
    value: String,
    taken: u64,
}

impl ByHand {
    /// Several that share one connection, as the tasks of one process do.
    pub(super) async fn several(redis: &Redis, count: u32) -> Result<Vec<Self>, Error> {
        let client = Client::open(redis.url()).map_err(failed)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
        let script = Arc::new(Script::new(COMPARE_AND_DELETE));
        let one = |number| Self {
            connection: connection.clone(),
            script: Arc::clone(&script),
            key: format!("by-hand:{number}"),
            value: SessionId::new().to_hex(),
            taken: 0,
        };
        Ok((0..count).map(one).collect())
    }
}

impl Taker for ByHand {
    type Held = String;

    async fn take(&mut self) -> Result<String, Error> {
        self.taken += 1;
        let value = format!("{}-{}", self.value, self.taken);
        match set_if_free(&self.key, &value)
            .query_async(&mut self.connection)
            .await
            .map_err(failed)?
        {
            Value::Okay => Ok(value),
            other => Err(failed(format!("a free key was not set: {other:?}"))),
        }
    }

    async fn give(&mut self, held: String) -> Result<(), Error> {
        let mut call = self.script.key(&self.key);
        let deleted: u32 =
            call.arg(held).invoke_async(&mut self.connection).await.map_err(failed)?;
        if deleted == 1 { Ok(()) } else { Err(failed("a key of ours was not deleted")) }
    }
}

/// The published crate.
pub(super) struct Rslock {
    manager: LockManager,
    key: String,
}

impl Rslock {
    /// Several that share one manager, as the tasks of one process do.
    pub(super) fn several(redis: &Redis, count: u32) -> Vec<Self> {
        let manager = LockManager::new(vec![redis.url()]);
        let one = |number| Self { manager: manager.clone(), key: format!("rslock:{number}") };
        (0..count).map(one).collect()
    }

    /// Several processes that want one lock.
    pub(super) fn rivals(redis: &Redis, count: u32) -> Vec<Self> {
        let manager = || LockManager::new(vec![redis.url()]);
        (0..count).map(|_| Self { manager: manager(), key: "rslock".to_owned() }).collect()
    }
}

impl Taker for Rslock {
    type Held = LockGuard;

    async fn take(&mut self) -> Result<LockGuard, Error> {
        self.manager.acquire(self.key.as_bytes(), LEASE).await.map_err(failed)
    }

    async fn give(&mut self, held: LockGuard) -> Result<(), Error> {
        held.release().await;
        Ok(())
    }
}

/// Tenure's locks for the tasks of one process: one session, a name each.
pub(super) async fn tenures(redis: &Redis, count: u32) -> Result<Vec<Mutex>, Error> {
    let tenure = Tenure::connect(&redis.url()).await?;
    (0..count).map(|number| tenure.mutex(format!("tenure:{number}"))).collect()
}

pub(in crate::benches) fn failed(why: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    // Its time limit is half a second by default, which a busy machine may exceed.
    Error::new(ErrorKind::Unavailable, format!("a reference failed: {}", why.into()))
        .with_help("measure again when the machine has less to do")
}

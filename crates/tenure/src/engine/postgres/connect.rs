//! What is said on each new connection before anybody's calls. Knows terms and settings, not
//! claims.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::statements::Call;
use super::dial::{self, Dialled};
use super::errors::{self, Sent};
use super::listeners::Listeners;
use super::pipeline::{Manner, Ready};
use super::schema;
use super::tls::Tls;
use super::url::{Durability, Location};
use crate::contract::{Error, ErrorKind, Namespace};
use crate::engine::max_lease;
use crate::limits;
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// How long a message may take from one connection to another before we take it that a pooler
/// stands between.
const PROBE: Duration = Duration::from_secs(2);
/// How often we look whether it has come.
const LOOK: Duration = Duration::from_millis(1);

/// What every connection of an engine needs to know.
pub(super) struct Setup {
    pub(super) location: Location,
    pub(super) namespace: Namespace,
    pub(super) max_lease: Duration,
    pub(super) listeners: Arc<Listeners>,
    tls: Tls,
    /// Whether connections are lent out for one transaction at a time.
    pooled: OnceLock<bool>,
    /// The backend that the listening connection had first.
    listening: AtomicU32,
    known: AtomicBool,
    /// The clock of the suite, where it plays.
    #[cfg(feature = "conformance")]
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl Setup {
    pub(super) fn new(
        location: Location,
        namespace: Namespace,
        max_lease: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            tls: Tls::new(&location)?,
            location,
            namespace,
            max_lease,
            listeners: Arc::default(),
            pooled: OnceLock::new(),
            listening: AtomicU32::new(0),
            known: AtomicBool::new(false),
            #[cfg(feature = "conformance")]
            clock: None,
        })
    }

    /// Whether commits are not waited for.
    pub(super) fn is_async(&self) -> bool {
        self.location.durability == Durability::Grace
    }

    /// Whether a pooler stands between. Known once the first connection is greeted.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.get().copied().unwrap_or(false)
    }

    /// Whether each call carries everything with it.
    pub(super) fn is_wrapped(&self) -> bool {
        self.is_pooled() || self.on_stage()
    }

    /// A pooler stands between; nobody has to find out.
    #[cfg(feature = "conformance")]
    pub(super) fn know_pooled(&self) {
        self.pooled.get_or_init(|| true);
    }

    /// Connects, and says nothing yet. Has time limits of its own, one for each host.
    pub(super) async fn dial(&self) -> Result<Dialled, Error> {
        dial::dial(&self.location, &self.tls).await
    }

    /// Says what has to be said, and makes a connection ready for calls.
    pub(super) async fn greet(&self, client: Client) -> Result<Ready, Error> {
        let pid = backend(&client).await?;
        if self.pooled.get().is_none() {
            let pooled = self.detect(&client, pid).await?;
            if *self.pooled.get_or_init(|| pooled) {
                tracing::warn!("a transaction pooler stands before the database: no pushes");
            }
        }
        let wrapped = self.is_wrapped();
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, Sent::No);
        if !wrapped {
            let settings = self.settings("SET SESSION");
            client.batch_execute(&settings).await.map_err(failed)?;
        }
        schema::ensure(&client, &self.location).await?;
        let ns = self.agree(&client).await?;
        let schema = self.location.quoted_schema();
        let texts: Vec<String> = Call::ALL.iter().map(|call| call.text(&schema)).collect();
        let manner = if wrapped {
            let mut begin = self.begin();
            if self.is_pooled() {
                let lease = self.max_lease.as_micros();
                begin = format!("{begin} SELECT {schema}.here({ns}, {lease})");
            }
            Manner::Wrapped { begin, texts }
        } else {
            let mut statements = Vec::with_capacity(texts.len());
            for (call, text) in Call::ALL.iter().zip(&texts) {
                let statement = client.prepare_typed(text, call.types()).await;
                statements.push(statement.map_err(failed)?);
            }
            Manner::Prepared(statements)
        };
        #[cfg(feature = "conformance")]
        let clock = self.clock.clone();
        Ok(Ready::new(
            client,
            ns,
            manner,
            #[cfg(feature = "conformance")]
            clock,
        ))
    }

    /// The listening connection is up, on this backend.
    pub(super) fn listens_on(&self, pid: u32) {
        self.listening.store(pid, Ordering::SeqCst);
    }

    /// Whether two connections are one behind a pooler, or a message does not get from one to the
    /// other: then the listening one is lent to others while it is silent.
    async fn detect(&self, client: &Client, pid: u32) -> Result<bool, Error> {
        if self.listening.load(Ordering::SeqCst) == pid {
            return Ok(true);
        }
        let probe = self.listeners.probe();
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, Sent::No);
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
            [(&probe, Type::TEXT)];
        client.query_typed("SELECT pg_notify($1, '')", &parameters).await.map_err(failed)?;
        let heard = async {
            while !self.listeners.heard_probe() {
                tokio::time::sleep(LOOK).await;
            }
        };
        Ok(tokio::time::timeout(PROBE, heard).await.is_err())
    }

    /// What each transaction, or each session, has to have set.
    fn settings(&self, set: &str) -> String {
        let limit = self.patience().as_millis();
        let commit = if self.is_async() { "off" } else { "on" };
        // Plans are kept, and go by the indexes however small the tables were when they were made:
        // a plan for an empty table would be a bad one for a long line.
        let mut text = format!(
            "{set} lock_timeout = {limit}; {set} synchronous_commit = {commit}; \
             {set} statement_timeout = {limit}; {set} plan_cache_mode = force_generic_plan; \
             {set} enable_seqscan = off; {set} enable_bitmapscan = off; \
             {set} enable_hashjoin = off; {set} enable_mergejoin = off; {set} jit = off;"
        );
        if set == "SET SESSION" {
            text.push_str(
                "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            );
        }
        text
    }

    /// What comes before each call where a session keeps nothing.
    fn begin(&self) -> String {
        format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", self.settings("SET LOCAL"))
    }

    /// How long the server may take for a statement. The suite counts time itself, and its machine
    /// may be busy.
    pub(super) fn patience(&self) -> Duration {
        if self.on_stage() { limits::CALL * 30 } else { limits::CALL }
    }

    fn on_stage(&self) -> bool {
        #[cfg(feature = "conformance")]
        if self.clock.is_some() {
            return true;
        }
        false
    }

    /// Agrees with all other clients on the terms of the namespace. Returns its number.
    async fn agree(&self, client: &Client) -> Result<i32, Error> {
        let schema = self.location.quoted_schema();
        let columns = "kind, ns, closed_for, stands, there";
        let text = format!("SELECT {columns} FROM {schema}.connect($1, $2, $3, $4)");
        let lease = i64::try_from(self.max_lease.as_micros()).unwrap_or(i64::MAX);
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, Sent::No);
        #[cfg(feature = "conformance")]
        if let Some(clock) = &self.clock {
            let set = format!("SET tenure.clock = '{}'", clock.wall_micros());
            client.batch_execute(&set).await.map_err(failed)?;
        }
        let (durability, pooled) = (self.location.durability.word(), self.is_pooled());
        let rows = client
            .query_typed(
                &text,
                &[
                    (&self.namespace.as_str(), Type::TEXT),
                    (&lease, Type::INT8),
                    (&durability, Type::TEXT),
                    (&pooled, Type::BOOL),
                ],
            )
            .await
            .map_err(failed)?;
        let row = rows.first().ok_or_else(super::replies::strange)?;
        let stands: Option<&str> = row.try_get(3).map_err(failed)?;
        match row.try_get(0).map_err(failed)? {
            "ok" => {}
            "lease" => {
                let theirs = stands.and_then(|text| text.parse().ok()).unwrap_or_default();
                let there: Option<Vec<String>> = row.try_get(4).map_err(failed)?;
                let there = there.unwrap_or_default().join(", ");
                let stands = Duration::from_micros(theirs);
                return Err(max_lease::refused(stands, self.max_lease, &there));
            }
            _ => return Err(other_durability(stands.unwrap_or_default(), durability)),
        }
        let closed: i64 = row.try_get(2).map_err(failed)?;
        if closed > 0 && !self.known.swap(true, Ordering::SeqCst) {
            let left = Duration::from_micros(u64::try_from(closed).unwrap_or_default());
            tracing::warn!("the database has crashed or was replaced; no grants for {left:?}");
        }
        row.try_get(1).map_err(failed)
    }
}

fn other_durability(theirs: &str, ours: &str) -> Error {
    let what = format!("this namespace was opened with durability={theirs}, not {ours}");
    Error::new(ErrorKind::InvalidOption, what)
        .with_help("state the same durability in every client of a namespace")
}

/// The backend that answers on a connection.
pub(super) async fn backend(client: &Client) -> Result<u32, Error> {
    let failed = |error: tokio_postgres::Error| errors::to_error(&error, Sent::No);
    let rows = client.query_typed("SELECT pg_backend_pid()", &[]).await.map_err(failed)?;
    let pid: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
    Ok(u32::try_from(pid).unwrap_or_default())
}

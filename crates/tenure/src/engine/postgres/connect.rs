//! Opens a connection and performs the handshake that precedes the first call on it.
//!
//! On every new connection, in this order:
//!
//! 1. TCP, TLS and login ([`open`]). The hosts of the URL are tried in turn, each within the time
//!    limit of a handshake, so that a host that accepts connections and sends nothing does not keep
//!    clients from the next one. After a timeout the host is probed once more by hand ([`probe`]):
//!    every PostgreSQL server answers an `SSLRequest` with one byte, which tells a server of
//!    another kind from a PostgreSQL server that is stuck.
//! 2. Once per engine: pooler detection ([`detect_pooler`](ConnectionContext::detect_pooler)).
//! 3. Session settings, unless a pooler or a test clock requires them in each transaction.
//! 4. The schema is created or migrated if needed (`schema.rs`).
//! 5. The terms of the namespace (longest lease, durability) are compared with those in the
//!    database, by the function `connect` of the schema. All clients have to state the same ones.
//! 6. The statements of all functions are prepared.
//!
//! A failure at any step closes the connection; no call is sent on a connection whose handshake is
//! not complete.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::errors::{self, SendState, unexpected_reply};
use super::pipeline::{CallMode, Pipeline};
use super::schema;
use super::signals::SignalRouter;
use super::statements::Function;
use super::tls::{Encrypted, Tls};
use super::url::{Durability, Location};
use crate::contract::{Error, ErrorKind, Namespace, SqlPlace, short};
use crate::engine::common::max_lease;
use crate::limits;
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// Time limit for a notification to travel from one connection to another. After that a transaction
/// pooler is assumed.
const POOLER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the arrival of that notification is checked.
const POOLER_CHECK: Duration = Duration::from_millis(1);
/// Time limit for the reply to [`probe`], after the host had the time of a whole handshake.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// An expression that is different in every database: the identifier of the cluster, which its
/// standbys share, and the number of the database in it.
const DATABASE: &str = "(SELECT (c.system_identifier || '/' || d.oid)::text \
                        FROM pg_control_system() c, pg_database d \
                        WHERE d.datname = current_database())";
/// The `SSLRequest` message: its length, and the number of the request.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A connection after the login: the client, and the future that drives the socket.
pub(super) type Opened = (Client, Connection<Socket, Encrypted>);

/// What all connections of an engine share: where to connect, the terms of the namespace, and what
/// the first handshake has found out.
pub(super) struct ConnectionContext {
    pub(super) location: Location,
    pub(super) namespace: Namespace,
    pub(super) max_lease: Duration,
    pub(super) router: Arc<SignalRouter>,
    tls: Tls,
    /// Whether a pooler lends connections for one transaction at a time. Set by the first
    /// handshake.
    pooled: OnceLock<bool>,
    /// The backend that the listening connection had first; 0 before.
    listener_pid: AtomicU32,
    /// Whether the warning about a grace period was logged.
    grace_logged: AtomicBool,
    /// Where the queues of jobs are, as the last handshake has found.
    sql_place: Mutex<Option<Arc<SqlPlace>>>,
    /// The clock of the conformance suite, which replaces the server's.
    #[cfg(feature = "conformance")]
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl ConnectionContext {
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
            router: Arc::default(),
            pooled: OnceLock::new(),
            listener_pid: AtomicU32::new(0),
            grace_logged: AtomicBool::new(false),
            sql_place: Mutex::default(),
            #[cfg(feature = "conformance")]
            clock: None,
        })
    }

    /// Returns whether commits do not wait for the disk (`durability=grace`).
    pub(super) fn is_async(&self) -> bool {
        self.location.durability == Durability::Grace
    }

    /// Returns where the queues of jobs are. Known after the first handshake.
    pub(super) fn sql_place(&self) -> Option<Arc<SqlPlace>> {
        self.sql_place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes in which database a handshake was made: another one after an upgrade of the server.
    fn note_database(&self, database: &str) {
        let mut place = self.sql_place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_none_or(|place| place.database.1 != database) {
            *place = Some(Arc::new(SqlPlace {
                schema: self.location.quoted_schema(),
                namespace: self.namespace.clone(),
                database: (DATABASE, database.to_owned()),
            }));
        }
    }

    /// Returns whether a transaction pooler was detected. Known after the first handshake.
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.get().copied().unwrap_or(false)
    }

    /// Returns whether each call is wrapped in a transaction that repeats all settings, because the
    /// server session keeps none.
    pub(super) fn wraps_calls(&self) -> bool {
        self.is_pooled() || self.has_test_clock()
    }

    /// Skips the pooler detection: the suite knows that there is one.
    #[cfg(feature = "conformance")]
    pub(super) fn assume_pooled(&self) {
        self.pooled.get_or_init(|| true);
    }

    /// Connects and logs in, without the rest of the handshake. Has its own time limits, one for
    /// each host.
    pub(super) async fn open(&self) -> Result<Opened, Error> {
        open(&self.location, &self.tls).await
    }

    /// Performs the rest of the handshake. The connection's future has to be driven meanwhile.
    pub(super) async fn handshake(&self, client: Client) -> Result<Pipeline, Error> {
        let pid = backend_pid(&client).await?;
        if self.pooled.get().is_none() {
            let pooled = self.detect_pooler(&client, pid).await?;
            if *self.pooled.get_or_init(|| pooled) {
                tracing::warn!("transaction pooler detected: no notifications, waiters poll");
            }
        }
        let wrapped = self.wraps_calls();
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, SendState::NotSent);
        if !wrapped {
            let settings = self.settings("SET SESSION");
            client.batch_execute(&settings).await.map_err(failed)?;
        }
        schema::ensure(&client, &self.location).await?;
        let ns = self.agree_on_terms(&client).await?;
        let schema = self.location.quoted_schema();
        let texts: Vec<String> =
            Function::ALL.iter().map(|function| function.text(&schema)).collect();
        let mode = if wrapped {
            let mut begin = self.begin();
            if self.is_pooled() {
                let lease = self.max_lease.as_micros();
                begin = format!("{begin} SELECT {schema}.check_terms({ns}, {lease})");
            }
            CallMode::Transaction { begin, texts }
        } else {
            let mut statements = Vec::with_capacity(texts.len());
            for (function, text) in Function::ALL.iter().zip(&texts) {
                let statement = client.prepare_typed(text, function.types()).await;
                statements.push(statement.map_err(failed)?);
            }
            CallMode::Prepared(statements)
        };
        #[cfg(feature = "conformance")]
        let clock = self.clock.clone();
        Ok(Pipeline::new(
            client,
            ns,
            mode,
            #[cfg(feature = "conformance")]
            clock,
        ))
    }

    /// Records the backend of the listening connection, for the pooler detection.
    pub(super) fn set_listener_pid(&self, pid: u32) {
        self.listener_pid.store(pid, Ordering::SeqCst);
    }

    /// Detects a transaction pooler, from a second connection while the listening one is up. Either
    /// both have the same backend, or a notification sent on this one does not arrive at the
    /// listening one, whose backend serves other clients while it is idle.
    async fn detect_pooler(&self, client: &Client, pid: u32) -> Result<bool, Error> {
        if self.listener_pid.load(Ordering::SeqCst) == pid {
            return Ok(true);
        }
        let channel = self.router.probe_channel();
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, SendState::NotSent);
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
            [(&channel, Type::TEXT)];
        client.query_typed("SELECT pg_notify($1, '')", &parameters).await.map_err(failed)?;
        let received = async {
            while !self.router.probe_received() {
                tokio::time::sleep(POOLER_CHECK).await;
            }
        };
        Ok(timeout(POOLER_TIMEOUT, received).await.is_err())
    }

    /// The settings that each session, or each transaction, needs: `set` is the command.
    fn settings(&self, set: &str) -> String {
        let limit = self.statement_timeout().as_millis();
        let commit = if self.is_async() { "off" } else { "on" };
        // Plans are cached, and use the indexes however small the tables were when the plan was
        // made: the plan for an empty table would scan the whole queue of a contended slot.
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

    /// The statements that precede each call in [`CallMode::Transaction`].
    fn begin(&self) -> String {
        format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", self.settings("SET LOCAL"))
    }

    /// The server's time limit for one statement. Longer in the suite, whose virtual clock stands
    /// still while a busy machine takes its time.
    pub(super) fn statement_timeout(&self) -> Duration {
        if self.has_test_clock() { limits::CALL * 30 } else { limits::CALL }
    }

    pub(super) fn has_test_clock(&self) -> bool {
        #[cfg(feature = "conformance")]
        if self.clock.is_some() {
            return true;
        }
        false
    }

    /// Compares the terms of the namespace with those in the database. Returns the namespace's
    /// number.
    async fn agree_on_terms(&self, client: &Client) -> Result<i32, Error> {
        let schema = self.location.quoted_schema();
        let columns = format!("kind, ns, closed_for, stands, there, {DATABASE}");
        let text = format!("SELECT {columns} FROM {schema}.connect($1, $2, $3, $4)");
        let lease = i64::try_from(self.max_lease.as_micros()).unwrap_or(i64::MAX);
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, SendState::NotSent);
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
        let row = rows.first().ok_or_else(unexpected_reply)?;
        let current: Option<&str> = row.try_get(3).map_err(failed)?;
        match row.try_get(0).map_err(failed)? {
            "ok" => {}
            "lease" => {
                let micros = current.and_then(|text| text.parse().ok()).unwrap_or_default();
                let users: Option<Vec<String>> = row.try_get(4).map_err(failed)?;
                let users = users.unwrap_or_default().join(", ");
                let current = Duration::from_micros(micros);
                return Err(max_lease::refused(current, self.max_lease, &users));
            }
            _ => return Err(other_durability(current.unwrap_or_default(), durability)),
        }
        let closed: i64 = row.try_get(2).map_err(failed)?;
        if closed > 0 && !self.grace_logged.swap(true, Ordering::SeqCst) {
            let left = Duration::from_micros(u64::try_from(closed).unwrap_or_default());
            tracing::warn!("the database has crashed or was replaced; no grants for {left:?}");
        }
        self.note_database(row.try_get(5).map_err(failed)?);
        row.try_get(1).map_err(failed)
    }
}

fn other_durability(current: &str, stated: &str) -> Error {
    let what = format!("this namespace was opened with durability={current}, not {stated}");
    Error::new(ErrorKind::InvalidOption, what)
        .with_help("state the same durability in every client of a namespace")
}

/// Returns the process id of the backend that serves this connection at the moment.
pub(super) async fn backend_pid(client: &Client) -> Result<u32, Error> {
    let failed = |error: tokio_postgres::Error| errors::to_error(&error, SendState::NotSent);
    let rows = client.query_typed("SELECT pg_backend_pid()", &[]).await.map_err(failed)?;
    let pid: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
    Ok(u32::try_from(pid).unwrap_or_default())
}

/// Connects and logs in at the first host of the URL that accepts the connection.
///
/// # Errors
/// The error of each host. Retryable if that of one host is.
async fn open(location: &Location, tls: &Tls) -> Result<Opened, Error> {
    let mut failures = Vec::new();
    for host in location.hosts()? {
        match open_host(location, &host, tls).await {
            Ok(opened) => return Ok(opened),
            Err(error) => failures.push(error),
        }
    }
    if failures.len() == 1 {
        return Err(failures.remove(0));
    }
    Err(Error::of_all(&format!("no host of {location} accepts the connection"), &failures))
}

async fn open_host(location: &Location, host: &Config, tls: &Tls) -> Result<Opened, Error> {
    let limit = location.handshake;
    let error = match timeout(limit, host.connect(tls.clone())).await {
        Ok(Ok(opened)) => return Ok(opened),
        Ok(Err(error)) => error,
        Err(_) => return Err(timed_out(&address(host), probe(host).await, limit)),
    };
    if error.as_db_error().is_some() {
        return Err(errors::to_error(&error, SendState::NotSent));
    }
    let cause = errors::with_causes(&error);
    // tokio-postgres exposes no error kinds, only texts.
    if cause.contains("error parsing response") || cause.contains("unexpected message") {
        return Err(other_protocol(&address(host)));
    }
    let what = format!("no connection to {location}: {cause}");
    Err(Error::new(ErrorKind::Unavailable, what).with_help(
        "check that the server runs, can be reached and takes writes, and that it is a PostgreSQL",
    ))
}

/// How a host reacts to an `SSLRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeOutcome {
    /// No TCP connection.
    Unreachable,
    /// It accepts the connection and does not reply.
    Silent,
    /// It replies as a PostgreSQL server does.
    Postgres,
    /// It replies something else.
    OtherProtocol,
}

/// Sends an `SSLRequest` to a host whose handshake timed out.
async fn probe(host: &Config) -> ProbeOutcome {
    let name = match (host.get_hostaddrs(), host.get_hosts()) {
        ([address, ..], _) => address.to_string(),
        (_, [Host::Tcp(name), ..]) => name.clone(),
        // A Unix socket: another kind of server there is unlikely.
        _ => return ProbeOutcome::Silent,
    };
    let port = host.get_ports().first().copied().unwrap_or(5432);
    let Ok(Ok(mut stream)) = timeout(PROBE_TIMEOUT, TcpStream::connect((name, port))).await else {
        return ProbeOutcome::Unreachable;
    };
    let reply = async {
        stream.write_all(&SSL_REQUEST).await?;
        stream.read_u8().await
    };
    match timeout(PROBE_TIMEOUT, reply).await {
        // TLS supported, not supported, or the first byte of an error message.
        Ok(Ok(b'S' | b'N' | b'E')) => ProbeOutcome::Postgres,
        Ok(Ok(_)) => ProbeOutcome::OtherProtocol,
        Ok(Err(_)) | Err(_) => ProbeOutcome::Silent,
    }
}

fn timed_out(address: &str, outcome: ProbeOutcome, limit: Duration) -> Error {
    let limit = short(limit);
    let (what, next) = match outcome {
        ProbeOutcome::OtherProtocol => return other_protocol(address),
        ProbeOutcome::Unreachable => (
            format!("no connection to {address} within {limit}"),
            "check that the server runs and can be reached",
        ),
        ProbeOutcome::Silent => (
            format!(
                "{address} accepts connections but does not answer PostgreSQL's handshake: \
                     tried for {limit}"
            ),
            "check that it is a PostgreSQL server, and that it is not stuck",
        ),
        ProbeOutcome::Postgres => (
            format!("{address} did not complete the handshake within {limit}"),
            "look for what keeps the server busy, or raise connect_timeout= in the URL",
        ),
    };
    Error::new(ErrorKind::Unavailable, what).with_help(next)
}

fn other_protocol(address: &str) -> Error {
    let what = format!("the server at {address} does not speak PostgreSQL's protocol");
    Error::new(ErrorKind::InvalidOption, what).with_help("check host and port of the URL")
}

/// Formats the only host of a configuration, with its port.
fn address(host: &Config) -> String {
    let port = host.get_ports().first().copied().unwrap_or(5432);
    match (host.get_hosts(), host.get_hostaddrs()) {
        ([Host::Tcp(name), ..], _) if name.contains(':') => format!("[{name}]:{port}"),
        ([Host::Tcp(name), ..], _) => format!("{name}:{port}"),
        ([Host::Unix(path), ..], _) => format!("{}:{port}", path.display()),
        (_, [address, ..]) => format!("{address}:{port}"),
        _ => String::new(),
    }
}

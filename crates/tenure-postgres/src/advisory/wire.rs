//! One connection that locks live on: opened, watched, ended. Knows statements, not who wants
//! what.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::errand::first;
use super::key::{Mode, Number};
use super::trouble::pooled;
use tenure::contract::{Error, ErrorKind};
use tenure::engine::postgres::client::{Connector, Messages, to_error};
use tenure::limits;

/// How often a silent connection is asked whether it still is what it was.
const BEAT: Duration = Duration::from_secs(5);
/// How long a message may take from one connection to another before we take it that a pooler
/// stands between.
const PROBE: Duration = Duration::from_secs(2);

/// How long a wait may take to end once it is cancelled, before we ask again.
const AGAIN: Duration = Duration::from_millis(200);

/// Settings of a session that holds locks for long: the server does not end it for its silence or
/// for a long wait, and if our host dies the server notices in seconds, not hours. Settings that a
/// server does not have are left out.
const SETTINGS: &str = "
    SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES
        ('statement_timeout', '0'), ('idle_session_timeout', '0'), ('lock_timeout', '0'),
        ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '1'),
        ('tcp_keepalives_count', '5'), ('tcp_user_timeout', '10000'),
        ('client_connection_check_interval', '1000')) AS ours (called, wanted)
    ON name = called";

/// Statements that are kept, for keys of one number.
const TEXTS: [&str; 4] = [
    "SELECT pg_try_advisory_lock($1)",
    "SELECT pg_try_advisory_lock_shared($1)",
    "SELECT pg_advisory_unlock($1)",
    "SELECT pg_advisory_unlock_shared($1)",
];

/// One connection.
pub(super) struct Wire {
    client: Client,
    /// The server's process behind it.
    pid: i32,
    statements: [OnceCell<Statement>; 4],
    /// Closed when the connection has ended.
    alive: watch::Receiver<()>,
    task: AbortHandle,
    /// How many waits have begun and ended.
    begun: AtomicU64,
    over: AtomicU64,
    /// It was told to end, and will.
    ending: AtomicBool,
}

impl Wire {
    /// Connects. To be called where its task is to live.
    ///
    /// # Errors
    /// If there is no such server, or it rejects the login.
    pub(super) async fn open(connector: &Connector) -> Result<Arc<Self>, Error> {
        Ok(Self::listening(connector).await?.0)
    }

    /// Two connections, once it is known that no pooler lends them to other clients in between.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if a pooler does.
    pub(super) async fn first_two(connector: &Connector) -> Result<[Arc<Self>; 2], Error> {
        let (one, mut heard) = Self::listening(connector).await?;
        let (two, _) = Self::listening(connector).await?;
        // A connection that is lent out while it is silent hears nothing then.
        let listen = async {
            let channel = format!("tenure-probe-{}", uuid::Uuid::new_v4());
            one.client.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
            two.client.batch_execute(&format!("NOTIFY \"{channel}\"")).await?;
            let came = timeout(PROBE, heard.recv()).await;
            one.client.batch_execute(&format!("UNLISTEN \"{channel}\"")).await?;
            Ok(came.is_ok_and(|came| came.is_some()))
        };
        let came = listen.await.map_err(|error| to_error(&error))?;
        if one.pid == two.pid || !came {
            return Err(pooled(
                "connect to the server itself, or take locks that end with a transaction, or \
                 Tenure's own, which go well with poolers",
            ));
        }
        Ok([one, two])
    }

    async fn listening(connector: &Connector) -> Result<(Arc<Self>, mpsc::Receiver<()>), Error> {
        let (client, messages) = connector.connect().await?;
        let (tell, alive) = watch::channel(());
        let (say, hears) = mpsc::channel(1);
        let (know, known) = tokio::sync::oneshot::channel::<Weak<Self>>();
        let task = tokio::spawn(async move {
            let _ends = tell;
            let beating = async {
                // Without a wire it ends when its client is dropped.
                let Ok(wire) = known.await else { return std::future::pending().await };
                beat(&wire).await;
            };
            first(drive(messages, say), beating).await;
        });
        let task = task.abort_handle();
        let greeted = async {
            let settled = client.query_typed(SETTINGS, &[]).await?;
            drop(settled);
            let row = client.query_typed("SELECT pg_backend_pid()", &[]).await?;
            row.first().map_or(Ok(0), |row| row.try_get(0))
        };
        let Ok(greeted) = timeout(limits::CALL * 2, greeted).await else {
            task.abort();
            let error = Error::new(ErrorKind::Unavailable, "the server does not greet us");
            return Err(error.with_help("check that it is not stuck"));
        };
        let pid = greeted.map_err(|error: tokio_postgres::Error| to_error(&error))?;
        let (begun, over) = (AtomicU64::new(0), AtomicU64::new(0));
        let (statements, ending) = (Default::default(), AtomicBool::new(false));
        let wire = Arc::new(Self { client, pid, statements, alive, task, begun, over, ending });
        // The task may have ended already.
        let _ = know.send(Arc::downgrade(&wire));
        Ok((wire, hears))
    }

    /// Whether the connection, and every lock on it, is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
            || self.alive.has_changed().is_err()
            || self.client.is_closed()
    }

    /// Resolves when the connection has ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut alive = self.alive.clone();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// Ends the connection at once, and every lock on it.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.task.abort();
    }

    /// Takes a lock that is free.
    pub(super) async fn take(
        &self,
        key: Number,
        mode: Mode,
    ) -> Result<bool, tokio_postgres::Error> {
        self.said("pg_try_advisory_lock", key, mode, 0).await
    }

    /// Takes part in a shared lock that this connection has already, unless another session waits
    /// for it: the server would let us in before them.
    pub(super) async fn take_part(&self, key: Number) -> Result<bool, tokio_postgres::Error> {
        let text = format!(
            "SELECT CASE WHEN EXISTS (SELECT FROM pg_locks WHERE NOT granted AND {}) THEN false \
             ELSE pg_try_advisory_lock_shared({}) END",
            key.rows(),
            key.arguments(),
        );
        first_bool(self.client.query_typed(&text, &[]).await?.first())
    }

    /// Gives a lock back. False if it was not held.
    pub(super) async fn give(
        &self,
        key: Number,
        mode: Mode,
    ) -> Result<bool, tokio_postgres::Error> {
        self.said("pg_advisory_unlock", key, mode, 2).await
    }

    /// Waits in the server's line, for so many milliseconds; for ever if none.
    pub(super) async fn wait(
        &self,
        key: Number,
        mode: Mode,
        limit: u128,
    ) -> Result<(), tokio_postgres::Error> {
        // One message, so one transaction: the limit ends with it, however it ends.
        let text = format!(
            "SELECT set_config('lock_timeout', '{limit}', true); SELECT pg_advisory_lock{}({})",
            mode.suffix(),
            key.arguments(),
        );
        self.begun.fetch_add(1, Ordering::SeqCst);
        let outcome = self.client.batch_execute(&text).await;
        self.over.fetch_add(1, Ordering::SeqCst);
        outcome
    }

    /// Gives back what a failed wait may have left.
    pub(super) async fn undo(&self, key: Number, mode: Mode) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(&super::key::undo(key, mode)).await
    }

    /// Asks the server to end a wait, then ends the connection: a cancellation that comes late
    /// would hit the next statement on it. One that comes before the wait has begun does nothing,
    /// so it is asked again.
    pub(super) async fn give_up(&self, connector: &Connector, wait: impl Future + Send) {
        let mut wait = pin!(wait);
        let asking = async {
            loop {
                connector.cancel(&self.client.cancel_token()).await;
                if timeout(AGAIN, wait.as_mut()).await.is_ok() {
                    return;
                }
            }
        };
        // A server that cannot be asked in time notices that we are gone.
        let _ = timeout(limits::CALL, asking).await;
        self.end();
    }

    async fn said(
        &self,
        function: &str,
        key: Number,
        mode: Mode,
        at: usize,
    ) -> Result<bool, tokio_postgres::Error> {
        let Some(number) = key.one() else {
            let text = format!("SELECT {function}{}({})", mode.suffix(), key.arguments());
            return first_bool(self.client.query_typed(&text, &[]).await?.first());
        };
        let at = at + usize::from(mode == Mode::Shared);
        let prepare = || self.client.prepare(TEXTS[at]);
        let statement = self.statements[at].get_or_try_init(prepare).await?;
        self.client.query_one(statement, &[&number]).await?.try_get(0)
    }
}

fn first_bool(row: Option<&tokio_postgres::Row>) -> Result<bool, tokio_postgres::Error> {
    row.map_or(Ok(false), |row| row.try_get(0))
}

/// Reads and writes until the connection ends. Tells of notifications.
async fn drive(mut messages: Messages, heard: mpsc::Sender<()>) {
    loop {
        match poll_fn(&mut messages).await {
            Some(Ok(AsyncMessage::Notification(_))) => {
                // One reply is enough, and the caller may be gone.
                let _ = heard.try_send(());
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return tracing::debug!("a connection with locks broke: {error}"),
            None => return,
        }
    }
}

/// Returns when the connection does not reply any more, or another server replies. A wait answers
/// nothing, so it is over only when the server does not take bytes; the kernel tells.
async fn beat(wire: &Weak<Wire>) {
    loop {
        sleep(BEAT).await;
        let Some(wire) = wire.upgrade() else { return std::future::pending().await };
        let begun = wire.begun.load(Ordering::SeqCst);
        if begun != wire.over.load(Ordering::SeqCst) {
            continue;
        }
        let asked = wire.client.query_typed("SELECT pg_backend_pid()", &[]);
        let same = match timeout(limits::CALL * 2, asked).await {
            Ok(Ok(rows)) => {
                let pid = rows.first().and_then(|row| row.try_get(0).ok());
                pid == Some(wire.pid)
            }
            // Our question may stand behind a wait that began meanwhile.
            Err(_) => begun != wire.begun.load(Ordering::SeqCst),
            Ok(Err(_)) => false,
        };
        if !same {
            return tracing::warn!("a connection with locks is no longer answered by its server");
        }
    }
}

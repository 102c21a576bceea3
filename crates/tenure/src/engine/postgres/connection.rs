//! One connection for calls, which is opened again when a call needs it.
//!
//! States of a [`ConnectionManager`]:
//!
//! ```text
//!           get()               handshake done
//! Down ───────────────▶ Connecting ─────────────▶ Up
//!  ▲                     │      ▲                  │
//!  └──────── failed ─────┘      └───── get() ──────┘  if the pipeline is closed
//! ```
//!
//! There is no background reconnect and no backoff here: a caller that finds the connection down
//! starts one attempt, all callers that come meanwhile wait for the same attempt, and each of them
//! gets its outcome. Retries are the session's. The attempt runs in a task, so that it continues
//! when the caller that started it is dropped.
//!
//! The task runs on `runtime`. If that runtime was shut down (the callers' own may be), its tasks
//! are gone and the watch channel of the attempt closes without an outcome; then the attempt is
//! repeated on `fallback`, the engine's own thread.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_postgres::{Connection, Socket};

use super::connect::ConnectionContext;
use super::pipeline::{Pipeline, until_stalled};
use super::tls::Encrypted;
use crate::contract::{Error, ErrorKind};

/// Time limit for the handshake after the login; it may have to create the schema.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

type ConnectResult = Result<Arc<Pipeline>, Error>;

enum ConnectionState {
    Down,
    /// An attempt is in flight. The channel closes without an outcome if its runtime was shut down.
    Connecting(watch::Receiver<Option<ConnectResult>>),
    Up(Arc<Pipeline>),
}

/// A connection that is opened on demand, and opened again after it broke.
pub(super) struct ConnectionManager {
    context: Arc<ConnectionContext>,
    state: Arc<Mutex<ConnectionState>>,
    /// Where the connection's task runs, and where it runs after that runtime was shut down.
    runtime: Handle,
    fallback: Handle,
}

impl ConnectionManager {
    pub(super) fn new(context: Arc<ConnectionContext>, runtime: Handle, fallback: Handle) -> Self {
        let state = Arc::new(Mutex::new(ConnectionState::Down));
        Self { context, state, runtime, fallback }
    }

    /// Returns the connection, and opens it first if it is not up.
    ///
    /// # Errors
    /// Why it cannot be opened. The next call of `get` starts another attempt.
    ///
    /// # Cancel safety
    /// May be dropped at any time. An attempt in flight continues; the next caller joins it.
    pub(super) async fn get(&self) -> ConnectResult {
        for runtime in [&self.runtime, &self.fallback] {
            let mut attempt = match self.up_or_connecting(runtime) {
                Ok(pipeline) => return Ok(pipeline),
                Err(attempt) => attempt,
            };
            // No outcome: the runtime of the attempt was shut down.
            if let Ok(outcome) = attempt.wait_for(Option::is_some).await
                && let Some(outcome) = &*outcome
            {
                return outcome.clone();
            }
            *self.state() = ConnectionState::Down;
        }
        let what = "the thread of the connection was shut down";
        Err(Error::new(ErrorKind::Closed, what).with_help("connect anew"))
    }

    /// Returns the connection if it is up; otherwise the attempt in flight, or a new one.
    fn up_or_connecting(
        &self,
        runtime: &Handle,
    ) -> Result<Arc<Pipeline>, watch::Receiver<Option<ConnectResult>>> {
        let mut state = self.state();
        match &*state {
            ConnectionState::Up(pipeline) if !pipeline.is_closed() => {
                return Ok(Arc::clone(pipeline));
            }
            ConnectionState::Connecting(attempt)
                if attempt.has_changed().is_ok() || attempt.borrow().is_some() =>
            {
                return Err(attempt.clone());
            }
            _ => {}
        }
        let (sender, attempt) = watch::channel(None);
        *state = ConnectionState::Connecting(attempt.clone());
        drop(state);
        let (context, state) = (Arc::clone(&self.context), Arc::clone(&self.state));
        runtime.spawn(async move {
            let outcome = connect(&context).await;
            *state.lock().unwrap_or_else(PoisonError::into_inner) = match &outcome {
                Ok(pipeline) => ConnectionState::Up(Arc::clone(pipeline)),
                Err(_) => ConnectionState::Down,
            };
            // No receiver is left if all callers were dropped.
            let _ = sender.send(Some(outcome));
        });
        Err(attempt)
    }

    /// Returns the connection if it is up, without opening it.
    #[cfg(feature = "conformance")]
    pub(super) fn current(&self) -> Option<Arc<Pipeline>> {
        match &*self.state() {
            ConnectionState::Up(pipeline) => Some(Arc::clone(pipeline)),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn connect(context: &ConnectionContext) -> ConnectResult {
    let (client, connection) = context.open().await?;
    let handshake = async {
        // Driven from now on, but watched for stalls only when there is a pipeline.
        let (sender, pipeline) = oneshot::channel::<Weak<Pipeline>>();
        tokio::spawn(drive(connection, pipeline, context.statement_timeout()));
        let pipeline = Arc::new(context.handshake(client).await?);
        let _ = sender.send(Arc::downgrade(&pipeline));
        Ok(pipeline)
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or_else(|_| {
        let what = format!(
            "{} did not complete the handshake within {HANDSHAKE_TIMEOUT:?}",
            context.location
        );
        Err(Error::new(ErrorKind::Unavailable, what)
            .with_help("check that the server is not stuck"))
    })
}

/// The task of a connection: drives the socket until the connection closes or stalls. It stalls if
/// calls are in flight and no reply arrives for as long as a statement may take: the peer may be
/// gone without a TCP reset. Detected after two to three times that long.
async fn drive(
    connection: Connection<Socket, Encrypted>,
    pipeline: oneshot::Receiver<Weak<Pipeline>>,
    statement_timeout: Duration,
) {
    let mut connection = pin!(connection);
    let mut stalled = pin!(async {
        match pipeline.await {
            Ok(pipeline) => until_stalled(pipeline, statement_timeout).await,
            // The handshake failed: the connection ends when its client is dropped.
            Err(_) => std::future::pending().await,
        }
    });
    let broken = poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(ended.err().map(|error| error.to_string()));
        }
        stalled.as_mut().poll(cx).map(|()| Some("no reply, timed out".to_owned()))
    })
    .await;
    if let Some(why) = broken {
        tracing::debug!("a connection to the database ended: {why}");
    }
}

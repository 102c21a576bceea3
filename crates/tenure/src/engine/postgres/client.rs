//! A client that knows nothing of locks, for the crate `tenure-postgres`: connects by the same URLs
//! and TLS settings as the engine, converts errors, picks a runtime for connections, and detects a
//! fork. Public for that crate alone and hidden: both crates always have the same version.

use std::fmt;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_postgres::{AsyncMessage, CancelToken, Client};

use super::connect::ConnectionContext;
use super::errors::{self, SendState};
use super::tls::Tls;
use super::url::Location;
use crate::contract::{Error, Namespace, Verb};
use crate::engine::common::runtime::{Callers, EngineThread};
use crate::{limits, process};

/// Polls for messages that are no replies (notices, notifications). Polling drives the connection.
pub type Messages = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;

/// Opens connections to a database: a parsed URL, with its credentials and TLS settings.
pub struct Connector {
    context: ConnectionContext,
    tls: Tls,
}

impl Connector {
    /// Parses a URL. Does not connect yet.
    ///
    /// # Errors
    /// If the URL does not name a database, or its certificates cannot be used.
    pub fn new(url: &str) -> Result<Self, Error> {
        let open = || {
            let location = Location::parse(url)?;
            let tls = Tls::new(&location)?;
            let namespace = Namespace::default();
            let context = ConnectionContext::new(location, namespace, limits::DEFAULT_MAX_LEASE)?;
            Ok(Self { context, tls })
        };
        open().map_err(|error: Error| error.during(Verb::Connect))
    }

    /// Connects and logs in. Nothing else is sent.
    ///
    /// # Errors
    /// If there is no such server, or it refuses the login.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(&self) -> Result<(Client, Messages), Error> {
        let opened = self.context.open().await;
        let (client, mut connection) = opened.map_err(|error| error.during(Verb::Connect))?;
        Ok((client, Box::new(move |cx| connection.poll_message(cx))))
    }

    /// Requests the cancellation of the statement that runs on a connection. It may arrive too
    /// late.
    ///
    /// # Cancel safety
    /// Dropping the future may or may not cancel the statement.
    pub async fn cancel(&self, token: &CancelToken) {
        if let Err(error) = token.cancel_query(self.tls.clone()).await {
            tracing::debug!("a statement could not be cancelled: {error}");
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({})", self.context.location)
    }
}

/// Converts the error of a statement that has no effect beyond its connection.
#[must_use]
pub fn to_error(error: &tokio_postgres::Error) -> Error {
    errors::to_error(error, SendState::NotSent)
}

/// The runtime on which connections are driven: the caller's if it has several threads, otherwise a
/// thread that this starts.
#[derive(Debug)]
pub struct ConnectionRuntime {
    handle: Handle,
    _own: Option<EngineThread>,
}

impl ConnectionRuntime {
    /// Takes the runtime of the caller, or starts a thread with this name.
    ///
    /// # Errors
    /// If the thread cannot be started.
    ///
    /// # Cancel safety
    /// Dropping the future ends the thread.
    pub async fn find(name: &str) -> Result<Self, Error> {
        let own = EngineThread::start(name)?;
        let callers = Callers::find(&own).await.filter(Callers::has_threads);
        Ok(match callers {
            Some(callers) => Self { handle: callers.handle().clone(), _own: None },
            None => Self { handle: own.handle().clone(), _own: Some(own) },
        })
    }

    /// The runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Tells a process that was forked from the one in which a value was created.
#[derive(Clone, Copy, Debug)]
pub struct ForkCheck(process::Birth);

impl ForkCheck {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        Self(process::Birth::here())
    }

    /// Returns whether this process was forked from that one.
    #[must_use]
    pub fn is_inherited(self) -> bool {
        self.0.is_inherited()
    }
}

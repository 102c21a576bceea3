//! What the crate `tenure-postgres` shares with the engine: how to connect by the same URLs and
//! TLS, what a failed statement means, where connections live, and whether the process was forked.
//! Public for that crate alone, and hidden: it is of the same version as this one.

use std::fmt;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_postgres::{AsyncMessage, CancelToken, Client};

use super::errors::{self, Sent};
use super::connect::Setup;
use super::tls::Tls;
use super::url::Location;
use crate::contract::{Error, Namespace, Verb};
use crate::engine::runtime::{Callers, Own};
use crate::{limits, process};

/// What comes from the server by itself; asking for it drives the connection.
pub type Messages = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;

/// Opens connections to a database: a parsed URL, with its credentials and TLS settings.
pub struct Connector {
    setup: Setup,
    tls: Tls,
}

impl Connector {
    /// Reads a URL. Asks nobody yet.
    ///
    /// # Errors
    /// If the URL does not name a database, or its certificates cannot be used.
    pub fn new(url: &str) -> Result<Self, Error> {
        let open = || {
            let location = Location::parse(url)?;
            let tls = Tls::new(&location)?;
            let setup = Setup::new(location, Namespace::default(), limits::DEFAULT_MAX_LEASE)?;
            Ok(Self { setup, tls })
        };
        open().map_err(|error: Error| error.during(Verb::Connect))
    }

    /// Connects, and says nothing yet.
    ///
    /// # Errors
    /// If there is no such server, or it refuses the login.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(&self) -> Result<(Client, Messages), Error> {
        let dialled = self.setup.dial().await;
        let (client, mut connection) = dialled.map_err(|error| error.during(Verb::Connect))?;
        Ok((client, Box::new(move |cx| connection.poll_message(cx))))
    }

    /// Asks the server to end the statement that runs on a connection. It may come too late.
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
        write!(f, "Connector({})", self.setup.location)
    }
}

/// What a failed statement means, for people. It had no effect that outlives its connection.
#[must_use]
pub fn to_error(error: &tokio_postgres::Error) -> Error {
    errors::to_error(error, Sent::No)
}

/// Where connections live: the runtime of the caller if it runs its tasks on threads of its own,
/// otherwise a thread that this starts.
#[derive(Debug)]
pub struct Home {
    handle: Handle,
    _own: Option<Own>,
}

impl Home {
    /// Finds the runtime of the caller, or starts a thread of this name.
    ///
    /// # Errors
    /// If the thread cannot be started.
    ///
    /// # Cancel safety
    /// Dropping the future ends the thread.
    pub async fn find(name: &str) -> Result<Self, Error> {
        let own = Own::start(name)?;
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

/// The process that something was made in.
#[derive(Clone, Copy, Debug)]
pub struct Birth(process::Birth);

impl Birth {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        Self(process::Birth::here())
    }

    /// Whether this process was forked from the one it was made in.
    #[must_use]
    pub fn is_inherited(self) -> bool {
        self.0.is_inherited()
    }
}

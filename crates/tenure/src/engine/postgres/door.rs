//! The way to a database for those beside the engine: the same URLs, the same TLS, the same words
//! for trouble. Knows connections, not what is said on them.

use std::fmt;
use std::task::{Context, Poll};

use tokio_postgres::{AsyncMessage, CancelToken, Client};

use super::greeting::Setup;
use super::location::Location;
use super::tls::Tls;
use super::trouble::{self, Sent};
use crate::contract::{Error, Namespace, Verb};
use crate::limits;

/// What comes from the server by itself; asking for it drives the connection.
pub(crate) type Messages = Box<
    dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> + Send,
>;

/// Where a database is, and how to be let in.
pub(crate) struct Door {
    setup: Setup,
    tls: Tls,
}

impl Door {
    /// Reads a URL. Asks nobody yet.
    ///
    /// # Errors
    /// If the URL does not name a database, or its certificates cannot be used.
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
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
    /// If there is no such server, or it lets us not in.
    pub(crate) async fn dial(&self) -> Result<(Client, Messages), Error> {
        let dialled = self.setup.dial().await;
        let (client, mut connection) = dialled.map_err(|error| error.during(Verb::Connect))?;
        Ok((client, Box::new(move |cx| connection.poll_message(cx))))
    }

    /// Asks the server to end the statement that runs on a connection. It may come too late.
    pub(crate) async fn cancel(&self, token: &CancelToken) {
        if let Err(error) = token.cancel_query(self.tls.clone()).await {
            tracing::debug!("a statement could not be cancelled: {error}");
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({})", self.setup.location)
    }
}

/// What a failed statement means, for people. It had no effect that outlives its connection.
pub(crate) fn to_error(error: &tokio_postgres::Error) -> Error {
    trouble::to_error(error, Sent::No)
}

//! Opens a connection to the first host of a URL that takes it. Knows hosts and time limits, not
//! what is said on a connection.
//!
//! Hosts are tried in turn, each within the time limit of a handshake, so that one that accepts
//! connections and says nothing does not keep clients away from the next. A host that did not
//! complete the handshake in time is asked once more by hand ([`probe`]): every PostgreSQL server
//! answers the request for TLS with one letter, which tells a server of another kind from one that
//! is stuck.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::errors::{self, Sent};
use super::tls::{Encrypted, Tls};
use super::url::Location;
use crate::contract::{Error, ErrorKind, short};

/// How long a host may take to answer [`probe`], after it had the time of a whole handshake.
const PROBE: Duration = Duration::from_millis(500);
/// Asks whether the server speaks TLS: length and number of the request.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A connection, and what drives it.
pub(super) type Dialled = (Client, Connection<Socket, Encrypted>);

/// Connects and logs in at the first host that takes us.
///
/// # Errors
/// What each host said. It passes by itself if one of them may.
pub(super) async fn dial(location: &Location, tls: &Tls) -> Result<Dialled, Error> {
    let mut failures = Vec::new();
    for host in location.hosts()? {
        match dial_one(location, &host, tls).await {
            Ok(dialled) => return Ok(dialled),
            Err(error) => failures.push(error),
        }
    }
    if failures.len() == 1 {
        return Err(failures.remove(0));
    }
    Err(Error::of_all(&format!("no host of {location} takes us"), &failures))
}

async fn dial_one(location: &Location, host: &Config, tls: &Tls) -> Result<Dialled, Error> {
    let limit = location.handshake;
    let error = match timeout(limit, host.connect(tls.clone())).await {
        Ok(Ok(dialled)) => return Ok(dialled),
        Ok(Err(error)) => error,
        Err(_) => return Err(unanswered(&place(host), probe(host).await, limit)),
    };
    if error.as_db_error().is_some() {
        return Err(errors::to_error(&error, Sent::No));
    }
    let said = chain(&error);
    // The client has no kinds of errors, only texts.
    if said.contains("error parsing response") || said.contains("unexpected message") {
        return Err(stranger(&place(host)));
    }
    let what = format!("no connection to {location}: {said}");
    Err(Error::new(ErrorKind::Unavailable, what).with_help(
        "check that the server runs, can be reached and takes writes, and that it is a PostgreSQL",
    ))
}

/// What a host says to a request that every PostgreSQL server answers with one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probed {
    /// It cannot be reached.
    Unreached,
    /// It takes connections, and says nothing.
    Silent,
    /// It answers as a PostgreSQL server does.
    Postgres,
    /// It answers something else.
    Stranger,
}

async fn probe(host: &Config) -> Probed {
    let name = match (host.get_hostaddrs(), host.get_hosts()) {
        ([address, ..], _) => address.to_string(),
        (_, [Host::Tcp(name), ..]) => name.clone(),
        // A Unix socket: only its owner can have put another server there.
        _ => return Probed::Silent,
    };
    let port = host.get_ports().first().copied().unwrap_or(5432);
    let Ok(Ok(mut stream)) = timeout(PROBE, TcpStream::connect((name, port))).await else {
        return Probed::Unreached;
    };
    let asked = async {
        stream.write_all(&SSL_REQUEST).await?;
        stream.read_u8().await
    };
    match timeout(PROBE, asked).await {
        // Yes, no, and an error in the form of a message.
        Ok(Ok(b'S' | b'N' | b'E')) => Probed::Postgres,
        Ok(Ok(_)) => Probed::Stranger,
        Ok(Err(_)) | Err(_) => Probed::Silent,
    }
}

fn unanswered(place: &str, probed: Probed, limit: Duration) -> Error {
    let limit = short(limit);
    let (what, next) = match probed {
        Probed::Stranger => return stranger(place),
        Probed::Unreached => (
            format!("no connection to {place} within {limit}"),
            "check that the server runs and can be reached",
        ),
        Probed::Silent => (
            format!(
                "{place} accepts connections but does not answer PostgreSQL's handshake: \
                     tried for {limit}"
            ),
            "check that it is a PostgreSQL server, and that it is not stuck",
        ),
        Probed::Postgres => (
            format!("{place} did not complete the handshake within {limit}"),
            "look for what keeps the server busy, or raise connect_timeout= in the URL",
        ),
    };
    Error::new(ErrorKind::Unavailable, what).with_help(next)
}

fn stranger(place: &str) -> Error {
    let what = format!("the server at {place} does not speak PostgreSQL's protocol");
    Error::new(ErrorKind::InvalidOption, what).with_help("check host and port of the URL")
}

/// The one host of a configuration.
fn place(host: &Config) -> String {
    let port = host.get_ports().first().copied().unwrap_or(5432);
    match (host.get_hosts(), host.get_hostaddrs()) {
        ([Host::Tcp(name), ..], _) if name.contains(':') => format!("[{name}]:{port}"),
        ([Host::Tcp(name), ..], _) => format!("{name}:{port}"),
        ([Host::Unix(path), ..], _) => format!("{}:{port}", path.display()),
        (_, [address, ..]) => format!("{address}:{port}"),
        _ => String::new(),
    }
}

/// An error with its causes: the client keeps them out of its own words.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

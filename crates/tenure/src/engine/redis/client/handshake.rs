//! The handshake of a new connection: protocol and login (`HELLO 3`), database (`SELECT`), then the
//! commands of the connection's handler.
//!
//! One step after the other: were the handler's commands pipelined with a `SELECT` that fails, they
//! would run in another database. A password that the server rejects is reported without the
//! server's message, which may repeat our arguments.

use redis::Value;

use super::commands::{ExpectedReply, pack};
use super::connection::ConnectionHandler;
use super::driver;
use super::errors::{RequestError, into_result};
use super::resp::{CloseReason, NOT_RESP, RespStream, text};
use crate::contract::{Error, ErrorKind};
use crate::engine::common::redis::url::Location;

/// Does the whole handshake.
pub(super) async fn perform(
    stream: &mut RespStream,
    location: &Location,
    handler: &dyn ConnectionHandler,
) -> Result<(), Error> {
    hello(stream, location, handler, ServerKind::Server).await?;
    if location.db() != 0 {
        let db = location.db().to_string();
        let command = pack(&[b"SELECT", db.as_bytes()]);
        let reply = request_all(stream, location, handler, vec![command]).await?.remove(0);
        into_result(reply).map_err(|error| match error {
            RequestError::Server { code, .. } if code == "ERR" => Error::new(
                ErrorKind::InvalidOption,
                format!("{location} has no database of this number"),
            )
            .with_help("use a smaller one, or none: a cluster has only 0"),
            error => error.into_error(),
        })?;
    }
    let commands = handler.greeting();
    let replies = request_all(stream, location, handler, commands).await?;
    handler.judge(replies)
}

/// What should be at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ServerKind {
    /// A server that keeps data, alone or in a cluster.
    Server,
    Sentinel,
}

/// Negotiates RESP3, logs in, and checks that the server is of this kind.
pub(in crate::engine) async fn hello(
    stream: &mut RespStream,
    location: &Location,
    handler: &dyn ConnectionHandler,
    kind: ServerKind,
) -> Result<(), Error> {
    let credentials = location.credentials()?;
    let name = format!("tenure-{}", std::process::id());
    let mut command: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some((user, password)) = &credentials {
        command.extend([&b"AUTH"[..], user.as_bytes(), password.as_bytes()]);
    }
    command.extend([&b"SETNAME"[..], name.as_bytes()]);
    let reply = request_all(stream, location, handler, vec![pack(&command)]).await?.remove(0);
    match into_result(reply) {
        Ok(Value::Map(pairs)) => check_kind(&pairs, location, kind),
        Ok(_) => Err(too_old(location)),
        Err(RequestError::Server { code, message }) => Err(match &*code {
            "NOPROTO" => too_old(location),
            "ERR" if message.contains("unknown command") => too_old(location),
            // Most often its limit of clients, which passes. The server's message is left out: the
            // command had the password among its arguments.
            "ERR" => {
                Error::new(ErrorKind::Unavailable, format!("{location} rejected the connection"))
                    .with_help("check its limit of clients and its log")
            }
            _ => RequestError::Server { code, message }.into_error(),
        }),
        Err(error) => Err(error.into_error()),
    }
}

/// Rejects a sentinel where a server should be, and the other way round. A peer that does not
/// report its mode, for instance a proxy, is taken for what the URL says.
fn check_kind(
    fields: &[(Value, Value)],
    location: &Location,
    kind: ServerKind,
) -> Result<(), Error> {
    let mode = fields.iter().find(|(key, _)| text(key) == Some("mode"));
    let Some(mode) = mode.and_then(|(_, mode)| text(mode)) else { return Ok(()) };
    let (what, next) = match (kind, mode == "sentinel") {
        (ServerKind::Server, false) | (ServerKind::Sentinel, true) => return Ok(()),
        (ServerKind::Server, true) => (
            format!("{location} is a sentinel, which keeps no locks"),
            "use redis+sentinel://HOST:PORT/NAME, where NAME is what `sentinel monitor` calls the \
             primary",
        ),
        (ServerKind::Sentinel, false) => (
            format!("{location} is not a sentinel but a server"),
            "use redis:// (redis+cluster:// for a cluster), or name the sentinels and their ports, \
             by default 26379",
        ),
    };
    Err(Error::new(ErrorKind::InvalidOption, what).with_help(next))
}

fn too_old(location: &Location) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("{location} does not speak RESP3: Redis 6 or later is needed"),
    )
    .with_help("upgrade the server, or connect to it without the proxy in between")
}

/// Sends commands in one write and waits for one value for each. Error replies are values here;
/// pushes in between go to the handler.
pub(in crate::engine) async fn request_all(
    stream: &mut RespStream,
    location: &Location,
    handler: &dyn ConnectionHandler,
    commands: Vec<Vec<u8>>,
) -> Result<Vec<Value>, Error> {
    let lost = |reason: CloseReason| {
        if *reason == *NOT_RESP {
            let what = format!("the server at {location} does not speak Redis's protocol (RESP)");
            return Error::new(ErrorKind::InvalidOption, what).with_help(
                "check host and port of the URL; a server that expects TLS needs rediss://",
            );
        }
        let what = format!("connection to {location} lost during the handshake: {reason}");
        Error::new(ErrorKind::Unavailable, what)
            .with_help("check the server's log, and that the URL leads to a Redis server")
    };
    stream.send(&commands.concat()).await.map_err(lost)?;
    let mut replies = Vec::with_capacity(commands.len());
    for command in &commands {
        let mut expected = ExpectedReply::to(command);
        let reply = loop {
            let value = stream.recv().await.map_err(lost)?;
            let Value::Push { kind, data } = &value else { break value };
            match &mut expected {
                ExpectedReply::Pushes(wanted, left) if wanted == kind => {
                    *left -= 1;
                    if *left == 0 {
                        break value;
                    }
                }
                _ => driver::deliver(handler, kind, data),
            }
        };
        replies.push(reply);
    }
    Ok(replies)
}

/// A handler for short connections without subscriptions: adds nothing and ignores pushes.
pub(in crate::engine) struct IgnorePushes;

impl ConnectionHandler for IgnorePushes {
    fn greeting(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn judge(&self, _replies: Vec<Value>) -> Result<(), Error> {
        Ok(())
    }

    fn ready(&self, _first: bool) {}

    fn lost(&self) {}

    fn message(&self, _channel: &[u8], _payload: &[u8]) {}
}

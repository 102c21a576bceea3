//! The first words on a connection: protocol, user, database, then what the engine wants to say.
//! Knows which refusals are about passwords and versions, not what the engine asks for.

use redis::Value;

use super::answers::text;
use super::errors::{Trouble, judged};
use super::pack::{Answer, pack};
use super::talk::{NOT_RESP, Talk, Why};
use super::url::Location;
use super::wire::Greeter;
use crate::contract::{Error, ErrorKind};

/// Makes a connection fit for use.
///
/// One step after the other: were the database refused after the engine's commands were sent, they
/// would have run in another one.
pub(super) async fn exchange(
    talk: &mut Talk,
    location: &Location,
    greeter: &dyn Greeter,
) -> Result<(), Error> {
    hello(talk, location, greeter, Kind::Server).await?;
    if location.db() != 0 {
        let db = location.db().to_string();
        let command = pack(&[b"SELECT", db.as_bytes()]);
        let reply = ask(talk, location, greeter, vec![command]).await?.remove(0);
        judged(reply).map_err(|trouble| match trouble {
            Trouble::Server { code, .. } if code == "ERR" => Error::new(
                ErrorKind::InvalidOption,
                format!("{location} has no database of this number"),
            )
            .with_help("use a smaller one, or none: a cluster has only 0"),
            trouble => trouble.into_error(),
        })?;
    }
    let commands = greeter.greeting();
    let replies = ask(talk, location, greeter, commands).await?;
    greeter.judge(replies)
}

/// What a URL says is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A server that keeps data, alone or in a cluster.
    Server,
    Sentinel,
}

/// Agrees on the protocol, says who we are, and checks what is at the other end.
pub(super) async fn hello(
    talk: &mut Talk,
    location: &Location,
    greeter: &dyn Greeter,
    kind: Kind,
) -> Result<(), Error> {
    let credentials = location.credentials()?;
    let name = format!("tenure-{}", std::process::id());
    let mut command: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some((user, password)) = &credentials {
        command.extend([&b"AUTH"[..], user.as_bytes(), password.as_bytes()]);
    }
    command.extend([&b"SETNAME"[..], name.as_bytes()]);
    let reply = ask(talk, location, greeter, vec![pack(&command)]).await?.remove(0);
    match judged(reply) {
        Ok(Value::Map(pairs)) => check_kind(&pairs, location, kind),
        Ok(_) => Err(too_old(location)),
        Err(Trouble::Server { code, message }) => Err(match &*code {
            "NOPROTO" => too_old(location),
            "ERR" if message.contains("unknown command") => too_old(location),
            // Too many clients, above all: it passes. The server's own words are not repeated,
            // because ours had the password among them.
            "ERR" => Error::new(ErrorKind::Unavailable, format!("{location} does not let us in"))
                .with_help("check its limit of clients and its log"),
            _ => Trouble::Server { code, message }.into_error(),
        }),
        Err(trouble) => Err(trouble.into_error()),
    }
}

/// Refuses a sentinel where a server should be, and the other way round. What does not say its
/// mode, a proxy for instance, is what the URL says.
fn check_kind(said: &[(Value, Value)], location: &Location, kind: Kind) -> Result<(), Error> {
    let mode = said.iter().find(|(key, _)| text(key) == Some("mode"));
    let Some(mode) = mode.and_then(|(_, mode)| text(mode)) else { return Ok(()) };
    let (what, next) = match (kind, mode == "sentinel") {
        (Kind::Server, false) | (Kind::Sentinel, true) => return Ok(()),
        (Kind::Server, true) => (
            format!("{location} is a sentinel, which keeps no locks"),
            "use redis+sentinel://HOST:PORT/NAME, where NAME is what `sentinel monitor` calls the \
             primary",
        ),
        (Kind::Sentinel, false) => (
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

/// Sends commands in one piece and collects one value for each. Errors are values here.
pub(super) async fn ask(
    talk: &mut Talk,
    location: &Location,
    greeter: &dyn Greeter,
    commands: Vec<Vec<u8>>,
) -> Result<Vec<Value>, Error> {
    let lost = |why: Why| {
        if *why == *NOT_RESP {
            let what = format!("the server at {location} does not speak Redis's protocol (RESP)");
            return Error::new(ErrorKind::InvalidOption, what).with_help(
                "check host and port of the URL; a server that expects TLS needs rediss://",
            );
        }
        Error::new(ErrorKind::Unavailable, format!("{location} was lost while greeting it: {why}"))
            .with_help("check the server's log, and that the URL leads to a Redis server")
    };
    talk.say(&commands.concat()).await.map_err(lost)?;
    let mut replies = Vec::with_capacity(commands.len());
    for command in &commands {
        let mut left = Answer::to(command);
        let reply = loop {
            let value = talk.hear().await.map_err(lost)?;
            let Value::Push { kind, data } = &value else { break value };
            match &mut left {
                Answer::Pushes(wanted, count) if wanted == kind => {
                    *count -= 1;
                    if *count == 0 {
                        break value;
                    }
                }
                _ => super::driver::deliver(greeter, kind, data),
            }
        };
        replies.push(reply);
    }
    Ok(replies)
}

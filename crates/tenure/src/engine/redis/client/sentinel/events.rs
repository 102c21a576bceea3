//! Follows the primary: subscribes to all sentinels, and counts votes again when one of them names
//! another server than the one in use.
//!
//! To all of them, because a single one may be cut off from the others and never publish the
//! change. One message is no reason to leave a server: a sentinel that is cut off names the old
//! primary whenever it is subscribed to. It is a reason to ask all sentinels
//! ([`PrimaryResolver::elected`]).

use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::backoff;
use super::super::commands::pack;
use super::super::resp::{CloseReason, RespStream, text};
use super::{PrimaryResolver, address, connect, get_address, unavailable};
use crate::contract::Error;
use crate::engine::common::redis::url::{Address, Location};
use crate::engine::common::url::Host;
use crate::limits;

/// The channel on which sentinels publish a new primary.
const SWITCHED: &[u8] = b"+switch-master";
/// How long a sentinel may be silent before it is pinged, and then until the connection is closed.
const SILENCE: Duration = Duration::from_secs(5);

/// Calls `moved` with the server that the sentinels have elected, whenever one of them names a
/// server that is `elsewhere`. Never returns.
pub(in crate::engine) async fn follow(
    location: Arc<Location>,
    elsewhere: impl Fn(&Address) -> bool + Send + Sync + 'static,
    moved: impl Fn(&Address),
) {
    let finder = PrimaryResolver::new(Arc::clone(&location));
    let (news, elsewhere) = (Arc::new(Notify::new()), Arc::new(elsewhere));
    let mut listeners = JoinSet::new();
    for sentinel in location.sentinels() {
        let (location, news) = (Arc::clone(&location), Arc::clone(&news));
        let elsewhere = Arc::clone(&elsewhere);
        let named = move |host: &str, port: u16| {
            if elsewhere(&Address::Tcp(Host { name: host.to_owned(), port })) {
                news.notify_one();
            }
        };
        listeners.spawn(async move { listen(&location, &sentinel, named).await });
    }
    loop {
        news.notified().await;
        match finder.elected().await {
            Ok(Some(server)) => moved(server.address()),
            // A tie, or no votes: the connection stays where it is.
            Ok(None) => {}
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Subscribes to one sentinel, and reconnects whenever that ends.
async fn listen(location: &Location, sentinel: &Location, named: impl Fn(&str, u16)) {
    let Some(primary) = location.primary() else { return };
    let mut failures = 0;
    loop {
        let reason = match subscribe(sentinel, primary).await {
            Ok(mut stream) => {
                failures = 0;
                receive(&mut stream, primary, &named).await
            }
            Err(error) => error.to_string().into(),
        };
        tracing::debug!("subscription to sentinel {sentinel} ended: {reason}");
        sleep(backoff::pause(failures)).await;
        failures += 1;
    }
}

/// Connects to a sentinel, subscribes and asks for the current address of the primary.
async fn subscribe(sentinel: &Location, primary: &str) -> Result<RespStream, Error> {
    let subscribed = async {
        let mut stream = connect(sentinel).await?;
        // In this order: a change in between is published.
        let commands = [pack(&[b"SUBSCRIBE", SWITCHED]), get_address(primary)].concat();
        let sent = stream.send(&commands).await;
        sent.map_err(|reason| unavailable(reason.to_string()))?;
        Ok(stream)
    };
    let late = || Err(unavailable(format!("no answer within {:?}", limits::CALL)));
    timeout(limits::CALL, subscribed).await.unwrap_or_else(|_| late())
}

/// Calls `named` with each address that the sentinel names. Returns why the connection ended.
async fn receive(
    stream: &mut RespStream,
    primary: &str,
    named: &impl Fn(&str, u16),
) -> CloseReason {
    let mut pinged = false;
    loop {
        let value = match timeout(SILENCE, stream.recv()).await {
            Ok(Ok(value)) => value,
            Ok(Err(reason)) => return reason,
            Err(_) if pinged => return "no answer to PING".into(),
            Err(_) => {
                pinged = true;
                if let Err(reason) = stream.send(&pack(&[b"PING"])).await {
                    return reason;
                }
                continue;
            }
        };
        pinged = false;
        match &value {
            Value::Push { kind: PushKind::Message, data } => {
                let payload = data.get(1).and_then(text);
                if let Some((host, port)) = payload.and_then(|text| switched(text, primary)) {
                    named(host, port);
                }
            }
            Value::ServerError(_) => return "the sentinel refused to subscribe".into(),
            value => {
                if let Some((host, port)) = address(value) {
                    named(host, port);
                }
            }
        }
    }
}

/// Parses what a sentinel publishes after a fail-over: `name old-host old-port host port`.
fn switched<'a>(payload: &'a str, primary: &str) -> Option<(&'a str, u16)> {
    let words: Vec<&str> = payload.split(' ').collect();
    let [name, _, _, host, port] = words[..] else { return None };
    (name == primary).then(|| Some((host, port.parse().ok()?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_counts_only_for_the_primary_that_was_asked_for() {
        let payload = "mine 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(switched(payload, "mine"), Some(("10.0.0.2", 6380)));
        assert_eq!(switched(payload, "min"), None);
        assert_eq!(switched("mine 10.0.0.1 6379 10.0.0.2 x", "mine"), None);
        assert_eq!(switched("mine", "mine"), None);
    }
}

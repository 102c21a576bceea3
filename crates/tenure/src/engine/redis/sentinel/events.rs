//! Follows the primary: subscribes to all sentinels at once, and has the votes counted again when
//! one of them names another server than the one in use.
//!
//! All of them, because the one that is listened to may be the one that is cut off, and it would
//! never tell. A single message is no reason to leave a server: a sentinel that is cut off names
//! the old primary whenever it is subscribed to. It is a reason to ask all sentinels
//! ([`Finder::elected`]).

use std::sync::Arc;

use redis::{PushKind, Value};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Finder, Nobody, address, question, unavailable};
use crate::contract::Error;
use crate::engine::common::url::Host;
use crate::engine::redis::answers::text;
use crate::engine::redis::backoff;
use crate::engine::redis::greeting::{self, Kind};
use crate::engine::redis::pack::pack;
use crate::engine::redis::talk::{Talk, Why};
use crate::engine::redis::url::{Address, Location};
use crate::limits;

/// The channel on which sentinels tell of a new primary.
const SWITCHED: &[u8] = b"+switch-master";
/// How long a sentinel may be silent before it is asked whether it lives, and then until it is
/// connected to anew.
const SILENCE: Duration = Duration::from_secs(5);

/// Calls `moved` with the server that the sentinels have elected, whenever one of them names a
/// server that is `elsewhere`. Goes on for as long as it is polled.
pub(in super::super) async fn follow(
    location: Arc<Location>,
    elsewhere: impl Fn(&Address) -> bool + Send + Sync + 'static,
    moved: impl Fn(&Address),
) {
    let finder = Finder::new(Arc::clone(&location));
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
            // A tie, or nothing to go by. The connection stays where it is.
            Ok(None) => {}
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Listens to one sentinel, and connects anew whenever that ends.
async fn listen(location: &Location, sentinel: &Location, named: impl Fn(&str, u16)) {
    let Some(primary) = location.primary() else { return };
    let mut failures = 0;
    loop {
        let why = match subscribe(sentinel, primary).await {
            Ok(mut talk) => {
                failures = 0;
                hear(&mut talk, primary, &named).await
            }
            Err(error) => error.to_string().into(),
        };
        tracing::debug!("no longer listening to {sentinel}: {why}");
        sleep(backoff::pause(failures)).await;
        failures += 1;
    }
}

/// Has a sentinel tell where the primary is, now and whenever that changes.
async fn subscribe(sentinel: &Location, primary: &str) -> Result<Talk, Error> {
    let greeted = async {
        let mut talk = Talk::connect(sentinel).await?;
        greeting::hello(&mut talk, sentinel, &Nobody, Kind::Sentinel).await?;
        // In this order: what changes in between is heard.
        let words = [pack(&[b"SUBSCRIBE", SWITCHED]), question(primary)].concat();
        talk.say(&words).await.map_err(|why| unavailable(why.to_string()))?;
        Ok(talk)
    };
    let late = || Err(unavailable(format!("no answer within {:?}", limits::CALL)));
    timeout(limits::CALL, greeted).await.unwrap_or_else(|_| late())
}

/// Reads what a sentinel tells until it tells no more; why that is.
async fn hear(talk: &mut Talk, primary: &str, named: &impl Fn(&str, u16)) -> Why {
    let mut asked = false;
    loop {
        let value = match timeout(SILENCE, talk.hear()).await {
            Ok(Ok(value)) => value,
            Ok(Err(why)) => return why,
            Err(_) if asked => return "it has fallen silent".into(),
            Err(_) => {
                asked = true;
                if let Err(why) = talk.say(&pack(&[b"PING"])).await {
                    return why;
                }
                continue;
            }
        };
        asked = false;
        match &value {
            Value::Push { kind: PushKind::Message, data } => {
                let payload = data.get(1).and_then(text);
                if let Some((host, port)) = payload.and_then(|text| switched(text, primary)) {
                    named(host, port);
                }
            }
            Value::ServerError(_) => return "it refuses to tell".into(),
            value => {
                if let Some((host, port)) = address(value) {
                    named(host, port);
                }
            }
        }
    }
}

/// What a sentinel says when a primary was replaced: `name old-host old-port host port`.
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
        let told = "mine 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(switched(told, "mine"), Some(("10.0.0.2", 6380)));
        assert_eq!(switched(told, "min"), None);
        assert_eq!(switched("mine 10.0.0.1 6379 10.0.0.2 x", "mine"), None);
        assert_eq!(switched("mine", "mine"), None);
    }
}

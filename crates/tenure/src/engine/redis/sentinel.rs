//! Asks sentinels which server is the primary, and hears from them when it changes. Knows
//! sentinels, not what is asked of the primary.
//!
//! A sentinel may be wrong for a moment: what it names may have become a replica. Whoever connects
//! there finds out from the server itself, and asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::time::{sleep, timeout};

use super::answers::{list, text};
use super::examine::{Heard, Opinion};
use super::greeting::{self, ask};
use super::location::Location;
use super::pack::pack;
use super::talk::{Talk, Why};
use super::trouble::judged;
use super::wire::Greeter;
use crate::contract::{Error, ErrorKind};
use crate::limits;

/// How long one sentinel may take to answer before the next is asked: three that are gone without a
/// word still leave time to reach the primary within one attempt.
const PATIENCE: Duration = Duration::from_millis(400);
/// The channel on which sentinels tell of a new primary.
const SWITCHED: &[u8] = b"+switch-master";
/// How long a sentinel may be silent before it is asked whether it lives, and then until it is
/// left for another.
const SILENCE: Duration = Duration::from_secs(5);
/// The pause before the next sentinel is listened to.
const PAUSE: Duration = Duration::from_millis(200);

/// Finds the server of a location, by way of its sentinels if it has any.
pub(super) struct Finder {
    location: Arc<Location>,
    sentinels: Vec<Location>,
    /// The one to ask first: the last that answered.
    first: AtomicUsize,
}

impl Finder {
    pub(super) fn new(location: Arc<Location>) -> Self {
        let sentinels = location.sentinels();
        Self { location, sentinels, first: AtomicUsize::new(0) }
    }

    /// The server to connect to now.
    ///
    /// # Errors
    /// If no sentinel answers, or none of them knows the primary by its name.
    pub(super) async fn find(&self) -> Result<Location, Error> {
        let Some(primary) = self.location.primary() else {
            return Ok(Location::clone(&self.location));
        };
        let count = self.sentinels.len();
        let mut failures = Vec::with_capacity(count);
        let first = self.first.load(Ordering::Relaxed);
        for at in (first..first + count).map(|at| at % count) {
            self.first.store(at, Ordering::Relaxed);
            let sentinel = &self.sentinels[at];
            let answer = timeout(PATIENCE, ask_one(sentinel, primary)).await;
            let late =
                || Err(unavailable(format!("{sentinel} did not answer within {PATIENCE:?}")));
            match answer.unwrap_or_else(|_| late()) {
                Ok((host, port)) => return self.location.moved_to(&host, port),
                Err(error) => failures.push(error),
            }
        }
        // The next attempt begins with another one.
        self.first.store((first + 1) % count, Ordering::Relaxed);
        Err(nobody(primary, &failures))
    }
}

/// Listens to one sentinel after the other, for as long as it is polled, and tells where the
/// primary is: when it moved, and whenever something may have been missed.
pub(super) async fn listen(location: Arc<Location>, moved: impl Fn(Location)) {
    let (sentinels, Some(primary)) = (location.sentinels(), location.primary()) else { return };
    let told = |host: &str, port: u16| match location.moved_to(host, port) {
        Ok(server) => moved(server),
        Err(error) => tracing::warn!("{error}"),
    };
    for sentinel in sentinels.iter().cycle() {
        let why = match subscribed(sentinel, primary).await {
            Ok(mut talk) => hear(&mut talk, primary, &told).await,
            Err(error) => error.to_string().into(),
        };
        tracing::debug!("no longer listening to {sentinel}: {why}");
        sleep(PAUSE).await;
    }
}

/// What each sentinel of a location thinks of the primary.
pub(super) async fn opinions(location: Arc<Location>) -> Vec<Heard> {
    let Some(primary) = location.primary() else { return Vec::new() };
    let mut all = Vec::new();
    for sentinel in location.sentinels() {
        let late = |_| Err(unavailable(format!("no answer within {:?}", limits::CALL)));
        let answer = timeout(limits::CALL, opinion(&sentinel, primary)).await.unwrap_or_else(late);
        let answer = answer.map_err(|error| error.to_string());
        all.push(Heard { sentinel: sentinel.place(), answer });
    }
    all
}

/// What one sentinel thinks of the primary; only where it is, if it may say no more.
async fn opinion(sentinel: &Location, primary: &str) -> Result<Opinion, Error> {
    let mut talk = Talk::connect(sentinel).await?;
    greeting::hello(&mut talk, sentinel, &Nobody).await?;
    let whole = pack(&[b"SENTINEL", b"MASTER", primary.as_bytes()]);
    let reply = ask(&mut talk, sentinel, &Nobody, vec![whole]).await?.remove(0);
    if let Some(opinion) = Opinion::read(&reply) {
        return Ok(opinion);
    }
    let (host, port) = ask_on(&mut talk, sentinel, primary).await?;
    Ok(Opinion::at(&host, port.into()))
}

/// Has a sentinel tell where the primary is, now and whenever that changes.
async fn subscribed(sentinel: &Location, primary: &str) -> Result<Talk, Error> {
    let greeted = async {
        let mut talk = Talk::connect(sentinel).await?;
        greeting::hello(&mut talk, sentinel, &Nobody).await?;
        // In this order: what changes in between is heard.
        let words = [pack(&[b"SUBSCRIBE", SWITCHED]), question(primary)].concat();
        talk.say(&words).await.map_err(|why| unavailable(why.to_string()))?;
        Ok(talk)
    };
    let late = || Err(unavailable(format!("no answer within {:?}", limits::CALL)));
    timeout(limits::CALL, greeted).await.unwrap_or_else(|_| late())
}

/// Hears what a sentinel says until it says no more; why that is.
async fn hear(talk: &mut Talk, primary: &str, told: &impl Fn(&str, u16)) -> Why {
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
                    told(host, port);
                }
            }
            Value::ServerError(_) => return "it refuses to tell".into(),
            value => {
                if let Some((host, port)) = address(value) {
                    told(host, port);
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

/// Asks one sentinel.
async fn ask_one(sentinel: &Location, primary: &str) -> Result<(String, u16), Error> {
    let mut talk = Talk::connect(sentinel).await?;
    greeting::hello(&mut talk, sentinel, &Nobody).await?;
    ask_on(&mut talk, sentinel, primary).await
}

/// Asks a sentinel that was greeted.
async fn ask_on(
    talk: &mut Talk,
    sentinel: &Location,
    primary: &str,
) -> Result<(String, u16), Error> {
    let reply = ask(talk, sentinel, &Nobody, vec![question(primary)]).await?.remove(0);
    let reply = judged(reply).map_err(super::trouble::Trouble::into_error)?;
    if let Some((host, port)) = address(&reply) {
        return Ok((host.to_owned(), port));
    }
    let what = format!("{sentinel} knows no primary named {primary}");
    Err(Error::new(ErrorKind::InvalidOption, what)
        .next("compare the URL with `sentinel monitor` in the sentinels' configuration"))
}

fn question(primary: &str) -> Vec<u8> {
    pack(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", primary.as_bytes()])
}

/// A host and a port.
fn address(reply: &Value) -> Option<(&str, u16)> {
    let [host, port] = list(reply)? else { return None };
    Some((text(host)?, text(port)?.parse().ok()?))
}

/// What all of them said, as one error. It passes as long as any of theirs may.
fn nobody(primary: &str, failures: &[Error]) -> Error {
    let passes = failures.iter().find(|error| error.is_retryable());
    let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let what = format!("no sentinel says where {primary} is: {}", said.join("; "));
    match (passes, failures.first()) {
        (None, Some(first)) => Error::new(first.kind(), what).next(first.next_step().to_owned()),
        _ => unavailable(what),
    }
}

fn unavailable(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what).next("check that the sentinels run and can be reached")
}

/// Nobody hears what is told while one is greeted of whom nothing was asked for yet.
pub(super) struct Nobody;

impl Greeter for Nobody {
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

    #[test]
    fn an_answer_of_all_that_none_knows_the_name_does_not_pass_by_itself() {
        let unknown = Error::new(ErrorKind::InvalidOption, "s knows no primary named p").next("n");
        let away = unavailable("s is away".to_owned());
        let error = nobody("p", &[unknown.clone(), unknown.clone()]);
        assert_eq!((error.kind(), error.next_step()), (ErrorKind::InvalidOption, "n"));
        let error = nobody("p", &[unknown, away]);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("s is away"), "{error}");
    }
}

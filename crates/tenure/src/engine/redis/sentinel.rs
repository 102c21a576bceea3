//! Asks sentinels which server is the primary. Knows sentinels, not what is asked of the primary.
//!
//! All sentinels that the URL names are asked at once. At the first attempt a majority that agrees
//! is enough. If an attempt failed before, every sentinel gets its time to answer: the time limit
//! of a call while none has answered, a short while after each answer. If they then disagree, they
//! are asked again together with the epoch of their configuration, and `vote.rs` decides. Nothing
//! that a sentinel says is believed without proof: the server that was chosen has to be there and
//! to say that it is a primary (`reception.rs` checks it), otherwise the attempt failed and the
//! next one asks again. `events.rs` subscribes to changes of the primary.

mod events;
pub(super) mod vote;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(super) use self::events::follow;
use self::vote::{Peer, Vote};
use super::answers::{list, text};
use super::doctor::{Heard, Opinion};
use super::errors::{Trouble, judged};
use super::greeting::{self, Kind, ask};
use super::pack::pack;
use super::talk::Talk;
use super::url::Location;
use super::wire::Greeter;
use crate::contract::{Error, ErrorKind};
use crate::limits;

/// How long the next sentinel is waited for once one has answered. While none has, each may take as
/// long as any call: a slow link or a busy host must not look like an absent sentinel.
const STRAGGLERS: Duration = Duration::from_millis(400);

/// Finds the server of a location, by way of its sentinels if it has any.
pub(super) struct Finder {
    location: Arc<Location>,
    sentinels: Vec<Location>,
    /// Attempts since the last one that led to a primary.
    attempts: AtomicUsize,
}

/// A server that was found.
pub(super) struct Found {
    pub(super) server: Location,
    /// How the sentinels disagree about it, if they do and it was noticed.
    disagreement: Option<String>,
}

impl Finder {
    pub(super) fn new(location: Arc<Location>) -> Self {
        let sentinels = location.sentinels();
        Self { location, sentinels, attempts: AtomicUsize::new(0) }
    }

    /// The server to connect to now.
    ///
    /// # Errors
    /// If no sentinel answers, or none of them knows the primary by its name.
    pub(super) async fn find(&self) -> Result<Found, Error> {
        let Some(primary) = self.location.primary() else {
            return Ok(Found { server: Location::clone(&self.location), disagreement: None });
        };
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let votes = self.votes(primary, attempt > 0).await?;
        let best = vote::best(&votes);
        // In a tie, each attempt tries another one.
        let (host, port) = best[attempt % best.len()];
        let server = self.location.moved_to(host, *port)?;
        let disagreement = vote::differ(&votes).then(|| vote::listed(&votes));
        Ok(Found { server, disagreement })
    }

    /// The server that was found is a primary, and takes us.
    pub(super) fn found(&self) {
        self.attempts.store(0, Ordering::Relaxed);
    }

    /// The server that the sentinels have elected; none if they are tied or do not answer.
    ///
    /// # Errors
    /// If a password would have to be sent there in plain text.
    async fn elected(&self) -> Result<Option<Location>, Error> {
        let Some(primary) = self.location.primary() else { return Ok(None) };
        let Ok(votes) = self.votes(primary, true).await else { return Ok(None) };
        let [(host, port)] = vote::best(&votes)[..] else { return Ok(None) };
        self.location.moved_to(host, *port).map(Some)
    }

    /// What sentinels say, at least one of them. `all` waits for every sentinel, not only for a
    /// majority that agrees.
    async fn votes(&self, primary: &str, all: bool) -> Result<Vec<Vote>, Error> {
        let count = self.sentinels.len();
        let enough = |votes: &[Vote]| !all && vote::majority(votes, count).is_some();
        let (votes, failures) = self.ask_all(primary, false, enough).await;
        if votes.is_empty() {
            return Err(nobody(primary, &failures));
        }
        if !vote::differ(&votes) || enough(&votes) {
            return Ok(votes);
        }
        let (again, _) = self.ask_all(primary, true, |_| false).await;
        tracing::debug!("the sentinels disagree about {primary}: {}", vote::listed(&again));
        Ok(if again.is_empty() { votes } else { again })
    }

    /// Asks all sentinels at once, with the epochs of their configurations if wanted, until each
    /// has answered or had its time, or the answers are `enough`. Votes have the order of the URL;
    /// failures are those of all sentinels if there is no vote.
    async fn ask_all(
        &self,
        primary: &str,
        epochs: bool,
        enough: impl Fn(&[Vote]) -> bool,
    ) -> (Vec<Vote>, Vec<Error>) {
        let mut asking = JoinSet::new();
        for (at, sentinel) in self.sentinels.iter().cloned().enumerate() {
            let primary = primary.to_owned();
            asking.spawn(async move {
                let answer = timeout(limits::CALL, ask_one(&sentinel, &primary, epochs)).await;
                let late = format!("{sentinel} did not answer within {:?}", limits::CALL);
                (at, answer.unwrap_or_else(|_| Err(unavailable(late))))
            });
        }
        let (mut votes, mut failures) = (Vec::new(), Vec::new());
        let mut order = Vec::new();
        let mut patience = 2 * limits::CALL;
        while let Ok(Some(answer)) = timeout(patience, asking.join_next()).await {
            match answer {
                Ok((at, Ok(vote))) => {
                    patience = STRAGGLERS;
                    let place = order.partition_point(|before| *before < at);
                    order.insert(place, at);
                    votes.insert(place, vote);
                }
                Ok((_, Err(error))) => failures.push(error),
                // The runtime is going down.
                Err(_) => failures.push(unavailable("it could not be asked".to_owned())),
            }
            if enough(&votes) {
                break;
            }
        }
        (votes, failures)
    }
}

impl Found {
    /// Says of an error of this server why it was connected to, where that may be the mistake.
    pub(super) fn explain(&self, finder: &Finder, error: Error) -> Error {
        let Some(primary) = finder.location.primary().filter(|_| error.is_transient()) else {
            return error;
        };
        match &self.disagreement {
            None => error.within(&format!("the sentinels' {primary}")),
            Some(how) => {
                error.within(&format!("the sentinels disagree about {primary} ({how})")).with_help(
                    "check that the server runs and can be reached, and restart the sentinel that \
                     is out of date",
                )
            }
        }
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
    let mut talk = greeted(sentinel).await?;
    let commands = vec![question(primary), details(primary)];
    let mut replies = ask(&mut talk, sentinel, &Nobody, commands).await?.into_iter();
    let peer = peer_in(replies.next(), sentinel, primary)?;
    Ok(Opinion::new(peer, replies.next().as_ref()))
}

/// Asks one sentinel, with the epoch of its configuration if wanted.
async fn ask_one(sentinel: &Location, primary: &str, epoch: bool) -> Result<Vote, Error> {
    let mut talk = greeted(sentinel).await?;
    // In one piece, so that address and epoch are of the same configuration.
    let commands =
        if epoch { vec![question(primary), details(primary)] } else { vec![question(primary)] };
    let mut replies = ask(&mut talk, sentinel, &Nobody, commands).await?.into_iter();
    let peer = peer_in(replies.next(), sentinel, primary)?;
    let epoch = replies.next().and_then(|reply| Opinion::new(peer.clone(), Some(&reply)).epoch());
    Ok(Vote { sentinel: sentinel.place(), primary: peer, epoch })
}

async fn greeted(sentinel: &Location) -> Result<Talk, Error> {
    let mut talk = Talk::connect(sentinel).await?;
    greeting::hello(&mut talk, sentinel, &Nobody, Kind::Sentinel).await?;
    Ok(talk)
}

fn question(primary: &str) -> Vec<u8> {
    pack(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", primary.as_bytes()])
}

fn details(primary: &str) -> Vec<u8> {
    pack(&[b"SENTINEL", b"MASTER", primary.as_bytes()])
}

/// The answer to [`question`].
fn peer_in(reply: Option<Value>, sentinel: &Location, primary: &str) -> Result<Peer, Error> {
    let reply = judged(reply.unwrap_or(Value::Nil)).map_err(Trouble::into_error)?;
    if let Some((host, port)) = address(&reply) {
        return Ok((host.to_owned(), port));
    }
    let what = format!("{sentinel} knows no primary named {primary}");
    Err(Error::new(ErrorKind::InvalidOption, what)
        .with_help("compare the URL with `sentinel monitor` in the sentinels' configuration"))
}

/// A host and a port.
fn address(reply: &Value) -> Option<(&str, u16)> {
    let [host, port] = list(reply)? else { return None };
    Some((text(host)?, text(port)?.parse().ok()?))
}

/// What all of them said, as one error. It passes as long as any of theirs may.
fn nobody(primary: &str, failures: &[Error]) -> Error {
    let error = Error::of_all(&format!("no sentinel says where {primary} is"), failures);
    if error.is_transient() { error.with_help(CHECK) } else { error }
}

fn unavailable(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what).with_help(CHECK)
}

const CHECK: &str = "check that the sentinels run and can be reached";

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
    fn an_answer_of_all_that_none_knows_the_name_does_not_pass_by_itself() {
        let unknown =
            Error::new(ErrorKind::InvalidOption, "s knows no primary named p").with_help("n");
        let away = unavailable("s is away".to_owned());
        let error = nobody("p", &[unknown.clone(), unknown.clone()]);
        assert_eq!((error.kind(), error.help()), (ErrorKind::InvalidOption, "n"));
        let error = nobody("p", &[unknown, away]);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("s is away"), "{error}");
    }
}

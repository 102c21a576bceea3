//! Resolves the primary by asking sentinels.
//!
//! All sentinels that the URL names are asked at once. At the first attempt a majority that agrees
//! is enough. If an attempt failed before, every sentinel gets its time to reply: the timeout of a
//! call while none has replied, a short while after each reply. If they then disagree, they are
//! asked again together with the epoch of their configuration, and `vote.rs` decides. No sentinel
//! is believed without proof: the server that was chosen has to respond and to report that it is a
//! primary (the connection's handler checks it), otherwise the attempt failed and the next one asks
//! again. `events.rs` subscribes to changes of the primary.

mod events;
mod status;
pub(in crate::engine) mod vote;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(in crate::engine) use self::events::follow;
pub(in crate::engine) use self::status::{PrimaryDetails, PrimaryStatus, SentinelReport};
use self::vote::{HostPort, SentinelVote};
use super::commands::pack;
use super::errors::{RequestError, into_result};
use super::handshake::{self, IgnorePushes, ServerKind, request_all};
use super::resp::{RespStream, list, text};
use crate::contract::{Error, ErrorKind};
use crate::engine::common::redis::url::Location;
use crate::limits;

/// How long to wait for the next sentinel after one has replied. While none has, each may take as
/// long as any call: a slow link or a busy host must not look like an absent sentinel.
const STRAGGLERS: Duration = Duration::from_millis(400);

/// Resolves the server of a location, through its sentinels if it has any.
pub(super) struct PrimaryResolver {
    location: Arc<Location>,
    sentinels: Vec<Location>,
    /// Attempts since the last one that led to a primary.
    attempts: AtomicUsize,
}

/// The server to connect to.
pub(super) struct ResolvedServer {
    pub(super) server: Location,
    /// Which sentinels name which server, if they disagree.
    disagreement: Option<String>,
}

impl PrimaryResolver {
    pub(super) fn new(location: Arc<Location>) -> Self {
        let sentinels = location.sentinels();
        Self { location, sentinels, attempts: AtomicUsize::new(0) }
    }

    /// Returns the server to connect to now.
    ///
    /// # Errors
    /// If no sentinel replies, or none of them knows the primary by its name.
    pub(super) async fn resolve(&self) -> Result<ResolvedServer, Error> {
        let Some(primary) = self.location.primary() else {
            return Ok(ResolvedServer {
                server: Location::clone(&self.location),
                disagreement: None,
            });
        };
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let votes = self.votes(primary, attempt > 0).await?;
        let best = vote::best(&votes);
        // In a tie, each attempt tries another one.
        let (host, port) = best[attempt % best.len()];
        let server = self.location.moved_to(host, *port)?;
        let disagreement = vote::differ(&votes).then(|| vote::listed(&votes));
        Ok(ResolvedServer { server, disagreement })
    }

    /// The handshake with the resolved server succeeded.
    pub(super) fn connected(&self) {
        self.attempts.store(0, Ordering::Relaxed);
    }

    /// Returns the server that the sentinels have elected; none if they are tied or do not reply.
    ///
    /// # Errors
    /// If a password would have to be sent there in plain text.
    async fn elected(&self) -> Result<Option<Location>, Error> {
        let Some(primary) = self.location.primary() else { return Ok(None) };
        let Ok(votes) = self.votes(primary, true).await else { return Ok(None) };
        let [(host, port)] = vote::best(&votes)[..] else { return Ok(None) };
        self.location.moved_to(host, *port).map(Some)
    }

    /// Collects votes, at least one. With `all` it waits for every sentinel, not only for a
    /// majority that agrees.
    async fn votes(&self, primary: &str, all: bool) -> Result<Vec<SentinelVote>, Error> {
        let count = self.sentinels.len();
        let enough = |votes: &[SentinelVote]| !all && vote::majority(votes, count).is_some();
        let (votes, failures) = self.ask_all(primary, false, enough).await;
        if votes.is_empty() {
            return Err(unresolved(primary, &failures));
        }
        if !vote::differ(&votes) || enough(&votes) {
            return Ok(votes);
        }
        let (again, _) = self.ask_all(primary, true, |_| false).await;
        tracing::debug!("the sentinels disagree about {primary}: {}", vote::listed(&again));
        Ok(if again.is_empty() { votes } else { again })
    }

    /// Asks all sentinels at once, with the epochs of their configurations if wanted, until each
    /// has replied or timed out, or the votes are `enough`. Votes have the order of the URL;
    /// failures are those of all sentinels if there is no vote.
    async fn ask_all(
        &self,
        primary: &str,
        epochs: bool,
        enough: impl Fn(&[SentinelVote]) -> bool,
    ) -> (Vec<SentinelVote>, Vec<Error>) {
        let mut asking = JoinSet::new();
        for (at, sentinel) in self.sentinels.iter().cloned().enumerate() {
            let primary = primary.to_owned();
            asking.spawn(async move {
                let reply = timeout(limits::CALL, ask_one(&sentinel, &primary, epochs)).await;
                let late = format!("{sentinel} did not answer within {:?}", limits::CALL);
                (at, reply.unwrap_or_else(|_| Err(unavailable(late))))
            });
        }
        let (mut votes, mut failures) = (Vec::new(), Vec::new());
        let mut order = Vec::new();
        let mut next_within = 2 * limits::CALL;
        while let Ok(Some(reply)) = timeout(next_within, asking.join_next()).await {
            match reply {
                Ok((at, Ok(vote))) => {
                    next_within = STRAGGLERS;
                    let place = order.partition_point(|before| *before < at);
                    order.insert(place, at);
                    votes.insert(place, vote);
                }
                Ok((_, Err(error))) => failures.push(error),
                // The runtime is shutting down.
                Err(_) => failures.push(unavailable("it could not be asked".to_owned())),
            }
            if enough(&votes) {
                break;
            }
        }
        (votes, failures)
    }
}

impl ResolvedServer {
    /// Adds to a transient error of this server why it was chosen: that may be the mistake.
    pub(super) fn explain(&self, finder: &PrimaryResolver, error: Error) -> Error {
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

/// Returns the report of each sentinel of a location about the primary.
pub(in crate::engine) async fn reports(location: Arc<Location>) -> Vec<SentinelReport> {
    let Some(primary) = location.primary() else { return Vec::new() };
    let mut all = Vec::new();
    for sentinel in location.sentinels() {
        let late = |_| Err(unavailable(format!("no answer within {:?}", limits::CALL)));
        let status = timeout(limits::CALL, status(&sentinel, primary)).await.unwrap_or_else(late);
        let status = status.map_err(|error| error.to_string());
        all.push(SentinelReport { sentinel: sentinel.place(), status });
    }
    all
}

/// Returns the status of the primary as one sentinel sees it.
async fn status(sentinel: &Location, primary: &str) -> Result<PrimaryStatus, Error> {
    let mut stream = connect(sentinel).await?;
    let commands = vec![get_address(primary), get_details(primary)];
    let mut replies =
        request_all(&mut stream, sentinel, &IgnorePushes, commands).await?.into_iter();
    let peer = read_address(replies.next(), sentinel, primary)?;
    Ok(PrimaryStatus::new(peer, replies.next().as_ref()))
}

/// Asks one sentinel, with the epoch of its configuration if wanted.
async fn ask_one(sentinel: &Location, primary: &str, epoch: bool) -> Result<SentinelVote, Error> {
    let mut stream = connect(sentinel).await?;
    // In one write, so that address and epoch are of the same configuration.
    let mut commands = vec![get_address(primary)];
    if epoch {
        commands.push(get_details(primary));
    }
    let mut replies =
        request_all(&mut stream, sentinel, &IgnorePushes, commands).await?.into_iter();
    let peer = read_address(replies.next(), sentinel, primary)?;
    let epoch =
        replies.next().and_then(|reply| PrimaryStatus::new(peer.clone(), Some(&reply)).epoch());
    Ok(SentinelVote { sentinel: sentinel.place(), primary: peer, epoch })
}

async fn connect(sentinel: &Location) -> Result<RespStream, Error> {
    let mut stream = RespStream::connect(sentinel).await?;
    handshake::hello(&mut stream, sentinel, &IgnorePushes, ServerKind::Sentinel).await?;
    Ok(stream)
}

fn get_address(primary: &str) -> Vec<u8> {
    pack(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", primary.as_bytes()])
}

fn get_details(primary: &str) -> Vec<u8> {
    pack(&[b"SENTINEL", b"MASTER", primary.as_bytes()])
}

/// Parses the reply to [`get_address`].
fn read_address(
    reply: Option<Value>,
    sentinel: &Location,
    primary: &str,
) -> Result<HostPort, Error> {
    let reply = into_result(reply.unwrap_or(Value::Nil)).map_err(RequestError::into_error)?;
    if let Some((host, port)) = address(&reply) {
        return Ok((host.to_owned(), port));
    }
    let what = format!("{sentinel} knows no primary named {primary}");
    Err(Error::new(ErrorKind::InvalidOption, what)
        .with_help("compare the URL with `sentinel monitor` in the sentinels' configuration"))
}

/// Parses a host and a port.
fn address(reply: &Value) -> Option<(&str, u16)> {
    let [host, port] = list(reply)? else { return None };
    Some((text(host)?, text(port)?.parse().ok()?))
}

/// Joins the errors of all sentinels. The result is transient if any of them is.
fn unresolved(primary: &str, failures: &[Error]) -> Error {
    let error = Error::of_all(&format!("no sentinel says where {primary} is"), failures);
    if error.is_transient() { error.with_help(CHECK) } else { error }
}

fn unavailable(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, what).with_help(CHECK)
}

const CHECK: &str = "check that the sentinels run and can be reached";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_all_that_none_knows_the_name_does_not_pass_by_itself() {
        let unknown =
            Error::new(ErrorKind::InvalidOption, "s knows no primary named p").with_help("n");
        let away = unavailable("s is away".to_owned());
        let error = unresolved("p", &[unknown.clone(), unknown.clone()]);
        assert_eq!((error.kind(), error.help()), (ErrorKind::InvalidOption, "n"));
        let error = unresolved("p", &[unknown, away]);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("s is away"), "{error}");
    }
}

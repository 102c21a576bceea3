//! All watches of an engine, multiplexed on one gRPC stream that reconnects by itself. Knows keys
//! and watch ids, not what they mean.
//!
//! `add` and `remove` send commands to one task, which owns the stream:
//!
//! ```text
//! open ──> serve ──> Closed: the engine is gone, the task ends
//!   ▲        │
//!   └ back off ◄── Broken: stream error, another member is in use, the token expires soon
//!            ▲
//!            └──── Refused: the token has expired; it is renewed first
//! ```
//!
//! A new stream creates all registered watches again, under the same ids, and the handler is
//! notified of the reconnect, because events may have been missed.
//!
//! Every watch starts at the current revision, never at an older one: etcd serves older ones from a
//! loop that runs ten times a second, and they could fail on a compaction. So what happened between
//! the read that led to the watch and its creation is not an event. The handler is notified when a
//! watch was created ([`WatchNotice::Created`]) and has to read the state once more: everything
//! later is an event.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::client::{
    Event, EventType, FilterType, WatchCancelRequest, WatchCreateRequest, WatchResponse,
    WatchStream,
};
use super::connection::ClusterConnection;
use super::errors::CallError;
use super::keys::Range;
use super::tasks::{TaskGuard, Tasks};

/// The timeout for opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to back off after a stream has broken: the first time, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long a stream is used at least before it is opened again with a new token. The life of a
/// token is computed with this host's clock: if that is ahead by more than the life, the token
/// seems to have expired when it was issued. A token that really expires sooner costs a watch that
/// is refused, after which the stream is opened again at once.
const MIN_STREAM_AGE: Duration = Duration::from_secs(10);

/// The id of the watch that every stream is opened with.
const FIRST: i64 = 1;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WatchSpec {
    /// Deletions of a key that was created by this revision.
    KeyDeleted(Vec<u8>, u64),
    /// Writes of a key.
    KeyWritten(Vec<u8>),
    /// Deletions in a range.
    DeletedIn(Range),
    /// All events in a range.
    AnyIn(Range),
}

/// A notification about a watch.
#[derive(Debug)]
pub(super) enum WatchNotice {
    /// The server has created the watch: read the state once more.
    Created,
    /// Keys have changed.
    Events(Vec<Event>),
}

/// Receives the notifications of all watches. Must not block.
pub(super) trait WatchHandler: Send + Sync + 'static {
    fn on_notice(&self, watch: i64, notice: WatchNotice);
    /// The stream was opened again: events may have been missed.
    fn on_reconnect(&self);
}

/// The watches of an engine.
pub(super) struct Watches {
    commands: mpsc::UnboundedSender<WatchCommand>,
    next: AtomicI64,
    tasks: Tasks,
}

enum WatchCommand {
    Add { watch: i64, spec: WatchSpec, guard: TaskGuard },
    Remove(i64),
}

impl Watches {
    /// Starts the stream, with a watch of the key `first` that is never removed.
    pub(super) fn start(
        connection: Arc<ClusterConnection>,
        tasks: &Tasks,
        first: &[u8],
        handler: Arc<dyn WatchHandler>,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let stream = WatchTask {
            connection,
            handler,
            first: WatchSpec::AnyIn(Range { from: first.to_vec(), to: [first, &[0]].concat() }),
            watches: HashMap::new(),
            inbox,
        };
        tasks.spawn_uncounted(stream.run());
        Self { commands, next: AtomicI64::new(FIRST + 1), tasks: tasks.clone() }
    }

    /// Adds a watch. The handler is notified when it was created, and of every event.
    pub(super) fn add(&self, spec: WatchSpec) -> i64 {
        let watch = self.next.fetch_add(1, Ordering::Relaxed);
        let guard = self.tasks.guard();
        // If the task has ended, the engine is gone.
        let _ = self.commands.send(WatchCommand::Add { watch, spec, guard });
        watch
    }

    /// Removes a watch. Events that are in flight may still be delivered.
    pub(super) fn remove(&self, watch: i64) {
        let _ = self.commands.send(WatchCommand::Remove(watch));
    }
}

struct WatchTask {
    connection: Arc<ClusterConnection>,
    handler: Arc<dyn WatchHandler>,
    first: WatchSpec,
    /// All watches. The guard counts a task until the watch is created for the first time.
    watches: HashMap<i64, (WatchSpec, Option<TaskGuard>)>,
    inbox: mpsc::UnboundedReceiver<WatchCommand>,
}

/// Why a stream has ended.
enum StreamEnd {
    /// The engine is gone.
    Closed,
    /// It broke, another member is in use, or its token expires soon.
    Broken,
    /// The server refused a watch: the token of the stream has expired.
    Refused(String),
}

impl WatchTask {
    async fn run(mut self) {
        let mut backoff = BACKOFF.0;
        let mut reconnected = false;
        loop {
            let member = *self.connection.current().borrow();
            match self.open(member).await {
                Ok(stream) => {
                    if reconnected {
                        self.handler.on_reconnect();
                    }
                    match self.serve(stream, member).await {
                        StreamEnd::Closed => return,
                        StreamEnd::Broken => backoff = BACKOFF.0,
                        StreamEnd::Refused(reason) => {
                            tracing::debug!(%reason, "watch refused; renewing the token");
                            backoff = (backoff * 2).min(BACKOFF.1);
                            if let Err(failure) =
                                self.connection.client_of(member).renew_token().await
                            {
                                tracing::debug!(%failure, "renewing the token failed");
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(?error, "opening the watch stream failed");
                    self.connection.switch_from(member);
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
            reconnected = true;
            if self.inbox.is_closed() && self.inbox.is_empty() {
                return;
            }
            sleep(backoff).await;
        }
    }

    async fn open(&self, member: usize) -> Result<WatchStream, CallError> {
        let client = self.connection.client_of(member);
        match timeout(OPEN_TIMEOUT, client.watch(request(&self.first, FIRST))).await {
            Ok(opened) => opened.map_err(|failure| CallError::from_rpc(&failure)),
            Err(_) => Err(CallError::Timeout(OPEN_TIMEOUT)),
        }
    }

    async fn serve(&mut self, mut stream: WatchStream, member: usize) -> StreamEnd {
        for (watch, (spec, _)) in &self.watches {
            if stream.send(request(spec, *watch)).is_err() {
                return StreamEnd::Broken;
            }
        }
        let mut current = self.connection.current();
        // A stream keeps its token, and a watch that is added after its expiry is refused.
        let fresh = stream.token_life().map(stream_age);
        let mut ageing = std::pin::pin!(sleep(fresh.unwrap_or_default()));
        loop {
            tokio::select! {
                command = self.inbox.recv() => match command {
                    None => return StreamEnd::Closed,
                    Some(WatchCommand::Add { watch, spec, guard }) => {
                        let wanted = request(&spec, watch);
                        self.watches.insert(watch, (spec, Some(guard)));
                        if stream.send(wanted).is_err() {
                            return StreamEnd::Broken;
                        }
                    }
                    Some(WatchCommand::Remove(watch)) => {
                        self.watches.remove(&watch);
                        if stream.send(WatchCancelRequest { watch_id: watch }).is_err() {
                            return StreamEnd::Broken;
                        }
                    }
                },
                response = stream.next() => match self.observed(response) {
                    // A refused watch is reported as created and canceled at once, without its id.
                    Ok(Some(response)) if response.created && response.canceled => {
                        return StreamEnd::Refused(response.cancel_reason);
                    }
                    Ok(Some(response)) if response.created => self.on_created(response.watch_id),
                    Ok(Some(response)) if response.canceled => {
                        // Canceled by `remove`, or because it fell behind a compaction.
                        if self.watches.contains_key(&response.watch_id) {
                            return StreamEnd::Broken;
                        }
                    }
                    Ok(Some(response)) => self.on_events(response.watch_id, response.events),
                    Ok(None) | Err(_) => {
                        self.connection.switch_from(member);
                        return StreamEnd::Broken;
                    }
                },
                _ = current.changed() => {
                    if *current.borrow() != member {
                        return StreamEnd::Broken;
                    }
                }
                () = &mut ageing, if fresh.is_some() => return StreamEnd::Broken,
            }
        }
    }

    /// Records the revision that a response names.
    fn observed<E>(
        &self,
        response: Result<Option<WatchResponse>, E>,
    ) -> Result<Option<WatchResponse>, E> {
        if let Ok(Some(response)) = &response {
            self.connection.observe_watch(response.header.as_ref());
        }
        response
    }

    fn on_created(&mut self, watch: i64) {
        if let Some((_, guard)) = self.watches.get_mut(&watch) {
            let guard = guard.take();
            self.handler.on_notice(watch, WatchNotice::Created);
            drop(guard);
        }
    }

    fn on_events(&self, watch: i64, events: Vec<Event>) {
        if !events.is_empty() {
            self.handler.on_notice(watch, WatchNotice::Events(events));
        }
    }
}

/// How long a stream is used whose token lives this long.
fn stream_age(life: Duration) -> Duration {
    (life * 3 / 4).max(MIN_STREAM_AGE)
}

fn request(spec: &WatchSpec, watch: i64) -> WatchCreateRequest {
    let (key, range_end, filter) = match spec {
        WatchSpec::KeyDeleted(key, _) => (key.clone(), Vec::new(), Some(FilterType::NoPut)),
        WatchSpec::KeyWritten(key) => (key.clone(), Vec::new(), Some(FilterType::NoDelete)),
        WatchSpec::DeletedIn(range) => {
            (range.from.clone(), range.to.clone(), Some(FilterType::NoPut))
        }
        WatchSpec::AnyIn(range) => (range.from.clone(), range.to.clone(), None),
    };
    let filters = filter.into_iter().map(i32::from).collect();
    WatchCreateRequest { key, range_end, filters, watch_id: watch, start_revision: 0 }
}

/// Whether an event is a deletion.
pub(super) fn is_deletion(event: &Event) -> bool {
    event.r#type() == EventType::Delete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_does_not_open_streams_again_and_again() {
        for seconds in [0, 1, 13] {
            assert_eq!(stream_age(Duration::from_secs(seconds)), MIN_STREAM_AGE, "{seconds}");
        }
        assert_eq!(stream_age(Duration::from_secs(300)), Duration::from_secs(225));
    }
}

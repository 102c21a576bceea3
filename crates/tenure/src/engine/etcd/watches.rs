//! One stream of watches, which comes back by itself. Knows keys and who asked about them, not
//! what they mean.
//!
//! Every watch begins now, never at an older revision: such a watch would be served from a loop of
//! etcd's that runs ten times a second, and could meet a compaction. Instead whoever watches is
//! told when the watch stands, and looks once more: nothing can be missed after that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::client::{
    Event, EventType, FilterType, WatchCancelRequest, WatchCreateRequest, WatchStream,
};
use super::connection::ClusterConnection;
use super::errors::CallError;
use super::keys::Range;
use super::tasks::{TaskGuard, Tasks};

/// How long a new stream may take until it stands.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait after a stream has broken, the first time and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The watch that every stream begins with.
const FIRST: i64 = 1;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WatchSpec {
    /// Until this key is gone that was created by this revision.
    KeyDeleted(Vec<u8>, u64),
    /// Until this key is written.
    KeyWritten(Vec<u8>),
    /// What is deleted in a range.
    DeletedIn(Range),
    /// Everything in a range.
    AnyIn(Range),
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum WatchNotice {
    /// It stands: look once more at what is watched.
    Created,
    /// Something happened.
    Events(Vec<Event>),
}

/// Hears what watches tell. Must not block.
pub(super) trait WatchHandler: Send + Sync + 'static {
    fn on_notice(&self, watch: i64, notice: WatchNotice);
    /// The stream is a new one: events may have been missed.
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
    /// Starts the stream with a watch of a key that is there for it alone.
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

    /// Watches from now on. The watcher is told when the watch stands, and of every event.
    pub(super) fn add(&self, spec: WatchSpec) -> i64 {
        let watch = self.next.fetch_add(1, Ordering::Relaxed);
        let guard = self.tasks.guard();
        // If the stream is gone, so is the engine.
        let _ = self.commands.send(WatchCommand::Add { watch, spec, guard });
        watch
    }

    /// Watches no more. Events that are under way may still be told.
    pub(super) fn remove(&self, watch: i64) {
        let _ = self.commands.send(WatchCommand::Remove(watch));
    }
}

struct WatchTask {
    connection: Arc<ClusterConnection>,
    handler: Arc<dyn WatchHandler>,
    first: WatchSpec,
    /// What is watched; busy until it stands for the first time.
    watches: HashMap<i64, (WatchSpec, Option<TaskGuard>)>,
    inbox: mpsc::UnboundedReceiver<WatchCommand>,
}

/// Why a stream is left.
enum StreamEnd {
    /// Nobody will give an order any more.
    Closed,
    /// It broke, another member is asked now, or its token ends soon.
    Broken,
    /// The server refused a watch: the token of the stream has ended.
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
                            tracing::debug!(%reason, "a watch was refused; renewing the token");
                            backoff = (backoff * 2).min(BACKOFF.1);
                            if let Err(failure) =
                                self.connection.client_of(member).renew_token().await
                            {
                                tracing::debug!(%failure, "the token was not renewed");
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(?error, "no stream of watches");
                    self.connection.failed(member);
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
            Ok(opened) => opened.map_err(|failure| CallError::of(&failure)),
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
        // A stream keeps its token, and a watch that is added after the token's end is refused.
        let fresh = stream.token_life().map(|life| life * 3 / 4);
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
                answer = stream.next() => match answer {
                    // A refused watch is reported as created and canceled at once, without its id.
                    Ok(Some(answer)) if answer.created && answer.canceled => {
                        return StreamEnd::Refused(answer.cancel_reason);
                    }
                    Ok(Some(answer)) if answer.created => self.on_created(answer.watch_id),
                    Ok(Some(answer)) if answer.canceled => {
                        // Asked for by us, or the watch fell so far behind that a compaction met
                        // it.
                        if self.watches.contains_key(&answer.watch_id) {
                            return StreamEnd::Broken;
                        }
                    }
                    Ok(Some(answer)) => self.on_events(answer.watch_id, answer.events),
                    Ok(None) | Err(_) => {
                        self.connection.failed(member);
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

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
use super::errors::Trouble;
use super::keys::Range;
use super::link::Link;
use super::tasks::{Busy, Tasks};

/// How long a new stream may take until it stands.
const OPEN: Duration = Duration::from_secs(2);

/// How long to wait after a stream has broken, the first time and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The watch that every stream begins with.
const FIRST: i64 = 1;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Spec {
    /// Until this key is gone that was created by this revision.
    Gone(Vec<u8>, u64),
    /// Until this key is written.
    Written(Vec<u8>),
    /// What is deleted in a range.
    GoneIn(Range),
    /// Everything in a range.
    All(Range),
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum News {
    /// It stands: look once more at what is watched.
    Stands,
    /// Something happened.
    Events(Vec<Event>),
}

/// Hears what watches tell. Must not block.
pub(super) trait Watcher: Send + Sync + 'static {
    fn hear(&self, watch: i64, news: News);
    /// The stream is a new one: events may have been missed.
    fn again(&self);
}

/// The watches of an engine.
pub(super) struct Watching {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicI64,
    tasks: Tasks,
}

enum Order {
    Add { watch: i64, spec: Spec, busy: Busy },
    Remove(i64),
}

impl Watching {
    /// Starts the stream with a watch of a key that is there for it alone.
    pub(super) fn start(
        link: Arc<Link>,
        tasks: &Tasks,
        first: &[u8],
        watcher: Arc<dyn Watcher>,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let stream = Stream {
            link,
            watcher,
            first: Spec::All(Range { from: first.to_vec(), to: [first, &[0]].concat() }),
            watches: HashMap::new(),
            inbox,
        };
        tasks.spawn_lasting(stream.run());
        Self { orders, next: AtomicI64::new(FIRST + 1), tasks: tasks.clone() }
    }

    /// Watches from now on. The watcher is told when the watch stands, and of every event.
    pub(super) fn add(&self, spec: Spec) -> i64 {
        let watch = self.next.fetch_add(1, Ordering::Relaxed);
        let busy = self.tasks.busy();
        // If the stream is gone, so is the engine.
        let _ = self.orders.send(Order::Add { watch, spec, busy });
        watch
    }

    /// Watches no more. Events that are under way may still be told.
    pub(super) fn remove(&self, watch: i64) {
        let _ = self.orders.send(Order::Remove(watch));
    }
}

struct Stream {
    link: Arc<Link>,
    watcher: Arc<dyn Watcher>,
    first: Spec,
    /// What is watched; busy until it stands for the first time.
    watches: HashMap<i64, (Spec, Option<Busy>)>,
    inbox: mpsc::UnboundedReceiver<Order>,
}

/// Why a stream is left.
enum Left {
    /// Nobody will give an order any more.
    Closed,
    /// It broke, another member is asked now, or its token ends soon.
    Broken,
    /// The server refused a watch: the token of the stream has ended.
    Refused(String),
}

impl Stream {
    async fn run(mut self) {
        let mut pause = PAUSE.0;
        let mut again = false;
        loop {
            let member = *self.link.current().borrow();
            match self.open(member).await {
                Ok(stream) => {
                    if again {
                        self.watcher.again();
                    }
                    match self.serve(stream, member).await {
                        Left::Closed => return,
                        Left::Broken => pause = PAUSE.0,
                        Left::Refused(reason) => {
                            tracing::debug!(%reason, "a watch was refused; renewing the token");
                            pause = (pause * 2).min(PAUSE.1);
                            if let Err(failure) = self.link.client_of(member).renew_token().await {
                                tracing::debug!(%failure, "the token was not renewed");
                            }
                        }
                    }
                }
                Err(trouble) => {
                    tracing::debug!(?trouble, "no stream of watches");
                    self.link.failed(member);
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
            again = true;
            if self.inbox.is_closed() && self.inbox.is_empty() {
                return;
            }
            sleep(pause).await;
        }
    }

    async fn open(&self, member: usize) -> Result<WatchStream, Trouble> {
        let client = self.link.client_of(member);
        match timeout(OPEN, client.watch(request(&self.first, FIRST))).await {
            Ok(opened) => opened.map_err(|failure| Trouble::of(&failure)),
            Err(_) => Err(Trouble::Silence(OPEN)),
        }
    }

    async fn serve(&mut self, mut stream: WatchStream, member: usize) -> Left {
        for (watch, (spec, _)) in &self.watches {
            if stream.send(request(spec, *watch)).is_err() {
                return Left::Broken;
            }
        }
        let mut current = self.link.current();
        // A stream keeps its token, and a watch that is added after the token's end is refused.
        let fresh = stream.token_life().map(|life| life * 3 / 4);
        let mut ageing = std::pin::pin!(sleep(fresh.unwrap_or_default()));
        loop {
            tokio::select! {
                order = self.inbox.recv() => match order {
                    None => return Left::Closed,
                    Some(Order::Add { watch, spec, busy }) => {
                        let wanted = request(&spec, watch);
                        self.watches.insert(watch, (spec, Some(busy)));
                        if stream.send(wanted).is_err() {
                            return Left::Broken;
                        }
                    }
                    Some(Order::Remove(watch)) => {
                        self.watches.remove(&watch);
                        if stream.send(WatchCancelRequest { watch_id: watch }).is_err() {
                            return Left::Broken;
                        }
                    }
                },
                answer = stream.next() => match answer {
                    // A refused watch is reported as created and canceled at once, without its id.
                    Ok(Some(answer)) if answer.created && answer.canceled => {
                        return Left::Refused(answer.cancel_reason);
                    }
                    Ok(Some(answer)) if answer.created => self.stands(answer.watch_id),
                    Ok(Some(answer)) if answer.canceled => {
                        // Asked for by us, or the watch fell so far behind that a compaction met
                        // it.
                        if self.watches.contains_key(&answer.watch_id) {
                            return Left::Broken;
                        }
                    }
                    Ok(Some(answer)) => self.tell(answer.watch_id, answer.events),
                    Ok(None) | Err(_) => {
                        self.link.failed(member);
                        return Left::Broken;
                    }
                },
                _ = current.changed() => {
                    if *current.borrow() != member {
                        return Left::Broken;
                    }
                }
                () = &mut ageing, if fresh.is_some() => return Left::Broken,
            }
        }
    }

    fn stands(&mut self, watch: i64) {
        if let Some((_, busy)) = self.watches.get_mut(&watch) {
            let busy = busy.take();
            self.watcher.hear(watch, News::Stands);
            drop(busy);
        }
    }

    fn tell(&self, watch: i64, events: Vec<Event>) {
        if !events.is_empty() {
            self.watcher.hear(watch, News::Events(events));
        }
    }
}

fn request(spec: &Spec, watch: i64) -> WatchCreateRequest {
    let (key, range_end, filter) = match spec {
        Spec::Gone(key, _) => (key.clone(), Vec::new(), Some(FilterType::NoPut)),
        Spec::Written(key) => (key.clone(), Vec::new(), Some(FilterType::NoDelete)),
        Spec::GoneIn(range) => (range.from.clone(), range.to.clone(), Some(FilterType::NoPut)),
        Spec::All(range) => (range.from.clone(), range.to.clone(), None),
    };
    let filters = filter.into_iter().map(i32::from).collect();
    WatchCreateRequest { key, range_end, filters, watch_id: watch, start_revision: 0 }
}

/// Whether an event is a deletion.
pub(super) fn is_deletion(event: &Event) -> bool {
    event.r#type() == EventType::Delete
}

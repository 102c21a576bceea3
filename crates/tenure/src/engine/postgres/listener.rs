//! The connection that receives notifications (`LISTEN`), one for all sessions of an engine: the
//! server's work for a notification grows with the number of listening connections.
//!
//! A task owns the connection and processes one [`ListenRequest`] at a time. When the connection
//! breaks, the task reconnects by itself, with exponential backoff and jitter, because no caller
//! may come: sessions that only wait send nothing but renewals, and those use another connection.
//! On each new connection all registered sessions are subscribed before the state becomes `Up`;
//! then the sessions get a resync and the watchers of cells a gap, since notifications sent
//! meanwhile are lost.
//!
//! A second task drives the socket and passes notifications to the [`SignalRouter`]. It must not
//! wait for the first one, which waits for replies on the same socket.
//!
//! [`SignalRouter`]: super::signals::SignalRouter

use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use super::cell_watches::{RegisterError, RegisteredWatches};
use super::connect::{ConnectionContext, backend_pid};
use super::errors::{self, SendState};
use super::signals::channel;
use super::tls::Encrypted;
use crate::contract::{Error, ErrorKind, SessionId};
use crate::engine::common::jitter;
use crate::limits;

/// The first pause before a reconnect; it doubles with each failed attempt.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// The longest pause.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// Interval of pings while there are no requests.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A request to the listener's task.
enum ListenRequest {
    Subscribe(SessionId),
    Unsubscribe(SessionId),
    /// Replies when later changes are notified to all watchers of cells.
    WatchCells(PendingWatch),
    /// Replies after all notifications that the server has sent before.
    RoundTrip(oneshot::Sender<()>),
}

/// A request to register the watchers of cells. Counted until it is dropped.
struct PendingWatch {
    context: Arc<ConnectionContext>,
    reply: Option<oneshot::Sender<Result<(), Error>>>,
}

/// A handle of the listener's task. Dropping it ends the task and closes the connection.
pub(super) struct NotificationListener {
    requests: mpsc::UnboundedSender<ListenRequest>,
    context: Arc<ConnectionContext>,
    /// Changes with the state of the connection, and with each subscription.
    state: watch::Receiver<ListenerState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerState {
    Up,
    Down,
}

impl NotificationListener {
    /// Starts the task. Returns when the connection is up for the first time.
    ///
    /// # Errors
    /// If the first attempt to connect fails.
    pub(super) async fn start(
        context: Arc<ConnectionContext>,
        runtime: &Handle,
    ) -> Result<Self, Error> {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (first, connected) = oneshot::channel();
        let (sender, state) = watch::channel(ListenerState::Down);
        runtime.spawn(run(Arc::clone(&context), receiver, sender, first));
        let ended = |_| Err(errors::unexpected_reply());
        connected.await.unwrap_or_else(ended)?;
        Ok(Self { requests, context, state })
    }

    /// Subscribes to the channel of a session, in the background.
    pub(super) fn subscribe(&self, session: SessionId) {
        // Without a task nothing is received, and waiters find their grants by renewing.
        let _ = self.requests.send(ListenRequest::Subscribe(session));
    }

    /// Waits until the channel of a session is subscribed to. Returns at once while the connection
    /// is down: after the reconnect every session gets a resync.
    pub(super) async fn subscribed(&self, session: SessionId) {
        let router = &self.context.router;
        if router.is_subscribed(session) {
            return;
        }
        let mut state = self.state.clone();
        while *state.borrow_and_update() == ListenerState::Up && !router.is_subscribed(session) {
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    /// Unsubscribes from the channel of a session, in the background.
    pub(super) fn unsubscribe(&self, session: SessionId) {
        let _ = self.requests.send(ListenRequest::Unsubscribe(session));
    }

    /// Registers the watchers of cells with the server. Returns when all later changes are notified
    /// to them.
    ///
    /// # Errors
    /// `Unavailable` while the connection is down; otherwise why the server refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time: the task goes on.
    pub(super) async fn watch_cells(&self) -> Result<(), Error> {
        let (sender, done) = oneshot::channel();
        let watch = PendingWatch::new(&self.context, sender);
        let _ = self.requests.send(ListenRequest::WatchCells(watch));
        done.await.unwrap_or_else(|_| Err(no_listener()))
    }

    /// Completes after all notifications that the server has sent before were dispatched.
    #[cfg_attr(not(feature = "conformance"), allow(dead_code, reason = "the suite waits for it"))]
    pub(super) fn round_trip(&self) -> oneshot::Receiver<()> {
        let (sender, done) = oneshot::channel();
        let _ = self.requests.send(ListenRequest::RoundTrip(sender));
        done
    }
}

impl PendingWatch {
    fn new(context: &Arc<ConnectionContext>, reply: oneshot::Sender<Result<(), Error>>) -> Self {
        context.router.count_registration(true);
        Self { context: Arc::clone(context), reply: Some(reply) }
    }

    fn reply(mut self, outcome: Result<(), Error>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(outcome);
        }
    }
}

impl Drop for PendingWatch {
    fn drop(&mut self) {
        self.context.router.count_registration(false);
    }
}

/// The task: connects, serves requests until the connection breaks, reconnects. `first` gets the
/// outcome of the first attempt; if that fails, the task ends.
async fn run(
    context: Arc<ConnectionContext>,
    mut requests: mpsc::UnboundedReceiver<ListenRequest>,
    state: watch::Sender<ListenerState>,
    first: oneshot::Sender<Result<(), Error>>,
) {
    let mut first = Some(first);
    let mut failures = 0;
    loop {
        match open(&context).await {
            Ok(mut listening) => {
                state.send_replace(ListenerState::Up);
                if let Some(first) = first.take() {
                    _ = first.send(Ok(()));
                } else {
                    // Notifications were lost while the connection was down.
                    context.router.resync();
                    context.router.watchers.gap();
                }
                failures = 0;
                let served = serve(&context, &mut listening, &mut requests, &state).await;
                state.send_replace(ListenerState::Down);
                if served == Served::HandleDropped {
                    return;
                }
                tracing::debug!("the listening connection broke; reconnecting");
            }
            Err(error) => {
                if let Some(first) = first.take() {
                    let _ = first.send(Err(error));
                    return;
                }
                tracing::debug!("reconnect of the listening connection failed: {error}");
                drop_requests(&mut requests);
            }
        }
        if requests.is_closed() {
            return;
        }
        tokio::time::sleep(jitter::backoff(MIN_BACKOFF, MAX_BACKOFF, failures)).await;
        failures += 1;
    }
}

/// Drops the requests that have come while there is no connection. The next connection subscribes
/// to all sessions by itself; a caller that wants to watch cells gets an error.
fn drop_requests(requests: &mut mpsc::UnboundedReceiver<ListenRequest>) {
    while let Ok(request) = requests.try_recv() {
        if let ListenRequest::WatchCells(watch) = request {
            watch.reply(Err(no_listener()));
        }
    }
}

fn no_listener() -> Error {
    Error::new(ErrorKind::Unavailable, "the listening connection is down")
        .with_help("try again: Tenure reconnects by itself")
}

/// An open connection.
struct Listening {
    client: Client,
    /// Completes when the connection closes.
    closed: oneshot::Receiver<()>,
    watches: RegisteredWatches,
}

/// Connects, subscribes to the channels of all sessions and registers the watchers of cells.
async fn open(context: &Arc<ConnectionContext>) -> Result<Listening, Error> {
    let (client, connection) = context.open().await?;
    let opening = async {
        let (sender, closed) = oneshot::channel();
        let receiving = Arc::clone(context);
        tokio::spawn(async move {
            receive(&receiving, connection).await;
            let _ = sender.send(());
        });
        context.set_listener_pid(backend_pid(&client).await?);
        let sessions = context.router.sessions();
        let mut text = String::new();
        let probe = context.router.probe_channel();
        for channel in sessions.iter().copied().map(channel).chain([probe]) {
            // Safe to quote: a channel has only letters, digits, colons and dashes.
            let _ = write!(text, "LISTEN \"{channel}\";");
        }
        let failed = |error: tokio_postgres::Error| errors::to_error(&error, SendState::NotSent);
        client.batch_execute(&text).await.map_err(failed)?;
        for session in sessions {
            context.router.set_subscribed(session);
        }
        let mut watches = RegisteredWatches::new();
        match watches.update(context, &client).await {
            Ok(()) => {}
            Err(RegisterError::Refused(error)) => {
                tracing::warn!("cells are not watched, the server refuses: {error}");
            }
            Err(RegisterError::Broken) => return Err(no_listener()),
        }
        Ok(Listening { client, closed, watches })
    };
    let timed_out = |_| {
        let what = format!("{} does not answer", context.location);
        Err(Error::new(ErrorKind::Unavailable, what)
            .with_help("check that the server runs and can be reached"))
    };
    tokio::time::timeout(limits::CALL * 4, opening).await.unwrap_or_else(timed_out)
}

/// Drives the socket and dispatches notifications, until the connection closes.
async fn receive(context: &ConnectionContext, mut connection: Connection<Socket, Encrypted>) {
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(message))) => {
                context.router.on_notification(message.channel(), message.payload());
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}

/// Why [`serve`] has returned.
#[derive(PartialEq, Eq)]
enum Served {
    ConnectionBroken,
    HandleDropped,
}

/// Processes requests, and pings the server between them.
async fn serve(
    context: &ConnectionContext,
    Listening { client, closed, watches }: &mut Listening,
    requests: &mut mpsc::UnboundedReceiver<ListenRequest>,
    state: &watch::Sender<ListenerState>,
) -> Served {
    loop {
        let mut ping = pin!(tokio::time::sleep(PING_INTERVAL));
        let event = poll_fn(|cx| {
            if Pin::new(&mut *closed).poll(cx).is_ready() {
                return Poll::Ready(ListenerEvent::Closed);
            }
            if let Poll::Ready(request) = requests.poll_recv(cx) {
                let event = request.map_or(ListenerEvent::HandleDropped, ListenerEvent::Request);
                return Poll::Ready(event);
            }
            ping.as_mut().poll(cx).map(|()| ListenerEvent::PingDue)
        })
        .await;
        let succeeded = match event {
            ListenerEvent::Closed => return Served::ConnectionBroken,
            ListenerEvent::HandleDropped => return Served::HandleDropped,
            ListenerEvent::PingDue => {
                let updated = watches.update(context, client).await;
                !matches!(updated, Err(RegisterError::Broken))
                    && in_time(client.check_connection()).await
            }
            ListenerEvent::Request(ListenRequest::WatchCells(watch)) => {
                let updated = watches.update(context, client).await;
                let succeeded = !matches!(updated, Err(RegisterError::Broken));
                watch.reply(updated.map_err(|error| match error {
                    RegisterError::Refused(error) => error,
                    RegisterError::Broken => no_listener(),
                }));
                succeeded
            }
            ListenerEvent::Request(ListenRequest::Subscribe(session)) => {
                let text = format!("LISTEN \"{}\"", channel(session));
                let succeeded = in_time(client.batch_execute(&text)).await;
                // Also after a failure, which ends this connection: the next one subscribes to all
                // sessions and is followed by a resync, so no caller has to wait for it.
                context.router.set_subscribed(session);
                state.send_replace(ListenerState::Up);
                succeeded
            }
            ListenerEvent::Request(ListenRequest::Unsubscribe(session)) => {
                in_time(client.batch_execute(&format!("UNLISTEN \"{}\"", channel(session)))).await
            }
            ListenerEvent::Request(ListenRequest::RoundTrip(done)) => {
                let succeeded = in_time(client.check_connection()).await;
                let _ = done.send(());
                succeeded
            }
        };
        if !succeeded {
            return Served::ConnectionBroken;
        }
    }
}

enum ListenerEvent {
    Request(ListenRequest),
    PingDue,
    Closed,
    HandleDropped,
}

/// Returns whether a statement succeeds within the time limit of a call.
async fn in_time(reply: impl Future<Output = Result<(), tokio_postgres::Error>>) -> bool {
    matches!(tokio::time::timeout(limits::CALL, reply).await, Ok(Ok(())))
}

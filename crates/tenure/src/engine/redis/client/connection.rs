//! A multiplexed connection: shared by many callers, in order, reconnecting. `pending.rs` is the
//! state behind its mutex, `driver.rs` the task that reads, writes and reconnects; `mod.rs` has the
//! states and invariants.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::commands::pack;
use super::driver;
use super::errors::RequestError;
use super::pending::{
    ConnectivityState, Deferred, PendingRequests, ReplyTo, RequestBatch, RequestResult,
};
use super::resp::CloseReason;
use super::sentinel::PrimaryResolver;
use crate::contract::{Effect, Error};
use crate::engine::common::redis::url::{Address, Location};
use crate::engine::common::runtime::blocks_a_runtime;

/// What the owner of a connection adds to its handshake, and where it receives pushes.
///
/// Called from the task of the connection, without any lock held. Must not block.
pub(in crate::engine) trait ConnectionHandler: Send + Sync {
    /// Returns packed commands to send on each new connection, after login and before requests.
    fn greeting(&self) -> Vec<Vec<u8>>;

    /// Checks the replies to `greeting`: one for each command, errors included.
    ///
    /// # Errors
    /// Rejects the connection; callers receive the error. If it is not transient, every request
    /// fails with it until an attempt succeeds.
    fn judge(&self, replies: Vec<Value>) -> Result<(), Error>;

    /// The handshake is done, for the first time or after a reconnection.
    fn ready(&self, first: bool);

    /// The connection broke. What is published until it is ready again is missed.
    fn lost(&self);

    /// A message was published on a subscribed channel.
    fn message(&self, channel: &[u8], payload: &[u8]);

    /// The server ended a subscription by itself: in a cluster, because the slot of the channel was
    /// moved to another node.
    fn unsubscribed(&self, _channel: &[u8]) {}
}

/// Produces requests from a queue of the engine's own, right before the task writes. Is also called
/// when there is no connection; what it then produces fails.
pub(in crate::engine) type RequestSource = Box<dyn Fn(&mut RequestBatch) + Send + Sync>;

/// Where the task of a connection runs.
#[derive(Clone, Debug)]
pub(in crate::engine) struct TaskRuntimes {
    /// Used while it exists. Best the runtime of the callers: their replies wake no other thread.
    pub(in crate::engine) first: Handle,
    /// Used after `first` was shut down.
    pub(in crate::engine) fallback: Handle,
}

/// One connection, shared. Dropping it closes it, and fails all pending requests.
pub(in crate::engine) struct MultiplexedConnection(Arc<ConnectionShared>);

/// What callers share with the task.
pub(super) struct ConnectionShared {
    pub(super) location: Arc<Location>,
    pub(super) resolver: PrimaryResolver,
    pub(super) handler: Arc<dyn ConnectionHandler>,
    pub(super) source: RequestSource,
    pending: Mutex<PendingRequests>,
    /// The engine's own thread, which no caller blocks.
    own: Handle,
}

impl MultiplexedConnection {
    /// Starts to connect, and retries until dropped.
    pub(in crate::engine) fn open(
        location: Arc<Location>,
        handler: Arc<dyn ConnectionHandler>,
        source: RequestSource,
        runtimes: TaskRuntimes,
    ) -> Self {
        let pending = Mutex::new(PendingRequests::new());
        let resolver = PrimaryResolver::new(location.clone());
        let own = runtimes.fallback.clone();
        let shared =
            Arc::new(ConnectionShared { location, resolver, handler, source, pending, own });
        driver::start(shared.clone(), &runtimes.first, Some(runtimes.fallback));
        Self(shared)
    }

    /// Runs what was deferred until the mutex was released.
    fn run(&self, deferred: Deferred) {
        if deferred.wake.is_some() && blocks_a_runtime() {
            self.0.own.spawn(async move { deferred.run() });
        } else {
            deferred.run();
        }
    }

    /// Sends a packed command at once, in order with all others, whether or not the future is
    /// polled. Has no timeout: callers have their own.
    ///
    /// # Errors
    /// If the server replies with an error, the connection breaks, or no connection can be made.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The command is sent all the same; its reply is discarded.
    pub(in crate::engine) fn call(&self, packed: &[u8]) -> PendingReply {
        let (caller, reply) = oneshot::channel();
        self.send(packed, ReplyTo::One(caller));
        PendingReply(reply)
    }

    /// Sends a packed command like [`call`](Self::call), and delivers its reply to `reply`.
    pub(in crate::engine) fn send(&self, packed: &[u8], reply: ReplyTo) {
        let deferred = self.0.pending().send(packed, reply);
        self.run(deferred);
    }

    /// Subscribes to a channel, in order with other requests. Is not repeated after a reconnection:
    /// the handler's greeting has to name the channel.
    pub(in crate::engine) fn subscribe(&self, channel: &[u8], reply: ReplyTo) {
        self.send(&pack(&[b"SUBSCRIBE", channel]), reply);
    }

    /// Unsubscribes from a channel, in order with other requests.
    pub(in crate::engine) fn unsubscribe(&self, channel: &[u8]) -> PendingReply {
        self.call(&pack(&[b"UNSUBSCRIBE", channel]))
    }

    /// Sends packed commands back to back on one connection: either all are sent on it, or none.
    pub(in crate::engine) fn call_all(&self, commands: &[Vec<u8>]) -> Vec<PendingReply> {
        let (mut deferred, mut replies) = (Vec::new(), Vec::with_capacity(commands.len()));
        let mut pending = self.0.pending();
        for command in commands {
            let (caller, reply) = oneshot::channel();
            deferred.push(pending.send(command, ReplyTo::One(caller)));
            replies.push(PendingReply(reply));
        }
        drop(pending);
        for one in deferred {
            self.run(one);
        }
        replies
    }

    /// Sends `prefix` (`ASKING`) and `packed` back to back on one connection. The reply to the
    /// prefix is ignored.
    pub(in crate::engine) fn call_after(&self, prefix: &[u8], packed: &[u8]) -> PendingReply {
        let (caller, reply) = oneshot::channel();
        let mut pending = self.0.pending();
        let deferred = [
            pending.send(prefix, ReplyTo::Many(Box::new(drop))),
            pending.send(packed, ReplyTo::One(caller)),
        ];
        drop(pending);
        for one in deferred {
            self.run(one);
        }
        PendingReply(reply)
    }

    /// Returns true if the handshake is done.
    pub(in crate::engine) fn is_ready(&self) -> bool {
        matches!(self.0.pending().state, ConnectivityState::Ready)
    }

    /// Returns true if it is connected, or is connecting, to another server than `address`.
    pub(in crate::engine) fn is_elsewhere(&self, address: &Address) -> bool {
        self.0.pending().is_elsewhere(address)
    }

    /// Reconnects to the server at `address`, unless that is the one in use. Requests in flight
    /// fail as if the connection had broken.
    pub(in crate::engine) fn relocate(&self, address: &Address) {
        let mut pending = self.0.pending();
        if !pending.is_elsewhere(address) {
            return;
        }
        pending.relocate = true;
        let deferred = pending.wake_task();
        drop(pending);
        self.run(deferred);
    }

    /// Returns true if a request would be written at once, by its caller.
    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.0.pending().is_idle()
    }

    /// Wakes the task, because the request source has something.
    pub(in crate::engine) fn notify(&self) {
        let mut pending = self.0.pending();
        let deferred = pending.wake_task();
        let closed = match &pending.state {
            ConnectivityState::Closed(error) => Some(error.clone()),
            _ => None,
        };
        drop(pending);
        self.run(deferred);
        // The task has ended and drains the source no more.
        if let Some(error) = closed {
            self.0.fail(Vec::new(), &error);
        }
    }

    /// Drains the request source and writes now, in the caller: the source has a whole batch, which
    /// the server can work on while more requests come.
    pub(in crate::engine) fn flush(&self) {
        if !matches!(self.0.pending().state, ConnectivityState::Ready) {
            return self.notify();
        }
        let mut batch = RequestBatch::default();
        (self.0.source)(&mut batch);
        let mut pending = self.0.pending();
        if matches!(pending.state, ConnectivityState::Ready) {
            let deferred = pending.send_batch(batch);
            drop(pending);
            return self.run(deferred);
        }
        // It broke between the two locks, and nothing of the batch was sent.
        drop(pending);
        let reason = "it broke before this was sent".into();
        let error = RequestError::Disconnected { effect: Effect::None, reason };
        for reply in batch.into_replies() {
            reply.deliver(Err(error.clone()));
        }
    }
}

impl Drop for MultiplexedConnection {
    fn drop(&mut self) {
        self.0.close(&RequestError::Closed);
    }
}

impl fmt::Debug for MultiplexedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = &self.0.location;
        f.debug_struct("MultiplexedConnection").field("location", location).finish_non_exhaustive()
    }
}

impl ConnectionShared {
    pub(super) fn pending(&self) -> MutexGuard<'_, PendingRequests> {
        // Nothing runs under this mutex that could panic half done.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection broke: fails what was in flight and returns to `Connecting`.
    pub(super) fn disconnect(&self, reason: &CloseReason) {
        let mut pending = self.pending();
        let was_ready = matches!(pending.state, ConnectivityState::Ready);
        let failed = pending.disconnect(ConnectivityState::Connecting, reason);
        drop(pending);
        for (reply, error) in failed {
            reply.deliver(Err(error));
        }
        if was_ready {
            tracing::warn!("connection to {} lost: {reason}; reconnecting", self.location);
            self.handler.lost();
        }
    }

    /// An attempt to connect failed: fails the requests that waited for it.
    pub(super) fn reject(&self, error: &Error) {
        tracing::debug!("{error}");
        // After a transient error the next attempt may succeed, so that new requests wait for it.
        let transient = error.is_transient();
        let next = if transient {
            ConnectivityState::Connecting
        } else {
            ConnectivityState::Rejected(error.clone())
        };
        let mut pending = self.pending();
        pending.woken = false;
        let waiting = pending.reject(next);
        drop(pending);
        self.fail(waiting, &RequestError::NotConnected(error.clone()));
    }

    /// Closes the connection for good: it was dropped, or has no runtime left.
    pub(super) fn close(&self, error: &RequestError) {
        let mut pending = self.pending();
        let closed = ConnectivityState::Closed(error.clone());
        let failed = pending.disconnect(closed, &"it was closed".into());
        let deferred = pending.wake_task();
        drop(pending);
        for (reply, error) in failed {
            reply.deliver(Err(error));
        }
        self.fail(Vec::new(), error);
        deferred.run();
    }

    /// Fails `waiting`, and everything in the request source.
    pub(super) fn fail(&self, waiting: Vec<ReplyTo>, error: &RequestError) {
        let mut batch = RequestBatch::default();
        (self.source)(&mut batch);
        for reply in waiting.into_iter().chain(batch.into_replies()) {
            reply.deliver(Err(error.clone()));
        }
    }
}

/// The reply to a request that was sent.
#[derive(Debug)]
#[must_use = "the command is sent; its result is here"]
pub(crate) struct PendingReply(oneshot::Receiver<RequestResult>);

impl Future for PendingReply {
    type Output = RequestResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RequestResult> {
        let result = Pin::new(&mut self.0).poll(cx);
        result.map(|result| result.unwrap_or(Err(RequestError::Closed)))
    }
}

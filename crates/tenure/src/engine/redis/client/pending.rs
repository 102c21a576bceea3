//! Requests of one connection: bytes to write and replies awaited, in one order, behind one mutex.
//! Does no I/O but the one non-blocking write of a caller, and runs no callbacks.
//!
//! Two threads may write to the socket: the caller of [`PendingRequests::send`] and the
//! connection's task (`driver.rs`). They exclude each other by three fields: a caller writes only
//! if the buffer is empty, nothing is in flight and the task neither writes nor is about to.
//! Otherwise its bytes go to the buffer and the task is woken. So bytes reach the socket in the
//! order of the queue.
//!
//! `bytes_queued` and `bytes_written` count since the connection was made. A request whose end is
//! at or below `bytes_written` was accepted by the socket as a whole: only such a request can have
//! a reply, and only such a request can have had an effect if the connection breaks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use redis::{PushKind, Value};
use tokio::sync::oneshot;

use super::commands::ExpectedReply;
use super::errors::{RequestError, into_result};
use super::resp::CloseReason;
use super::stream::WriteHalf;
use crate::contract::{Effect, Error};
use crate::engine::common::redis::url::Address;

/// The result of a request.
pub(crate) type RequestResult = Result<Value, RequestError>;

/// Where the reply of a request is delivered.
pub(in crate::engine) enum ReplyTo {
    /// One caller, whose future may have been dropped.
    One(oneshot::Sender<RequestResult>),
    /// A callback, for requests that serve several callers. It runs in the connection's task and
    /// must not block.
    Many(Box<dyn FnOnce(RequestResult) + Send>),
}

impl ReplyTo {
    pub(super) fn deliver(self, result: RequestResult) {
        match self {
            // A caller that dropped its future does not want the reply.
            Self::One(caller) => drop(caller.send(result)),
            Self::Many(callback) => callback(result),
        }
    }
}

impl fmt::Debug for ReplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::One(_)) { "One" } else { "Many" })
    }
}

/// Requests that a [`RequestSource`](super::RequestSource) produced right before they are written.
#[derive(Debug, Default)]
pub(in crate::engine) struct RequestBatch {
    bytes: Vec<u8>,
    /// Their ends are offsets in `bytes`.
    requests: Vec<PendingRequest>,
}

impl RequestBatch {
    /// Adds a packed command.
    #[cfg(test)]
    pub(in crate::engine) fn push(&mut self, packed: &[u8], reply: ReplyTo) {
        self.write(|bytes| bytes.extend_from_slice(packed), reply);
    }

    /// Adds a command that `pack` appends to the buffer.
    pub(in crate::engine) fn write(&mut self, pack: impl FnOnce(&mut Vec<u8>), reply: ReplyTo) {
        let start = self.bytes.len();
        pack(&mut self.bytes);
        let expected = ExpectedReply::to(&self.bytes[start..]);
        self.requests.push(PendingRequest { end: self.bytes.len() as u64, expected, reply });
    }

    /// Discards the bytes and returns where the errors have to be delivered.
    pub(super) fn into_replies(self) -> Vec<ReplyTo> {
        self.requests.into_iter().map(|request| request.reply).collect()
    }
}

#[derive(Debug)]
struct PendingRequest {
    /// Where the command ends, counted in bytes since the connection was made.
    end: u64,
    expected: ExpectedReply,
    reply: ReplyTo,
}

/// A value that was read, with its meaning.
#[derive(Debug)]
pub(super) enum Incoming {
    /// The reply to the oldest request.
    Reply(ReplyTo, RequestResult),
    /// A message that is no reply.
    Push(PushKind, Vec<Value>),
}

/// The state of the connection; `mod.rs` shows the transitions.
#[derive(Debug)]
pub(super) enum ConnectivityState {
    /// An attempt is in progress or will follow a backoff. Requests wait for its outcome.
    Connecting,
    /// The server rejected the latest attempt with an error that does not pass by itself. Requests
    /// fail at once with it, until an attempt succeeds.
    Rejected(Error),
    /// The handshake is done.
    Ready,
    /// Final.
    Closed(RequestError),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct PendingRequests {
    pub(super) state: ConnectivityState,
    /// The connection was ready before: its next handshake is a reconnection.
    pub(super) was_ready: bool,
    /// The task was woken, and has not looked since.
    pub(super) woken: bool,
    /// The task writes, or yielded to write in a moment: callers do not write past it.
    pub(super) task_busy: bool,
    /// The task has taken bytes out of the buffer that the socket has not accepted yet.
    pub(super) task_writing: bool,
    /// The server of the connection, or of the attempt in progress.
    pub(super) peer: Option<Address>,
    /// The task has to leave `peer`: the primary is another server by now.
    pub(super) relocate: bool,
    /// The socket, for callers to write to; none under TLS.
    writer: Option<Arc<WriteHalf>>,
    /// Bytes that were not written yet.
    buffer: Vec<u8>,
    bytes_queued: u64,
    bytes_written: u64,
    in_flight: VecDeque<PendingRequest>,
    /// Wakes the task, which stores a new one whenever it is polled.
    waker: Option<Waker>,
}

/// What a caller has to do after it has released the mutex.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct Deferred {
    pub(super) wake: Option<Waker>,
    pub(super) rejected: Option<(ReplyTo, RequestError)>,
}

impl Deferred {
    pub(super) fn run(self) {
        // Both may call back into this connection, so they run without the mutex.
        if let Some(waker) = self.wake {
            waker.wake();
        }
        if let Some((reply, error)) = self.rejected {
            reply.deliver(Err(error));
        }
    }
}

impl PendingRequests {
    pub(super) fn new() -> Self {
        Self {
            state: ConnectivityState::Connecting,
            was_ready: false,
            woken: false,
            task_busy: false,
            task_writing: false,
            peer: None,
            relocate: false,
            writer: None,
            buffer: Vec::new(),
            bytes_queued: 0,
            bytes_written: 0,
            in_flight: VecDeque::new(),
            waker: None,
        }
    }

    /// Queues a command. Fast path: on an idle connection the caller writes it to the socket here.
    pub(super) fn send(&mut self, packed: &[u8], reply: ReplyTo) -> Deferred {
        let error = match &self.state {
            ConnectivityState::Ready | ConnectivityState::Connecting => None,
            ConnectivityState::Rejected(error) => Some(RequestError::NotConnected(error.clone())),
            ConnectivityState::Closed(error) => Some(error.clone()),
        };
        if let Some(error) = error {
            return Deferred { wake: None, rejected: Some((reply, error)) };
        }
        // Before the request is queued, which would make the connection busy.
        let idle = self.is_idle();
        self.bytes_queued += packed.len() as u64;
        let expected = ExpectedReply::to(packed);
        // Queued before the first byte is written: the task may read the reply while this call is
        // still here.
        self.in_flight.push_back(PendingRequest { end: self.bytes_queued, expected, reply });
        let mut rest = packed;
        if let Some(writer) = self.writer.as_ref().filter(|_| idle) {
            // If it fails, the task meets the same error and ends the connection.
            let written = writer.try_write(packed).unwrap_or(0);
            self.bytes_written += written as u64;
            rest = &packed[written..];
        }
        if rest.is_empty() {
            return Deferred::default();
        }
        self.buffer.extend_from_slice(rest);
        self.wake_task()
    }

    /// Queues a batch. The caller writes it if the task has taken no bytes: the task may be waiting
    /// for other callers before it writes.
    pub(super) fn send_batch(&mut self, batch: RequestBatch) -> Deferred {
        let base = self.bytes_queued;
        self.bytes_queued += batch.bytes.len() as u64;
        let requests = batch.requests.into_iter();
        let requests = requests.map(|one| PendingRequest { end: base + one.end, ..one });
        self.in_flight.extend(requests);
        let mut rest = &batch.bytes[..];
        // Bytes of earlier requests that are still buffered must reach the socket first.
        let may_write = !self.task_writing && self.buffer.is_empty();
        if let Some(writer) = self.writer.as_ref().filter(|_| may_write) {
            let written = writer.try_write(rest).unwrap_or(0);
            self.bytes_written += written as u64;
            rest = &rest[written..];
        }
        if rest.is_empty() {
            return Deferred::default();
        }
        self.buffer.extend_from_slice(rest);
        self.wake_task()
    }

    /// Wakes the task: to write, or to end a backoff early.
    pub(super) fn wake_task(&mut self) -> Deferred {
        self.woken = true;
        // Taken, not cloned: the task stores its waker again when it is polled, so that a burst of
        // callers wakes it once.
        Deferred { wake: self.waker.take(), rejected: None }
    }

    /// Returns true if a request would be written by its caller.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, ConnectivityState::Ready)
            && self.in_flight.is_empty()
            && self.buffer.is_empty()
            && !self.task_busy
            && !self.woken
    }

    /// Returns true if `address` is not that of the server in use. While the sentinels are being
    /// asked, no server is in use, and the result is false for every address.
    pub(super) fn is_elsewhere(&self, address: &Address) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer != address)
    }

    /// An attempt begins: which server it leads to is not known yet.
    pub(super) fn begin_attempt(&mut self) {
        (self.relocate, self.peer) = (false, None);
    }

    /// Returns whether there is something to write, and how many requests are in flight.
    pub(super) fn demand(&self) -> (bool, usize) {
        (self.woken || !self.buffer.is_empty(), self.in_flight.len())
    }

    /// Stores the task's waker. Returns false if the task has to end.
    pub(super) fn set_waker(&mut self, waker: &Waker) -> bool {
        if self.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
        !matches!(self.state, ConnectivityState::Closed(_))
    }

    /// The handshake is done. Returns whether it is the first one; none if the connection was
    /// closed meanwhile.
    pub(super) fn connected(&mut self, writer: Option<Arc<WriteHalf>>) -> Option<bool> {
        if matches!(self.state, ConnectivityState::Closed(_)) {
            return None;
        }
        // From here on callers write to the new socket themselves; requests that waited are still
        // in the buffer, in order.
        self.state = ConnectivityState::Ready;
        self.writer = writer;
        Some(!std::mem::replace(&mut self.was_ready, true))
    }

    /// Appends `batch`, and moves the whole buffer to the task in exchange for an empty one.
    pub(super) fn take_buffer(&mut self, batch: &mut RequestBatch, empty: &mut Vec<u8>) {
        let base = self.bytes_queued;
        self.bytes_queued += batch.bytes.len() as u64;
        self.buffer.append(&mut batch.bytes);
        let requests = batch.requests.drain(..);
        let requests = requests.map(|one| PendingRequest { end: base + one.end, ..one });
        self.in_flight.extend(requests);
        // A swap instead of a copy: the two buffers alternate and keep their capacity.
        std::mem::swap(&mut self.buffer, empty);
        self.task_busy = !empty.is_empty();
        self.task_writing = self.task_busy;
    }

    /// The socket accepted so many bytes from the task.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.bytes_written += bytes as u64;
    }

    /// Assigns values to requests, in the order in which they were read.
    ///
    /// # Errors
    /// If a reply belongs to no request: the connection is out of step and has to be closed.
    pub(super) fn dispatch(
        &mut self,
        values: &mut Vec<Value>,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), CloseReason> {
        for value in values.drain(..) {
            match value {
                Value::Push { kind, data } => self.dispatch_push(kind, data, incoming),
                value => {
                    // A request that was not written as a whole cannot have a reply.
                    let head = self.in_flight.front();
                    let written = head.is_some_and(|one| one.end <= self.bytes_written);
                    let Some(request) = written.then(|| self.in_flight.pop_front()).flatten()
                    else {
                        return Err("unexpected reply: no request is outstanding".into());
                    };
                    incoming.push(Incoming::Reply(request.reply, into_result(value)));
                }
            }
        }
        Ok(())
    }

    /// A push that confirms the oldest request is its reply; every other one is a message.
    fn dispatch_push(&mut self, kind: PushKind, data: Vec<Value>, incoming: &mut Vec<Incoming>) {
        if let Some(request) = self.in_flight.front_mut()
            && request.end <= self.bytes_written
            && let ExpectedReply::Pushes(wanted, left) = &mut request.expected
            && *wanted == kind
        {
            *left -= 1;
            if *left == 0
                && let Some(request) = self.in_flight.pop_front()
            {
                incoming.push(Incoming::Reply(request.reply, Ok(Value::Push { kind, data })));
            }
        } else {
            incoming.push(Incoming::Push(kind, data));
        }
    }

    /// The connection is gone, `state` is the next one. Returns the requests that were pending,
    /// each with its error.
    pub(super) fn disconnect(
        &mut self,
        state: ConnectivityState,
        reason: &CloseReason,
    ) -> Vec<(ReplyTo, RequestError)> {
        let (written, reason) = (self.bytes_written, reason.clone());
        let fail = |request: PendingRequest| {
            // Half a command is none: the server runs it when its last byte is there.
            let whole = request.end <= written;
            let effect = if whole { Effect::Unknown } else { Effect::None };
            (request.reply, RequestError::Disconnected { effect, reason: reason.clone() })
        };
        let failed = self.in_flight.drain(..).map(fail).collect();
        self.reset(state);
        failed
    }

    /// An attempt to connect failed, `state` is the next one. Returns the requests that waited.
    pub(super) fn reject(&mut self, state: ConnectivityState) -> Vec<ReplyTo> {
        let waiting = self.in_flight.drain(..).map(|request| request.reply).collect();
        self.reset(state);
        waiting
    }

    fn reset(&mut self, state: ConnectivityState) {
        if !matches!(self.state, ConnectivityState::Closed(_)) {
            self.state = state;
        }
        self.writer = None;
        self.buffer.clear();
        (self.bytes_queued, self.bytes_written) = (0, 0);
        (self.task_busy, self.task_writing) = (false, false);
    }
}

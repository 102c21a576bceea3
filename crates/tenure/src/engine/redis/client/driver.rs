//! The task of a connection: resolves the server, connects, does the handshake, then reads and
//! writes until the connection breaks, backs off and starts again.
//!
//! Writes are delayed by one turn of the runtime when several requests are likely: replies that
//! were just delivered woke callers, and their next requests should leave in one write. The task
//! then wakes itself, which puts it behind those callers in the runtime's queue, and marks itself
//! busy, so that no caller writes past it. A request on an idle connection is not delayed: its
//! caller writes it (`pending.rs`).
//!
//! The future may be dropped at any await, by a runtime that shuts down: [`ConnectionTask`] then
//! fails what was in flight and starts the task again on the fallback runtime.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::backoff;
use super::connection::{ConnectionHandler, ConnectionShared};
use super::errors::RequestError;
use super::handshake;
use super::pending::{ConnectivityState, Incoming, ReplyTo, RequestBatch};
use super::resp::{CloseReason, RespStream};
use crate::contract::{Error, ErrorKind};
use crate::engine::common::runtime::blocks_a_runtime;
use crate::limits;

/// How many times the task reads before it yields to other tasks.
const READS_PER_POLL: usize = 8;
/// A connection with requests in flight is closed if nothing arrives for this long: the peer may
/// have vanished without a reset. Noticed after once or twice as long.
const SILENCE_TIMEOUT: Duration = limits::CALL;
/// How long it takes to read what has arrived already.
const TIME_TO_READ: Duration = Duration::from_millis(200);
/// The reason to leave a server whose connection may be in order.
const RELOCATED: &str = "the sentinels name another primary";

/// Starts the task.
pub(super) fn start(shared: Arc<ConnectionShared>, runtime: &Handle, fallback: Option<Handle>) {
    let work = Box::pin(drive(shared.clone()));
    let own = fallback.clone();
    let task = ConnectionTask { shared, work: Some(work), fallback };
    match own.filter(|_| blocks_a_runtime()) {
        Some(own) => {
            let runtime = runtime.clone();
            own.spawn(async move { drop(runtime.spawn(task)) });
        }
        None => drop(runtime.spawn(task)),
    }
}

/// Passes a push to the handler.
pub(super) fn deliver(handler: &dyn ConnectionHandler, kind: &PushKind, data: &[Value]) {
    match (kind, data) {
        (
            PushKind::Message | PushKind::SMessage,
            [Value::BulkString(channel), Value::BulkString(payload)],
        ) => handler.message(channel, payload),
        (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
            handler.unsubscribed(channel);
        }
        _ => {}
    }
}

/// The whole task. If its runtime drops it half done, or it panics, it moves to the fallback.
struct ConnectionTask {
    shared: Arc<ConnectionShared>,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    fallback: Option<Handle>,
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let open = self.shared.pending().set_waker(cx.waker());
        if open
            && let Some(work) = &mut self.work
            && work.as_mut().poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.work = None;
        Poll::Ready(())
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        // The socket closes first: the server should not see two connections of this client.
        let Some(work) = self.work.take() else { return };
        drop(work);
        if matches!(self.shared.pending().state, ConnectivityState::Closed(_)) {
            return;
        }
        // The task was dropped by its runtime, not finished: requests in flight fail now, and the
        // next connection lives on the engine's own thread.
        self.shared.disconnect(&"the runtime of its task ended".into());
        if let Some(fallback) = self.fallback.take() {
            start(self.shared.clone(), &fallback, None);
        } else {
            let what = "the thread that keeps the connection is gone";
            let error = Error::new(ErrorKind::Closed, what).with_help("open a new connection");
            self.shared.close(&RequestError::NotConnected(error));
        }
    }
}

async fn drive(shared: Arc<ConnectionShared>) {
    let mut failures = 0;
    loop {
        match connect_current(&shared).await {
            Ok(stream) => {
                let Some(first) = shared.pending().connected(stream.writer()) else { return };
                shared.handler.ready(first);
                let mut connection = ActiveConnection::new(stream);
                let reason = poll_fn(|cx| connection.poll(&shared, cx)).await;
                let useful = connection.any_reply;
                // The socket closes before callers learn of it.
                drop(connection);
                shared.disconnect(&reason);
                // A server that accepts connections and answers nothing counts as a failure.
                if useful {
                    failures = 0;
                    continue;
                }
            }
            Err(error) => shared.reject(&error),
        }
        back_off(&shared, failures).await;
        failures += 1;
    }
}

/// Connects, and starts again whenever the primary turns out to be another server: the one that is
/// being tried may never respond.
async fn connect_current(shared: &ConnectionShared) -> Result<RespStream, Error> {
    loop {
        shared.pending().begin_attempt();
        let mut attempt = pin!(attempt(shared));
        let ended = poll_fn(|cx| {
            // Checked before the attempt is polled: an attempt that succeeds at the old primary in
            // this very poll must not win.
            if std::mem::take(&mut shared.pending().relocate) {
                return Poll::Ready(None);
            }
            attempt.as_mut().poll(cx).map(Some)
        });
        if let Some(ended) = ended.await {
            return ended;
        }
    }
}

/// Resolves the server, which has timeouts of its own, then connects and does the handshake within
/// the timeout of a call.
async fn attempt(shared: &ConnectionShared) -> Result<RespStream, Error> {
    let resolved = shared.resolver.resolve().await?;
    let server = &resolved.server;
    // Before the connection is made: a sentinel that names another server meanwhile is compared
    // with it.
    shared.pending().peer = Some(server.address().clone());
    let connected = async {
        let mut stream = RespStream::connect(server).await?;
        handshake::perform(&mut stream, server, &*shared.handler).await?;
        Ok(stream)
    };
    let connected = within_call(connected).await.unwrap_or_else(|| {
        let what = format!("no answer from {server} within {:?}", limits::CALL);
        Err(Error::new(ErrorKind::Unavailable, what)
            .with_help("check that it is a Redis server, that it runs and can be reached"))
    });
    let stream = connected.map_err(|error| resolved.explain(&shared.resolver, error))?;
    shared.resolver.connected();
    Ok(stream)
}

/// Gives a future the time of a call. Where the runtime was blocked meanwhile, by a caller's code
/// for instance, that time is over before a reply which arrived in it was read: so there is a
/// little more.
async fn within_call<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for limit in [limits::CALL, TIME_TO_READ] {
        if let Ok(output) = timeout(limit, &mut future).await {
            return Some(output);
        }
    }
    None
}

/// Waits before the next attempt, longer after each failure. A waiting request shortens the pause,
/// and a relocation ends it.
async fn back_off(shared: &ConnectionShared, failures: u32) {
    let full = backoff::pause(failures);
    let least = backoff::least(full);
    // Two sleeps: the first cannot be cut short, so that a busy caller does not turn retries into a
    // loop.
    for (length, may_end) in [(least, false), (full.saturating_sub(least), true)] {
        let mut over = pin!(sleep(length));
        poll_fn(|cx| {
            if ends_backoff(shared, may_end) { Poll::Ready(()) } else { over.as_mut().poll(cx) }
        })
        .await;
    }
}

/// Returns true if a request waits for the next attempt. While the server rejects the connection,
/// requests of the source fail here, and none waits.
fn ends_backoff(shared: &ConnectionShared, may_end: bool) -> bool {
    let mut pending = shared.pending();
    if std::mem::take(&mut pending.relocate) {
        return true;
    }
    if !pending.woken {
        return false;
    }
    let ConnectivityState::Rejected(error) = &pending.state else { return may_end };
    let error = RequestError::NotConnected(error.clone());
    pending.woken = false;
    drop(pending);
    shared.fail(Vec::new(), &error);
    false
}

/// A connection after its handshake.
struct ActiveConnection {
    stream: RespStream,
    values: Vec<Value>,
    incoming: Vec<Incoming>,
    batch: RequestBatch,
    /// The bytes being written, and how many of them the socket accepted.
    output: Vec<u8>,
    written: usize,
    /// Other tasks had a turn since there was something to write.
    yielded: bool,
    flushing: bool,
    any_reply: bool,
    /// Runs while requests are in flight; one timer for all of them, set again only when it fires.
    silence: Option<SilenceTimer>,
}

/// Closes a connection on which nothing arrives.
struct SilenceTimer {
    sleep: Pin<Box<Sleep>>,
    /// Something arrived since the timer was set.
    received: bool,
}

impl ActiveConnection {
    fn new(stream: RespStream) -> Self {
        Self {
            stream,
            values: Vec::new(),
            incoming: Vec::new(),
            batch: RequestBatch::default(),
            output: Vec::new(),
            written: 0,
            yielded: false,
            flushing: false,
            any_reply: false,
            silence: None,
        }
    }

    /// Reads, delivers and writes. Resolves only when the connection has to be closed.
    fn poll(&mut self, shared: &ConnectionShared, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if let Err(reason) = self.work(shared, cx) {
            return Poll::Ready(reason);
        }
        self.poll_silence(shared, cx)
    }

    /// Resolves if requests are in flight and nothing arrived for [`SILENCE_TIMEOUT`].
    fn poll_silence(
        &mut self,
        shared: &ConnectionShared,
        cx: &mut Context<'_>,
    ) -> Poll<CloseReason> {
        loop {
            let Some(timer) = &mut self.silence else {
                if shared.pending().demand().1 == 0 {
                    return Poll::Pending;
                }
                let sleep = Box::pin(sleep(SILENCE_TIMEOUT));
                self.silence = Some(SilenceTimer { sleep, received: false });
                continue;
            };
            if timer.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let received = timer.received;
            self.silence = None;
            if !received && shared.pending().demand().1 > 0 {
                return Poll::Ready(format!("no answer within {SILENCE_TIMEOUT:?}").into());
            }
        }
    }

    fn work(&mut self, shared: &ConnectionShared, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let woke_several = self.read(shared, cx)?;
        let mut pending = shared.pending();
        if std::mem::take(&mut pending.relocate) {
            return Err(RELOCATED.into());
        }
        let (wanted, in_flight) = pending.demand();
        // Callers that were just woken are about to send. Their requests should leave in one write,
        // so they run first; tokio puts a task that wakes itself at the end of its queue.
        if !self.yielded && (woke_several || (wanted && in_flight > 1)) {
            self.yielded = true;
            pending.task_busy = true;
            drop(pending);
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.yielded = false;
        if !wanted && self.written == self.output.len() && !self.flushing {
            pending.task_busy = false;
            return Ok(());
        }
        drop(pending);
        self.write(shared, cx)
    }

    /// Reads what is there and delivers it. Returns true if several callers were woken.
    fn read(
        &mut self,
        shared: &ConnectionShared,
        cx: &mut Context<'_>,
    ) -> Result<bool, CloseReason> {
        let mut woken = 0;
        let mut reads = 0;
        // The handshake may have read further than its own replies.
        let mut broken = self.decode().err();
        loop {
            woken += self.dispatch(shared, &mut broken);
            if let Some(reason) = broken {
                return Err(reason);
            }
            if reads == READS_PER_POLL {
                cx.waker().wake_by_ref();
                break;
            }
            reads += 1;
            // The end of the connection is reported after everything that was read before it.
            match self.stream.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {
                    if let Some(timer) = &mut self.silence {
                        timer.received = true;
                    }
                    broken = self.decode().err();
                }
                Poll::Ready(Err(reason)) => broken = Some(reason),
            }
        }
        Ok(woken > 1)
    }

    fn decode(&mut self) -> Result<(), CloseReason> {
        while let Some(value) = self.stream.next_value()? {
            self.values.push(value);
        }
        Ok(())
    }

    /// Delivers the decoded values. Returns an estimate of how many callers were woken.
    fn dispatch(&mut self, shared: &ConnectionShared, broken: &mut Option<CloseReason>) -> usize {
        if self.values.is_empty() {
            return 0;
        }
        if let Err(reason) = shared.pending().dispatch(&mut self.values, &mut self.incoming) {
            *broken = Some(reason);
        }
        let mut woken = 0;
        for incoming in self.incoming.drain(..) {
            match incoming {
                Incoming::Push(kind, data) => deliver(&*shared.handler, &kind, &data),
                Incoming::Reply(reply, result) => {
                    woken += if matches!(reply, ReplyTo::Many(_)) { 2 } else { 1 };
                    // It was the primary when it was connected to. A new attempt resolves the
                    // primary, or the host name, again.
                    if result.as_ref().is_err_and(RequestError::is_from_replica) {
                        broken.get_or_insert_with(|| "the server has become a replica".into());
                    }
                    reply.deliver(result);
                }
            }
        }
        self.any_reply |= woken > 0;
        woken
    }

    /// Writes everything queued by now, in one write if the socket accepts it.
    fn write(
        &mut self,
        shared: &ConnectionShared,
        cx: &mut Context<'_>,
    ) -> Result<(), CloseReason> {
        if self.written == self.output.len() {
            // Cleared before the source is drained: what is queued from now on wakes the task
            // again.
            shared.pending().woken = false;
            (shared.source)(&mut self.batch);
            self.output.clear();
            self.written = 0;
            shared.pending().take_buffer(&mut self.batch, &mut self.output);
        }
        while self.written < self.output.len() {
            let Poll::Ready(written) = self.stream.poll_write(cx, &self.output[self.written..])
            else {
                return Ok(());
            };
            let written = written?;
            self.written += written;
            self.flushing = true;
            shared.pending().wrote(written);
        }
        if self.flushing {
            let Poll::Ready(flushed) = self.stream.poll_flush(cx) else { return Ok(()) };
            flushed?;
            self.flushing = false;
        }
        let mut pending = shared.pending();
        pending.task_busy = false;
        pending.task_writing = false;
        // Requests that were queued meanwhile are written at the next poll: other tasks run first.
        if pending.demand().0 {
            pending.task_busy = true;
            drop(pending);
            cx.waker().wake_by_ref();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attempt to connect once failed when a caller had blocked the only worker of its runtime
    /// for longer than a call may take, and with it the release of that caller.
    #[tokio::test]
    async fn what_arrived_while_the_runtime_was_blocked_is_read() {
        let connected = async {
            std::thread::sleep(limits::CALL + TIME_TO_READ);
            sleep(Duration::from_millis(1)).await;
            "connected"
        };
        assert_eq!(within_call(connected).await, Some("connected"));
        assert_eq!(within_call(std::future::pending::<()>()).await, None);
    }
}

//! A connection whose handshake is done: calls are pipelined on it.
//!
//! tokio-postgres writes a statement when its future is first polled, and the server runs
//! statements and replies in the order in which they were written. So several calls are in flight
//! at once, and a call waits only for the calls written before it. This file adds to that:
//!
//! - **Limits.** A call needs a [`CallPermit`] before it is written. Claims have permits of their
//!   own: a release or renewal never waits behind a crowd of claims, each of which may wait for
//!   just that release. A caller that is dropped before it has a permit has sent nothing.
//! - **Cancellation.** A call that was written is executed in any case, so its reply must be read
//!   in any case: if the caller is dropped, a task takes over the future ([`InFlightCall`]). The
//!   permit is returned when the reply was read, not when the caller is gone.
//! - **Transactions.** In [`CallMode::Transaction`] a call is three statements. They are written
//!   under a mutex, so that the statements of two calls never mix.
//! - **Stall detection.** [`until_stalled`] compares the counters of started and ended calls at
//!   intervals.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::errors::ends_connection;
use super::statements::{Function, Parameters};
use crate::contract::Verb;
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// Limits of calls in flight on a connection: enough to keep the server busy, and few enough that a
/// call does not wait long for the calls before it.
const MAX_CLAIMS_IN_FLIGHT: usize = 48;
const MAX_OTHERS_IN_FLIGHT: usize = 16;

/// How calls are sent.
pub(super) enum CallMode {
    /// As prepared statements, each a transaction of its own.
    Prepared(Vec<Statement>),
    /// As text, in an explicit transaction that repeats all settings: behind a pooler the next
    /// transaction may run on another backend.
    Transaction { begin: String, texts: Vec<String> },
}

/// The reply to a call, as rows.
pub(super) type CallResult = Result<Vec<Row>, tokio_postgres::Error>;

/// A connection whose handshake is done.
pub(super) struct Pipeline {
    client: Client,
    /// The number of the namespace.
    pub(super) ns: i32,
    mode: CallMode,
    /// Where the connection's task runs.
    runtime: Handle,
    /// Held while the three statements of a transaction are written.
    write_order: Mutex<()>,
    /// The connection is open, but calls on it would fail.
    unusable: AtomicBool,
    claim_permits: Semaphore,
    other_permits: Semaphore,
    /// Calls that have got a permit, and calls that have returned it.
    started: AtomicU64,
    ended: AtomicU64,
    /// At the last stall check: `ended`, and whether calls were in flight.
    last_check: Mutex<(u64, bool)>,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<dyn Clock>>,
}

impl Pipeline {
    pub(super) fn new(
        client: Client,
        ns: i32,
        mode: CallMode,
        #[cfg(feature = "conformance")] clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        Self {
            client,
            ns,
            mode,
            runtime: Handle::current(),
            write_order: Mutex::new(()),
            unusable: AtomicBool::new(false),
            claim_permits: Semaphore::new(MAX_CLAIMS_IN_FLIGHT),
            other_permits: Semaphore::new(MAX_OTHERS_IN_FLIGHT),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            last_check: Mutex::new((0, false)),
            #[cfg(feature = "conformance")]
            clock,
        }
    }

    /// Returns whether calls would fail on this connection.
    pub(super) fn is_closed(&self) -> bool {
        self.unusable.load(Ordering::SeqCst) || self.client.is_closed()
    }

    /// Waits until one more call may be in flight.
    ///
    /// # Cancel safety
    /// May be dropped at any time: nothing was sent.
    pub(super) async fn permit(self: Arc<Self>, verb: Verb) -> CallPermit {
        // The semaphore is never closed.
        if let Ok(permit) = self.permits(verb).acquire().await {
            permit.forget();
        }
        self.started.fetch_add(1, Ordering::SeqCst);
        CallPermit { pipeline: self, verb }
    }

    fn permits(&self, verb: Verb) -> &Semaphore {
        if verb == Verb::Claim { &self.claim_permits } else { &self.other_permits }
    }

    /// Runs a query that is not a function of the schema, without a permit.
    pub(super) async fn query(
        self: Arc<Self>,
        text: String,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let runtime = self.runtime.clone();
        // On the connection's runtime: a caller that is dropped does not cut a query in half, and a
        // caller without a runtime can wait for it.
        let task = runtime.spawn(async move { self.client.query_typed(&text, &[]).await });
        task.await.map_err(|_| None)?.map_err(Some)
    }

    async fn execute(&self, function: Function, parameters: &Parameters) -> CallResult {
        let parameters = parameters.iter().map(|one| &**one as &(dyn ToSql + Sync));
        let reply = match &self.mode {
            CallMode::Prepared(statements) => {
                let parameters: Vec<_> = parameters.collect();
                self.client.query(&statements[function as usize], &parameters).await
            }
            CallMode::Transaction { begin, texts } => {
                let typed: Vec<_> = parameters.zip(function.types().iter().cloned()).collect();
                self.execute_in_transaction(begin, &texts[function as usize], &typed).await
            }
        };
        // Marked here, before the caller reads the error: the next call already finds a new
        // connection.
        if reply.as_ref().is_err_and(ends_connection) {
            self.unusable.store(true, Ordering::SeqCst);
        }
        reply
    }

    /// Writes the call, and directly behind it a statement without parameters. The second reply is
    /// ignored: tokio-postgres reads and drops it.
    async fn execute_then(
        &self,
        function: Function,
        parameters: &Parameters,
        behind: Function,
    ) -> CallResult {
        let CallMode::Prepared(statements) = &self.mode else {
            return self.execute(function, parameters).await;
        };
        let mut reply = pin!(self.execute(function, parameters));
        let mut second = pin!(self.client.query(&statements[behind as usize], &[]));
        // The first poll of a query writes it, so the order of polls is the order on the wire.
        let mut written = false;
        poll_fn(|cx| {
            let reply = reply.as_mut().poll(cx);
            if !written {
                written = true;
                // Writes the statement.
                let _ = second.as_mut().poll(cx);
            }
            reply
        })
        .await
    }

    /// Writes BEGIN, the call and COMMIT back to back and waits for the three replies. After a
    /// failed call the server turns the COMMIT into a rollback.
    async fn execute_in_transaction(
        &self,
        begin: &str,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> CallResult {
        let opening = self.begin(begin);
        let mut first = pin!(self.client.batch_execute(&opening));
        let mut second = pin!(self.client.query_typed(text, typed));
        let mut third = pin!(self.client.batch_execute("COMMIT"));
        let (mut one, mut two, mut three) = (None, None, None);
        poll_fn(|cx| {
            // The first poll writes all three.
            // Under the lock two callers cannot mix their statements: a BEGIN, a call and a COMMIT
            // of each stay together.
            let _order = self.write_order.lock().unwrap_or_else(PoisonError::into_inner);
            if one.is_none()
                && let Poll::Ready(outcome) = first.as_mut().poll(cx)
            {
                one = Some(outcome);
            }
            if two.is_none()
                && let Poll::Ready(outcome) = second.as_mut().poll(cx)
            {
                two = Some(outcome);
            }
            if three.is_none()
                && let Poll::Ready(outcome) = third.as_mut().poll(cx)
            {
                three = Some(outcome);
            }
            let all = one.is_some() && two.is_some() && three.is_some();
            if all { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        // The first error is the cause; the statements behind it fail with "current transaction is
        // aborted".
        one.unwrap_or(Ok(()))?;
        let rows = two.unwrap_or(Ok(Vec::new()))?;
        three.unwrap_or(Ok(()))?;
        Ok(rows)
    }

    #[cfg(not(feature = "conformance"))]
    #[allow(clippy::unused_self, reason = "the suite has a clock of its own")]
    fn begin<'a>(&self, begin: &'a str) -> &'a str {
        begin
    }

    #[cfg(feature = "conformance")]
    fn begin(&self, begin: &str) -> String {
        match &self.clock {
            Some(clock) => format!("{begin}; SET LOCAL tenure.clock = '{}'", clock.wall_micros()),
            None => begin.to_owned(),
        }
    }

    /// Calls a function that only the suite's schema has.
    #[cfg(feature = "conformance")]
    pub(super) async fn query_in_suite(
        &self,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> CallResult {
        match &self.mode {
            CallMode::Prepared(_) => self.client.query_typed(text, typed).await,
            CallMode::Transaction { begin, .. } => {
                self.execute_in_transaction(begin, text, typed).await
            }
        }
    }

    /// Returns how many calls have ended, or `None` while calls are in flight.
    #[cfg(feature = "conformance")]
    pub(super) fn ended_if_idle(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.started.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    /// Returns whether calls were in flight at the last check and none has ended since.
    fn no_progress(&self) -> bool {
        let ended = self.ended.load(Ordering::SeqCst);
        let in_flight = self.started.load(Ordering::SeqCst) > ended;
        let mut last = self.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        let no_progress = in_flight && *last == (ended, true);
        *last = (ended, in_flight);
        no_progress
    }
}

/// The right to have one call in flight. Returned when it is dropped, after the reply was read.
pub(super) struct CallPermit {
    pipeline: Arc<Pipeline>,
    verb: Verb,
}

impl CallPermit {
    /// The number of the namespace.
    pub(super) fn ns(&self) -> i32 {
        self.pipeline.ns
    }

    /// Calls a function of the schema.
    ///
    /// # Errors
    /// `Some(error)` from the server or the connection; `None` if the connection's runtime was shut
    /// down.
    ///
    /// # Cancel safety
    /// May be dropped at any time. A call that was written is executed; a task reads its reply and
    /// drops it.
    pub(super) async fn call(
        self,
        function: Function,
        parameters: Parameters,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let runtime = self.pipeline.runtime.clone();
        let short =
            function.has_short_reply() && matches!(self.pipeline.mode, CallMode::Prepared(_));
        let call = async move {
            let permit = self;
            permit.pipeline.execute(function, &parameters).await
        };
        if short {
            return InFlightCall { call: Some(Box::pin(call)), runtime }.await.map_err(Some);
        }
        // A reply of many rows is read by a task: replies arrive in order, so a caller that is slow
        // to read one would hold up the replies behind it. A short one fits its request's channel.
        runtime.spawn(call).await.map_err(|_| None)?.map_err(Some)
    }

    /// Calls a function, and writes directly behind it the statement that sends the notifications
    /// which the function has left for later. The reply of that statement is not awaited: a waiter
    /// or a worker that misses a notification looks by itself. Where a call is a transaction of
    /// several statements there is no second one.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call). Both statements are executed.
    pub(super) async fn call_then(
        self,
        function: Function,
        parameters: Parameters,
        behind: Function,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let runtime = self.pipeline.runtime.clone();
        let call = async move {
            let permit = self;
            permit.pipeline.execute_then(function, &parameters, behind).await
        };
        InFlightCall { call: Some(Box::pin(call)), runtime }.await.map_err(Some)
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.pipeline.ended.fetch_add(1, Ordering::SeqCst);
        self.pipeline.permits(self.verb).add_permits(1);
    }
}

/// A call that is polled by its caller. If the caller is dropped, a task polls it to its end.
struct InFlightCall {
    call: Option<Pin<Box<dyn Future<Output = CallResult> + Send>>>,
    runtime: Handle,
}

impl Future for InFlightCall {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let reply = std::task::ready!(call.as_mut().poll(cx));
        self.call = None;
        Poll::Ready(reply)
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // If that runtime was shut down, the connection is closed and there is no reply to
            // read.
            self.runtime.spawn(call);
        }
    }
}

/// Returns when the connection has stalled: no call has ended between two checks, although calls
/// were in flight, and a ping is not answered either. Also returns when the pipeline is dropped.
pub(super) async fn until_stalled(pipeline: Weak<Pipeline>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(pipeline) = pipeline.upgrade() else { return };
        if !pipeline.no_progress() {
            continue;
        }
        let ping = tokio::time::timeout(interval, pipeline.client.check_connection()).await;
        if !matches!(ping, Ok(Ok(()))) {
            pipeline.unusable.store(true, Ordering::SeqCst);
            return;
        }
    }
}

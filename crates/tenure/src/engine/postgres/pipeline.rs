//! A connection that was greeted: calls go out on it in order, many at once but not too many. Knows
//! how a call is made, not how a connection is.

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

use super::statements::Call;
use super::errors::ends_connection;
use crate::contract::Verb;
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// How many calls may be in flight on a connection: enough to keep the server busy, and few enough
/// that a call does not wait long for the calls before it. Claims have a share of their own, so
/// that releases and renewals never wait for room behind a crowd of claims, each of which may wait
/// for just such a release.
const CLAIMS_AT_ONCE: usize = 48;
const OTHERS_AT_ONCE: usize = 16;

/// What goes with a call.
pub(super) type Parameters = Vec<Box<dyn ToSql + Send + Sync>>;

/// How calls are made.
pub(super) enum Manner {
    /// By statements that the session keeps, each a transaction of its own.
    Prepared(Vec<Statement>),
    /// By text, in a transaction that is told everything: the next one may run elsewhere.
    Wrapped { begin: String, texts: Vec<String> },
}

/// A connection that was greeted.
pub(super) struct Ready {
    client: Client,
    /// The number of the namespace.
    pub(super) ns: i32,
    manner: Manner,
    /// Where its task runs.
    home: Handle,
    /// The three parts of a wrapped call are written without another's between them.
    order: Mutex<()>,
    /// The connection stands, but is of no more use.
    over: AtomicBool,
    /// How many more claims may go out before one is answered, and how many more other calls.
    room_for_claims: Semaphore,
    room_for_others: Semaphore,
    started: AtomicU64,
    ended: AtomicU64,
    /// What had ended, and what was under way, when somebody last looked.
    looked: Mutex<(u64, bool)>,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<dyn Clock>>,
}

impl Ready {
    pub(super) fn new(
        client: Client,
        ns: i32,
        manner: Manner,
        #[cfg(feature = "conformance")] clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        Self {
            client,
            ns,
            manner,
            home: Handle::current(),
            order: Mutex::new(()),
            over: AtomicBool::new(false),
            room_for_claims: Semaphore::new(CLAIMS_AT_ONCE),
            room_for_others: Semaphore::new(OTHERS_AT_ONCE),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            looked: Mutex::new((0, false)),
            #[cfg(feature = "conformance")]
            clock,
        }
    }

    /// Whether calls would fail here.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.client.is_closed()
    }

    /// Waits for room on the connection. Every call that goes out is answered before those behind
    /// it, also if its caller has left, so few go out at once: a caller that leaves before there is
    /// room sends nothing.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn room(self: Arc<Self>, verb: Verb) -> Room {
        // The semaphore is never closed.
        if let Ok(permit) = self.room_for(verb).acquire().await {
            permit.forget();
        }
        self.started.fetch_add(1, Ordering::SeqCst);
        Room { ready: self, verb }
    }

    fn room_for(&self, verb: Verb) -> &Semaphore {
        if verb == Verb::Claim { &self.room_for_claims } else { &self.room_for_others }
    }

    /// Asks something that is no verb.
    pub(super) async fn look(
        self: Arc<Self>,
        text: String,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let home = self.home.clone();
        let task = home.spawn(async move { self.client.query_typed(&text, &[]).await });
        task.await.map_err(|_| None)?.map_err(Some)
    }

    async fn make_and_tell(
        &self,
        call: Call,
        parameters: &Parameters,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let Manner::Prepared(statements) = &self.manner else {
            return self.make(call, parameters).await;
        };
        let mut answer = pin!(self.make(call, parameters));
        let mut telling = pin!(self.client.query(&statements[Call::Tell as usize], &[]));
        let mut written = false;
        poll_fn(|cx| {
            let answer = answer.as_mut().poll(cx);
            if !written {
                written = true;
                // A statement is written when it is first polled.
                let _ = telling.as_mut().poll(cx);
            }
            answer
        })
        .await
    }

    async fn make(
        &self,
        call: Call,
        parameters: &Parameters,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let parameters = parameters.iter().map(|one| &**one as &(dyn ToSql + Sync));
        let answer = match &self.manner {
            Manner::Prepared(statements) => {
                let parameters: Vec<_> = parameters.collect();
                self.client.query(&statements[call as usize], &parameters).await
            }
            Manner::Wrapped { begin, texts } => {
                let typed: Vec<_> = parameters.zip(call.types().iter().cloned()).collect();
                self.wrapped(begin, &texts[call as usize], &typed).await
            }
        };
        if answer.as_ref().is_err_and(ends_connection) {
            self.over.store(true, Ordering::SeqCst);
        }
        answer
    }

    /// Three statements, written together.
    async fn wrapped(
        &self,
        begin: &str,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let opening = self.begin(begin);
        let mut first = pin!(self.client.batch_execute(&opening));
        let mut second = pin!(self.client.query_typed(text, typed));
        let mut third = pin!(self.client.batch_execute("COMMIT"));
        let (mut one, mut two, mut three) = (None, None, None);
        poll_fn(|cx| {
            // A statement is written when it is first polled.
            let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
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
        one.unwrap_or(Ok(()))?;
        let answer = two.unwrap_or(Ok(Vec::new()))?;
        three.unwrap_or(Ok(()))?;
        Ok(answer)
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

    /// Makes a call that only the suite makes.
    #[cfg(feature = "conformance")]
    pub(super) async fn call_on_stage(
        &self,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        match &self.manner {
            Manner::Prepared(_) => self.client.query_typed(text, typed).await,
            Manner::Wrapped { begin, .. } => self.wrapped(begin, text, typed).await,
        }
    }

    /// How many calls were answered, if none is under way.
    #[cfg(feature = "conformance")]
    pub(super) fn answered(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.started.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    /// Whether nothing has come since the last look although somebody waited then.
    fn in_doubt(&self) -> bool {
        let ended = self.ended.load(Ordering::SeqCst);
        let waits = self.started.load(Ordering::SeqCst) > ended;
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = waits && *looked == (ended, true);
        *looked = (ended, waits);
        silent
    }
}

/// Room for one call on a connection, until that call has its answer.
pub(super) struct Room {
    ready: Arc<Ready>,
    verb: Verb,
}

impl Room {
    /// The number of the namespace.
    pub(super) fn ns(&self) -> i32 {
        self.ready.ns
    }

    /// Makes the call.
    ///
    /// # Errors
    /// What the server says, or that the connection broke; none of both if its runtime is gone.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The call is made all the same; its answer is read by a task of
    /// its own, which gives the room back, and thrown away.
    pub(super) async fn call(
        self,
        call: Call,
        parameters: Parameters,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let home = self.ready.home.clone();
        let short = call.is_short() && matches!(self.ready.manner, Manner::Prepared(_));
        let made = async move {
            let room = self;
            room.ready.make(call, &parameters).await
        };
        if short {
            return InFlight { call: Some(Box::pin(made)), home }.await.map_err(Some);
        }
        // Answers come in order: a long one that its caller does not take in would hold up all
        // behind it. A short one has room beside the caller.
        home.spawn(made).await.map_err(|_| None)?.map_err(Some)
    }

    /// Makes the call, and writes behind it, on the same connection, the statement that tells whom
    /// the call leaves to be told. What is not told is found by asking, so the answer to that one
    /// is not awaited.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call). Both are made all the same.
    pub(super) async fn call_and_tell(
        self,
        call: Call,
        parameters: Parameters,
    ) -> Result<Vec<Row>, Option<tokio_postgres::Error>> {
        let home = self.ready.home.clone();
        let made = async move {
            let room = self;
            room.ready.make_and_tell(call, &parameters).await
        };
        InFlight { call: Some(Box::pin(made)), home }.await.map_err(Some)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.ready.ended.fetch_add(1, Ordering::SeqCst);
        self.ready.room_for(self.verb).add_permits(1);
    }
}

type Made = Result<Vec<Row>, tokio_postgres::Error>;

/// A call that its caller awaits. If the caller leaves, a task takes over.
struct InFlight {
    call: Option<Pin<Box<dyn Future<Output = Made> + Send>>>,
    home: Handle,
}

impl Future for InFlight {
    type Output = Made;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Made> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answer = std::task::ready!(call.as_mut().poll(cx));
        self.call = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // Without an answer: it is read there. If that runtime is gone, so is the connection.
            self.home.spawn(call);
        }
    }
}

/// Looks now and then whether the other side of a connection still answers. Returns when it does
/// not.
pub(super) async fn watch(ready: Weak<Ready>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(ready) = ready.upgrade() else { return };
        if !ready.in_doubt() {
            continue;
        }
        let answered = tokio::time::timeout(every, ready.client.check_connection()).await;
        if !matches!(answered, Ok(Ok(()))) {
            ready.over.store(true, Ordering::SeqCst);
            return;
        }
    }
}

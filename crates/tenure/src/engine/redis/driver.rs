//! The task of a connection: connects, greets, reads, writes, and begins again. Knows when; what is
//! in which order is known by `line.rs`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::backoff;
use super::errors::Trouble;
use super::greeting;
use super::line::{Event, Outgoing, Reply, Stage};
use super::talk::{Talk, Why};
use super::wire::{Greeter, Shared};
use crate::contract::{Error, ErrorKind};
use crate::engine::runtime::blocks_a_runtime;
use crate::limits;

/// How often the driver reads before it lets others run.
const READS: usize = 8;
/// A connection on which answers are awaited and nothing comes for this long is given up: its other
/// end may be gone without a word. Noticed after once or twice as long.
const SILENCE: Duration = limits::CALL;
/// Why a connection to a server is given up that may be as good as ever.
const MOVED: &str = "the sentinels name another primary";

/// Starts the task.
pub(super) fn start(shared: Arc<Shared>, home: &Handle, fallback: Option<Handle>) {
    let work = Box::pin(drive(shared.clone()));
    let own = fallback.clone();
    let errand = Errand { shared, work: Some(work), fallback };
    match own.filter(|_| blocks_a_runtime()) {
        Some(own) => {
            let home = home.clone();
            own.spawn(async move { drop(home.spawn(errand)) });
        }
        None => drop(home.spawn(errand)),
    }
}

/// Hands a push to whom it concerns.
pub(super) fn deliver(greeter: &dyn Greeter, kind: &PushKind, data: &[Value]) {
    match (kind, data) {
        (
            PushKind::Message | PushKind::SMessage,
            [Value::BulkString(channel), Value::BulkString(payload)],
        ) => greeter.message(channel, payload),
        (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => greeter.dismissed(channel),
        _ => {}
    }
}

/// The whole task. If its runtime drops it half done, or it panics, it moves to another home.
struct Errand {
    shared: Arc<Shared>,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    fallback: Option<Handle>,
}

impl Future for Errand {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let wanted = self.shared.line().enlist(cx.waker());
        if wanted
            && let Some(work) = &mut self.work
            && work.as_mut().poll(cx).is_pending()
        {
            return Poll::Pending;
        }
        self.work = None;
        Poll::Ready(())
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        // The socket closes first: the server should not see two of us.
        let Some(work) = self.work.take() else { return };
        drop(work);
        if matches!(self.shared.line().stage, Stage::Over(_)) {
            return;
        }
        self.shared.fall(&"the runtime of its task ended".into());
        if let Some(fallback) = self.fallback.take() {
            start(self.shared.clone(), &fallback, None);
        } else {
            let what = "the thread that keeps the connection is gone";
            let error = Error::new(ErrorKind::Closed, what).with_help("connect anew");
            self.shared.end(&Trouble::NotConnected(error));
        }
    }
}

async fn drive(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        match attempt_here(&shared).await {
            Ok(talk) => {
                let Some(first) = shared.line().up(talk.writer()) else { return };
                shared.greeter.ready(first);
                let mut service = Service::new(talk);
                let why = poll_fn(|cx| service.poll(&shared, cx)).await;
                let useful = service.answered_any;
                // Closed before anybody hears of it.
                drop(service);
                shared.fall(&why);
                if useful {
                    failures = 0;
                    continue;
                }
            }
            Err(error) => shared.refuse(&error),
        }
        pause(&shared, failures).await;
        failures += 1;
    }
}

/// An attempt that begins anew when the server turns out to be elsewhere: the one that is being
/// tried may be gone without a word.
async fn attempt_here(shared: &Shared) -> Result<Talk, Error> {
    loop {
        shared.line().is_looking();
        let mut attempt = pin!(attempt(shared));
        let ended = poll_fn(|cx| {
            if std::mem::take(&mut shared.line().moved) {
                return Poll::Ready(None);
            }
            attempt.as_mut().poll(cx).map(Some)
        });
        if let Some(ended) = ended.await {
            return ended;
        }
    }
}

/// Finds the server, which has limits of its own, then connects and greets within that of a call.
async fn attempt(shared: &Shared) -> Result<Talk, Error> {
    let found = shared.finder.find().await?;
    let server = &found.server;
    shared.line().peer = Some(server.address().clone());
    let connected = async {
        let mut talk = Talk::connect(server).await?;
        greeting::exchange(&mut talk, server, &*shared.greeter).await?;
        Ok(talk)
    };
    let connected = timeout(limits::CALL, connected).await.unwrap_or_else(|_| {
        let what = format!("no answer from {server} within {:?}", limits::CALL);
        Err(Error::new(ErrorKind::Unavailable, what)
            .with_help("check that it is a Redis server, that it runs and can be reached"))
    });
    let talk = connected.map_err(|error| found.explain(&shared.finder, error))?;
    shared.finder.found();
    Ok(talk)
}

/// Waits before the next attempt, longer each time; shorter if a call waits for it, and not at all
/// if the server turns out to be elsewhere.
async fn pause(shared: &Shared, failures: u32) {
    let full = backoff::pause(failures);
    let least = backoff::least(full);
    for (length, may_end) in [(least, false), (full.saturating_sub(least), true)] {
        let mut over = pin!(sleep(length));
        poll_fn(
            |cx| {
                if is_called(shared, may_end) { Poll::Ready(()) } else { over.as_mut().poll(cx) }
            },
        )
        .await;
    }
}

/// Whether a caller waits for the next attempt. Where the server does not want us, whatever the
/// engine queued is told so, and nobody waits.
fn is_called(shared: &Shared, may_end: bool) -> bool {
    let mut line = shared.line();
    if std::mem::take(&mut line.moved) {
        return true;
    }
    if !line.rung {
        return false;
    }
    let Stage::Refused(error) = &line.stage else { return may_end };
    let trouble = Trouble::NotConnected(error.clone());
    line.rung = false;
    drop(line);
    shared.give_up(Vec::new(), &trouble);
    false
}

/// A connection in use.
struct Service {
    talk: Talk,
    values: Vec<Value>,
    events: Vec<Event>,
    gathered: Outgoing,
    /// What is being written, and how far.
    writing: Vec<u8>,
    written: usize,
    /// Whether others were let run since something to write was seen.
    breathed: bool,
    flushing: bool,
    answered_any: bool,
    /// Runs while answers are awaited; one timer for all calls, set anew only when it is over.
    patience: Option<Patience>,
}

/// How long the other end may still be silent.
struct Patience {
    until: Pin<Box<Sleep>>,
    /// Whether anything came since.
    heard: bool,
}

impl Service {
    fn new(talk: Talk) -> Self {
        Self {
            talk,
            values: Vec::new(),
            events: Vec::new(),
            gathered: Outgoing::default(),
            writing: Vec::new(),
            written: 0,
            breathed: false,
            flushing: false,
            answered_any: false,
            patience: None,
        }
    }

    /// Reads, tells, writes; ends only when the connection does.
    fn poll(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Why> {
        if let Err(why) = self.work(shared, cx) {
            return Poll::Ready(why);
        }
        self.lose_patience(shared, cx)
    }

    /// Ends a connection that has fallen silent although answers are awaited.
    fn lose_patience(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<Why> {
        loop {
            let Some(patience) = &mut self.patience else {
                if shared.line().demand().1 == 0 {
                    return Poll::Pending;
                }
                let until = Box::pin(sleep(SILENCE));
                self.patience = Some(Patience { until, heard: false });
                continue;
            };
            if patience.until.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let heard = patience.heard;
            self.patience = None;
            if !heard && shared.line().demand().1 > 0 {
                return Poll::Ready(format!("no answer within {SILENCE:?}").into());
            }
        }
    }

    fn work(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<(), Why> {
        let crowd = self.listen(shared, cx)?;
        let mut line = shared.line();
        if std::mem::take(&mut line.moved) {
            return Err(MOVED.into());
        }
        let (wanted, awaited) = line.demand();
        // Whoever was just woken is about to call. Its call should leave together with those of
        // the others, so they all run before we write; tokio puts a task that wakes itself at the
        // end of the queue.
        if !self.breathed && (crowd || (wanted && awaited > 1)) {
            self.breathed = true;
            line.busy = true;
            drop(line);
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.breathed = false;
        if !wanted && self.written == self.writing.len() && !self.flushing {
            line.busy = false;
            return Ok(());
        }
        drop(line);
        self.write(shared, cx)
    }

    /// Reads what there is and tells those whom it concerns. Whether these are many.
    fn listen(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<bool, Why> {
        let mut told = 0;
        let mut reads = 0;
        // The greeting may have read further than its own replies.
        let mut broken = self.decode().err();
        loop {
            told += self.tell(shared, &mut broken);
            if let Some(why) = broken {
                return Err(why);
            }
            if reads == READS {
                cx.waker().wake_by_ref();
                break;
            }
            reads += 1;
            // The end of the connection is found only after all that came before it was told.
            match self.talk.poll_fill(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {
                    if let Some(patience) = &mut self.patience {
                        patience.heard = true;
                    }
                    broken = self.decode().err();
                }
                Poll::Ready(Err(why)) => broken = Some(why),
            }
        }
        Ok(told > 1)
    }

    fn decode(&mut self) -> Result<(), Why> {
        while let Some(value) = self.talk.next()? {
            self.values.push(value);
        }
        Ok(())
    }

    /// Tells what the decoded values mean; how many callers are now awake, as a guess.
    fn tell(&mut self, shared: &Shared, broken: &mut Option<Why>) -> usize {
        if self.values.is_empty() {
            return 0;
        }
        if let Err(why) = shared.line().sort(&mut self.values, &mut self.events) {
            *broken = Some(why);
        }
        let mut told = 0;
        for event in self.events.drain(..) {
            match event {
                Event::Push(kind, data) => deliver(&*shared.greeter, &kind, &data),
                Event::Answered(reply, outcome) => {
                    told += if matches!(reply, Reply::Many(_)) { 2 } else { 1 };
                    // It was the primary when it was greeted. Where that is now, or what its name
                    // leads to, is found by connecting anew.
                    if outcome.as_ref().is_err_and(Trouble::is_from_replica) {
                        broken.get_or_insert_with(|| "the server has become a replica".into());
                    }
                    reply.finish(outcome);
                }
            }
        }
        self.answered_any |= told > 0;
        told
    }

    /// Writes everything queued by now, in one piece if the socket takes it.
    fn write(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<(), Why> {
        if self.written == self.writing.len() {
            // First, so that what is queued from now on rings again.
            shared.line().rung = false;
            (shared.gather)(&mut self.gathered);
            self.writing.clear();
            self.written = 0;
            shared.line().hand_out(&mut self.gathered, &mut self.writing);
        }
        while self.written < self.writing.len() {
            let Poll::Ready(written) = self.talk.poll_write(cx, &self.writing[self.written..])
            else {
                return Ok(());
            };
            let written = written?;
            self.written += written;
            self.flushing = true;
            shared.line().sent(written);
        }
        if self.flushing {
            let Poll::Ready(flushed) = self.talk.poll_flush(cx) else { return Ok(()) };
            flushed?;
            self.flushing = false;
        }
        let mut line = shared.line();
        line.busy = false;
        line.writing = false;
        // Queued while we wrote: the next round takes it, after the others had their turn.
        if line.demand().0 {
            line.busy = true;
            drop(line);
            cx.waker().wake_by_ref();
        }
        Ok(())
    }
}

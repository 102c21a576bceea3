//! One connection that many callers share, and that comes back by itself. Knows how to be called;
//! `line.rs` keeps the order, `driver.rs` reads, writes and reconnects.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(crate) use super::line::{Outcome, Outgoing, Reply};

use super::driver;
use super::errors::Trouble;
use super::line::{After, Line, Stage};
use super::pack::pack;
use super::sentinel::Finder;
use super::url::{Address, Location};
use crate::contract::{Effect, Error};
use crate::engine::runtime::blocks_a_runtime;

/// What is said on each new connection, and who hears what the server tells by itself.
///
/// Called from the task of the connection, without any lock held: be short.
pub(crate) trait Greeter: Send + Sync {
    /// Packed commands to send on each new connection, before anybody's calls.
    fn greeting(&self) -> Vec<Vec<u8>>;

    /// Whether the replies, one for each command and errors included, allow to go on.
    ///
    /// # Errors
    /// What callers hear instead of a connection. One that is not retryable is their answer until
    /// an attempt succeeds.
    fn judge(&self, replies: Vec<Value>) -> Result<(), Error>;

    /// The connection is greeted, for the first time or again.
    fn ready(&self, first: bool);

    /// The connection broke. What was published from now until it is ready again is lost.
    fn lost(&self);

    /// Somebody published this.
    fn message(&self, channel: &[u8], payload: &[u8]);

    /// The server ended a subscription by itself: in a cluster, because the slot of the channel is
    /// elsewhere now.
    fn dismissed(&self, _channel: &[u8]) {}
}

/// Turns what the engine queued meanwhile into few commands, right before the driver writes; also
/// when there is no connection, and then everything gathered fails.
pub(crate) type Gather = Box<dyn Fn(&mut Outgoing) + Send + Sync>;

/// Where the task of a connection runs.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Here, while this runtime lives. Best the one of the callers: no other thread to wake.
    pub(crate) first: Handle,
    /// And then here.
    pub(crate) fallback: Handle,
}

/// One connection, shared. Dropping it ends it, and fails whatever still waits.
pub(crate) struct Wire(Arc<Shared>);

/// What callers and the driver share.
pub(super) struct Shared {
    pub(super) location: Arc<Location>,
    pub(super) finder: Finder,
    pub(super) greeter: Arc<dyn Greeter>,
    pub(super) gather: Gather,
    line: Mutex<Line>,
    /// A thread that is never blocked.
    own: Handle,
}

impl Wire {
    /// Starts to connect, and goes on until dropped.
    pub(crate) fn open(
        location: Arc<Location>,
        greeter: Arc<dyn Greeter>,
        gather: Gather,
        home: Home,
    ) -> Self {
        let line = Mutex::new(Line::new());
        let finder = Finder::new(location.clone());
        let own = home.fallback.clone();
        let shared = Arc::new(Shared { location, finder, greeter, gather, line, own });
        driver::start(shared.clone(), &home.first, Some(home.fallback));
        Self(shared)
    }

    /// Does what remains to be done without the lock.
    fn act(&self, after: After) {
        if after.wake.is_some() && blocks_a_runtime() {
            self.0.own.spawn(async move { after.act() });
        } else {
            after.act();
        }
    }

    /// Sends a packed command, now and in order with all others, whether or not the future is
    /// polled. There is no time limit: callers have their own.
    ///
    /// # Errors
    /// If the server refuses, the connection breaks, or the attempt to make one fails.
    ///
    /// # Cancel safety
    /// May be dropped at any time. The command is sent all the same; its reply is thrown away.
    pub(crate) fn call(&self, packed: &[u8]) -> Call {
        let (caller, outcome) = oneshot::channel();
        self.send(packed, Reply::One(caller));
        Call(outcome)
    }

    /// The same, with somebody else to tell.
    pub(crate) fn send(&self, packed: &[u8], reply: Reply) {
        let after = self.0.line().send(packed, reply);
        self.act(after);
    }

    /// Subscribes to a channel, in order with other calls. Not remembered: after a reconnection
    /// the greeting has to name it.
    pub(crate) fn subscribe(&self, channel: &[u8], reply: Reply) {
        self.send(&pack(&[b"SUBSCRIBE", channel]), reply);
    }

    /// Unsubscribes from a channel, in order with other calls.
    pub(crate) fn unsubscribe(&self, channel: &[u8]) -> Call {
        self.call(&pack(&[b"UNSUBSCRIBE", channel]))
    }

    /// Sends packed commands right behind each other and on the same connection: either all are
    /// sent on it, or none.
    pub(crate) fn call_all(&self, commands: &[Vec<u8>]) -> Vec<Call> {
        let (mut afters, mut calls) = (Vec::new(), Vec::with_capacity(commands.len()));
        let mut line = self.0.line();
        for command in commands {
            let (caller, outcome) = oneshot::channel();
            afters.push(line.send(command, Reply::One(caller)));
            calls.push(Call(outcome));
        }
        drop(line);
        for after in afters {
            self.act(after);
        }
        calls
    }

    /// The same for a command behind a word that lets it in; whatever is said to that word.
    pub(crate) fn call_behind(&self, word: &[u8], packed: &[u8]) -> Call {
        let (caller, outcome) = oneshot::channel();
        let mut line = self.0.line();
        let afters =
            [line.send(word, Reply::Many(Box::new(drop))), line.send(packed, Reply::One(caller))];
        drop(line);
        for after in afters {
            self.act(after);
        }
        Call(outcome)
    }

    /// Whether the connection is greeted.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.0.line().stage, Stage::Up)
    }

    /// Whether this address is not that of the server that it is connected to or tries.
    pub(crate) fn is_elsewhere(&self, address: &Address) -> bool {
        self.0.line().is_elsewhere(address)
    }

    /// Leaves the server for the one at this address, unless it is connected there already or about
    /// to be. Whoever awaits an answer hears that the connection broke.
    pub(crate) fn go_to(&self, address: &Address) {
        let mut line = self.0.line();
        if !line.is_elsewhere(address) {
            return;
        }
        line.moved = true;
        let after = line.ring();
        drop(line);
        self.act(after);
    }

    /// Whether a call would be written at once, by the caller itself.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.line().is_idle()
    }

    /// Says that there is something to gather.
    pub(crate) fn ring(&self) {
        let mut line = self.0.line();
        let after = line.ring();
        let over =
            if let Stage::Over(trouble) = &line.stage { Some(trouble.clone()) } else { None };
        drop(line);
        self.act(after);
        // Nobody is left to gather for the connection.
        if let Some(trouble) = over {
            self.0.give_up(Vec::new(), &trouble);
        }
    }
}

impl Wire {
    /// Gathers and writes now, because there is enough of it. The store can begin while others are
    /// still to call.
    pub(crate) fn flush(&self) {
        if !matches!(self.0.line().stage, Stage::Up) {
            return self.ring();
        }
        let mut gathered = Outgoing::default();
        (self.0.gather)(&mut gathered);
        let mut line = self.0.line();
        if matches!(line.stage, Stage::Up) {
            let after = line.send_all(gathered);
            drop(line);
            return self.act(after);
        }
        // It broke meanwhile, and nothing of this was sent.
        drop(line);
        let why = "it broke before this was sent".into();
        let trouble = Trouble::Broken { effect: Effect::None, why };
        for reply in gathered.into_replies() {
            reply.finish(Err(trouble.clone()));
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.end(&Trouble::Closed);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("location", &self.0.location).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing of ours runs under this lock that could leave it half done.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection broke.
    pub(super) fn fall(&self, why: &super::talk::Why) {
        let mut line = self.line();
        let was_up = matches!(line.stage, Stage::Up);
        let fallen = line.fall(Stage::Down, why);
        drop(line);
        for (reply, trouble) in fallen {
            reply.finish(Err(trouble));
        }
        if was_up {
            tracing::warn!("the connection to {} broke: {why}; reconnecting", self.location);
            self.greeter.lost();
        }
    }

    /// An attempt failed.
    pub(super) fn refuse(&self, error: &Error) {
        tracing::debug!("{error}");
        // What passes by itself is worth waiting for; what does not is told at once.
        let passes = error.is_transient();
        let stage = if passes { Stage::Down } else { Stage::Refused(error.clone()) };
        let mut line = self.line();
        line.rung = false;
        let waiting = line.refuse(stage);
        drop(line);
        self.give_up(waiting, &Trouble::NotConnected(error.clone()));
    }

    /// The end: by the owner, or because there is no thread left to run on.
    pub(super) fn end(&self, trouble: &Trouble) {
        let mut line = self.line();
        let fallen = line.fall(Stage::Over(trouble.clone()), &"it was closed".into());
        let after = line.ring();
        drop(line);
        for (reply, trouble) in fallen {
            reply.finish(Err(trouble));
        }
        self.give_up(Vec::new(), trouble);
        after.act();
    }

    /// Tells everybody who waits, and everybody in the engine's own queue.
    pub(super) fn give_up(&self, waiting: Vec<Reply>, trouble: &Trouble) {
        let mut gathered = Outgoing::default();
        (self.gather)(&mut gathered);
        for reply in waiting.into_iter().chain(gathered.into_replies()) {
            reply.finish(Err(trouble.clone()));
        }
    }
}

/// The outcome of a call, to come.
#[derive(Debug)]
#[must_use = "the command is sent; its outcome is here"]
pub(crate) struct Call(oneshot::Receiver<Outcome>);

impl Future for Call {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = Pin::new(&mut self.0).poll(cx);
        outcome.map(|outcome| outcome.unwrap_or(Err(Trouble::Closed)))
    }
}

#[cfg(test)]
mod tests;

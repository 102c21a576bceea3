//! What stands between callers and the connection: bytes to send and replies awaited, in one order,
//! behind one lock. Knows order and effects, not how bytes are read or when.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use redis::{PushKind, Value};
use tokio::sync::oneshot;

use super::errors::{Trouble, judged};
use super::pack::Answer;
use super::stream::WriteHalf;
use super::talk::Why;
use super::url::Address;
use crate::contract::{Effect, Error};

/// What a call comes to.
pub(crate) type Outcome = Result<Value, Trouble>;

/// Who hears the outcome of a command.
pub(crate) enum Reply {
    /// One caller, who may have left.
    One(oneshot::Sender<Outcome>),
    /// Whoever this function tells. It runs in the task of the connection, so it must be short.
    Many(Box<dyn FnOnce(Outcome) + Send>),
}

impl Reply {
    pub(super) fn finish(self, outcome: Outcome) {
        match self {
            // Whoever dropped the call does not want to know.
            Self::One(caller) => drop(caller.send(outcome)),
            Self::Many(tell) => tell(outcome),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::One(_)) { "One" } else { "Many" })
    }
}

/// Commands that were gathered right before they are written.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// Each with its end in `bytes`.
    entries: Vec<Entry>,
}

impl Outgoing {
    /// Adds a packed command.
    #[cfg(test)]
    pub(crate) fn push(&mut self, packed: &[u8], reply: Reply) {
        self.write(|bytes| bytes.extend_from_slice(packed), reply);
    }

    /// Adds a command that is packed on the spot.
    pub(crate) fn write(&mut self, pack: impl FnOnce(&mut Vec<u8>), reply: Reply) {
        let start = self.bytes.len();
        pack(&mut self.bytes);
        let answer = Answer::to(&self.bytes[start..]);
        self.entries.push(Entry { end: self.bytes.len() as u64, answer, reply });
    }

    /// Gives everything up.
    pub(super) fn into_replies(self) -> Vec<Reply> {
        self.entries.into_iter().map(|entry| entry.reply).collect()
    }
}

#[derive(Debug)]
struct Entry {
    /// Where the command ends, counted in bytes since the connection began.
    end: u64,
    answer: Answer,
    reply: Reply,
}

/// What a value that was read means.
#[derive(Debug)]
pub(super) enum Event {
    /// A command was answered.
    Answered(Reply, Outcome),
    /// The server tells something by itself.
    Push(PushKind, Vec<Value>),
}

/// In which state the connection is.
#[derive(Debug)]
pub(super) enum Stage {
    /// An attempt is under way, or will be: callers wait for it.
    Down,
    /// The server does not want us: callers hear it at once, until an attempt succeeds.
    Refused(Error),
    /// Greeted.
    Up,
    /// Never again.
    Over(Trouble),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Line {
    pub(super) stage: Stage,
    /// Whether the connection was ever up.
    pub(super) greeted: bool,
    /// Whether somebody rang since the driver last looked.
    pub(super) rung: bool,
    /// Whether the driver writes, or will in a moment: then nobody writes past it.
    pub(super) busy: bool,
    /// Whether the driver has taken bytes that the socket does not have yet.
    pub(super) writing: bool,
    /// Where the server is that the connection is to, or that is being tried.
    pub(super) peer: Option<Address>,
    /// Whether the server to connect to is said to be elsewhere by now.
    pub(super) moved: bool,
    /// Where callers write, when nobody else does.
    writer: Option<Arc<WriteHalf>>,
    /// Not yet given to the socket.
    out: Vec<u8>,
    /// Bytes of all commands of this connection, and how many of them the socket took.
    queued: u64,
    sent: u64,
    awaited: VecDeque<Entry>,
    /// Wakes the driver; it leaves a new one whenever it runs.
    waker: Option<Waker>,
}

/// What a caller has to do once it let go of the lock.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct After {
    pub(super) wake: Option<Waker>,
    pub(super) refused: Option<(Reply, Trouble)>,
}

impl After {
    pub(super) fn act(self) {
        if let Some(waker) = self.wake {
            waker.wake();
        }
        if let Some((reply, trouble)) = self.refused {
            reply.finish(Err(trouble));
        }
    }
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Down,
            greeted: false,
            rung: false,
            busy: false,
            writing: false,
            peer: None,
            moved: false,
            writer: None,
            out: Vec::new(),
            queued: 0,
            sent: 0,
            awaited: VecDeque::new(),
            waker: None,
        }
    }

    /// Takes a command. If nothing else is under way, it is written here and now, by the caller.
    pub(super) fn send(&mut self, packed: &[u8], reply: Reply) -> After {
        let refusal = match &self.stage {
            Stage::Up | Stage::Down => None,
            Stage::Refused(error) => Some(Trouble::NotConnected(error.clone())),
            Stage::Over(trouble) => Some(trouble.clone()),
        };
        if let Some(trouble) = refusal {
            return After { wake: None, refused: Some((reply, trouble)) };
        }
        let idle = self.is_idle();
        self.queued += packed.len() as u64;
        let answer = Answer::to(packed);
        self.awaited.push_back(Entry { end: self.queued, answer, reply });
        let mut left = packed;
        if let Some(writer) = self.writer.as_ref().filter(|_| idle) {
            // If it fails, the driver will meet the same error, and knows what to do about it.
            let written = writer.try_write(packed).unwrap_or(0);
            self.sent += written as u64;
            left = &packed[written..];
        }
        if left.is_empty() {
            return After::default();
        }
        self.out.extend_from_slice(left);
        self.ring()
    }

    /// Takes commands that a caller gathered, and writes them if the driver has nothing of its own
    /// under way: it may be waiting for others to call before it writes.
    pub(super) fn send_all(&mut self, gathered: Outgoing) -> After {
        let base = self.queued;
        self.queued += gathered.bytes.len() as u64;
        let entries = gathered.entries.into_iter();
        self.awaited.extend(entries.map(|entry| Entry { end: base + entry.end, ..entry }));
        let mut left = &gathered.bytes[..];
        if let Some(writer) = self.writer.as_ref().filter(|_| !self.writing && self.out.is_empty())
        {
            let written = writer.try_write(left).unwrap_or(0);
            self.sent += written as u64;
            left = &left[written..];
        }
        if left.is_empty() {
            return After::default();
        }
        self.out.extend_from_slice(left);
        self.ring()
    }

    /// Wakes the driver: to write, or to connect earlier than it would.
    pub(super) fn ring(&mut self) -> After {
        self.rung = true;
        After { wake: self.waker.take(), refused: None }
    }

    /// Whether a command would be written at once.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Up)
            && self.awaited.is_empty()
            && self.out.is_empty()
            && !self.busy
            && !self.rung
    }

    /// Whether this address is not that of the server in use. While the sentinels are being asked,
    /// there is no such server, and no address is elsewhere.
    pub(super) fn is_elsewhere(&self, address: &Address) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer != address)
    }

    /// The server to connect to is about to be found out.
    pub(super) fn is_looking(&mut self) {
        (self.moved, self.peer) = (false, None);
    }

    /// Whether there is something to write, and how many replies are awaited.
    pub(super) fn demand(&self) -> (bool, usize) {
        (self.rung || !self.out.is_empty(), self.awaited.len())
    }

    /// The driver runs: here is how to wake it. Whether it shall go on.
    pub(super) fn enlist(&mut self, waker: &Waker) -> bool {
        if self.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
        !matches!(self.stage, Stage::Over(_))
    }

    /// The connection is greeted. Whether it is the first; nothing if it is not wanted any more.
    pub(super) fn up(&mut self, writer: Option<Arc<WriteHalf>>) -> Option<bool> {
        if matches!(self.stage, Stage::Over(_)) {
            return None;
        }
        self.stage = Stage::Up;
        self.writer = writer;
        Some(!std::mem::replace(&mut self.greeted, true))
    }

    /// Adds what was gathered, and hands everything to the driver, in exchange for an empty buffer.
    pub(super) fn hand_out(&mut self, gathered: &mut Outgoing, empty: &mut Vec<u8>) {
        let base = self.queued;
        self.queued += gathered.bytes.len() as u64;
        self.out.append(&mut gathered.bytes);
        let entries = gathered.entries.drain(..);
        self.awaited.extend(entries.map(|entry| Entry { end: base + entry.end, ..entry }));
        std::mem::swap(&mut self.out, empty);
        self.busy = !empty.is_empty();
        self.writing = self.busy;
    }

    /// The socket took so many bytes.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Finds out what values mean, in the order in which they came.
    pub(super) fn sort(
        &mut self,
        values: &mut Vec<Value>,
        events: &mut Vec<Event>,
    ) -> Result<(), Why> {
        for value in values.drain(..) {
            match value {
                Value::Push { kind, data } => self.sort_push(kind, data, events),
                value => {
                    // One that was not written yet cannot be meant.
                    let asked = self.awaited.front().is_some_and(|entry| entry.end <= self.sent);
                    let Some(entry) = asked.then(|| self.awaited.pop_front()).flatten() else {
                        return Err("the server answered what nobody asked".into());
                    };
                    events.push(Event::Answered(entry.reply, judged(value)));
                }
            }
        }
        Ok(())
    }

    /// A push that confirms the oldest command is its answer; every other is only news.
    fn sort_push(&mut self, kind: PushKind, data: Vec<Value>, events: &mut Vec<Event>) {
        if let Some(entry) = self.awaited.front_mut()
            && entry.end <= self.sent
            && let Answer::Pushes(wanted, left) = &mut entry.answer
            && *wanted == kind
        {
            *left -= 1;
            if *left == 0
                && let Some(entry) = self.awaited.pop_front()
            {
                events.push(Event::Answered(entry.reply, Ok(Value::Push { kind, data })));
            }
        } else {
            events.push(Event::Push(kind, data));
        }
    }

    /// The connection is gone: who waited for it, and what to tell them. `stage` is what follows.
    pub(super) fn fall(&mut self, stage: Stage, why: &Why) -> Vec<(Reply, Trouble)> {
        let (sent, why) = (self.sent, why.clone());
        let broken = |entry: Entry| {
            // Half a command is none: the server runs it when its last byte is there.
            let whole = entry.end <= sent;
            let effect = if whole { Effect::Unknown } else { Effect::None };
            (entry.reply, Trouble::Broken { effect, why: why.clone() })
        };
        let fallen = self.awaited.drain(..).map(broken).collect();
        self.reset(stage);
        fallen
    }

    /// No connection was made: who waited for it.
    pub(super) fn refuse(&mut self, stage: Stage) -> Vec<Reply> {
        let waiting = self.awaited.drain(..).map(|entry| entry.reply).collect();
        self.reset(stage);
        waiting
    }

    fn reset(&mut self, stage: Stage) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.stage = stage;
        }
        self.writer = None;
        self.out.clear();
        (self.queued, self.sent, self.busy, self.writing) = (0, 0, false, false);
    }
}

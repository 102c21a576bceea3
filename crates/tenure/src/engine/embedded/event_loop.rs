//! The thread that listens for this process: letters for its sessions, the death of processes in
//! its way, the disappearance of the store. Knows descriptors, not rules.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::StepScope;
use super::datagrams::SendOutcome;
use super::liveness::{self, Liveness};
use super::sessions::Sessions;
use crate::contract::{IdMap, Loss, SessionId, Signal};
use crate::time::{Clock, SystemClock, Tick};

/// How soon a letter is tried again whose receiver's box was full.
const AGAIN: Duration = Duration::from_millis(5);
/// How many letters may wait for one receiver: it reads its state again when it wakes.
const LETTERS: usize = 4_096;

/// How long a letterbox that callers have left stays without anybody who listens.
const TAKE_BACK: Duration = Duration::from_millis(20);

/// How long a process lives before it watches the files of its store. To close such a watch takes
/// the kernel 8 ms, most of the life of a short command.
const SETTLED: Duration = Duration::from_millis(200);
/// How many watches are nothing to worry about.
const PRUNE_FROM: usize = 64;
/// How often a process is looked for that seems to keep a session alive and is not there.
const LOOKS: u32 = 8;

const BELL: u64 = 0;
const PLACE: u64 = 1;
const FIRST: u64 = 2;

/// What others ask of the thread.
pub(super) enum LoopRequest {
    /// Notice when this session of another process is over.
    Watch(SessionId, StepScope),
    /// Deliver this when the receiver's box has room again.
    Deliver(SessionId, Vec<u8>),
    /// Callers read a letterbox themselves: take it back when they stop.
    TakeBack,
    /// The store is closed here.
    Stop,
}

/// How orders reach the thread.
#[derive(Debug)]
pub(super) struct EventLoopHandle {
    epoll: OwnedFd,
    bell: OwnedFd,
    orders: Mutex<Vec<LoopRequest>>,
    tokens: AtomicU64,
}

impl std::fmt::Debug for LoopRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Watch(..) => "Watch",
            Self::Deliver(..) => "Deliver",
            Self::TakeBack => "TakeBack",
            Self::Stop => "Stop",
        })
    }
}

impl EventLoopHandle {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let handle = Self { epoll, bell, orders: Mutex::default(), tokens: AtomicU64::new(FIRST) };
        handle.add(&handle.bell, BELL)?;
        Ok(Arc::new(handle))
    }

    /// A number that stands for something the thread listens to.
    pub(super) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Listens to this from now on.
    pub(super) fn add(&self, what: &OwnedFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, what, data, epoll::EventFlags::IN)?)
    }

    /// No longer listens to this. A child that was forked meanwhile may have it open still.
    pub(super) fn remove(&self, what: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, what);
    }

    /// Leaves it to somebody else to listen to this, or takes it back.
    pub(super) fn leave_to_others(&self, what: &OwnedFd, token: u64, leave: bool) {
        let flags = if leave { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let _ = epoll::modify(&self.epoll, what, epoll::EventData::new_u64(token), flags);
    }

    pub(super) fn order(&self, order: LoopRequest) {
        self.lock().push(order);
        // Fails only if the counter is full, and then the bell is ringing already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoopRequest>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<LoopRequest> {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        std::mem::take(&mut *self.lock())
    }
}

/// Starts the thread.
pub(super) fn start(handle: Arc<EventLoopHandle>, sessions: Weak<Sessions>) -> io::Result<()> {
    let lookout = EventLoop {
        handle,
        sessions,
        place: None,
        settles_at: Some(SystemClock.now() + SETTLED),
        watches: HashMap::new(),
        late: IdMap::default(),
        left: None,
        prune_at: PRUNE_FROM,
    };
    thread::Builder::new().name("tenure-lookout".to_owned()).spawn(move || lookout.run())?;
    Ok(())
}

struct EventLoop {
    handle: Arc<EventLoopHandle>,
    sessions: Weak<Sessions>,
    /// Tells when files of the store are removed.
    place: Option<OwnedFd>,
    /// When the process has lived long enough to watch them.
    settles_at: Option<Tick>,
    watches: HashMap<u64, ProcessWatch>,
    late: IdMap<SessionId, VecDeque<Vec<u8>>>,
    /// Some letterbox is left to callers; when that was last looked at.
    left: Option<Tick>,
    /// How many watches there may be before the next look for those that are over.
    prune_at: usize,
}

struct ProcessWatch {
    session: SessionId,
    scope: StepScope,
    /// Readable when the process is over.
    process: OwnedFd,
}

impl EventLoop {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let late = (!self.late.is_empty()).then_some(AGAIN);
            let timeout = late.or(self.left.map(|_| TAKE_BACK));
            let timeout = timeout.or(self.settles_at.map(|_| SETTLED));
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let buffer = rustix::buffer::spare_capacity(&mut events);
            // An interrupted wait is a wait that ends early.
            let _ = epoll::wait(&self.handle.epoll, buffer, timeout.as_ref());
            let Some(sessions) = self.sessions.upgrade() else { return };
            let ready: Vec<u64> = events.drain(..).map(|event| event.data.u64()).collect();
            self.take_back(&sessions);
            if self.settles_at.is_some_and(|at| SystemClock.now() >= at) {
                self.settle(&sessions);
            }
            // A listener that panics must not end the delivery of signals to the other sessions.
            let done = catch_unwind(AssertUnwindSafe(|| self.attend_to(&sessions, &ready)));
            if let Ok(false) = done {
                return;
            }
        }
    }

    /// Deals with what has happened. Whether to go on.
    fn attend_to(&mut self, sessions: &Arc<Sessions>, ready: &[u64]) -> bool {
        for token in ready {
            match *token {
                BELL => {
                    if !self.obey(sessions) {
                        return false;
                    }
                }
                PLACE => self.look_at_place(sessions),
                token => self.event(sessions, token),
            }
        }
        self.deliver_late(sessions);
        true
    }

    /// Watches the files of the store from now on, and looks whether they are still there.
    fn settle(&mut self, sessions: &Sessions) {
        self.settles_at = None;
        match watch_place(sessions) {
            Ok(place) => {
                let _ = self.handle.add(&place, PLACE);
                self.place = Some(place);
            }
            // Every step looks for itself now and then; it only takes longer.
            Err(error) => tracing::warn!(%error, "cannot watch the store's directory"),
        }
        // They may have gone before, which is also why they cannot be watched.
        self.look_at_place(sessions);
    }

    /// Does what was asked. Whether to go on.
    fn obey(&mut self, sessions: &Arc<Sessions>) -> bool {
        for order in self.handle.take() {
            match order {
                LoopRequest::Stop => return false,
                LoopRequest::TakeBack => self.left = Some(SystemClock.now()),
                LoopRequest::Watch(session, scope) => self.watch(sessions, session, scope),
                LoopRequest::Deliver(session, letter) => {
                    let late = self.late.entry(session).or_default();
                    if late.len() < LETTERS {
                        late.push_back(letter);
                    }
                }
            }
        }
        true
    }

    fn event(&mut self, sessions: &Arc<Sessions>, token: u64) {
        let Some(ProcessWatch { session, scope, process }) = self.watches.remove(&token) else {
            sessions.read_letters_of(token);
            return;
        };
        self.handle.remove(&process);
        // Somebody else may keep it alive now: a guardian of its children.
        self.watch(sessions, session, scope);
    }

    /// Watches the process that keeps the session alive, or ends the session if nobody does.
    fn watch(&mut self, sessions: &Arc<Sessions>, session: SessionId, scope: StepScope) {
        if sessions.is_own(session) {
            return;
        }
        match watch_process(sessions, session) {
            Ok(WatchOutcome::Watching(process)) => {
                let token = self.handle.token();
                if self.handle.add(&process, token).is_ok() {
                    self.watches.insert(token, ProcessWatch { session, scope, process });
                    self.prune(sessions);
                } else {
                    sessions.forget_watch(session);
                }
            }
            Ok(WatchOutcome::Dead) => {
                sessions.forget_watch(session);
                sessions.end_dead_soon(session, scope);
            }
            Ok(WatchOutcome::Absent) => {
                sessions.forget_watch(session);
                // Somebody else dealt with its end. If it was killed after it had let go and
                // before it could write, the letter it owes may be one to us.
                sessions.resync();
            }
            // It cannot be watched from here; its lease will tell.
            Err(error) => {
                tracing::debug!(%session, %error, "cannot watch a session");
                sessions.forget_watch(session);
            }
        }
    }

    /// Now and then, forgets the watches over sessions that left in order.
    fn prune(&mut self, sessions: &Sessions) {
        if self.watches.len() < self.prune_at {
            return;
        }
        let handle = &self.handle;
        self.watches.retain(|_, watch| {
            let pulse = liveness::pulse(sessions.directory(), watch.session);
            let left = matches!(pulse, Ok(Liveness::Absent));
            if left {
                handle.remove(&watch.process);
                sessions.forget_watch(watch.session);
            }
            !left
        });
        self.prune_at = (self.watches.len() * 2).max(PRUNE_FROM);
    }

    fn look_at_place(&mut self, sessions: &Sessions) {
        let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 1024];
        if let Some(place) = &self.place {
            let mut reader = inotify::Reader::new(place, &mut buffer);
            while reader.next().is_ok() {}
        }
        if !sessions.store().check_place() {
            sessions.tell_all(&Signal::AllEnded { loss: Loss::Forgotten });
        }
    }

    /// Takes back what callers no longer attend to.
    fn take_back(&mut self, sessions: &Sessions) {
        let now = SystemClock.now();
        if self.left.is_some_and(|looked| now.since(looked) >= TAKE_BACK) {
            self.left = sessions.take_back().then_some(now);
        }
    }

    fn deliver_late(&mut self, sessions: &Sessions) {
        self.late.retain(|session, letters| {
            while let Some(letter) = letters.front() {
                match sessions.sender().send(*session, letter) {
                    SendOutcome::Full => return true,
                    SendOutcome::Delivered => letters.pop_front(),
                    SendOutcome::NoReceiver => return false,
                };
            }
            false
        });
    }
}

/// What keeps a session alive.
enum WatchOutcome {
    /// A process, with a descriptor that tells of its end.
    Watching(OwnedFd),
    Dead,
    Absent,
}

fn watch_process(sessions: &Sessions, session: SessionId) -> io::Result<WatchOutcome> {
    let directory = sessions.directory();
    for _ in 0..LOOKS {
        let pid = match liveness::pulse(directory, session)? {
            Liveness::Alive(pid) => pid,
            Liveness::Dead => return Ok(WatchOutcome::Dead),
            Liveness::Absent => return Ok(WatchOutcome::Absent),
        };
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => continue,
            Err(error) => return Err(error.into()),
        };
        // The number may have passed to another process before we opened it: look again.
        if still_kept_by(sessions, session, pid)? {
            return Ok(WatchOutcome::Watching(process));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn still_kept_by(sessions: &Sessions, session: SessionId, pid: Pid) -> io::Result<bool> {
    Ok(liveness::pulse(sessions.directory(), session)? == Liveness::Alive(Some(pid)))
}

/// Tells when the files of the store are removed or moved away.
fn watch_place(sessions: &Sessions) -> io::Result<OwnedFd> {
    use inotify::WatchFlags;
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let place = inotify::init(flags)?;
    let events = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let file_set = sessions.store().file_set();
    inotify::add_watch(&place, file_set, events)?;
    inotify::add_watch(&place, file_set.join("locks"), events)?;
    Ok(place)
}

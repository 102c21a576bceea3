//! The thread that listens for this process: letters for its sessions, the death of processes in
//! its way, the disappearance of the store. Knows descriptors, not rules.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::Scope;
use super::liveness::{self, Pulse};
use super::post::Sent;
use super::sessions::Sessions;
use crate::contract::{IdMap, Loss, SessionId, Signal};

/// How soon a letter is tried again whose receiver's box was full.
const AGAIN: Duration = Duration::from_millis(2);
/// How many letters may wait for one receiver: it reads its state again when it wakes.
const LETTERS: usize = 4_096;

/// How long a letterbox that callers have left stays without anybody who listens.
const TAKE_BACK: Duration = Duration::from_millis(10);

const BELL: u64 = 0;
const PLACE: u64 = 1;
const FIRST: u64 = 2;

/// What others ask of the thread.
pub(super) enum Order {
    /// Notice when this session of another process is over.
    Watch(SessionId, Scope),
    /// Deliver this when the receiver's box has room again.
    Deliver(SessionId, Vec<u8>),
    /// Callers read a letterbox themselves: take it back when they stop.
    TakeBack,
    /// The store is closed here.
    Stop,
}

/// How orders reach the thread.
#[derive(Debug)]
pub(super) struct Desk {
    epoll: OwnedFd,
    bell: OwnedFd,
    orders: Mutex<Vec<Order>>,
    tokens: AtomicU64,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Watch(..) => "Watch",
            Self::Deliver(..) => "Deliver",
            Self::TakeBack => "TakeBack",
            Self::Stop => "Stop",
        })
    }
}

impl Desk {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let desk = Self { epoll, bell, orders: Mutex::default(), tokens: AtomicU64::new(FIRST) };
        desk.add(&desk.bell, BELL)?;
        Ok(Arc::new(desk))
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

    /// Leaves it to somebody else to listen to this, or takes it back.
    pub(super) fn leave_to_others(&self, what: &OwnedFd, token: u64, leave: bool) {
        let flags = if leave { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let _ = epoll::modify(&self.epoll, what, epoll::EventData::new_u64(token), flags);
    }

    pub(super) fn order(&self, order: Order) {
        self.lock().push(order);
        // Fails only if the counter is full, and then the bell is ringing already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Order> {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
        std::mem::take(&mut *self.lock())
    }
}

/// Starts the thread.
pub(super) fn start(desk: Arc<Desk>, sessions: Weak<Sessions>) -> io::Result<()> {
    let place = sessions.upgrade().and_then(|sessions| watch_place(&sessions).ok());
    if let Some(place) = &place {
        desk.add(place, PLACE)?;
    }
    let (watches, late) = (HashMap::new(), IdMap::default());
    let lookout = Lookout { desk, sessions, place, watches, late, left: false };
    thread::Builder::new().name("tenure-lookout".to_owned()).spawn(move || lookout.run())?;
    Ok(())
}

struct Lookout {
    desk: Arc<Desk>,
    sessions: Weak<Sessions>,
    /// Tells when files of the store are removed.
    place: Option<OwnedFd>,
    watches: HashMap<u64, Watch>,
    late: IdMap<SessionId, VecDeque<Vec<u8>>>,
    /// Some letterbox is left to callers.
    left: bool,
}

struct Watch {
    session: SessionId,
    scope: Scope,
    /// Readable when the process is over; closing it ends the watch.
    _process: OwnedFd,
}

impl Lookout {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let late = (!self.late.is_empty()).then_some(AGAIN);
            let timeout = late.or(self.left.then_some(TAKE_BACK));
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let buffer = rustix::buffer::spare_capacity(&mut events);
            // An interrupted wait is a wait that ends early.
            let _ = epoll::wait(&self.desk.epoll, buffer, timeout.as_ref());
            let Some(sessions) = self.sessions.upgrade() else { return };
            let ready: Vec<u64> = events.drain(..).map(|event| event.data.u64()).collect();
            if ready.is_empty() && self.left {
                self.left = sessions.take_back();
            }
            for token in ready {
                match token {
                    BELL => {
                        if !self.obey(&sessions) {
                            return;
                        }
                    }
                    PLACE => self.look_at_place(&sessions),
                    token => self.event(&sessions, token),
                }
            }
            self.deliver_late(&sessions);
        }
    }

    /// Does what was asked. Whether to go on.
    fn obey(&mut self, sessions: &Sessions) -> bool {
        for order in self.desk.take() {
            match order {
                Order::Stop => return false,
                Order::TakeBack => self.left = true,
                Order::Watch(session, scope) => self.watch(sessions, session, scope),
                Order::Deliver(session, letter) => {
                    let late = self.late.entry(session).or_default();
                    if late.len() < LETTERS {
                        late.push_back(letter);
                    }
                }
            }
        }
        true
    }

    fn event(&mut self, sessions: &Sessions, token: u64) {
        let Some(Watch { session, scope, .. }) = self.watches.remove(&token) else {
            sessions.read_letters_of(token);
            return;
        };
        // Somebody else may keep it alive now: a guardian of its children.
        self.watch(sessions, session, scope);
    }

    /// Watches the process that keeps the session alive, or ends the session if nobody does.
    fn watch(&mut self, sessions: &Sessions, session: SessionId, scope: Scope) {
        if sessions.is_own(session) {
            return;
        }
        match watch_process(sessions, session) {
            Ok(Kept::By(process)) => {
                let token = self.desk.token();
                if self.desk.add(&process, token).is_ok() {
                    self.watches.insert(token, Watch { session, scope, _process: process });
                }
            }
            Ok(Kept::ByNobody) => {
                sessions.forget_watch(session);
                sessions.end_dead(session, &scope);
            }
            Ok(Kept::NoTrace) => sessions.forget_watch(session),
            // It cannot be watched from here; its lease will tell.
            Err(error) => {
                tracing::debug!(%session, %error, "cannot watch a session");
                sessions.forget_watch(session);
            }
        }
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

    fn deliver_late(&mut self, sessions: &Sessions) {
        self.late.retain(|session, letters| {
            while let Some(letter) = letters.front() {
                match sessions.postman().send(*session, letter) {
                    Sent::Full => return true,
                    Sent::Delivered => letters.pop_front(),
                    Sent::Nobody => return false,
                };
            }
            false
        });
    }
}

/// What keeps a session alive.
enum Kept {
    /// A process, with a descriptor that tells of its end.
    By(OwnedFd),
    ByNobody,
    NoTrace,
}

fn watch_process(sessions: &Sessions, session: SessionId) -> io::Result<Kept> {
    let directory = sessions.directory();
    loop {
        let pid = match liveness::pulse(directory, session)? {
            Pulse::Beats(pid) => pid,
            Pulse::Stopped => return Ok(Kept::ByNobody),
            Pulse::Absent => return Ok(Kept::NoTrace),
        };
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => continue,
            Err(error) => return Err(error.into()),
        };
        // The number may have passed to another process before we opened it: look again.
        if still_kept_by(sessions, session, pid)? {
            return Ok(Kept::By(process));
        }
    }
}

fn still_kept_by(sessions: &Sessions, session: SessionId, pid: Pid) -> io::Result<bool> {
    Ok(liveness::pulse(sessions.directory(), session)? == Pulse::Beats(Some(pid)))
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

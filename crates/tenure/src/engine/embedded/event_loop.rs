//! The event loop: one thread per process and store that waits, by `epoll`, for datagrams to the
//! process's sessions, for the end of watched processes, and for changes of the store's directory.
//!
//! Other threads send it [`LoopRequest`]s through an [`EventLoopHandle`] and wake it with an
//! eventfd. The loop never blocks on the gate: whatever needs a step of the store is queued for the
//! worker thread. A listener that panics ends the delivery of one event, not the loop.
//!
//! **Watching a process.** A session's liveness file names the pid that holds the lock on it; a
//! pidfd becomes readable when that process ends. The pid may pass to another process between the
//! two calls, so the liveness file is read again after the pidfd was opened. When the process ends,
//! the session is checked again: another process may keep it alive, such as a guardian of its
//! children.

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
use super::cell_watches;
use super::datagrams::SendOutcome;
use super::liveness::{self, Liveness};
use super::sessions::Sessions;
use crate::contract::{IdMap, Loss, SessionId, Signal};
use crate::time::{Clock, SystemClock, Tick};

/// The pause before a datagram is sent again to a receiver whose buffer was full.
const SEND_RETRY: Duration = Duration::from_millis(5);
/// How many datagrams are kept for one receiver. More are dropped: the receiver reads its state
/// with the next renewal.
const MAX_UNSENT: usize = 4_096;

/// How often sockets whose polling is paused are checked.
const RESUME_CHECK: Duration = Duration::from_millis(20);

/// How long a process lives before it watches the files of its store. To close such a watch takes
/// the kernel 8 ms, most of the life of a short command.
const FILE_WATCH_DELAY: Duration = Duration::from_millis(200);
/// Below so many watches none is checked for a session that has left.
const PRUNE_FROM: usize = 64;
/// How many times the holder of a liveness file is looked up whose process is gone.
const LOOKUPS: u32 = 8;

/// The token of the eventfd.
const WAKE: u64 = 0;
/// The token of the inotify descriptor.
const FILES: u64 = 1;
const FIRST_TOKEN: u64 = 2;

/// What other threads ask of the event loop.
pub(super) enum LoopRequest {
    /// End this session of another process when its process has died.
    Watch(SessionId, StepScope),
    /// Send this datagram when the receiver's buffer has space again.
    Send(SessionId, Vec<u8>),
    /// A socket is paused for an inline reader: check when to resume.
    ResumeUnused,
    /// This process watches cells: check for missed signals from now on.
    CheckCells,
    /// The store is closed in this process.
    Stop,
}

/// Sends requests to the event loop, and changes what it polls.
#[derive(Debug)]
pub(super) struct EventLoopHandle {
    epoll: OwnedFd,
    wake: OwnedFd,
    requests: Mutex<Vec<LoopRequest>>,
    tokens: AtomicU64,
}

impl std::fmt::Debug for LoopRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Watch(..) => "Watch",
            Self::Send(..) => "Send",
            Self::ResumeUnused => "ResumeUnused",
            Self::CheckCells => "CheckCells",
            Self::Stop => "Stop",
        })
    }
}

impl EventLoopHandle {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tokens = AtomicU64::new(FIRST_TOKEN);
        let handle = Self { epoll, wake, requests: Mutex::default(), tokens };
        handle.add(&handle.wake, WAKE)?;
        Ok(Arc::new(handle))
    }

    /// Returns a new token for a descriptor.
    pub(super) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Polls this descriptor from now on.
    pub(super) fn add(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Stops polling this descriptor. Closing it is not enough: a child that was forked meanwhile
    /// may have it open.
    pub(super) fn remove(&self, fd: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Resumes (`poll`) or pauses the polling of a socket.
    pub(super) fn poll_socket(&self, fd: &OwnedFd, token: u64, poll: bool) {
        let flags = if poll { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags);
    }

    pub(super) fn request(&self, request: LoopRequest) {
        self.lock().push(request);
        // Fails only if the counter is full, and then the loop is being woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoopRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<LoopRequest> {
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut *self.lock())
    }
}

/// Starts the thread.
pub(super) fn start(handle: Arc<EventLoopHandle>, sessions: Weak<Sessions>) -> io::Result<()> {
    let event_loop = EventLoop {
        handle,
        sessions,
        files: None,
        watch_files_at: Some(SystemClock.now() + FILE_WATCH_DELAY),
        watches: HashMap::new(),
        unsent: IdMap::default(),
        resume_checked: None,
        cells_checked: None,
        prune_at: PRUNE_FROM,
    };
    thread::Builder::new().name("tenure-events".to_owned()).spawn(move || event_loop.run())?;
    Ok(())
}

struct EventLoop {
    handle: Arc<EventLoopHandle>,
    sessions: Weak<Sessions>,
    /// The inotify descriptor for the files of the store.
    files: Option<OwnedFd>,
    /// When the process has lived long enough to watch them.
    watch_files_at: Option<Tick>,
    watches: HashMap<u64, ProcessWatch>,
    /// Datagrams for receivers whose buffer was full, in order.
    unsent: IdMap<SessionId, VecDeque<Vec<u8>>>,
    /// When paused sockets were last checked; `None` while no socket is paused.
    resume_checked: Option<Tick>,
    /// When signals of cells were last checked; `None` while this process watches none.
    cells_checked: Option<Tick>,
    /// How many watches there may be before they are checked for sessions that have left.
    prune_at: usize,
}

struct ProcessWatch {
    session: SessionId,
    scope: StepScope,
    /// Readable when the process has ended.
    process: OwnedFd,
}

impl EventLoop {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let retry = (!self.unsent.is_empty()).then_some(SEND_RETRY);
            let timeout = retry.or(self.resume_checked.map(|_| RESUME_CHECK));
            let timeout = timeout.or(self.watch_files_at.map(|_| FILE_WATCH_DELAY));
            let timeout = timeout.or(self.cells_checked.map(|_| cell_watches::CHECK));
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let buffer = rustix::buffer::spare_capacity(&mut events);
            // An interrupted wait is a wait that ends early.
            let _ = epoll::wait(&self.handle.epoll, buffer, timeout.as_ref());
            let Some(sessions) = self.sessions.upgrade() else { return };
            let ready: Vec<u64> = events.drain(..).map(|event| event.data.u64()).collect();
            self.resume_unused(&sessions);
            if self.watch_files_at.is_some_and(|at| SystemClock.now() >= at) {
                self.watch_files(&sessions);
            }
            // A listener that panics must not end the delivery of signals to the other sessions.
            let done = catch_unwind(AssertUnwindSafe(|| self.dispatch(&sessions, &ready)));
            if let Ok(false) = done {
                return;
            }
        }
    }

    /// Handles the descriptors that are ready. Returns whether to go on.
    fn dispatch(&mut self, sessions: &Arc<Sessions>, ready: &[u64]) -> bool {
        self.check_cells(sessions);
        for token in ready {
            match *token {
                WAKE => {
                    if !self.handle_requests(sessions) {
                        return false;
                    }
                }
                FILES => self.check_files(sessions),
                token => self.event(sessions, token),
            }
        }
        self.send_unsent(sessions);
        true
    }

    /// Begins to watch the files of the store, and checks that they are still there.
    fn watch_files(&mut self, sessions: &Sessions) {
        self.watch_files_at = None;
        match inotify_files(sessions) {
            Ok(files) => {
                let _ = self.handle.add(&files, FILES);
                self.files = Some(files);
            }
            // Every step checks the files now and then; it only takes longer.
            Err(error) => tracing::warn!(%error, "cannot watch the store's directory"),
        }
        // They may have been removed before, which is also why they cannot be watched.
        self.check_files(sessions);
    }

    /// Handles all requests. Returns whether to go on.
    fn handle_requests(&mut self, sessions: &Arc<Sessions>) -> bool {
        for request in self.handle.take() {
            match request {
                LoopRequest::Stop => return false,
                LoopRequest::ResumeUnused => self.resume_checked = Some(SystemClock.now()),
                LoopRequest::CheckCells => self.cells_checked = Some(SystemClock.now()),
                LoopRequest::Watch(session, scope) => self.watch(sessions, session, scope),
                LoopRequest::Send(session, datagram) => {
                    let unsent = self.unsent.entry(session).or_default();
                    if unsent.len() < MAX_UNSENT {
                        unsent.push_back(datagram);
                    }
                }
            }
        }
        true
    }

    fn event(&mut self, sessions: &Arc<Sessions>, token: u64) {
        let Some(ProcessWatch { session, scope, process }) = self.watches.remove(&token) else {
            sessions.receive(token);
            return;
        };
        self.handle.remove(&process);
        // Another process may keep the session alive now.
        self.watch(sessions, session, scope);
    }

    /// Watches the process that keeps the session alive, or ends the session if it is dead.
    fn watch(&mut self, sessions: &Arc<Sessions>, session: SessionId, scope: StepScope) {
        if sessions.is_local(session) {
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
                sessions.end_dead_later(session, scope);
            }
            Ok(WatchOutcome::Absent) => {
                sessions.forget_watch(session);
                // The session has ended. If its process was killed between its last release and
                // the datagram for it, the grant may be one of ours.
                sessions.resync();
            }
            // Without a watch the lease is the backstop.
            Err(error) => {
                tracing::debug!(%session, %error, "cannot watch a session");
                sessions.forget_watch(session);
            }
        }
    }

    /// Drops the watches of sessions that have left, when there are many watches.
    fn prune(&mut self, sessions: &Sessions) {
        if self.watches.len() < self.prune_at {
            return;
        }
        let handle = &self.handle;
        self.watches.retain(|_, watch| {
            let liveness = liveness::check(sessions.directory(), watch.session);
            let left = matches!(liveness, Ok(Liveness::Absent));
            if left {
                handle.remove(&watch.process);
                sessions.forget_watch(watch.session);
            }
            !left
        });
        self.prune_at = (self.watches.len() * 2).max(PRUNE_FROM);
    }

    fn check_files(&mut self, sessions: &Sessions) {
        let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 1024];
        if let Some(files) = &self.files {
            let mut reader = inotify::Reader::new(files, &mut buffer);
            while reader.next().is_ok() {}
        }
        if !sessions.store().check_files() {
            sessions.deliver_to_all(&Signal::AllEnded { loss: Loss::Forgotten });
            sessions.cell_signals().gap();
        }
    }

    /// Checks for signals of cells that have not reached this process.
    fn check_cells(&mut self, sessions: &Arc<Sessions>) {
        let now = SystemClock.now();
        if self.cells_checked.is_some_and(|checked| now.since(checked) >= cell_watches::CHECK) {
            self.cells_checked = sessions.check_cells().then_some(now);
        }
    }

    /// Resumes the polling of sockets that inline readers no longer read.
    fn resume_unused(&mut self, sessions: &Sessions) {
        let now = SystemClock.now();
        if self.resume_checked.is_some_and(|checked| now.since(checked) >= RESUME_CHECK) {
            self.resume_checked = sessions.resume_unused().then_some(now);
        }
    }

    fn send_unsent(&mut self, sessions: &Sessions) {
        self.unsent.retain(|session, datagrams| {
            while let Some(datagram) = datagrams.front() {
                match sessions.sender().send(*session, datagram) {
                    SendOutcome::Full => return true,
                    SendOutcome::Delivered => datagrams.pop_front(),
                    SendOutcome::NoReceiver => return false,
                };
            }
            false
        });
    }
}

/// The result of watching the process of a session.
enum WatchOutcome {
    /// A process keeps the session alive; the pidfd is readable when it has ended.
    Watching(OwnedFd),
    /// The session's process has died.
    Dead,
    /// The session has left, or was ended after its process died.
    Absent,
}

fn watch_process(sessions: &Sessions, session: SessionId) -> io::Result<WatchOutcome> {
    let directory = sessions.directory();
    for _ in 0..LOOKUPS {
        let pid = match liveness::check(directory, session)? {
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
        // The pid may have passed to another process before the pidfd was opened: check again.
        if is_held_by(sessions, session, pid)? {
            return Ok(WatchOutcome::Watching(process));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn is_held_by(sessions: &Sessions, session: SessionId, pid: Pid) -> io::Result<bool> {
    Ok(liveness::check(sessions.directory(), session)? == Liveness::Alive(Some(pid)))
}

/// Opens an inotify descriptor for the removal of the store's files.
fn inotify_files(sessions: &Sessions) -> io::Result<OwnedFd> {
    use inotify::WatchFlags;
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let files = inotify::init(flags)?;
    let events = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let file_set = sessions.store().file_set();
    inotify::add_watch(&files, file_set, events)?;
    inotify::add_watch(&files, file_set.join("locks"), events)?;
    Ok(files)
}

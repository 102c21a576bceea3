//! The sessions of this process in one store, and which sessions of other processes are alive.
//!
//! A session of this process holds a lock on its liveness file and binds a socket (`join`,
//! `leave`). A session of another process in the way of a waiter is *watched*: the event loop waits
//! for the end of its process. When it ends without having left, its holds and tickets are ended
//! slot by slot (`end_dead`), which grants to the next waiters; every process that watched tries
//! this, and the first one to finish removes the session's files.
//!
//! There is one `Sessions` per store and process ([`OPEN`]): LMDB must not be opened twice in one
//! process, and a process cannot see its own record locks.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use super::StepScope;
use super::cell_rows::boot_number;
use super::cell_watches::CellSignals;
use super::codec;
use super::commit_queue::CommitQueue;
use super::datagrams::{self, DatagramSender, SessionSocket};
use super::errors::forked;
use super::event_loop::{self, EventLoopHandle, LoopRequest};
use super::liveness::{self, Liveness, LivenessLock};
use super::signals::SocketReaders;
use super::sizes::Sizes;
use super::slots::SlotRows;
use super::store::{StepKind, Store, StoreAddress, WAIT};
use super::worker::Worker;
use crate::contract::{Error, IdMap, InlineWait, LocalSessions, SessionId, SignalListener};
use crate::ledger::Ledger;
use crate::time::{Clock, SystemClock};

/// How many slots are cleared of a dead session in one step.
const SLOTS_PER_STEP: usize = 64;
/// How many sessions of other processes this process watches at once.
const MAX_WATCHED: usize = 1_024;

/// The stores that this process has open.
static OPEN: LazyLock<Mutex<HashMap<StoreAddress, Weak<Sessions>>>> = LazyLock::new(Mutex::default);

/// The sessions of this process in one store.
pub(super) struct Sessions {
    store: Arc<Store>,
    directory: PathBuf,
    sender: DatagramSender,
    local: RwLock<IdMap<SessionId, LocalSession>>,
    watched: Mutex<HashSet<SessionId>>,
    event_loop: Arc<EventLoopHandle>,
    started: Mutex<bool>,
    worker: Worker,
    disk_worker: Worker,
    /// The boot of the store, as a number.
    boot: u64,
    commits: CommitQueue,
    cell_signals: CellSignals,
}

/// A session of this process.
pub(super) struct LocalSession {
    pub(super) listener: Weak<dyn SignalListener>,
    liveness: LivenessLock,
    pub(super) socket: Arc<SessionSocket>,
    /// The token of the socket in the event loop.
    pub(super) token: u64,
    pub(super) readers: Arc<SocketReaders>,
}

impl Sessions {
    /// Returns the sessions in the store at this address; opens the store if this process has not
    /// done so yet, with these sizes.
    pub(super) fn at(address: &StoreAddress, sizes: Sizes) -> Result<Arc<Self>, Error> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, sessions| sessions.strong_count() > 0);
        let sessions = open.get(address).and_then(Weak::upgrade);
        if let Some(sessions) = sessions {
            if sessions.store.inherited() {
                return Err(forked());
            }
            if sessions.store.check_files() {
                return Ok(sessions);
            }
            sessions.store.close();
        }
        let store = Arc::new(Store::open(address, sizes)?);
        let sessions = Self::new(store, boot_number(&address.boot))
            .map_err(|error| cannot_join(&error, address.root.path()))?;
        open.insert(address.clone(), Arc::downgrade(&sessions));
        Ok(sessions)
    }

    fn new(store: Arc<Store>, boot: u64) -> io::Result<Arc<Self>> {
        let directory = store.sessions();
        Ok(Arc::new(Self {
            cell_signals: CellSignals::new(store.file_set().join("watches"))?,
            sender: DatagramSender::new(&directory)?,
            store,
            directory,
            local: RwLock::default(),
            watched: Mutex::default(),
            event_loop: EventLoopHandle::new()?,
            started: Mutex::default(),
            worker: Worker::default(),
            disk_worker: Worker::default(),
            boot,
            commits: CommitQueue::default(),
        }))
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the thread for steps that find the gate busy.
    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Returns the thread for steps that wait for the disk.
    pub(super) fn disk_worker(&self) -> &Worker {
        &self.disk_worker
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn boot(&self) -> u64 {
        self.boot
    }

    /// Returns the writes of cells that wait for a commit.
    pub(super) fn commits(&self) -> &CommitQueue {
        &self.commits
    }

    pub(super) fn cell_signals(&self) -> &CellSignals {
        &self.cell_signals
    }

    pub(super) fn sender(&self) -> &DatagramSender {
        &self.sender
    }

    pub(super) fn event_loop(&self) -> &EventLoopHandle {
        &self.event_loop
    }

    /// Begins a session of this process: binds its socket and locks its liveness file.
    pub(super) fn join(
        self: &Arc<Self>,
        session: SessionId,
        listener: Weak<dyn SignalListener>,
    ) -> io::Result<()> {
        let socket = self.sender.bind(&self.directory, session)?;
        let token = self.event_loop.token();
        self.event_loop.add(socket.fd(), token)?;
        let (socket, readers) = (Arc::new(socket), Arc::default());
        // Under one lock: a check of the file by this process would release the record lock on it,
        // and `is_dead` checks only what is not in `local`.
        let mut local = self.local_mut();
        let liveness = LivenessLock::acquire(&self.directory, session)?;
        local.insert(session, LocalSession { listener, liveness, socket, token, readers });
        drop(local);
        self.start_event_loop()
    }

    /// Starts the event loop, unless it runs already.
    pub(super) fn start_event_loop(self: &Arc<Self>) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            event_loop::start(Arc::clone(&self.event_loop), Arc::downgrade(self))?;
            *started = true;
        }
        Ok(())
    }

    /// Ends a session of this process.
    pub(super) fn leave(&self, session: SessionId) {
        let local = self.local_mut().remove(&session);
        if let Some(local) = local
            && !self.store.inherited()
        {
            self.event_loop.remove(local.socket.fd());
            local.socket.interrupt(codec::INTERRUPT);
            local.socket.unlink();
            local.liveness.remove();
        }
    }

    pub(super) fn is_local(&self, session: SessionId) -> bool {
        self.local().contains_key(&session)
    }

    /// Watches the processes of these sessions. Cheap for sessions that are watched already.
    pub(super) fn watch(&self, in_the_way: &[SessionId], scope: &StepScope) {
        let mut watched = self.watched();
        for session in in_the_way {
            if watched.len() < MAX_WATCHED && !watched.contains(session) && !self.is_local(*session)
            {
                watched.insert(*session);
                self.event_loop.request(LoopRequest::Watch(*session, scope.clone()));
            }
        }
    }

    pub(super) fn forget_watch(&self, session: SessionId) {
        self.watched().remove(&session);
    }

    /// Describes the processes that have a living session in this store, for error messages.
    pub(super) fn living(&self) -> Vec<String> {
        let mut living = Vec::new();
        if !self.local().is_empty() {
            living.push("this process".to_owned());
        }
        match self.others() {
            Ok(others) => {
                for session in others {
                    match liveness::check(&self.directory, session) {
                        Ok(Liveness::Alive(Some(pid))) => {
                            living.push(format!("process {}", pid.as_raw_nonzero()));
                        }
                        Ok(Liveness::Alive(None)) => living.push("a process".to_owned()),
                        Ok(Liveness::Dead | Liveness::Absent) => {}
                        Err(error) => living.push(format!("session {session:?} ({error})")),
                    }
                }
            }
            Err(error) => living.push(format!("unknown processes ({error})")),
        }
        living
    }

    /// Returns the sessions of other processes, living or dead.
    pub(super) fn others(&self) -> io::Result<Vec<SessionId>> {
        let entries = std::fs::read_dir(&self.directory)?.flatten();
        let session = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(entries.filter_map(session).filter(|session| !self.is_local(*session)).collect())
    }

    /// Returns whether a session of another process is certainly dead.
    pub(super) fn is_dead(&self, session: SessionId) -> bool {
        let local = self.local();
        !local.contains_key(&session)
            && matches!(liveness::check(&self.directory, session), Ok(Liveness::Dead))
    }

    /// Runs `end_dead` on the worker thread: the event loop must not block on the gate.
    pub(super) fn end_dead_later(self: &Arc<Self>, session: SessionId, scope: StepScope) {
        let sessions = Arc::clone(self);
        self.worker.spawn(move || sessions.end_dead(session, &scope));
    }

    /// Ends the holds and tickets of a dead session, and grants to the next waiters. Blocks the
    /// thread for as long as the gate does.
    pub(super) fn end_dead(&self, session: SessionId, scope: &StepScope) {
        let file = liveness::file_of(&self.directory, session);
        let began = SystemClock.now();
        let mut after = None;
        // A few slots per step: other processes get in between, and a full store has no space for
        // a large transaction.
        loop {
            let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
                let names = ledger.shelf().names_after(after.as_ref(), SLOTS_PER_STEP);
                ledger.end_session_in(&names, session, now);
                (names.len() == SLOTS_PER_STEP).then(|| names.last().cloned()).flatten()
            };
            let clock = &*scope.clock;
            match self.store.step(scope.namespace, clock, StepKind::FreesSpace, WAIT, step) {
                Ok((last, signals)) => {
                    self.deliver(signals, scope);
                    // Without the file another process has finished the same work.
                    if last.is_none() || !file.exists() {
                        break;
                    }
                    after = last;
                }
                Err(error) => {
                    tracing::warn!(%session, %error, "cannot end a dead session yet");
                    // Retry after a timeout of the gate. Other errors would repeat at once.
                    if SystemClock.now().since(began) >= WAIT {
                        self.watch(&[session], scope);
                    }
                    return;
                }
            }
        }
        let _ = std::fs::remove_file(&file);
        let _ = std::fs::remove_file(self.directory.join(datagrams::file_name(session)));
        // Other sessions are in the way of waiters now, and may not be watched yet.
        self.resync();
    }

    pub(super) fn local(&self) -> std::sync::RwLockReadGuard<'_, IdMap<SessionId, LocalSession>> {
        self.local.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn local_mut(&self) -> std::sync::RwLockWriteGuard<'_, IdMap<SessionId, LocalSession>> {
        self.local.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalSessions for Sessions {
    fn liveness_file(&self, session: SessionId) -> Option<PathBuf> {
        self.local().get(&session).map(|local| local.liveness.path().to_owned())
    }

    fn inline_wait(&self) -> Option<&dyn InlineWait> {
        Some(self)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.event_loop.request(LoopRequest::Stop);
        let local = std::mem::take(&mut *self.local_mut());
        if self.store.inherited() {
            // The files are the parent's.
            return;
        }
        self.cell_signals.close();
        for local in local.into_values() {
            local.socket.unlink();
            local.liveness.remove();
        }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("at", &self.directory).finish_non_exhaustive()
    }
}

/// Builds the error for a session that could not begin.
pub(super) fn cannot_join(error: &io::Error, directory: &Path) -> Error {
    let error = io::Error::new(error.kind(), error.to_string());
    super::directory::cannot("begin a session in", directory, error)
}

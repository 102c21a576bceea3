//! The sessions of this process in one store, and what it knows of those of others. Knows who is
//! told, who lives and who is watched; not what they hold.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use super::StepScope;
use super::codec::{self, Damaged, Writer};
use super::datagrams::{self, DatagramSender, SendOutcome, SessionSocket};
use super::errors::forked;
use super::event_loop::{self, EventLoopHandle, LoopRequest};
use super::liveness::{self, Liveness, LivenessLock};
use super::slots::SlotRows;
use super::store::{StepKind, Store, StoreAddress, WAIT};
use super::worker::Worker;
use crate::contract::{Error, IdMap, InlineWait, LocalSessions, SessionId, Signal, SignalListener};
use crate::ledger::Ledger;
use crate::time::{Clock, SystemClock};

/// How many slots are cleared of a dead session in one step.
const ENDED: usize = 64;
/// How many sessions of others this process watches at once.
const WATCHED: usize = 1_024;

/// One process must not open an environment twice, nor look at the signs of its own life.
static OPEN: LazyLock<Mutex<HashMap<StoreAddress, Weak<Sessions>>>> = LazyLock::new(Mutex::default);

/// The sessions of this process in one store.
pub(super) struct Sessions {
    store: Arc<Store>,
    directory: PathBuf,
    sender: DatagramSender,
    own: RwLock<IdMap<SessionId, LocalSession>>,
    watched: Mutex<HashSet<SessionId>>,
    handle: Arc<EventLoopHandle>,
    started: OnceLock<()>,
    worker: Worker,
    disk_worker: Worker,
}

struct LocalSession {
    listener: Weak<dyn SignalListener>,
    alive: LivenessLock,
    letters: Arc<SessionSocket>,
    /// What it is to the lookout.
    token: u64,
    watch: Arc<SocketReaders>,
}

/// Who listens at a letterbox: the lookout, or callers that are blocked anyway.
#[derive(Default)]
struct SocketReaders {
    /// A caller waits at the letterbox now.
    attended: AtomicBool,
    /// The lookout does not listen: callers come again and again, and it would be woken in vain.
    left: AtomicBool,
    /// Somebody waits elsewhere because another caller attended.
    others: AtomicBool,
    /// Callers have come since the lookout last asked.
    busy: AtomicBool,
}

impl Sessions {
    /// The sessions in the store at this address; opened if this process has not done so yet.
    pub(super) fn at(address: &StoreAddress) -> Result<Arc<Self>, Error> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, sessions| sessions.strong_count() > 0);
        let sessions = open.get(address).and_then(Weak::upgrade);
        if let Some(sessions) = sessions {
            if sessions.store.inherited() {
                return Err(forked());
            }
            if sessions.store.check_place() {
                return Ok(sessions);
            }
            sessions.store.close();
        }
        let store = Arc::new(Store::open(address)?);
        let sessions =
            Self::new(store).map_err(|error| cannot_join(&error, address.root.path()))?;
        open.insert(address.clone(), Arc::downgrade(&sessions));
        Ok(sessions)
    }

    fn new(store: Arc<Store>) -> io::Result<Arc<Self>> {
        let directory = store.sessions();
        Ok(Arc::new(Self {
            sender: DatagramSender::new(&directory)?,
            store,
            directory,
            own: RwLock::default(),
            watched: Mutex::default(),
            handle: EventLoopHandle::new()?,
            started: OnceLock::new(),
            worker: Worker::default(),
            disk_worker: Worker::default(),
        }))
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// For steps that find the gate busy.
    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// For steps that wait for the disk.
    pub(super) fn disk_worker(&self) -> &Worker {
        &self.disk_worker
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn sender(&self) -> &DatagramSender {
        &self.sender
    }

    /// A session of this process begins: it gives a sign of life and can be written to.
    pub(super) fn join(
        self: &Arc<Self>,
        session: SessionId,
        listener: Weak<dyn SignalListener>,
    ) -> io::Result<()> {
        let letters = self.sender.bind(&self.directory, session)?;
        let token = self.handle.token();
        self.handle.add(letters.socket(), token)?;
        let (letters, watch) = (Arc::new(letters), Arc::default());
        // In one: whoever looks at a sign of our own life lets go of it.
        let mut own = self.own_mut();
        let alive = LivenessLock::acquire(&self.directory, session)?;
        own.insert(session, LocalSession { listener, alive, letters, token, watch });
        drop(own);
        if self.started.get().is_none() {
            event_loop::start(Arc::clone(&self.handle), Arc::downgrade(self))?;
            let _ = self.started.set(());
        }
        Ok(())
    }

    /// A session of this process is over.
    pub(super) fn leave(&self, session: SessionId) {
        let own = self.own_mut().remove(&session);
        if let Some(own) = own
            && !self.store.inherited()
        {
            self.handle.remove(own.letters.socket());
            own.letters.nudge(codec::NUDGE);
            own.letters.take_down();
            own.alive.farewell();
        }
    }

    pub(super) fn is_own(&self, session: SessionId) -> bool {
        self.own().contains_key(&session)
    }

    /// Reads what has come for the session that the lookout knows by this number.
    pub(super) fn read_letters_of(&self, token: u64) {
        let own = self.own();
        let session = own.iter().find(|(_, own)| own.token == token).map(|(session, _)| *session);
        drop(own);
        if let Some(session) = session {
            self.read_letters(session);
        }
    }

    fn read_letters(&self, session: SessionId) {
        while self.read_letter(session) {}
    }

    /// Reads one letter. Whether there was one.
    fn read_letter(&self, session: SessionId) -> bool {
        let own = self.own();
        let Some(mine) = own.get(&session) else { return false };
        let nudge = |letter: &[u8]| (letter == codec::NUDGE, codec::read_signal(letter));
        let Some((nudge, signal)) = mine.letters.take(nudge) else { return false };
        let listener = mine.listener.upgrade();
        let attended = mine.watch.attended.load(Ordering::SeqCst);
        drop(own);
        if nudge && attended {
            // Meant for the caller that attends, not for whoever reads here.
            self.interrupt(session);
            return false;
        }
        hear(listener, signal);
        true
    }

    /// Takes letterboxes back to which no caller has come for a while. Whether any are left.
    pub(super) fn take_back(&self) -> bool {
        let mut left = false;
        for own in self.own().values() {
            if !own.watch.left.load(Ordering::SeqCst) {
                continue;
            }
            let busy = own.watch.busy.swap(false, Ordering::SeqCst);
            if busy || own.watch.attended.load(Ordering::SeqCst) {
                left = true;
            } else {
                self.listen_again(own);
            }
        }
        left
    }

    fn listen_again(&self, own: &LocalSession) {
        own.watch.left.store(false, Ordering::SeqCst);
        self.handle.leave_to_others(own.letters.socket(), own.token, false);
    }

    /// Tells each session its signal: those of this process at once, the others by letter.
    pub(super) fn tell(&self, signals: Vec<(SessionId, Signal)>, scope: &StepScope) {
        for (session, signal) in signals {
            let own = self.own();
            let listener = own.get(&session).map(|own| own.listener.upgrade());
            drop(own);
            match listener {
                Some(Some(listener)) => listener.on_signal(signal),
                Some(None) => {}
                None => self.write_to(session, &signal, scope),
            }
        }
    }

    pub(super) fn tell_all(&self, signal: &Signal) {
        let listeners: Vec<_> =
            self.own().values().filter_map(|own| own.listener.upgrade()).collect();
        for listener in listeners {
            listener.on_signal(signal.clone());
        }
    }

    /// Tells every session of this process to ask again about what it waits for.
    pub(super) fn resync(&self) {
        self.tell_all(&Signal::Resync);
    }

    fn write_to(&self, session: SessionId, signal: &Signal, scope: &StepScope) {
        let mut writer = Writer::default();
        if codec::write_signal(&mut writer, signal).is_none() {
            return;
        }
        match self.sender.send(session, writer.bytes()) {
            SendOutcome::Delivered => {}
            SendOutcome::Full => {
                self.handle.order(LoopRequest::Deliver(session, writer.bytes().to_vec()));
            }
            // It was granted a lock and is not there: the next in line should not wait for it.
            SendOutcome::NoReceiver => self.watch(&[session], scope),
        }
    }

    /// Notices when one of these sessions is over. Cheap for those that are watched already.
    pub(super) fn watch(&self, in_the_way: &[SessionId], scope: &StepScope) {
        let mut watched = self.watched();
        for session in in_the_way {
            if watched.len() < WATCHED && !watched.contains(session) && !self.is_own(*session) {
                watched.insert(*session);
                self.handle.order(LoopRequest::Watch(*session, scope.clone()));
            }
        }
    }

    pub(super) fn forget_watch(&self, session: SessionId) {
        self.watched().remove(&session);
    }

    /// The processes with a session that lives in this store, for people.
    pub(super) fn living(&self) -> Vec<String> {
        let mut living = Vec::new();
        if !self.own().is_empty() {
            living.push("this process".to_owned());
        }
        match self.others() {
            Ok(others) => {
                for session in others {
                    match liveness::pulse(&self.directory, session) {
                        Ok(Liveness::Alive(Some(pid))) => {
                            living.push(format!("process {}", pid.as_raw_nonzero()));
                        }
                        Ok(Liveness::Alive(None)) => living.push("a process".to_owned()),
                        Ok(Liveness::Dead | Liveness::Absent) => {}
                        Err(error) => living.push(format!("session {session:?} ({error})")),
                    }
                }
            }
            Err(error) => living.push(format!("nobody knows: {error}")),
        }
        living
    }

    /// The sessions of other processes, living or dead.
    pub(super) fn others(&self) -> io::Result<Vec<SessionId>> {
        let entries = std::fs::read_dir(&self.directory)?.flatten();
        let session = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(entries.filter_map(session).filter(|session| !self.is_own(*session)).collect())
    }

    /// Whether a session of another process is certainly over.
    pub(super) fn is_dead(&self, session: SessionId) -> bool {
        let own = self.own();
        !own.contains_key(&session)
            && matches!(liveness::pulse(&self.directory, session), Ok(Liveness::Dead))
    }

    /// The same on the worker's thread: the lookout must not stand before the gate.
    pub(super) fn end_dead_soon(self: &Arc<Self>, session: SessionId, scope: StepScope) {
        let sessions = Arc::clone(self);
        self.worker.later(move || sessions.end_dead(session, &scope));
    }

    /// Ends what a dead session held and waited for, and lets the next ones in. Blocks for as long
    /// as the gate does.
    pub(super) fn end_dead(&self, session: SessionId, scope: &StepScope) {
        let file = liveness::file_of(&self.directory, session);
        let began = SystemClock.now();
        let mut after = None;
        // A few slots at a time: the others have to get in between, and a full store has no room
        // for a large step.
        loop {
            let step = |ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
                let names = ledger.shelf().names_after(after.as_ref(), ENDED);
                ledger.end_session_in(&names, session, now);
                (names.len() == ENDED).then(|| names.last().cloned()).flatten()
            };
            let clock = &*scope.clock;
            match self.store.step(scope.namespace, clock, StepKind::FreesSpace, WAIT, step) {
                Ok((last, signals)) => {
                    self.tell(signals, scope);
                    // Everybody who waits notices a death; the first one deals with it.
                    if last.is_none() || !file.exists() {
                        break;
                    }
                    after = last;
                }
                Err(error) => {
                    tracing::warn!(%session, %error, "cannot end a dead session yet");
                    // Again, if it took its time; otherwise it would only fail again at once.
                    if SystemClock.now().since(began) >= WAIT {
                        self.watch(&[session], scope);
                    }
                    return;
                }
            }
        }
        let _ = std::fs::remove_file(&file);
        let _ = std::fs::remove_file(self.directory.join(datagrams::file_name(session)));
        // Others stand in the way now, who may not be watched yet.
        self.resync();
    }

    fn own(&self) -> std::sync::RwLockReadGuard<'_, IdMap<SessionId, LocalSession>> {
        self.own.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_mut(&self) -> std::sync::RwLockWriteGuard<'_, IdMap<SessionId, LocalSession>> {
        self.own.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalSessions for Sessions {
    fn liveness_file(&self, session: SessionId) -> Option<PathBuf> {
        self.own().get(&session).map(|own| own.alive.path().to_owned())
    }

    fn inline_wait(&self) -> Option<&dyn InlineWait> {
        Some(self)
    }
}

impl InlineWait for Sessions {
    fn wait(&self, session: SessionId, wanted: &dyn Fn() -> bool) -> bool {
        let own = self.own();
        let Some(mine) = own.get(&session) else { return false };
        let (letters, watch) = (Arc::clone(&mine.letters), Arc::clone(&mine.watch));
        let listener = Weak::clone(&mine.listener);
        if watch.attended.swap(true, Ordering::SeqCst) {
            watch.others.store(true, Ordering::SeqCst);
            return false;
        }
        watch.busy.store(true, Ordering::SeqCst);
        if !watch.left.swap(true, Ordering::SeqCst) {
            self.handle.leave_to_others(letters.socket(), mine.token, true);
            self.handle.order(LoopRequest::TakeBack);
        }
        drop(own);
        let leaving = InlineReadGuard(&watch.attended);
        if wanted()
            && let Some(signal) = letters.wait(codec::read_signal)
        {
            hear(listener.upgrade(), signal);
        }
        drop(leaving);
        if watch.others.swap(false, Ordering::SeqCst)
            && let Some(own) = self.own().get(&session)
        {
            self.listen_again(own);
        }
        true
    }

    fn interrupt(&self, session: SessionId) {
        if let Some(own) = self.own().get(&session) {
            own.letters.nudge(codec::NUDGE);
        }
    }
}

/// Says that nobody attends any more, also after a panic.
struct InlineReadGuard<'a>(&'a AtomicBool);

impl Drop for InlineReadGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Passes on what is a signal; what is none is not for us.
fn hear(listener: Option<Arc<dyn SignalListener>>, signal: Result<Signal, Damaged>) {
    if let (Some(listener), Ok(signal)) = (listener, signal) {
        listener.on_signal(signal);
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.handle.order(LoopRequest::Stop);
        let own = std::mem::take(&mut *self.own_mut());
        if self.store.inherited() {
            // The files are the parent's.
            return;
        }
        for own in own.into_values() {
            own.letters.take_down();
            own.alive.farewell();
        }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("at", &self.directory).finish_non_exhaustive()
    }
}

/// Why a session could not begin.
pub(super) fn cannot_join(error: &io::Error, directory: &Path) -> Error {
    let error = io::Error::new(error.kind(), error.to_string());
    super::directory::cannot("begin a session in", directory, error)
}

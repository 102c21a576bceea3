//! Watches of cells: how a process that watches learns what other processes have committed.
//!
//! A process that watches binds one socket in the directory `watches` of the file set, and beside
//! it has a file with the ranges it watches. A committer sends one datagram with the changed names
//! to each process that watches one of them, after the commit and before it leaves the gate. The
//! watchers of its own process are called after it has left.
//!
//! ```text
//! watch() ──> watches/ID.watch, registrations + 1             (the committer reads the files
//! commit ───> datagram to watches/ID.socket ──> event loop     again when that has grown)
//!                └─ not delivered: missed[ID] + 1 ──> event loop: gap
//! ```
//!
//! Where nothing is watched, a commit costs a few atomic loads and stores for this.
//!
//! # Why no change is missed
//!
//! 1. The ranges are registered before `watch` returns, and a committer reads the registrations
//!    after its commit. So it sees the ranges of every watch that began before the commit.
//! 2. A datagram that cannot be delivered, because the buffer is full or for want of a descriptor,
//!    is counted in shared memory. The receiver compares the count whenever it has read its socket
//!    and every [`CHECK`], and tells its watchers of a gap.
//! 3. `unsignalled` is 1 in shared memory while a commit has not been signalled. A committer that
//!    is killed in between leaves it so. The next thread inside the gate then sends a gap to every
//!    process that watches. If no process writes any more, the event loop of one that watches
//!    finds `unsignalled` to be 1 in two checks of one round, and has the gate entered for that.
//!
//! A process that has died leaves its files behind. The first committer whose datagram finds no
//! receiver removes them.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::cell_codec::{
    CellSignal, read_cell_signal, read_ranges, write_cell_signal, write_ranges,
};
use super::datagrams::{self, DatagramSender, SessionSocket};
use super::directory::{self, cannot};
use super::event_loop::{EventLoopHandle, LoopRequest};
use super::gate::CellBoard;
use super::sessions::Sessions;
use crate::contract::{CellRange, CellWatcher, Error, Name, Namespace, SessionId};
use crate::engine::common::cell_watches::CellWatchers;

/// How often a process that watches checks for missed datagrams.
pub(super) const CHECK: Duration = Duration::from_millis(250);
/// The longest datagram. More names than fit become a gap.
const MAX_SIGNAL: usize = 32 << 10;

/// The watches of this process, and what it knows of those of others.
pub(super) struct CellSignals {
    directory: PathBuf,
    sender: DatagramSender,
    local: Mutex<LocalWatches>,
    registry: Mutex<WatchRegistry>,
    /// The round in which the last check found a commit without signals.
    unsignalled_round: Mutex<Option<u32>>,
    /// A job that enters the gate for that is queued.
    repairing: AtomicBool,
}

#[derive(Default)]
struct LocalWatches {
    watchers: HashMap<Namespace, Arc<CellWatchers>>,
    inbox: Option<WatchInbox>,
    /// The ranges in the file.
    registered: Vec<(Namespace, CellRange)>,
}

/// The socket of a process that watches.
struct WatchInbox {
    id: SessionId,
    socket: Arc<SessionSocket>,
    token: u64,
    /// The count of missed datagrams at the last check.
    missed: u32,
}

/// The ranges of other processes, as their files were when they were last read.
#[derive(Default)]
struct WatchRegistry {
    seen: Option<u32>,
    others: Vec<WatchingProcess>,
}

struct WatchingProcess {
    id: SessionId,
    /// `None` if the file cannot be decoded: then every commit is a gap.
    ranges: Option<Vec<(Namespace, CellRange)>>,
}

impl CellSignals {
    pub(super) fn new(directory: PathBuf) -> io::Result<Self> {
        Ok(Self {
            sender: DatagramSender::new(&directory)?,
            directory,
            local: Mutex::default(),
            registry: Mutex::default(),
            unsignalled_round: Mutex::default(),
            repairing: AtomicBool::new(false),
        })
    }

    /// A commit begins: from now on its signals are owed.
    pub(super) fn begin(board: &CellBoard) {
        board.unsignalled.store(1, Ordering::SeqCst);
    }

    /// Sends the names that a commit has changed to the other processes that watch them. The caller
    /// is inside the gate.
    pub(super) fn send(&self, board: &CellBoard, changed: &[(Namespace, Name)]) {
        if !changed.is_empty() {
            let mut registry = self.refresh(board);
            registry.others.retain(|other| {
                other.signals(changed).iter().all(|signal| self.deliver(board, other.id, signal))
            });
        }
        board.unsignalled.store(0, Ordering::SeqCst);
    }

    /// Sends a gap to all processes that watch, if a committer has died before it sent its signals.
    /// The caller is inside the gate. Returns whether its own watchers have to be told too.
    pub(super) fn repair(&self, board: &CellBoard) -> bool {
        if board.unsignalled.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut registry = self.refresh(board);
        registry.others.retain(|other| self.deliver(board, other.id, &CellSignal::Gap));
        board.unsignalled.store(0, Ordering::SeqCst);
        true
    }

    /// Calls the watchers of this process.
    pub(super) fn notify(&self, changed: &[(Namespace, Name)], gap: bool) {
        let watchers = self.local().watchers.clone();
        if gap {
            for watchers in watchers.values() {
                watchers.gap();
            }
        }
        if watchers.is_empty() {
            return;
        }
        for (namespace, name) in changed {
            if let Some(watchers) = watchers.get(namespace) {
                watchers.changed(name);
            }
        }
    }

    /// Tells all watchers of this process that changes may have been missed.
    pub(super) fn gap(&self) {
        self.notify(&[], true);
    }

    /// Sends one datagram. Returns whether its receiver lives.
    fn deliver(&self, board: &CellBoard, to: SessionId, signal: &CellSignal) -> bool {
        let mut datagram = write_cell_signal(signal);
        if datagram.bytes().len() > MAX_SIGNAL {
            datagram = write_cell_signal(&CellSignal::Gap);
        }
        let Err(error) = self.sender.try_send(to, datagram.bytes()) else { return true };
        if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
            // Bound before its ranges could be read: its process has died, or has left.
            self.remove_files(to);
            return false;
        }
        board.missed(to).fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Reads the files of other processes again if any has changed.
    fn refresh(&self, board: &CellBoard) -> MutexGuard<'_, WatchRegistry> {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let current = board.registrations.load(Ordering::SeqCst);
        if registry.seen != Some(current) {
            let own = self.local().inbox.as_ref().map(|inbox| inbox.id);
            match read_others(&self.directory, own) {
                Ok(others) => *registry = WatchRegistry { seen: Some(current), others },
                Err(error) => {
                    // The directory is gone, and the store with it; or this process has too many
                    // files open. The processes that are known get what there is to send.
                    tracing::warn!(%error, "cannot read which cells are watched");
                    registry.seen = None;
                }
            }
        }
        registry
    }

    fn local(&self) -> MutexGuard<'_, LocalWatches> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the ranges of all living watchers to the file of this process, if they have changed;
    /// removes file and socket if there are none.
    fn register(
        &self,
        local: &mut LocalWatches,
        board: &CellBoard,
        event_loop: &EventLoopHandle,
    ) -> io::Result<()> {
        let mut ranges = Vec::new();
        for (namespace, watchers) in &local.watchers {
            for range in watchers.ranges() {
                let range = (namespace.clone(), range);
                if !ranges.contains(&range) {
                    ranges.push(range);
                }
            }
        }
        let same = ranges.len() == local.registered.len()
            && ranges.iter().all(|range| local.registered.contains(range));
        let Some(inbox) = local.inbox.as_ref().filter(|_| !same) else { return Ok(()) };
        if ranges.is_empty() {
            event_loop.remove(inbox.socket.fd());
            self.remove_files(inbox.id);
            local.watchers.clear();
            local.inbox = None;
        } else {
            // Renamed when it is whole: a committer must not read half of it.
            let path = self.directory.join(file_name(inbox.id));
            let draft = path.with_extension("new");
            directory::private(&draft)?.write_all(write_ranges(&ranges).bytes())?;
            std::fs::rename(&draft, &path)?;
        }
        local.registered = ranges;
        board.registrations.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Removes the files of a process. The socket first: committers find a process by the file with
    /// its ranges, so that one which ends in between leaves nothing that is not found.
    fn remove_files(&self, id: SessionId) {
        let _ = std::fs::remove_file(self.directory.join(datagrams::file_name(id)));
        let _ = std::fs::remove_file(self.directory.join(file_name(id)));
    }

    /// Removes the files of this process: the store is closed in it.
    pub(super) fn close(&self) {
        if let Some(inbox) = self.local().inbox.take() {
            self.remove_files(inbox.id);
        }
    }
}

impl WatchingProcess {
    /// The datagrams to this process: one for each namespace in which it watches a changed cell.
    fn signals(&self, changed: &[(Namespace, Name)]) -> Vec<CellSignal> {
        let Some(ranges) = &self.ranges else { return vec![CellSignal::Gap] };
        let mut signals: Vec<CellSignal> = Vec::new();
        for (namespace, name) in changed {
            let watched = |(space, range): &(Namespace, CellRange)| {
                space == namespace && range.contains(name)
            };
            if !ranges.iter().any(watched) {
                continue;
            }
            let same = signals.iter_mut().find_map(|signal| match signal {
                CellSignal::Changed(space, names) if space == namespace => Some(names),
                CellSignal::Changed(..) | CellSignal::Gap => None,
            });
            match same {
                Some(names) => names.push(name.clone()),
                None => signals.push(CellSignal::Changed(namespace.clone(), vec![name.clone()])),
            }
        }
        signals
    }
}

impl Sessions {
    /// Watches a range of cells for this watcher. Changes from now on are signalled.
    pub(super) fn watch_cells(
        self: &Arc<Self>,
        namespace: &Namespace,
        range: &CellRange,
        watcher: Weak<dyn CellWatcher>,
    ) -> Result<(), Error> {
        self.store().usable()?;
        let signals = self.cell_signals();
        let board = self.store().gate().board();
        let begin = || -> io::Result<()> {
            self.start_event_loop()?;
            let mut local = signals.local();
            if local.inbox.is_none() {
                let id = SessionId::new();
                let socket = Arc::new(signals.sender.bind(&signals.directory, id)?);
                let token = self.event_loop().token();
                self.event_loop().add(socket.fd(), token)?;
                let missed = board.missed(id).load(Ordering::SeqCst);
                local.inbox = Some(WatchInbox { id, socket, token, missed });
                local.registered.clear();
            }
            let watchers = local.watchers.entry(namespace.clone()).or_default();
            watchers.insert(range.clone(), watcher);
            signals.register(&mut local, board, self.event_loop())
        };
        begin().map_err(|error| cannot("watch cells in", &signals.directory, error))?;
        self.event_loop().request(LoopRequest::CheckCells);
        Ok(())
    }

    /// Reads all datagrams of the socket that the event loop knows by this token, if it is the one
    /// for cells.
    pub(super) fn receive_cells(&self, token: u64) {
        let signals = self.cell_signals();
        let local = signals.local();
        let inbox = local.inbox.as_ref().filter(|inbox| inbox.token == token);
        let Some(socket) = inbox.map(|inbox| Arc::clone(&inbox.socket)) else { return };
        drop(local);
        let mut buffer = vec![0; MAX_SIGNAL + 1];
        while let Some(datagram) = socket.take_large(&mut buffer) {
            match read_cell_signal(datagram) {
                Ok(CellSignal::Changed(namespace, names)) => {
                    let changed: Vec<_> =
                        names.into_iter().map(|name| (namespace.clone(), name)).collect();
                    signals.notify(&changed, false);
                }
                Ok(CellSignal::Gap) | Err(_) => signals.gap(),
            }
        }
        self.check_missed();
    }

    /// Checks for what has not reached this process. Returns whether it still watches.
    pub(super) fn check_cells(self: &Arc<Self>) -> bool {
        self.check_missed();
        self.check_unsignalled();
        let signals = self.cell_signals();
        let mut local = signals.local();
        // Watchers may have been dropped. What cannot be written is written at the next check.
        let _ = signals.register(&mut local, self.store().gate().board(), self.event_loop());
        local.inbox.is_some()
    }

    fn check_missed(&self) {
        let signals = self.cell_signals();
        let mut local = signals.local();
        let Some(inbox) = &mut local.inbox else { return };
        let missed = self.store().gate().board().missed(inbox.id).load(Ordering::SeqCst);
        let is_new = std::mem::replace(&mut inbox.missed, missed) != missed;
        drop(local);
        if is_new {
            signals.gap();
        }
    }

    /// Enters the gate if a committer has died before it sent its signals, and no other process has
    /// entered it since.
    fn check_unsignalled(self: &Arc<Self>) {
        let (board, signals) = (self.store().gate().board(), self.cell_signals());
        let owed = board.unsignalled.load(Ordering::SeqCst) != 0;
        let round = owed.then(|| board.round());
        let mut last = signals.unsignalled_round.lock().unwrap_or_else(PoisonError::into_inner);
        let stays = std::mem::replace(&mut *last, round) == round;
        drop(last);
        if !owed || !stays || signals.repairing.swap(true, Ordering::SeqCst) {
            return;
        }
        let sessions = Arc::clone(self);
        self.disk_worker().spawn(move || {
            if let Err(error) = sessions.repair_signals() {
                tracing::debug!(%error, "cannot tell yet which cells have changed");
            }
            sessions.cell_signals().repairing.store(false, Ordering::SeqCst);
        });
    }
}

/// Reads the ranges of all other processes.
fn read_others(directory: &Path, own: Option<SessionId>) -> io::Result<Vec<WatchingProcess>> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let is_watch = path.extension().is_some_and(|extension| extension == EXTENSION);
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_watch);
        let id = stem.and_then(|stem| stem.parse::<SessionId>().ok());
        let Some(id) = id.filter(|id| Some(*id) != own) else { continue };
        match std::fs::read(&path) {
            Ok(bytes) => others.push(WatchingProcess { id, ranges: read_ranges(&bytes).ok() }),
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(others)
}

/// The extension of files with ranges.
const EXTENSION: &str = "watch";

fn file_name(id: SessionId) -> String {
    format!("{}.{EXTENSION}", id.to_hex())
}

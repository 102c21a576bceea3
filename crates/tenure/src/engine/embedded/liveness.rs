//! Which sessions are alive: each session holds a shared record lock (`fcntl`) on a file of its
//! own, which the kernel releases when the process dies.
//!
//! ```text
//! no file ── created under another name, locked, renamed ──> locked ── remove() ──> no file
//!  Absent                                                    Alive
//!                                                             │ the process dies
//!                                                             ▼
//!                                            unlocked: Dead ── its session was ended ──> no file
//! ```
//!
//! A file that can be found is locked first, so an unlocked file always means a dead session.
//! Record locks belong to a process: a child that inherited the descriptor does not hold them, and
//! a pid that is used again means nothing. Two rules follow from how they work: closing any
//! descriptor of the file releases the lock, and a process cannot see its own lock. So the file of
//! a session is opened once, and a process never checks the files of its own sessions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use crate::contract::SessionId;
use crate::limits;

/// The lock on a session's liveness file. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct LivenessLock {
    /// Never read: the record lock is on it.
    _file: File,
    path: PathBuf,
}

/// The state of a session of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// A process holds the lock; its pid, if it has one in this pid namespace.
    Alive(Option<Pid>),
    /// Its process has died: the file is there and not locked.
    Dead,
    /// There is no file: the session left, or was ended after its process died.
    Absent,
}

impl LivenessLock {
    /// Creates and locks the liveness file of a session in this directory.
    pub(super) fn acquire(directory: &Path, session: SessionId) -> io::Result<Self> {
        let path = file_of(directory, session);
        let draft = path.with_extension("new");
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        // Locked before it can be found: an unlocked file is taken for a dead session.
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
        std::fs::rename(&draft, &path)?;
        Ok(Self { _file: file, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file: the session leaves, and no process has to find it dead.
    pub(super) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the files of sessions that have been dead for long: whatever they held has expired.
pub(super) fn clear_old(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let old = entry
            .metadata()
            .and_then(|about| about.modified())
            .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > limits::MAX_LEASE));
        let name = entry.file_name();
        let Some(session) = name.to_str().and_then(|name| name.parse::<SessionId>().ok()) else {
            continue;
        };
        if old && matches!(check(directory, session), Ok(Liveness::Dead)) {
            let _ = std::fs::remove_file(entry.path());
            let _ = std::fs::remove_file(directory.join(super::datagrams::file_name(session)));
        }
    }
}

/// Returns the path of a session's liveness file.
pub(super) fn file_of(directory: &Path, session: SessionId) -> PathBuf {
    directory.join(session.to_hex())
}

/// Checks a session of another process.
pub(super) fn check(directory: &Path, session: SessionId) -> io::Result<Liveness> {
    match File::open(file_of(directory, session)) {
        Ok(file) => check_file(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Liveness::Absent),
        Err(error) => Err(error),
    }
}

/// Checks whether another process holds a record lock on this file.
pub(super) fn check_file(file: &File) -> io::Result<Liveness> {
    // The kernel returns a lock that conflicts with the exclusive one we ask about.
    let mine = Flock::from(FlockType::WriteLock);
    match fcntl_getlk(file, &mine)? {
        Some(held) => Ok(Liveness::Alive(held.pid)),
        None => Ok(Liveness::Dead),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_leaves_no_trace_or_a_file_that_nobody_holds() {
        let directory = tempfile::tempdir().unwrap();
        let session = SessionId::new();
        assert_eq!(check(directory.path(), session).unwrap(), Liveness::Absent);
        std::fs::write(file_of(directory.path(), session), "").unwrap();
        assert_eq!(check(directory.path(), session).unwrap(), Liveness::Dead);
    }
}

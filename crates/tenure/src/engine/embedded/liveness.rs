//! Who lives: each session holds a record lock on a file of its own, which the kernel releases when
//! its process dies. Knows files and locks, not claims.
//!
//! Record locks (`fcntl`) belong to a process: a child that inherited the descriptor does not hold
//! them, and a process number that is used again means nothing. Two traps come with them: closing
//! any descriptor of the file lets go of the lock, and a process cannot see its own. So a session's
//! file is opened once, and nobody looks at the files of its own process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use crate::contract::SessionId;
use crate::limits;

/// The sign of life of one session. Lets go when dropped.
#[derive(Debug)]
pub(super) struct LivenessLock {
    /// Never read: the lock is on it.
    _file: File,
    path: PathBuf,
}

/// What can be seen of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    /// This process keeps it alive, as far as it can be named here.
    Alive(Option<Pid>),
    /// It died: its file is there, and nobody keeps it alive any more.
    Dead,
    /// There is no trace of it: it left in order, or its death was dealt with.
    Absent,
}

impl LivenessLock {
    /// Gives a sign of life for the session in this directory.
    pub(super) fn acquire(directory: &Path, session: SessionId) -> io::Result<Self> {
        let path = file_of(directory, session);
        let draft = path.with_extension("new");
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        // Locked before it can be found: whoever finds it unlocked takes the session for dead.
        fcntl_lock(&file, FlockOperation::NonBlockingLockShared)?;
        std::fs::rename(&draft, &path)?;
        Ok(Self { _file: file, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A good-bye in order: nobody has to find out.
    pub(super) fn farewell(self) {
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
        if old && matches!(pulse(directory, session), Ok(Liveness::Dead)) {
            let _ = std::fs::remove_file(entry.path());
            let _ = std::fs::remove_file(directory.join(super::datagrams::file_name(session)));
        }
    }
}

/// Where the sign of life of a session is.
pub(super) fn file_of(directory: &Path, session: SessionId) -> PathBuf {
    directory.join(session.to_hex())
}

/// Looks for the sign of life of a session of another process.
pub(super) fn pulse(directory: &Path, session: SessionId) -> io::Result<Liveness> {
    match File::open(file_of(directory, session)) {
        Ok(file) => pulse_of(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Liveness::Absent),
        Err(error) => Err(error),
    }
}

/// Whether anybody holds a record lock on this file.
pub(super) fn pulse_of(file: &File) -> io::Result<Liveness> {
    // "Could I have it for myself?" is answered with who is in the way.
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
        assert_eq!(pulse(directory.path(), session).unwrap(), Liveness::Absent);
        std::fs::write(file_of(directory.path(), session), "").unwrap();
        assert_eq!(pulse(directory.path(), session).unwrap(), Liveness::Dead);
    }
}

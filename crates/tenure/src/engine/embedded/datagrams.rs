//! Letters between processes: each session has a socket of its own, and whoever grants it a lock
//! writes to it. Knows sockets and bytes, not what a letter says.
//!
//! Sockets are reached through the descriptor of their directory, because the path of a socket may
//! have no more than 107 bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recv, send, socket_with,
};

use crate::contract::SessionId;

/// Longest letter: a grant of a full set, or an eviction with its reason.
const LETTER: usize = 2048;
/// How many receivers are remembered.
const WAYS: usize = 128;
/// How long a wait for a letter takes at most: nothing should depend on it.
const LOOK_UP: Duration = Duration::from_millis(500);

/// Sends letters to the sessions of one store.
#[derive(Debug)]
pub(super) struct DatagramSender {
    directory: File,
    /// Sockets that are connected already: finding a path takes longer than sending.
    ways: Mutex<HashMap<SessionId, Arc<OwnedFd>>>,
}

/// What became of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// It is in the receiver's box.
    Delivered,
    /// The box is full; try again soon.
    Full,
    /// There is nobody to receive it.
    NoReceiver,
}

/// The box of one session.
#[derive(Debug)]
pub(super) struct SessionSocket {
    socket: OwnedFd,
    /// Leads to the box, whatever becomes of its path.
    inner: OwnedFd,
    path: PathBuf,
}

impl DatagramSender {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        // Neither reading nor writing: the descriptor only stands for the directory.
        let directory = File::options().read(true).custom_flags(flags).open(directory)?;
        Ok(Self { directory, ways: Mutex::default() })
    }

    pub(super) fn send(&self, to: SessionId, letter: &[u8]) -> SendOutcome {
        let Ok(way) = self.way(to) else { return SendOutcome::NoReceiver };
        match send(&way, letter, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => SendOutcome::Delivered,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => SendOutcome::Full,
            Err(_) => {
                self.ways().remove(&to);
                SendOutcome::NoReceiver
            }
        }
    }

    fn way(&self, to: SessionId) -> io::Result<Arc<OwnedFd>> {
        if let Some(way) = self.ways().get(&to) {
            return Ok(Arc::clone(way));
        }
        let way = Arc::new(socket()?);
        connect(&way, &self.address(to)?)?;
        let mut ways = self.ways();
        if ways.len() >= WAYS {
            ways.clear();
        }
        ways.insert(to, Arc::clone(&way));
        Ok(way)
    }

    fn ways(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnedFd>>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts up the box of a session of this process.
    pub(super) fn bind(&self, directory: &Path, session: SessionId) -> io::Result<SessionSocket> {
        let socket = socket()?;
        let path = directory.join(file_name(session));
        bind(&socket, &self.address(session)?)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let inner = self::socket()?;
        connect(&inner, &self.address(session)?)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK_UP))?;
        Ok(SessionSocket { socket, inner, path })
    }

    fn address(&self, session: SessionId) -> io::Result<SocketAddrUnix> {
        let directory = self.directory.as_raw_fd();
        let path = format!("/proc/self/fd/{directory}/{}", file_name(session));
        Ok(SocketAddrUnix::new(path.as_str())?)
    }
}

impl SessionSocket {
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Ends the wait of whoever waits for a letter. A full box does so by itself.
    pub(super) fn nudge(&self, letter: &[u8]) {
        let _ = send(&self.inner, letter, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Waits for a letter on this thread, but not for ever.
    pub(super) fn wait<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut letter = [0_u8; LETTER];
        let (count, _) = recv(&self.socket, letter.as_mut_slice(), RecvFlags::empty()).ok()?;
        Some(read(&letter[..count.min(LETTER)]))
    }

    /// Takes one letter out, if there is one.
    pub(super) fn take<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut letter = [0_u8; LETTER];
        let (count, _) = recv(&self.socket, letter.as_mut_slice(), RecvFlags::DONTWAIT).ok()?;
        Some(read(&letter[..count.min(LETTER)]))
    }

    pub(super) fn take_down(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file of a session's socket.
pub(super) fn file_name(session: SessionId) -> String {
    format!("{}.socket", session.to_hex())
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

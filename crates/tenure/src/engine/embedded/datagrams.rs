//! Signals between processes as datagrams: each session binds a Unix socket of its own, and the
//! process that grants it a lock sends to that socket. Bytes only: `codec` gives them a meaning.
//!
//! Sends never block. A receive buffer that is full is reported to the caller, which retries; a
//! socket without a receiver means that the session has ended. A lost datagram costs time, not a
//! lock: the receiver reads its state with the next renewal.
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

/// The longest datagram: a grant of a full set, or an eviction with its reason.
const MAX_DATAGRAM: usize = 2048;
/// How many connected sockets are cached.
const MAX_CONNECTED: usize = 128;
/// The timeout of a blocking receive. A backstop: an interrupt ends the wait earlier.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Sends datagrams to the sessions of one store.
#[derive(Debug)]
pub(super) struct DatagramSender {
    directory: File,
    /// A connected socket per receiver: a lookup of the path takes longer than a send.
    connected: Mutex<HashMap<SessionId, Arc<OwnedFd>>>,
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// The datagram is in the receiver's buffer.
    Delivered,
    /// The receiver's buffer is full; retry soon.
    Full,
    /// No socket is bound there: the session has ended.
    NoReceiver,
}

/// The socket that a session of this process is bound to.
#[derive(Debug)]
pub(super) struct SessionSocket {
    socket: OwnedFd,
    /// Connected to `socket`, even after its path was removed.
    loopback: OwnedFd,
    path: PathBuf,
}

impl DatagramSender {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        // `O_PATH`: the descriptor only names the directory.
        let directory = File::options().read(true).custom_flags(flags).open(directory)?;
        Ok(Self { directory, connected: Mutex::default() })
    }

    /// Sends a datagram without blocking. `ConnectionRefused` and `NotFound` mean that no socket is
    /// bound there.
    pub(super) fn try_send(&self, to: SessionId, datagram: &[u8]) -> io::Result<()> {
        let socket = self.connect(to)?;
        let sent = send(&socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if let Err(error) = sent
            && !matches!(error, Errno::AGAIN | Errno::NOBUFS | Errno::INTR)
        {
            self.connected().remove(&to);
        }
        Ok(sent.map(drop)?)
    }

    /// Sends a datagram to a session of another process, without blocking.
    pub(super) fn send(&self, to: SessionId, datagram: &[u8]) -> SendOutcome {
        let Ok(socket) = self.connect(to) else { return SendOutcome::NoReceiver };
        match send(&socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => SendOutcome::Delivered,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => SendOutcome::Full,
            Err(_) => {
                self.connected().remove(&to);
                SendOutcome::NoReceiver
            }
        }
    }

    fn connect(&self, to: SessionId) -> io::Result<Arc<OwnedFd>> {
        if let Some(socket) = self.connected().get(&to) {
            return Ok(Arc::clone(socket));
        }
        let socket = Arc::new(socket()?);
        connect(&socket, &self.address(to)?)?;
        let mut connected = self.connected();
        if connected.len() >= MAX_CONNECTED {
            connected.clear();
        }
        connected.insert(to, Arc::clone(&socket));
        Ok(socket)
    }

    fn connected(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnedFd>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the socket of a session of this process.
    pub(super) fn bind(&self, directory: &Path, session: SessionId) -> io::Result<SessionSocket> {
        let socket = socket()?;
        let path = directory.join(file_name(session));
        bind(&socket, &self.address(session)?)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let loopback = self::socket()?;
        connect(&loopback, &self.address(session)?)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(RECEIVE_TIMEOUT))?;
        Ok(SessionSocket { socket, loopback, path })
    }

    fn address(&self, session: SessionId) -> io::Result<SocketAddrUnix> {
        let directory = self.directory.as_raw_fd();
        let path = format!("/proc/self/fd/{directory}/{}", file_name(session));
        Ok(SocketAddrUnix::new(path.as_str())?)
    }
}

impl SessionSocket {
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends a datagram to this socket, to end a blocking receive. A full buffer ends it anyway.
    pub(super) fn interrupt(&self, datagram: &[u8]) {
        let _ = send(&self.loopback, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Receives one datagram, blocking the thread for [`RECEIVE_TIMEOUT`] at most.
    pub(super) fn wait<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.receive(RecvFlags::empty(), read)
    }

    /// Receives one datagram if there is one.
    pub(super) fn take<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.receive(RecvFlags::DONTWAIT, read)
    }

    /// Receives one datagram into this buffer if there is one.
    pub(super) fn take_large<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let most = buffer.len();
        let (count, _) = recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT).ok()?;
        Some(&buffer[..count.min(most)])
    }

    fn receive<T>(&self, flags: RecvFlags, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut buffer = [0_u8; MAX_DATAGRAM];
        let (count, _) = recv(&self.socket, buffer.as_mut_slice(), flags).ok()?;
        Some(read(&buffer[..count.min(MAX_DATAGRAM)]))
    }

    /// Removes the socket's file, so that senders find no receiver.
    pub(super) fn unlink(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file name of a session's socket.
pub(super) fn file_name(session: SessionId) -> String {
    format!("{}.socket", session.to_hex())
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

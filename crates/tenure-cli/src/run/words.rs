//! The messages between `tenure run` and its guardian, over one socket: how each is encoded, sent
//! and received. What a message leads to is decided by its reader.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::args::OnLost;
use crate::settings::Settings;
use crate::wanted::Wanted;

/// Larger than any message: a set has at most 64 names of at most 255 bytes.
const LONGEST: usize = 128 * 1024;

/// What the guardian has to do. The command itself stands in its arguments.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Request {
    pub(crate) settings: Settings,
    pub(crate) wanted: Wanted,
    pub(crate) rules: Rules,
    /// The `tenure run` that people know.
    pub(crate) front: u32,
    /// The process group for the command; none for one of its own.
    pub(crate) group: Option<i32>,
    /// The signals that were blocked when `tenure` was started.
    pub(crate) blocked: Vec<i32>,
}

/// How the command is treated.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Rules {
    pub(crate) on_lost: OnLost,
    /// The signal that asks it to stop.
    pub(crate) signal: i32,
    pub(crate) kill_after: Duration,
    pub(crate) lost_exit_code: u8,
    pub(crate) hold_group: bool,
    /// Ends with the command. Otherwise a candidate waits for its next turn.
    pub(crate) once: bool,
}

/// What the front says to the guardian.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum ToGuardian {
    /// What to do. Standard input comes with it.
    Request(Box<Request>),
    /// The command may start.
    Go,
    /// Give the lock back and exit with this code.
    GiveUp(u8),
    /// A signal to pass on.
    Signal(i32),
    /// A signal that reached the command from the terminal asks us to end with it.
    Last,
}

/// What the guardian says to the front.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum ToFront {
    /// The lock is ours: take a lock on this file too, if there is one, then say go.
    Granted { liveness: Option<PathBuf> },
    /// The command was stopped, as by Ctrl-Z.
    Stopped,
    /// The command has ended, and the lock is being given back.
    Ending,
    /// The term is over, and the candidate waits for its next turn.
    Waiting,
    /// All is over.
    Exit(u8),
}

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct Line<F> {
    socket: F,
}

/// Both ends of a new line: ours, and the guardian's, which becomes its standard input.
pub(crate) fn pair() -> io::Result<(Line<OwnedFd>, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((Line { socket: ours }, theirs))
}

/// The guardian's end.
pub(crate) fn from_standard_input() -> Line<BorrowedFd<'static>> {
    Line { socket: rustix::stdio::stdin() }
}

impl<F: AsFd> Line<F> {
    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message together with open files.
    pub(crate) fn send_with(
        &self,
        message: &impl Serialize,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(files));
        }
        let slices = [IoSlice::new(&bytes)];
        loop {
            match sendmsg(&self.socket, &slices, &mut beside, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// The next message; none if the other end is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        Ok(self.receive_with()?.map(|(message, _)| message))
    }

    /// The next message and the open files that came with it.
    pub(crate) fn receive_with<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let length = loop {
            match recvmsg(&self.socket, &mut slices, &mut beside, RecvFlags::CMSG_CLOEXEC) {
                // The other end left with words of ours unread. Its own may still be here.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                received => break received?.bytes,
            }
        };
        if length == 0 {
            return Ok(None);
        }
        let mut files = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        Ok(Some((serde_json::from_slice(&bytes[..length])?, files)))
    }
}

impl<F: AsFd> AsFd for Line<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_one_who_did_not_listen_are_heard() {
        let (ours, theirs) = pair().unwrap();
        let theirs = Line { socket: theirs };
        ours.send(&ToGuardian::Signal(18)).unwrap();
        theirs.send(&ToFront::Exit(7)).unwrap();
        drop(theirs);
        assert!(matches!(ours.receive().unwrap(), Some(ToFront::Exit(7))));
        assert!(ours.receive::<ToFront>().unwrap().is_none());
    }

    #[test]
    fn messages_keep_their_bounds_and_the_end_is_heard() {
        let (ours, theirs) = pair().unwrap();
        let theirs = Line { socket: theirs };
        ours.send(&ToGuardian::Go).unwrap();
        ours.send_with(&ToGuardian::Signal(15), &[ours.as_fd()]).unwrap();
        assert!(matches!(theirs.receive().unwrap(), Some(ToGuardian::Go)));
        let (message, files) = theirs.receive_with::<ToGuardian>().unwrap().unwrap();
        assert!(matches!(message, ToGuardian::Signal(15)));
        assert_eq!(files.len(), 1);
        theirs.send(&ToFront::Exit(0)).unwrap();
        ours.send(&ToGuardian::Go).unwrap();
        assert!(matches!(ours.receive().unwrap(), Some(ToFront::Exit(0))));
        drop((ours, files));
        assert!(matches!(theirs.receive().unwrap(), Some(ToGuardian::Go)));
        assert!(theirs.receive::<ToGuardian>().unwrap().is_none());
    }
}

//! Signals as events that are read, not as interruptions. Knows masks and `signalfd`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that `tenure run` and its guardian read. Signals that the parent process has set to
/// be ignored (`nohup`) stay ignored: those are never read, and commands inherit it.
const HEARD: [Signal; 12] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCHLD,
];

/// Blocks signals and reads them one by one.
#[derive(Debug)]
pub(crate) struct Signals {
    read: SignalFd,
    before: SigSet,
}

/// One signal that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    /// The kernel sent it, as a terminal does for Ctrl-C: to the whole foreground group.
    pub(crate) by_kernel: bool,
}

impl Signals {
    /// Blocks what we want to hear of. Call it before any thread starts: threads inherit it.
    pub(crate) fn catch() -> io::Result<Self> {
        Self::catch_only(&HEARD)
    }

    /// Blocks and reads these alone.
    pub(crate) fn catch_only(signals: &[Signal]) -> io::Result<Self> {
        let heard: SigSet = signals.iter().copied().collect();
        let before = heard.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { read: SignalFd::with_flags(&heard, flags)?, before })
    }

    /// The next signal that came, if one did.
    pub(crate) fn next(&self) -> io::Result<Option<Caught>> {
        // `SI_KERNEL` of `<signal.h>`.
        const BY_KERNEL: i32 = 0x80;
        let Some(info) = self.read.read_signal()? else { return Ok(None) };
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        let signal = Signal::try_from(number)?;
        Ok(Some(Caught { signal, by_kernel: info.ssi_code == BY_KERNEL }))
    }

    /// The signals that were blocked before, for a command that should start as if we were not
    /// there.
    pub(crate) fn before(&self) -> &SigSet {
        &self.before
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

//! While the command runs: signals, the front, the lease, the time limit, and the end. Knows what
//! can happen and what follows from it.

use std::future::{Future, pending};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tenure::{LockStatus, contract::Loss};

use super::child::exit_code;
use super::front::ends_run;
use super::guardian::Front;
use super::margins::Margins;
use super::tree::{self, Reaped};
use super::words::{Request, ToFront, ToGuardian};
use crate::args::OnLost;
use crate::asking::trouble;
use crate::failure::{self, Failure};
use crate::reactor::{Reactor, Woken};

/// How often what must end is killed again, until nothing is left.
const KILL_PACE: Duration = Duration::from_millis(5);

/// Watches over a running command.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Supervisor<'a> {
    front: &'a Front,
    reactor: &'a Reactor,
    request: &'a Request,
    held: LockStatus,
    child: Pid,
    margins: Margins,
    max_hold_at: Option<Instant>,
    /// How the command itself ended.
    ended: Option<WaitStatus>,
    /// Nothing of the tree is left.
    alone: bool,
    stage: Stage,
    cause: Option<Cause>,
    /// The other end of the channel is closed.
    front_gone: bool,
    /// A signal asked us to end with the command.
    last: bool,
    /// The session has told us that the lock is gone.
    lost: bool,
    loss_told: bool,
}

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// The exit code.
    pub(super) code: u8,
    /// No other command shall follow.
    pub(super) is_last: bool,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// The tree was asked to stop and is killed at this instant.
    Asked {
        kill_at: Instant,
    },
    /// The tree is killed until nothing is left.
    Killing,
}

/// Why we ended the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Lost,
    MaxHold,
    FrontGone,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        front: &'a Front,
        reactor: &'a Reactor,
        request: &'a Request,
        held: LockStatus,
        child: Pid,
    ) -> Self {
        let margins = Margins::new(request.wanted.lease, request.rules.kill_after);
        let max_hold_at = request.wanted.max_hold.map(|most| Instant::now() + most);
        Self {
            front,
            reactor,
            request,
            held,
            child,
            margins,
            max_hold_at,
            ended: None,
            alone: false,
            stage: Stage::Running,
            cause: None,
            front_gone: false,
            last: false,
            lost: false,
            loss_told: false,
        }
    }

    /// Waits until the command, and the processes that must end with it, have ended.
    pub(super) fn stay(mut self) -> Result<Ended, Failure> {
        let mut lost = Some(self.held.lost());
        loop {
            self.reap();
            if self.is_over() {
                let is_last = self.last || self.cause == Some(Cause::FrontGone);
                return Ok(Ended { code: self.code(), is_last });
            }
            let until = self.due();
            let fd = (!self.front_gone).then(|| self.front.as_fd());
            let woken = {
                let mut waiting = pin!(async {
                    match &mut lost {
                        Some(lost) => lost.await,
                        None => pending().await,
                    }
                });
                let future: Pin<&mut dyn Future<Output = Loss>> = waiting.as_mut();
                self.reactor.next(future, fd, Some(until)).map_err(trouble)?
            };
            match woken {
                // The clock says why.
                Woken::Done(_) => lost = None,
                // What is meant for the command reaches it, whichever of us is told.
                Woken::Signal(caught) => self.pass_on(caught.signal),
                Woken::Readable => self.told(self.front.receive().map_err(trouble)?.as_ref()),
                Woken::Late => {}
            }
            self.look_at_the_clock();
        }
    }

    /// Notes what became of the command and of orphans that came to us.
    fn reap(&mut self) {
        loop {
            match tree::reap() {
                Reaped::Nothing => return,
                Reaped::NoChildren => {
                    self.alone = true;
                    return;
                }
                Reaped::Child(status) if status.pid() == Some(self.child) => self.noted(status),
                Reaped::Child(_) => {}
            }
        }
    }

    fn noted(&mut self, status: WaitStatus) {
        match status {
            // The front stops too, so that the shell gets its terminal back.
            WaitStatus::Stopped(..) => {
                let _ = self.front.send(&ToFront::Stopped);
            }
            WaitStatus::Continued(_) => self.let_front_go_on(),
            _ => {
                self.ended = Some(status);
                self.let_front_go_on();
            }
        }
    }

    /// If the front stopped because the command did, it continues when the command is continued,
    /// by any process.
    fn let_front_go_on(&self) {
        let front = i32::try_from(self.request.front).map(Pid::from_raw);
        if self.request.group.is_some()
            && let Ok(front) = front
        {
            let _ = kill(front, Signal::SIGCONT);
        }
    }

    fn is_over(&self) -> bool {
        match self.stage {
            Stage::Running if !self.request.rules.hold_group => self.ended.is_some(),
            _ => self.alone,
        }
    }

    fn code(&self) -> u8 {
        match self.cause {
            Some(Cause::Lost) => self.request.rules.lost_exit_code,
            Some(Cause::MaxHold) => failure::MAX_HOLD,
            Some(Cause::FrontGone) => failure::OWN,
            None => self.ended.map_or(failure::OWN, exit_code),
        }
    }

    /// When to look at the clock next.
    fn due(&self) -> Instant {
        let now = Instant::now();
        match self.stage {
            Stage::Killing => now + KILL_PACE,
            Stage::Asked { kill_at } => kill_at.min(now + self.before(self.margins.kill)),
            Stage::Running => {
                let lease = now + self.before(self.margins.ask);
                self.max_hold_at.map_or(lease, |at| at.min(lease))
            }
        }
    }

    /// How long until only `left` is left of the lease.
    fn before(&self, left: Duration) -> Duration {
        if self.lost || self.ignores_loss() {
            return self.request.wanted.lease;
        }
        self.held.remaining().saturating_sub(left).max(Duration::from_millis(1))
    }

    /// Stops the command when it is time to.
    fn look_at_the_clock(&mut self) {
        if self.stage == Stage::Killing {
            tree::kill_children();
            return;
        }
        if !self.lost
            && let Err(error) = self.held.check()
        {
            let loss = error.loss().cloned().unwrap_or(Loss::Expired);
            self.lost(&loss);
        }
        let (now, left) = (Instant::now(), self.held.remaining());
        if !self.lost && !self.ignores_loss() {
            if left <= self.margins.kill {
                self.tell_loss("it could not be renewed in time");
                self.end(Cause::Lost, true);
                return;
            }
            if left <= self.margins.ask && self.stage == Stage::Running {
                self.tell_loss("it could not be renewed, and its lease is about to end");
                self.end(Cause::Lost, self.request.rules.on_lost == OnLost::Kill);
            }
        }
        if self.stage == Stage::Running && self.max_hold_at.is_some_and(|at| now >= at) {
            if !self.request.settings.quiet {
                eprintln!("tenure: {}: --max-hold has passed", self.request.wanted.name());
            }
            self.end(Cause::MaxHold, false);
        }
        if let Stage::Asked { kill_at } = self.stage
            && now >= kill_at
        {
            self.stage = Stage::Killing;
            tree::kill_children();
        }
    }

    fn ignores_loss(&self) -> bool {
        self.request.rules.on_lost == OnLost::Ignore
    }

    /// The lock is lost, and may have another holder already.
    fn lost(&mut self, loss: &Loss) {
        self.lost = true;
        self.tell_loss(&loss.to_string());
        let at_once = match self.request.rules.on_lost {
            OnLost::Ignore => return,
            OnLost::Kill => true,
            // The time to ask has passed; one that was ended by others still gets it.
            OnLost::Term => *loss == Loss::Expired,
        };
        self.end(Cause::Lost, at_once);
    }

    fn tell_loss(&mut self, why: &str) {
        if !std::mem::replace(&mut self.loss_told, true) {
            eprintln!("tenure: lost {}: {why}", self.request.wanted.name());
        }
    }

    fn told(&mut self, message: Option<&ToGuardian>) {
        match message {
            None => {
                self.front_gone = true;
                self.end(Cause::FrontGone, false);
            }
            Some(ToGuardian::Signal(number)) => {
                if let Ok(signal) = Signal::try_from(*number) {
                    self.pass_on(signal);
                }
            }
            Some(ToGuardian::GiveUp(_)) => self.end(Cause::FrontGone, false),
            Some(ToGuardian::Last) => self.last = true,
            Some(ToGuardian::Go | ToGuardian::Request(_)) => {}
        }
    }

    /// Hands a signal to those it is meant for: what ends or suspends, to the whole tree; what
    /// programs give a meaning of their own, to the command alone.
    fn pass_on(&mut self, signal: Signal) {
        use Signal as S;
        self.last |= ends_run(signal);
        match signal {
            S::SIGCHLD | S::SIGTTIN | S::SIGTTOU => {}
            S::SIGTERM | S::SIGINT | S::SIGHUP | S::SIGQUIT => self.signal_tree(signal),
            S::SIGTSTP | S::SIGCONT if self.request.group.is_none() => self.signal_tree(signal),
            _ if self.ended.is_none() => {
                let _ = kill(self.child, signal);
            }
            _ => {}
        }
    }

    /// The group in one step where the command has one of its own; then the processes that left it.
    fn signal_tree(&self, signal: Signal) {
        let mut rest = tree::below(Pid::this());
        if self.request.group.is_none() && self.ended.is_none() {
            let _ = killpg(self.child, signal);
            rest.retain(|pid| nix::unistd::getpgid(Some(*pid)) != Ok(self.child));
        }
        for pid in rest {
            // It may have ended meanwhile, which is as well.
            let _ = kill(pid, signal);
        }
    }

    /// Ends the command and all it started, at once or after asking.
    fn end(&mut self, cause: Cause, at_once: bool) {
        self.cause.get_or_insert(cause);
        // A later cause may be in more of a hurry, never in less.
        match self.stage {
            _ if at_once => {
                self.stage = Stage::Killing;
                tree::kill_children();
            }
            Stage::Running => {
                let kill_at = Instant::now() + self.request.rules.kill_after;
                self.stage = Stage::Asked { kill_at };
                if let Ok(signal) = Signal::try_from(self.request.rules.signal) {
                    self.signal_tree(signal);
                }
                // What was stopped has to go on in order to end.
                self.signal_tree(Signal::SIGCONT);
            }
            Stage::Asked { .. } | Stage::Killing => {}
        }
    }
}

//! Asks a session for the lock that is wanted, and says on standard error what it waits for. Knows
//! patience, not what the lock is for.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use tenure::contract::{SlotView, WaiterView};
use tenure::{
    Election, Error, ErrorKind, HolderView, LeaderGuard, LockSet, LockSetGuard, Name, Owner, Query,
    Tenure,
};

use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Waited};
use crate::settings::Settings;
use crate::waiting_line::WaitingLine;
use crate::wanted::{Kind, Patience, Wanted};

/// A lock that is asked for in a session.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) tenure: &'a Tenure,
    pub(crate) settings: &'a Settings,
    pub(crate) wanted: &'a Wanted,
    pub(crate) owner: &'a Owner,
    /// From when on the wait limit counts: before the store was reached.
    pub(crate) began: Instant,
    /// After this long the session itself ends the hold.
    pub(crate) backstop: Option<Duration>,
}

type Look = Pin<Box<dyn Future<Output = Option<SlotView>>>>;

impl Asking<'_> {
    /// Waits for the lock. If something interrupts the wait, the answer is an exit code.
    pub(crate) fn obtain(
        &self,
        interrupts: &Interrupts<'_>,
    ) -> Result<Result<LockSetGuard, u8>, Failure> {
        self.wait(interrupts, ask(self.tenure, self.all()?, self.wanted.patience))
    }

    /// Waits until this candidate leads. If something interrupts the wait, the answer is an exit
    /// code.
    pub(crate) fn campaign(
        &self,
        interrupts: &Interrupts<'_>,
    ) -> Result<Result<LeaderGuard, u8>, Failure> {
        self.wait(interrupts, self.election()?.campaign(self.wanted.value.as_str()))
    }

    fn wait<G>(
        &self,
        interrupts: &Interrupts<'_>,
        asked: impl Future<Output = Result<G, Error>>,
    ) -> Result<Result<G, u8>, Failure> {
        let mut asked = pin!(asked);
        let mut line = WaitingLine::new(self.wanted.name(), self.settings);
        let mut look: Option<Look> = None;
        loop {
            let due = if look.is_none() { line.due() } else { None };
            let waited = {
                // Either what we asked for, or what we saw when we looked.
                let mut step = pin!(poll_fn(|cx| {
                    if let Some(looking) = &mut look
                        && let Poll::Ready(seen) = looking.as_mut().poll(cx)
                    {
                        return Poll::Ready(Err(seen));
                    }
                    asked.as_mut().poll(cx).map(Ok)
                }));
                interrupts.wait(step.as_mut(), due)?
            };
            let code = match waited {
                Waited::Done(Ok(answer)) => {
                    line.clear(answer.is_ok());
                    return Ok(Ok(answer?));
                }
                Waited::Done(Err(seen)) => {
                    look = None;
                    line.show(seen.as_ref(), |waiter| self.is_me(waiter));
                    continue;
                }
                Waited::Late => {
                    look = Some(self.look());
                    continue;
                }
                Waited::Interrupted(code) => code,
                Waited::Gone => failure::OWN,
            };
            line.clear(false);
            return Ok(Err(code));
        }
    }

    fn all(&self) -> Result<LockSet, Error> {
        let Wanted { lease, lock_delay, label, patience, victim_priority, .. } = self.wanted;
        let parts = self.wanted.parts()?;
        let mut all = self.tenure.lock_set(parts.as_slice().to_vec())?;
        all = all.lease(*lease).lock_delay(*lock_delay).owner(self.owner);
        all = all.victim_priority(*victim_priority);
        if let Some(label) = label {
            all = all.label(label);
        }
        if let Some(most) = self.backstop {
            all = all.max_hold(most);
        }
        Ok(match self.time_left(*patience) {
            Some(left) => all.timeout(left),
            None => all.no_timeout(),
        })
    }

    fn election(&self) -> Result<Election, Error> {
        let Wanted { lease, lock_delay, label, patience, .. } = self.wanted;
        let mut election = self.tenure.election(self.wanted.name())?;
        election = election.lease(*lease).lock_delay(*lock_delay);
        if let Some(label) = label {
            election = election.label(label);
        }
        if let Some(most) = self.backstop {
            election = election.max_hold(most);
        }
        Ok(match self.time_left(*patience) {
            Some(left) => election.timeout(left),
            None => election.no_timeout(),
        })
    }

    /// What is left of the wait limit, if there is one.
    fn time_left(&self, patience: Patience) -> Option<Duration> {
        match patience {
            Patience::Limit(limit) => {
                Some(limit.saturating_sub(self.began.elapsed()).max(Duration::from_millis(1)))
            }
            Patience::Forever | Patience::Try => None,
        }
    }

    /// Looks at the line we stand in.
    fn look(&self) -> Look {
        let tenure = self.tenure.clone();
        let names = match self.wanted.kind {
            Kind::Leader => self.election().map(|election| vec![election.slot().clone()]),
            _ => self.wanted.parts().map(|parts| parts.names().cloned().collect()),
        };
        let names: Vec<Name> = names.unwrap_or_default();
        Box::pin(async move {
            let me = tenure.session_id();
            for name in names {
                let seen = tenure.inspect(&Query::Slot(name)).await.ok()?;
                let waits = |slot: &SlotView| slot.queue.iter().any(|one| one.session == Some(me));
                if let Some(slot) = seen.slots.into_iter().find(waits) {
                    return Some(slot);
                }
            }
            None
        })
    }

    fn is_me(&self, waiter: &WaiterView) -> bool {
        waiter.session == Some(self.tenure.session_id())
    }
}

async fn ask(tenure: &Tenure, all: LockSet, patience: Patience) -> Result<LockSetGuard, Error> {
    if patience != Patience::Try {
        return all.lock().await;
    }
    if let Some(guard) = all.try_lock().await? {
        return Ok(guard);
    }
    // The first name that is held explains the refusal. Best effort: the exit code is the same if
    // the store does not respond, or if the holder has left meanwhile.
    for part in all.parts() {
        let holders = tenure.holders(part.name().as_str()).await.unwrap_or_default();
        if !holders.is_empty() {
            return Err(taken(part.name(), holders));
        }
    }
    Err(taken(all.parts()[0].name(), Vec::new()))
}

/// The refusal of a claim that does not wait: the same words from every command.
pub(crate) fn taken(name: &Name, holders: Vec<HolderView>) -> Error {
    Error::new(ErrorKind::TimedOut, "it is taken")
        .on(name)
        .blocked_by(holders, None)
        .with_help("wait for it with --wait, or see its queue with `tenure show`")
}

/// Trouble with our own tools.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
pub(crate) fn trouble(error: io::Error) -> Failure {
    Failure::new(failure::OWN, format!("cannot wait: {error}"))
}

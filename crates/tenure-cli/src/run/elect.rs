//! `tenure run --elect`: campaigns, runs the command for a term, and campaigns again.
//!
//! A term ends with its command, or with the leadership; the supervisor stops the command before
//! another candidate can lead. Between two terms there is a pause, which grows while terms are
//! short: a command that fails at once must not keep the election busy, and meanwhile another
//! candidate has its turn.

use std::future::{Pending, pending};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use tenure::{ErrorKind, LeaderGuard};

use super::guardian::{Guardian, Job};
use super::words::ToFront;
use crate::ending::Ending;
use crate::failure::{self, Failure};
use crate::interrupts::{Interrupts, Waited};

/// The pause after a term: doubled while terms are short, up to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// After a term of this length the pause is short again.
const PROVEN: Duration = Duration::from_secs(60);

impl Guardian<'_> {
    /// Leads term after term. The answer is the exit code.
    pub(super) fn lead(
        &self,
        job: &Job<'_>,
        began: Instant,
        interrupts: &Interrupts<'_>,
    ) -> Result<u8, Failure> {
        let once = self.request.rules.once;
        let (mut pause, mut began) = (PAUSE.0, began);
        loop {
            match self.asking(job, began).campaign(interrupts) {
                Ok(Ok(leader)) => {
                    let elected = Instant::now();
                    let ended = self.run_under(job, leader.status());
                    self.resign(leader, interrupts);
                    let ended = ended?;
                    if once || ended.is_last {
                        return Ok(ended.code);
                    }
                    if elected.elapsed() >= PROVEN {
                        pause = PAUSE.0;
                    }
                }
                Ok(Err(code)) => return Ok(code),
                // The store was reached before, so this is an outage: the candidate outlasts it.
                Err(failure) if !once && failure.code == failure::UNREACHABLE => failure.tell(),
                Err(failure) => return Err(failure),
            }
            // If the front is gone, the pause finds out.
            let _ = self.front.send(&ToFront::Waiting);
            if let Some(code) = sleep(interrupts, pause)? {
                return Ok(code);
            }
            pause = (pause * 2).min(PAUSE.1);
            began = Instant::now();
        }
    }

    /// Gives up what was not lost. If the store does not confirm it in time, standard error says so
    /// and the session goes on trying; the lease is the backstop.
    fn resign(&self, leader: LeaderGuard, interrupts: &Interrupts<'_>) {
        if leader.check().is_err() {
            return;
        }
        if self.request.group.is_some() {
            // From here on Ctrl-C is for us: there is no command left that could get it.
            let _ = self.front.send(&ToFront::Ending);
        }
        let mut ending = Ending::new(interrupts, self.request.settings.close_timeout);
        match ending.wait(pin!(leader.resign())) {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(error))) if error.kind() != ErrorKind::Unavailable => {
                Failure::from(error).tell();
            }
            Ok(_) => {
                let wanted = &self.request.wanted;
                if let Some((tried, left)) = ending.unconfirmed(wanted.lease) {
                    eprintln!(
                        "tenure: {}: the store did not confirm the end of the term within {tried}; \
                         the next one begins when the lease ends, in at most {left}",
                        wanted.name()
                    );
                }
            }
            Err(failure) => failure.tell(),
        }
    }
}

/// Pauses. If something interrupts the pause, the answer is an exit code.
fn sleep(interrupts: &Interrupts<'_>, pause: Duration) -> Result<Option<u8>, Failure> {
    let mut nothing: Pending<()> = pending();
    let nothing: Pin<&mut dyn Future<Output = ()>> = pin!(&mut nothing);
    Ok(match interrupts.wait(nothing, Some(Instant::now() + pause))? {
        Waited::Interrupted(code) => Some(code),
        Waited::Gone => Some(failure::OWN),
        Waited::Late | Waited::Done(()) => None,
    })
}

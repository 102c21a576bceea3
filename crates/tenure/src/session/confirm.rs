//! Grants that replicas have: asked for after the grant and before anybody holds the guard. Knows
//! the contract's `confirm`, not how a store asks its replicas.

use std::sync::Arc;
use std::time::Duration;

use super::ask::{Ask, Outcome};
use super::joint::Joint;
use super::park::{nap, within};
use super::release::Lease;
use super::retry::Retry;
use super::{Core, Event, unanswered};
use crate::contract::{Confirmed, Error, ErrorKind, Renewed, Verb};
use crate::limits;
use crate::time::Tick;

/// How many replicas shall have a grant, and how long they have for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) replicas: u32,
    pub(crate) within: Duration,
}

impl Core {
    /// Acquires by one claim what is asked for; where replicas are to have the grant, returns when
    /// they do. `behind` is what was taken for the same set before.
    pub(super) async fn acquire_by(
        self: &Arc<Self>,
        ask: &Ask,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        let Some(wanted) = self.settings.replicas else {
            return self.take(ask, deadline, behind).await;
        };
        let mut retry = Retry::new(ask.wait, deadline, self.clock.now());
        let mut forgotten = 0;
        while forgotten < limits::CLAIM_TRIES {
            let lease = match self.take(ask, deadline, behind).await? {
                Outcome::Held(lease) => lease,
                Outcome::No => return Ok(Outcome::No),
            };
            let (error, may_retry) = match self.confirm(&lease, wanted).await {
                Ok(Said::Enough) => return Ok(Outcome::Held(lease)),
                // The store was replaced by one that had not heard of the grant. Nobody has seen
                // the guard, so this is a claim like any other that has to be made anew.
                Ok(Said::Forgotten) if ask.replaces.is_none() => {
                    forgotten += 1;
                    continue;
                }
                Ok(Said::Forgotten) => return Err(lease.hold().lost_error()),
                Ok(Said::TooFew(error)) => (error, false),
                Err(error) => (error, ask.replaces.is_none()),
            };
            let error = error.during(Verb::Claim).on(ask.parts.first_name());
            // Not held by enough is not held. What goes wrong here, the keeper repeats.
            drop(lease.release().await);
            if !may_retry {
                return Err(error);
            }
            // The store went away in between: the wait goes on as if it had never granted.
            nap(self, retry.failed(self, error)?).await;
            retry.check(self)?;
        }
        let what = "the store forgot the grant each time before its replicas had it";
        Err(Error::new(ErrorKind::Unavailable, what)
            .during(Verb::Claim)
            .on(ask.parts.first_name())
            .with_help("look at the store's log: its primary seems to change again and again"))
    }

    /// Asks the store whether enough replicas have the grant. An error means that it did not say.
    async fn confirm(&self, lease: &Lease, wanted: Wanted) -> Result<Said, Error> {
        let hold = lease.hold();
        // Entered once more: who entered first has asked.
        if hold.replicas().is_some() {
            return Ok(Said::Enough);
        }
        let claim = hold.claim().to_ref();
        let sent = self.clock.now();
        let limit = sent + wanted.within * 2 + self.settings.call;
        let call = self.engine.confirm(&claim, wanted.replicas, wanted.within);
        let answer = within(self, limit, call).await;
        let answer = answer.unwrap_or_else(|| Err(unanswered(Verb::Claim, limit.since(sent))));
        let Confirmed { renewed, replicas } = answer?;
        let Renewed::Held(grant) = renewed else { return Ok(Said::Forgotten) };
        let safe_until = self.safe_until(sent, claim.lease);
        let note = || self.saw(hold.claim(), Event::Renewed { safe_until });
        if hold.renewed(safe_until, &grant, note).is_err() {
            return Ok(Said::Forgotten);
        }
        if replicas < wanted.replicas {
            let Wanted { replicas: wanted, within } = wanted;
            let what = format!("only {replicas} of {wanted} replicas confirmed within {within:?}");
            let next = "check that the replicas run and keep up, or ask for fewer";
            return Ok(Said::TooFew(Error::new(ErrorKind::Unavailable, what).with_help(next)));
        }
        hold.confirmed_by(replicas);
        hold.check()?;
        Ok(Said::Enough)
    }
}

/// What the store said of a grant and its replicas.
enum Said {
    /// Enough replicas have it.
    Enough,
    /// The store does not know the grant any more.
    Forgotten,
    /// Fewer replicas have it than were asked for.
    TooFew(Error),
}

//! Grants that replicas have: asked for after the grant and before anybody holds the guard. Knows
//! the contract's `confirm`, not how a store asks its replicas.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Ask, Outcome};
use super::joint::Joint;
use super::park::within;
use super::release::Lease;
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
        for _ in 0..limits::CLAIM_TRIES {
            let lease = match self.take(ask, deadline, behind).await? {
                Outcome::Held(lease) => lease,
                Outcome::No => return Ok(Outcome::No),
            };
            match self.confirm(&lease, wanted).await {
                Ok(true) => return Ok(Outcome::Held(lease)),
                // The store was replaced by one that had not heard of the grant. Nobody has seen
                // the guard, so this is a claim like any other that has to be made anew.
                Ok(false) if ask.replaces.is_none() => {}
                Ok(false) => return Err(lease.hold().lost_error()),
                Err(error) => {
                    let error = error.on(ask.parts.first_name());
                    // Not held by enough is not held. What goes wrong here, the keeper repeats.
                    drop(lease.release().await);
                    return Err(error);
                }
            }
        }
        let what = "the store forgot the grant each time before its replicas had it";
        Err(Error::new(ErrorKind::Unavailable, what)
            .during(Verb::Claim)
            .on(ask.parts.first_name())
            .next("look at the store's log: its primary seems to change again and again"))
    }

    /// Whether the store still knows the grant, once enough replicas have it.
    async fn confirm(&self, lease: &Lease, wanted: Wanted) -> Result<bool, Error> {
        let hold = lease.hold();
        // Entered once more: who entered first has asked.
        if hold.replicas().is_some() {
            return Ok(true);
        }
        let claim = hold.claim().to_ref();
        let sent = self.clock.now();
        let limit = sent + wanted.within * 2 + self.settings.call;
        let call = self.engine.confirm(&claim, wanted.replicas, wanted.within);
        let answer = within(self, limit, call).await;
        let answer = answer.unwrap_or_else(|| Err(unanswered(Verb::Renew, limit.since(sent))));
        let Confirmed { renewed, replicas } = answer.map_err(|error| error.during(Verb::Renew))?;
        let Renewed::Held(grant) = renewed else { return Ok(false) };
        let safe_until = self.safe_until(sent, claim.lease);
        let note = || self.saw(hold.claim(), Event::Renewed { safe_until });
        if hold.renewed(safe_until, &grant, note).is_err() {
            return Ok(false);
        }
        if replicas < wanted.replicas {
            let Wanted { replicas: wanted, within } = wanted;
            let what = format!("only {replicas} of {wanted} replicas confirmed within {within:?}");
            return Err(Error::new(ErrorKind::Unavailable, what)
                .during(Verb::Claim)
                .next("check that the replicas run and keep up, or ask for fewer"));
        }
        hold.confirmed_by(replicas);
        hold.check()?;
        Ok(true)
    }
}

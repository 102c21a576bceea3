//! Grants confirmed by replicas (`replicas(n, within)`). After the store has granted a claim, and
//! before the guard is returned, [`Replication::confirm`](crate::contract::Replication::confirm)
//! asks whether enough replicas have the grant. Too few is an error and the claim is released; a
//! primary that was replaced by one without the grant is claimed at again.

use std::sync::Arc;
use std::time::Duration;

use super::joint::Joint;
use super::park::{sleep_until, within};
use super::request::{AcquireRequest, Outcome};
use super::retry::Retry;
use super::share::Share;
use super::{Begun, Core, Event, unanswered};
use crate::contract::{Confirmed, Error, ErrorKind, Renewed, Verb};
use crate::limits;
use crate::time::Tick;

/// How many replicas must confirm a grant, and within which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) replicas: u32,
    pub(crate) within: Duration,
}

impl Core {
    /// Acquires by one claim and returns when enough replicas have the grant.
    pub(super) async fn acquire_confirmed(
        self: &Arc<Self>,
        wanted: Wanted,
        ask: &AcquireRequest,
        deadline: Tick,
        behind: Option<&Arc<Joint>>,
    ) -> Result<Outcome, Error> {
        let mut retry = Retry::new(ask.wait, deadline, self.clock.now());
        let mut forgotten = 0;
        while forgotten < limits::CLAIM_TRIES {
            let begun = Begun::Request(ask.clone());
            let lease = match self.claim_until_granted(begun, deadline, behind).await? {
                Outcome::Held(lease) => lease,
                Outcome::No => return Ok(Outcome::No),
            };
            let (error, may_retry) = match self.confirm(&lease, wanted).await {
                Ok(Confirmation::Enough) => return Ok(Outcome::Held(lease)),
                // The primary was replaced by one that did not have the grant. The guard was not
                // returned yet, so the claim is simply made again.
                Ok(Confirmation::Forgotten) if ask.replaces.is_none() => {
                    forgotten += 1;
                    continue;
                }
                Ok(Confirmation::Forgotten) => return Err(lease.hold().lost_error()),
                Ok(Confirmation::TooFew(error)) => (error, false),
                Err(error) => (error, ask.replaces.is_none()),
            };
            let error = error.during(Verb::Claim).on(ask.parts.first_name());
            // Confirmed by too few is not held. If this release fails, the keeper repeats it.
            drop(lease.release().await);
            if !may_retry {
                return Err(error);
            }
            // The store became unavailable in between: the wait goes on as if it had not granted.
            sleep_until(self, retry.failed(self, error)?).await;
            retry.check(self)?;
        }
        let what = "the store forgot the grant each time before its replicas had it";
        Err(Error::new(ErrorKind::Unavailable, what)
            .during(Verb::Claim)
            .on(ask.parts.first_name())
            .with_help("look at the store's log: its primary seems to change again and again"))
    }

    /// Asks the store whether enough replicas have the grant. An error means that it did not reply.
    async fn confirm(&self, lease: &Share, wanted: Wanted) -> Result<Confirmation, Error> {
        let hold = lease.hold();
        // A re-entry: the first guard has been confirmed already.
        if hold.replicas().is_some() {
            return Ok(Confirmation::Enough);
        }
        let claim = hold.claim().to_ref();
        let sent = self.clock.now();
        let limit = sent + wanted.within * 2 + self.settings.call;
        let Some(replication) = self.engine.replication() else {
            return Err(self.engine.promises().lacks("replicas"));
        };
        let call = replication.confirm(&claim, wanted.replicas, wanted.within);
        let answer = within(self, limit, call).await;
        let answer = answer.unwrap_or_else(|| Err(unanswered(Verb::Claim, limit.since(sent))));
        let Confirmed { renewed, replicas } = answer?;
        let Renewed::Held(grant) = renewed else { return Ok(Confirmation::Forgotten) };
        let safe_until = self.safe_until(sent, claim.lease);
        let slack = hold.safe_until().since(self.clock.now());
        let note = || self.emit(hold.claim(), || Event::Renewed { safe_until, slack });
        if hold.renewed(safe_until, &grant, note).is_err() {
            return Ok(Confirmation::Forgotten);
        }
        if replicas < wanted.replicas {
            let Wanted { replicas: wanted, within } = wanted;
            let what = format!("only {replicas} of {wanted} replicas confirmed within {within:?}");
            let next = "check that the replicas run and keep up, or ask for fewer";
            return Ok(Confirmation::TooFew(
                Error::new(ErrorKind::Unavailable, what).with_help(next),
            ));
        }
        hold.confirmed_by(replicas);
        hold.check()?;
        Ok(Confirmation::Enough)
    }
}

/// The store's reply about a grant and its replicas.
enum Confirmation {
    /// Enough replicas have it.
    Enough,
    /// The store does not know the grant any more.
    Forgotten,
    /// Fewer replicas have it than were asked for.
    TooFew(Error),
}

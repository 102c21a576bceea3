//! The claim verb: one call, `claim_one` for a single name and `claim` for a set.
//!
//! The session's channel is subscribed before the claim is sent. Otherwise a grant could be
//! notified before the server knows a listener, and the waiter would learn of it only at its next
//! renewal.
//!
//! From its begin to its reply a claim is registered in `claims.rs`, so that the release of a claim
//! that was dropped before it was sent needs no call.

use std::sync::atomic::Ordering;

use super::PostgresEngine;
use super::claims::ClaimAttempt;
use super::errors::{call_failed, unexpected_reply};
use super::statements::{Function, claim_of_one, claim_of_set};
use crate::contract::{Claim, Error, Verb, Verdict};

impl PostgresEngine {
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Verdict, Error> {
        let attempt = self.inner.unsent.begin(claim.id);
        if let (Some(listener), Some(session)) = (&self.inner.listener, claim.session) {
            self.inner.calls.fetch_add(1, Ordering::SeqCst);
            listener.subscribed(session).await;
        }
        let verdict = self.send_claim(claim, &attempt).await;
        if verdict.is_ok() {
            attempt.answered();
        }
        let queued = matches!(verdict, Ok(Verdict::Queued(_)));
        if queued {
            self.inner.contended.record(claim.parts.first_name(), true);
        }
        self.inner.set_waiting(claim.id, queued);
        verdict
    }

    async fn send_claim(
        &self,
        claim: &Claim,
        attempt: &ClaimAttempt<'_>,
    ) -> Result<Verdict, Error> {
        let first = claim.parts.first_name();
        let permit = self.permit(Verb::Claim).await.map_err(|error| error.on(first))?;
        attempt.sent();
        let (ns, is_async) = (permit.ns(), self.inner.context.is_async());
        let (function, parameters) = match claim.parts.as_slice() {
            [part] => (Function::ClaimOne, claim_of_one(claim, part, ns, is_async)),
            parts => (Function::Claim, claim_of_set(claim, parts, ns, is_async)),
        };
        let rows = permit.call(function, parameters).await;
        let rows =
            rows.map_err(|error| call_failed(error.as_ref()).during(Verb::Claim).on(first))?;
        let replies = self.parse_replies(&rows).await;
        let mut replies = replies.map_err(|error| error.during(Verb::Claim).on(first))?;
        let reply = replies.pop().ok_or_else(unexpected_reply)?;
        reply.verdict().map_err(|error| error.during(Verb::Claim).on(first))
    }
}

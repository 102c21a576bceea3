//! The verb that refuses a deadlock's victim. One call: the function locks the slots of all facts
//! and
//! the markers of all owners, compares the facts, and ends the wait.
//!
//! A second wait of an owner is compared too, but its slot is not locked: a claim that is queued by
//! a transaction which commits while this one does counts as queued after the verdict.

use uuid::Uuid;

use super::PostgresEngine;
use super::errors::unexpected_reply;
use super::statements::{Function, names};
use crate::contract::{
    ClaimAt, DeadlockCase, Deadlocks, Error, Loss, Pending, Verb, VictimVerdict,
};

impl Deadlocks for PostgresEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        Box::pin(async move {
            let verdict = self.call_refuse_victim(case).await;
            verdict.map_err(|error| error.on(&case.victim.name))
        })
    }
}

impl PostgresEngine {
    async fn call_refuse_victim(&self, case: &DeadlockCase) -> Result<VictimVerdict, Error> {
        let is_async = self.inner.context.is_async();
        let claims = |facts: &[ClaimAt]| -> Vec<Uuid> {
            facts.iter().map(|fact| Uuid::from_u128(fact.claim.as_u128())).collect()
        };
        let slots = |facts: &[ClaimAt]| names(facts.iter().map(|fact| &fact.name));
        let owners: Vec<Uuid> =
            case.owners.iter().map(|owner| Uuid::from_u128(owner.as_u128())).collect();
        let replies = self.call(Verb::RefuseVictim, Function::RefuseVictim, |ns| {
            vec![
                Box::new(ns),
                Box::new(is_async),
                Box::new(case.victim.name.as_str().to_owned()),
                Box::new(Uuid::from_u128(case.victim.claim.as_u128())),
                Box::new(slots(&case.holds)),
                Box::new(claims(&case.holds)),
                Box::new(slots(&case.waits)),
                Box::new(claims(&case.waits)),
                Box::new(owners),
                Box::new(Loss::deadlock_reason(&case.words).to_string()),
            ]
        });
        let mut replies = replies.await?;
        let reply = replies.pop().ok_or_else(unexpected_reply)?;
        reply.victim_verdict().map_err(|error| error.during(Verb::RefuseVictim))
    }
}

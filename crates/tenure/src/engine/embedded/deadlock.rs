//! The verb that refuses a deadlock's victim: the ledger compares the facts of the case and ends
//! the
//! wait in one transaction. Sessions that turn out to be dead were ended when the facts were read
//! (`inspect.rs`); one that dies later holds and waits until it is noticed, as for every verb.

use super::EmbeddedEngine;
use super::slots::SlotRows;
use super::store::StepKind;
use crate::contract::{DeadlockCase, Deadlocks, Pending, Verb, VictimVerdict};
use crate::ledger::Ledger;

impl Deadlocks for EmbeddedEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        let verb = |case: &DeadlockCase, ledger: &mut Ledger<SlotRows<'_, '_>>, now| {
            ledger.refuse_victim(case, now)
        };
        Box::pin(async move {
            let answer = self.step(StepKind::FreesSpace, case, verb).await;
            answer.map_err(|error| error.during(Verb::RefuseVictim).on(&case.victim.name))
        })
    }
}

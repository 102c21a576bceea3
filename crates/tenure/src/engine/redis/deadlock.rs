//! The verb that refuses a deadlock's victim: one script compares the facts and ends the wait. Not
//! in
//! a cluster, where the slots of a deadlock may be on several nodes.

use std::collections::HashMap;
use std::fmt::Write;

use redis::Value;

use super::RedisEngine;
use super::client::strange;
use crate::contract::{
    ClaimAt, DeadlockCase, Deadlocks, Error, Loss, Name, Pending, Verb, VictimVerdict,
};

impl Deadlocks for RedisEngine {
    fn refuse_victim<'a>(&'a self, case: &'a DeadlockCase) -> Pending<'a, VictimVerdict> {
        Box::pin(async move {
            let verdict = self.run_refuse_victim(case).await;
            verdict.map_err(|error| error.on(&case.victim.name))
        })
    }
}

impl RedisEngine {
    async fn run_refuse_victim(&self, case: &DeadlockCase) -> Result<VictimVerdict, Error> {
        let (slots, markers) = (case.names(), case.markers());
        let keys: Vec<String> =
            slots.iter().chain(&markers).map(|name| self.inner.keys.slot(name)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // The first key of a script is the top, and Lua counts from 1.
        let places: HashMap<&Name, usize> = slots.iter().zip(2..).collect();
        let fact = |text: &mut String, fact: &ClaimAt| {
            let place = places.get(&fact.name).copied().unwrap_or_default();
            let _ = write!(text, "{place} {}", fact.claim.to_hex());
        };
        let list = |facts: &[ClaimAt]| {
            let mut text = String::new();
            for one in facts {
                fact(&mut text, one);
                text.push(';');
            }
            text
        };
        let mut victim = String::new();
        fact(&mut victim, &case.victim);
        let (holds, waits) = (list(&case.holds), list(&case.waits));
        let owners: String = case.owners.iter().map(|owner| owner.to_hex() + ";").collect();
        let (count, reason) = (slots.len().to_string(), Loss::deadlock_reason(&case.words));
        let items =
            [&count, &victim, &*reason, &holds, &waits, &owners].map(|item: &str| item.as_bytes());
        let script = &self.inner.options.scripts().refuse_victim;
        match self.run(Verb::RefuseVictim, script, &keys, &items).await? {
            Value::Int(1) => Ok(VictimVerdict::Refused),
            Value::Int(0) => Ok(VictimVerdict::Changed),
            other => Err(strange(&other)),
        }
    }
}

//! The inspect verb: one slot, a page of slots, or what can be reached from an owner. Knows how
//! keys are found, not what scripts see there.

use std::collections::BTreeSet;

use redis::Value;

use super::answers::{self, text};
use super::pack::pack;
use super::{RedisEngine, to_error};
use crate::contract::{Error, Name, Page, Query, Snapshot, Verb};
use crate::limits;

/// Most slots that one call looks at: nobody else waits longer for the store than for so many.
const TOGETHER: usize = 128;
/// How many keys the store looks at in one step of a scan.
const SCAN: &[u8] = b"1000";

impl RedisEngine {
    pub(super) async fn look(&self, query: &Query) -> Result<Snapshot, Error> {
        match query {
            Query::Slot(name) => {
                let (seen, bad) = self.look_at(std::slice::from_ref(name)).await?;
                bad.into_iter().next().map_or(Ok(seen), |error| Err(error.on(name)))
            }
            Query::Page(page) => self.page(page).await,
            Query::Reach(owner) => {
                let most = limits::REACH_SLOTS.to_string();
                let owner = owner.to_hex();
                let (seen, _) =
                    self.inspect_script(&[], &[owner.as_bytes(), most.as_bytes()]).await?;
                Ok(seen)
            }
        }
    }

    /// What is seen of these slots, and what is wrong with those that cannot be read.
    async fn look_at(&self, names: &[Name]) -> Result<(Snapshot, Vec<Error>), Error> {
        let keys: Vec<String> = names.iter().map(|name| self.slot_key(name)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.inspect_script(&keys, &[b""]).await
    }

    async fn inspect_script(
        &self,
        keys: &[&str],
        items: &[&[u8]],
    ) -> Result<(Snapshot, Vec<Error>), Error> {
        let script = &self.inner.manner.scripts().inspect;
        let value = self.run(Verb::Inspect, script, keys, items).await?;
        answers::snapshot(&value, &self.inner.keys)
    }

    /// A page. The store keeps no list of names (the path of a lock would pay for it), so all keys
    /// are looked through; slots are then read a number at a time.
    async fn page(&self, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let keys = self.scan(&self.inner.keys.all_locks()).await?;
        let names = keys.iter().filter_map(|key| self.inner.keys.name_of(key));
        let chosen = names.filter(|name| {
            page.after.as_ref().is_none_or(|after| name > after)
                && page.pattern.matches(name.as_str())
        });
        let chosen: Vec<Name> = chosen.collect::<BTreeSet<_>>().into_iter().collect();
        let mut snapshot = Snapshot::default();
        for names in chosen.chunks(TOGETHER) {
            let (seen, bad) = self.look_at(names).await?;
            snapshot.slots.extend(seen.slots);
            for error in bad {
                // One key that is not ours must not hide all others.
                tracing::warn!(%error, "a lock cannot be shown");
            }
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
        }
        Ok(snapshot)
    }

    /// All keys that match a pattern.
    pub(super) async fn scan(&self, pattern: &str) -> Result<Vec<Vec<u8>>, Error> {
        let mut found = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let words: [&[u8]; 6] =
                [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", SCAN];
            let answer = self.lane().wire().call(&pack(&words)).await;
            let value = answer.map_err(|trouble| to_error(trouble, Verb::Inspect))?;
            let Some([next, keys]) = answers::list(&value) else {
                return Err(answers::strange(&value));
            };
            for key in answers::list(keys).unwrap_or_default() {
                if let Value::BulkString(key) = key {
                    found.push(key.clone());
                }
            }
            text(next).ok_or_else(|| answers::strange(&value))?.clone_into(&mut cursor);
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}

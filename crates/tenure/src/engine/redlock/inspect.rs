//! The inspect verb: what a majority of nodes has recorded.
//!
//! Every node is asked, and a holder is shown if enough nodes have it to be a majority together
//! with the nodes that did not reply. Nodes keep no list of names, so a page scans the keys of all
//! nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Quorum;
use super::node::Placement;
use super::protocol::quorum;
use super::record::NodeRecord;
use super::round::{Round, RoundEvent, join_all};
use super::scripts::ScriptCall;
use crate::contract::{ClaimId, Error, Name, Page, Query, Shape, SlotView, Snapshot, Verb};
use crate::engine::redis::client::{RequestError, list, scan, strange, text};
use crate::limits;

/// The timeout of a round that inspects.
const INSPECT_LIMIT: Duration = Duration::from_millis(200);
/// How many names one call inspects.
const MAX_NAMES: usize = 128;

impl Quorum {
    pub(super) async fn inspect(
        &self,
        placement: Placement,
        query: &Query,
    ) -> Result<Snapshot, Error> {
        let seen = match query {
            Query::Slot(name) => {
                let slots = self.inspect_names(placement, std::slice::from_ref(name)).await?;
                Ok(Snapshot { slots, ..Snapshot::default() })
            }
            Query::Page(page) => self.page(placement, page).await,
            // Nodes keep no queue, so there are no waits to follow.
            Query::Reach(_) => Ok(Snapshot::default()),
        };
        seen.map_err(|error: Error| error.during(Verb::Inspect))
    }

    /// Returns the records of these names from all nodes that replied, and how many did not.
    pub(super) async fn records(
        &self,
        placement: Placement,
        names: &[Name],
    ) -> Result<(Vec<Vec<NodeRecord>>, usize), Error> {
        let keys = names.iter().map(|name| self.context.keys.lock(name)).collect();
        let call = self.context.script_call(&self.context.scripts().look, keys);
        let answers = self.call_all(placement, call).await?;
        let silent = self.nodes.len() - answers.len();
        let mut seen = vec![Vec::new(); names.len()];
        for answer in &answers {
            let strange = || strange(answer);
            let list_of = list(answer).ok_or_else(strange)?;
            let now = list_of.first().and_then(text).and_then(|now| now.parse().ok());
            let now = now.ok_or_else(strange)?;
            for (records, one) in seen.iter_mut().zip(&list_of[1..]) {
                records.extend(NodeRecord::seen(list(one).unwrap_or_default(), now));
            }
        }
        Ok((seen, silent))
    }

    /// Returns the attempt and the fence with which a claim holds at a majority.
    pub(super) async fn find_hold(
        &self,
        placement: Placement,
        name: &Name,
        claim: ClaimId,
    ) -> Result<Option<(u32, u64)>, Error> {
        let (mut seen, silent) = self.records(placement, std::slice::from_ref(name)).await?;
        let mut counts: HashMap<(u32, u64), usize> = HashMap::new();
        let living = |one: &NodeRecord| one.claim == claim && one.left.is_some();
        for record in seen.pop().unwrap_or_default().into_iter().filter(living) {
            *counts.entry((record.attempt, record.fence)).or_default() += 1;
        }
        let (nodes, needed) = (self.nodes.len(), quorum(self.nodes.len()));
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        match most {
            Some((state, count)) if count >= needed => Ok(Some(state)),
            // The nodes that did not reply may have it.
            Some((_, count)) if count + silent >= needed => {
                Err(self.too_few_replies(nodes - silent, std::iter::empty()))
            }
            _ => Ok(None),
        }
    }

    async fn inspect_names(
        &self,
        placement: Placement,
        names: &[Name],
    ) -> Result<Vec<SlotView>, Error> {
        let (seen, silent) = self.records(placement, names).await?;
        let nodes = self.nodes.len();
        let slot = |(name, records): (&Name, Vec<NodeRecord>)| {
            let holder = NodeRecord::of_majority(records.iter(), silent, nodes);
            let mut closed: Vec<_> = records.iter().filter_map(|record| record.closed).collect();
            closed.sort_unstable();
            // The name is closed for as long as a majority is.
            let closed = closed.len().checked_sub(quorum(nodes)).map(|at| closed[at]);
            (holder.is_some() || closed.is_some()).then(|| SlotView {
                name: name.clone(),
                shape: Shape::Lock,
                holders: holder.into_iter().collect(),
                queue: Vec::new(),
                closed_for: closed,
            })
        };
        Ok(names.iter().zip(seen).filter_map(slot).collect())
    }

    /// Calls a script at all nodes. Returns the replies, which are a majority at least.
    pub(super) async fn call_all(
        &self,
        placement: Placement,
        call: ScriptCall,
    ) -> Result<Vec<Value>, Error> {
        let nodes = self.nodes.len();
        let limit = self.context.round_limit(INSPECT_LIMIT * 14);
        let mut round = Round::begin(self, placement, &Arc::new(call), 0..nodes, limit);
        let (mut answers, mut troubles) = (Vec::new(), Vec::new());
        while answers.len() + troubles.len() < nodes {
            match round.next().await {
                RoundEvent::TimedOut => break,
                RoundEvent::Reply(_, Ok(value)) => answers.push(value),
                RoundEvent::Reply(at, Err(trouble)) => troubles.push((at, trouble)),
            }
        }
        if answers.len() < quorum(nodes) {
            return Err(self.too_few_replies(answers.len(), troubles.into_iter()));
        }
        Ok(answers)
    }

    /// Returns a page of slots.
    async fn page(&self, placement: Placement, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let chosen = self.names(placement).await?;
        let chosen: Vec<Name> = chosen
            .into_iter()
            .filter(|name| page.after.as_ref().is_none_or(|after| name > after))
            .filter(|name| page.pattern.matches(name.as_str()))
            .collect();
        let mut snapshot = Snapshot::default();
        for names in chosen.chunks(MAX_NAMES) {
            snapshot.slots.extend(self.inspect_names(placement, names).await?);
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
        }
        Ok(snapshot)
    }

    /// Returns the names that any node has keys for.
    pub(super) async fn names(&self, placement: Placement) -> Result<BTreeSet<Name>, Error> {
        let scans = (0..self.nodes.len()).map(|at| self.scan(at, placement)).collect();
        let (mut names, mut troubles, mut answered) = (BTreeSet::new(), Vec::new(), 0);
        for (at, scan) in join_all(scans).await.into_iter().enumerate() {
            match scan {
                Ok(keys) => {
                    answered += 1;
                    names.extend(keys.iter().filter_map(|key| self.context.keys.name_of(key)));
                }
                Err(trouble) => troubles.push((at, trouble)),
            }
        }
        if answered < quorum(self.nodes.len()) {
            return Err(self.too_few_replies(answered, troubles.into_iter()));
        }
        Ok(names)
    }

    async fn scan(&self, at: usize, placement: Placement) -> Result<Vec<Vec<u8>>, RequestError> {
        let pattern = self.context.keys.all_locks();
        scan(self.nodes[at].wire(placement), &pattern).await
    }
}

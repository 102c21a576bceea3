//! The inspect and evict verbs: what a majority of nodes shows. Knows records, not how they came to
//! be.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::Quorum;
use super::node::Lane;
use super::protocol::quorum;
use super::record::Record;
use super::round::{Event, Round, together};
use super::scripts::Calling;
use crate::contract::{
    ClaimId, Error, Evicted, Eviction, HolderView, Name, Page, Query, Shape, SlotView, Snapshot,
    Verb,
};
use crate::engine::redis::client::{RequestError as Trouble, errors as answers, list, pack, text};
use crate::limits;

/// How long a look may take: whoever looks only wants to know.
const LOOK: Duration = Duration::from_millis(200);
/// Most names that one call looks at.
const TOGETHER: usize = 128;
/// How many keys a node looks at in one step of a scan.
const SCAN: &[u8] = b"1000";

impl Quorum {
    pub(super) async fn look(&self, lane: Lane, query: &Query) -> Result<Snapshot, Error> {
        let seen = match query {
            Query::Slot(name) => {
                let slots = self.look_at(lane, std::slice::from_ref(name)).await?;
                Ok(Snapshot { slots, ..Snapshot::default() })
            }
            Query::Page(page) => self.page(lane, page).await,
            // Nobody stands in line here, so nothing can be reached by a wait.
            Query::Reach(_) => Ok(Snapshot::default()),
        };
        seen.map_err(|error: Error| error.during(Verb::Inspect))
    }

    /// What stands at these names, each with the answers of all nodes that answered.
    pub(super) async fn records(
        &self,
        lane: Lane,
        names: &[Name],
    ) -> Result<(Vec<Vec<Record>>, usize), Error> {
        let keys = names.iter().map(|name| self.site.keys.lock(name)).collect();
        let calling = self.site.calling(&self.site.scripts().look, keys);
        let answers = self.ask_all(lane, calling).await?;
        let silent = self.nodes.len() - answers.len();
        let mut seen = vec![Vec::new(); names.len()];
        for answer in &answers {
            let strange = || answers::strange(answer);
            let list_of = list(answer).ok_or_else(strange)?;
            let now = list_of.first().and_then(text).and_then(|now| now.parse().ok());
            let now = now.ok_or_else(strange)?;
            for (records, one) in seen.iter_mut().zip(&list_of[1..]) {
                records.extend(Record::seen(list(one).unwrap_or_default(), now));
            }
        }
        Ok((seen, silent))
    }

    /// The attempt and the fence with which a majority of nodes knows a claim.
    pub(super) async fn standing_of(
        &self,
        lane: Lane,
        name: &Name,
        claim: ClaimId,
    ) -> Result<Option<(u32, u64)>, Error> {
        let (mut seen, silent) = self.records(lane, std::slice::from_ref(name)).await?;
        let mut counts: HashMap<(u32, u64), usize> = HashMap::new();
        let living = |one: &Record| one.claim == claim && one.left.is_some();
        for record in seen.pop().unwrap_or_default().into_iter().filter(living) {
            *counts.entry((record.attempt, record.fence)).or_default() += 1;
        }
        let (nodes, needed) = (self.nodes.len(), quorum(self.nodes.len()));
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        match most {
            Some((standing, count)) if count >= needed => Ok(Some(standing)),
            // Those who are silent may know it.
            Some((_, count)) if count + silent >= needed => {
                Err(self.too_few(nodes - silent, std::iter::empty()))
            }
            _ => Ok(None),
        }
    }

    async fn look_at(&self, lane: Lane, names: &[Name]) -> Result<Vec<SlotView>, Error> {
        let (seen, silent) = self.records(lane, names).await?;
        let nodes = self.nodes.len();
        let slot = |(name, records): (&Name, Vec<Record>)| {
            let holder = Record::of_majority(records.iter(), silent, nodes);
            let mut closed: Vec<_> = records.iter().filter_map(|record| record.closed).collect();
            closed.sort_unstable();
            // Closed for as long as a majority is.
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

    /// The answers of all nodes that give one, a majority at least.
    pub(super) async fn ask_all(&self, lane: Lane, calling: Calling) -> Result<Vec<Value>, Error> {
        let nodes = self.nodes.len();
        let limit = self.site.node_limit(LOOK * 14);
        let mut round = Round::begin(self, lane, &Arc::new(calling), 0..nodes, limit);
        let (mut answers, mut troubles) = (Vec::new(), Vec::new());
        while answers.len() + troubles.len() < nodes {
            match round.next().await {
                Event::TimeIsUp => break,
                Event::Answer(_, Ok(value)) => answers.push(value),
                Event::Answer(at, Err(trouble)) => troubles.push((at, trouble)),
            }
        }
        if answers.len() < quorum(nodes) {
            return Err(self.too_few(answers.len(), troubles.into_iter()));
        }
        Ok(answers)
    }

    /// A page. Nodes keep no list of names, so all keys of all nodes are looked through.
    async fn page(&self, lane: Lane, page: &Page) -> Result<Snapshot, Error> {
        let limit = page.limit.clamp(1, limits::PAGE);
        let chosen = self.names(lane).await?;
        let chosen: Vec<Name> = chosen
            .into_iter()
            .filter(|name| page.after.as_ref().is_none_or(|after| name > after))
            .filter(|name| page.pattern.matches(name.as_str()))
            .collect();
        let mut snapshot = Snapshot::default();
        for names in chosen.chunks(TOGETHER) {
            snapshot.slots.extend(self.look_at(lane, names).await?);
            if snapshot.slots.len() > limit {
                snapshot.slots.truncate(limit);
                snapshot.more_after = snapshot.slots.last().map(|last| last.name.clone());
                break;
            }
        }
        Ok(snapshot)
    }

    /// The names that any node knows.
    pub(super) async fn names(&self, lane: Lane) -> Result<BTreeSet<Name>, Error> {
        let scans = (0..self.nodes.len()).map(|at| self.scan(at, lane)).collect();
        let (mut names, mut troubles, mut answered) = (BTreeSet::new(), Vec::new(), 0);
        for (at, scan) in together(scans).await.into_iter().enumerate() {
            match scan {
                Ok(keys) => {
                    answered += 1;
                    names.extend(keys.iter().filter_map(|key| self.site.keys.name_of(key)));
                }
                Err(trouble) => troubles.push((at, trouble)),
            }
        }
        if answered < quorum(self.nodes.len()) {
            return Err(self.too_few(answered, troubles.into_iter()));
        }
        Ok(names)
    }

    async fn scan(&self, at: usize, lane: Lane) -> Result<Vec<Vec<u8>>, Trouble> {
        let pattern = self.site.keys.all_locks();
        let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let words: [&[u8]; 6] =
                [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", SCAN];
            let value = self.nodes[at].wire(lane).call(&pack(&words)).await?;
            let Some([next, keys]) = list(&value) else { return Err(Trouble::strange(&value)) };
            for key in list(keys).unwrap_or_default() {
                if let Value::BulkString(key) = key {
                    found.push(key.clone());
                }
            }
            text(next).ok_or_else(|| Trouble::strange(&value))?.clone_into(&mut cursor);
            if cursor == "0" {
                return Ok(found);
            }
        }
    }

    /// Ends exactly the grant with this fence, at every node that has it.
    pub(super) async fn evict(&self, lane: Lane, eviction: &Eviction) -> Result<Evicted, Error> {
        let site = &self.site;
        let calling = site
            .calling(&site.scripts().evict, vec![site.keys.lock(&eviction.name)])
            .with(eviction.fence.get().to_string())
            .with(eviction.reason.as_bytes())
            .with(site.remembered())
            .with(site.keys.channels());
        let answers = self.ask_all(lane, calling).await.map_err(Error::effect_unknown)?;
        let nodes = self.nodes.len();
        let silent = nodes - answers.len();
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        for answer in &answers {
            let strange = || answers::strange(answer);
            let Some([now, said, record]) = list(answer) else { return Err(strange()) };
            let now = text(now).and_then(|now| now.parse().ok()).ok_or_else(strange)?;
            let record = Record::seen(list(record).unwrap_or_default(), now);
            if text(said) == Some("d") { ended.extend(record) } else { others.extend(record) }
        }
        let shown = |records: &[Record], silent| -> Vec<HolderView> {
            Record::of_majority(records.iter(), silent, nodes).into_iter().collect()
        };
        if ended.is_empty() {
            return Ok(Evicted::NoSuchGrant(shown(&others, silent)));
        }
        // What was ended anywhere with this fence was this grant, or what is left of it.
        Ok(Evicted::Done(shown(&ended, nodes)))
    }
}

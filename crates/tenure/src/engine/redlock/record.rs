//! The record of a hold at one node, as replies show it, and the holder that a majority shows.

use std::time::Duration;

use redis::Value;

use crate::contract::{ClaimId, Fence, HolderView, Lineage, OwnerId, SessionId};
use crate::engine::common::redis::codec::parse_about;
use crate::engine::redis::client::text;
use crate::limits;

use super::protocol::quorum;

/// A hold at one node, parsed from a reply.
#[derive(Clone, Debug)]
pub(super) struct NodeRecord {
    pub(super) claim: ClaimId,
    /// The number of its attempt; 0 where the reply does not have it.
    pub(super) attempt: u32,
    pub(super) fence: u64,
    /// How long until it expires; `None` if it has.
    pub(super) left: Option<Duration>,
    /// How much longer the name stays closed, if the hold has expired.
    pub(super) closed: Option<Duration>,
    held_for: Duration,
    session: Option<SessionId>,
    lineage: Lineage,
    about: String,
}

impl NodeRecord {
    /// Parses `i n g x d t s o a`, at `now` of the node.
    pub(super) fn seen(words: &[Value], now: u64) -> Option<Self> {
        let [claim, attempt, rest @ ..] = words else { return None };
        let fields: Vec<&Value> = std::iter::once(claim).chain(rest).collect();
        let attempt = text(attempt)?.parse().ok()?;
        Some(Self { attempt, ..Self::read(&fields, now)? })
    }

    /// Parses `i g x d t s o a now`, the reply to an acquire that is refused.
    pub(super) fn refused(words: &[Value]) -> Option<Self> {
        let (now, fields) = words.split_last()?;
        let fields: Vec<&Value> = fields.iter().collect();
        Self::read(&fields, text(now)?.parse().ok()?)
    }

    fn read(fields: &[&Value], now: u64) -> Option<Self> {
        let [claim, fence, expires, delay, since, session, owners, about] = fields else {
            return None;
        };
        let number = |value: &Value| text(value)?.parse::<u64>().ok();
        let expires = number(expires)?;
        let free = expires.saturating_add(number(delay)?);
        let session = match text(session)? {
            "" => None,
            hex => Some(hex.parse().ok()?),
        };
        let owners = text(owners)?.split(',').map(|hex| hex.parse().ok());
        let owners: Vec<OwnerId> = owners.collect::<Option<_>>()?;
        let after = |end: u64| (end > now).then(|| Duration::from_micros(end - now));
        Some(Self {
            claim: text(claim)?.parse().ok()?,
            attempt: 0,
            fence: number(fence)?,
            left: after(expires),
            closed: after(free).filter(|_| expires <= now),
            held_for: Duration::from_micros(now.saturating_sub(number(since)?)),
            session,
            lineage: Lineage::nested(*owners.first()?, &owners[1..]).ok()?,
            about: text(about)?.to_owned(),
        })
    }

    /// Returns the holder at a majority of `nodes`, by these records. The `silent` nodes, which did
    /// not reply, may have the same record.
    pub(super) fn of_majority<'a>(
        records: impl Iterator<Item = &'a Self>,
        silent: usize,
        nodes: usize,
    ) -> Option<HolderView> {
        let living: Vec<&Self> = records.filter(|record| record.left.is_some()).collect();
        let same = |one: &Self, other: &Self| one.claim == other.claim && one.fence == other.fence;
        let alike = |one: &Self| living.iter().filter(|other| same(one, other)).count();
        let first = living.iter().max_by_key(|one| alike(one))?;
        let mut left: Vec<_> =
            living.iter().filter(|one| same(one, first)).filter_map(|one| one.left).collect();
        left.sort_unstable();
        let enough = left.len() + silent >= quorum(nodes);
        // It expires when it has no majority any more.
        let ends = left.len().saturating_sub(quorum(nodes));
        enough.then(|| first.view(left.get(ends).copied().unwrap_or_default()))
    }

    fn view(&self, expires_in: Duration) -> HolderView {
        let unknown = || crate::contract::About {
            host: "unknown".into(),
            pid: 0,
            place: None,
            label: None,
            conduct: crate::contract::Conduct::default(),
        };
        HolderView {
            claim: self.claim,
            session: self.session,
            lineage: self.lineage.clone(),
            weight: limits::FULL_WEIGHT,
            fence: Fence::new(self.fence),
            reserved: false,
            held_for: self.held_for,
            expires_in,
            about: parse_about(&self.about).unwrap_or_else(unknown),
        }
    }
}

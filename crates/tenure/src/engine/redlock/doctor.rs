//! Examines every node for an operator: whether it replies, how far its clock is off, what it keeps
//! through a restart, and whether it grants.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use super::Quorum;
use super::connect::{CLOCK_BOUND, info_text};
use super::node::{Placement, QuorumNode};
use super::protocol::quorum;
use super::round::join_all;
use crate::contract::{Finding, Health};
use crate::engine::redis::client::{RequestError, ServerInfo, list, pack, text};
use crate::limits;
use crate::time::Clock;

impl Quorum {
    /// Examines all nodes. Returns a finding for the quorum and one for each node.
    pub(super) async fn doctor(&self) -> Vec<Finding> {
        let examined = self.nodes.iter().map(|node| {
            let (node, clock) = (Arc::clone(node), Arc::clone(&self.context.clock));
            // On the engine's own thread, which has timers on any caller's runtime.
            self.own.handle().spawn(async move {
                let facts = timeout(limits::CALL, NodeFacts::read(&node, &*clock)).await;
                facts.ok().and_then(Result::ok)
            })
        });
        let facts: Vec<Option<NodeFacts>> =
            join_all(examined.collect()).await.into_iter().map(|one| one.ok().flatten()).collect();
        let mut findings = vec![self.judge_quorum(&facts)];
        for (node, facts) in self.nodes.iter().zip(&facts) {
            let (state, what) = match facts {
                Some(facts) => facts.judge(node.closed_for()),
                None => (Health::Bad, "does not answer: it has no vote until it does".to_owned()),
            };
            findings.push(Finding::new("node", state, format!("{}: {what}", node.location)));
        }
        findings
    }

    /// Judges the quorum as a whole.
    fn judge_quorum(&self, facts: &[Option<NodeFacts>]) -> Finding {
        let (nodes, needed) = (self.nodes.len(), quorum(self.nodes.len()));
        let open = |(node, facts): (&Arc<QuorumNode>, &Option<NodeFacts>)| {
            facts.is_some() && node.closed_for().is_none()
        };
        let granting = self.nodes.iter().zip(facts).filter(|one| open(*one)).count();
        let what = format!("{granting} of {nodes} grant, {needed} must");
        if granting < needed {
            return Finding::new("quorum", Health::Bad, format!("{what}: no lock can be taken"));
        }
        if nodes.is_multiple_of(2) {
            let what =
                format!("{what}; an even number survives no more failures than {}", nodes - 1);
            return Finding::new("quorum", Health::Note, what);
        }
        let spare = granting - needed;
        let state = if spare == 0 { Health::Note } else { Health::Fine };
        Finding::new("quorum", state, format!("{what}; {spare} more may fail"))
    }
}

/// What was found out about a node.
struct NodeFacts {
    server: ServerInfo,
    /// How far its clock is ahead of ours in microseconds, and the uncertainty of that.
    clock: Option<(i64, Duration)>,
    fsync: Option<String>,
}

impl NodeFacts {
    async fn read(node: &QuorumNode, clock: &dyn Clock) -> Result<Self, RequestError> {
        let wire = node.wire(Placement::Own);
        let report = wire.call(&pack(&[b"INFO"])).await?;
        let server = ServerInfo::new(info_text(&report).unwrap_or_default());
        let mut best: Option<(i64, Duration)> = None;
        for _ in 0..3 {
            let before = clock.wall_micros();
            let Ok(answer) = wire.call(&pack(&[b"TIME"])).await else { break };
            let after = clock.wall_micros();
            let offset = time_in(&answer).and_then(|theirs| offset(before, theirs, after));
            best = best.into_iter().chain(offset).min_by_key(|(_, give_or_take)| *give_or_take);
        }
        // Optional: the ACL of this user may forbid `CONFIG`.
        let fsync = wire.call(&pack(&[b"CONFIG", b"GET", b"appendfsync"])).await.ok();
        Ok(Self { server, clock: best, fsync: fsync.as_ref().and_then(setting_in) })
    }

    fn judge(&self, closed: Option<Duration>) -> (Health, String) {
        let version = self.server.field("redis_version").unwrap_or("of an unknown version");
        let (clock_state, clock) = self.judge_clock();
        let (kept_state, kept) = self.judge_memory();
        let (open_state, open) = match closed {
            None => (Health::Fine, "it grants".to_owned()),
            Some(left) => (
                Health::Note,
                format!("may have lost its memory and grants nothing for another {left:.0?}"),
            ),
        };
        let state = clock_state.max(kept_state).max(open_state);
        (state, format!("version {version}; {clock}; {kept}; {open}"))
    }

    fn judge_clock(&self) -> (Health, String) {
        let Some((ahead, give_or_take)) = self.clock else {
            return (Health::Note, "its clock cannot be seen".to_owned());
        };
        let apart = Duration::from_micros(ahead.unsigned_abs());
        let side = if ahead < 0 { "behind" } else { "ahead" };
        let what = format!("clock {apart:.1?} {side} of ours, give or take {give_or_take:.1?}");
        if apart.saturating_sub(give_or_take) <= CLOCK_BOUND / 2 {
            return (Health::Fine, what);
        }
        let what = format!("{what}: after a loss of memory fences would not be sure to grow");
        (Health::Note, what)
    }

    fn judge_memory(&self) -> (Health, String) {
        if self.server.field("aof_enabled") != Some("1") {
            let what = "keeps nothing through a restart, after which it is closed for a while";
            return (Health::Note, what.to_owned());
        }
        match self.fsync.as_deref() {
            Some("always") => (Health::Fine, "writes everything to disk before it answers".into()),
            Some(other) => {
                (Health::Fine, format!("keeps all but the last moments (appendfsync {other})"))
            }
            None => (Health::Fine, "keeps an append-only file".to_owned()),
        }
    }
}

/// Computes the offset of a node's clock from our time before and after its reply.
fn offset(before: u64, theirs: u64, after: u64) -> Option<(i64, Duration)> {
    let middle = before.midpoint(after);
    let ahead = i64::try_from(i128::from(theirs) - i128::from(middle)).ok()?;
    Some((ahead, Duration::from_micros(after.saturating_sub(before) / 2)))
}

/// Parses a `TIME` reply into microseconds.
fn time_in(value: &Value) -> Option<u64> {
    let [seconds, micros] = list(value)? else { return None };
    let number = |value: &Value| text(value)?.parse::<u64>().ok();
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

fn setting_in(value: &Value) -> Option<String> {
    match value {
        Value::Map(pairs) => text(&pairs.first()?.1).map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &str, clock: Option<(i64, Duration)>, fsync: Option<&str>) -> NodeFacts {
        NodeFacts { server: ServerInfo::new(info), clock, fsync: fsync.map(str::to_owned) }
    }

    #[test]
    fn a_node_is_judged_by_its_clock_its_memory_and_whether_it_grants() {
        let near = Some((1_200, Duration::from_micros(100)));
        let far = Some((-9_000_000, Duration::from_micros(100)));
        let kept = "redis_version:7.0.15\r\naof_enabled:1\r\n";
        for (facts, closed, state, words) in [
            (facts(kept, near, Some("always")), None, Health::Fine, "before it answers; it grants"),
            (facts(kept, near, Some("everysec")), None, Health::Fine, "all but the last moments"),
            (facts("aof_enabled:0", near, None), None, Health::Note, "keeps nothing"),
            (facts(kept, far, None), None, Health::Note, "clock 9.0s behind of ours"),
            (facts(kept, None, None), None, Health::Note, "cannot be seen"),
            (facts(kept, near, None), Some(CLOCK_BOUND), Health::Note, "for another 2s"),
        ] {
            let (found, what) = facts.judge(closed);
            assert_eq!(found, state, "{what}");
            assert!(what.contains(words), "{what}");
        }
    }
}

//! The doctor's findings about a cluster: members, leader, versions with known bugs, alarms,
//! latency and space. `doctor` makes the calls; the `judge_*` functions are pure.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::client::{AlarmMember, AlarmType, Client, RequestOp};
use crate::contract::{Finding, Health};

/// From which latency of a call on waits and renewals are noticeably slower.
const SLOW: Duration = Duration::from_millis(100);

/// How many calls are timed.
const SAMPLES: usize = 5;

/// The status that a member reports.
#[derive(Clone, Debug)]
struct MemberStatus {
    version: String,
    leader: u64,
    db_size: i64,
}

impl Inner {
    /// Queries the cluster and judges the responses.
    pub(super) async fn doctor(self: &Arc<Self>) -> Vec<Finding> {
        let mut statuses = Vec::new();
        let members: Vec<String> = self.connection.endpoints().map(str::to_owned).collect();
        for at in 0..members.len() {
            statuses.push(self.status(at).await);
        }
        let listed =
            self.connection.call(|client: Client| async move { client.member_list().await });
        let listed = listed.await.ok().map(|list| list.members.len());
        let alarms = self.connection.call(|client: Client| async move { client.alarms().await });
        let alarms = alarms.await.ok().map(|response| {
            let name = |alarm: &AlarmMember| match alarm.alarm() {
                AlarmType::NoSpace => "NOSPACE".to_owned(),
                AlarmType::Corrupt => "CORRUPT".to_owned(),
                AlarmType::None => "of an unknown kind".to_owned(),
            };
            response.alarms.iter().map(name).collect::<Vec<_>>()
        });
        let mut findings = vec![judge_members(&members, &statuses, listed)];
        findings.push(judge_leader(&statuses));
        findings.push(judge_versions(&statuses, listed.unwrap_or(members.len())));
        findings.push(judge_alarms(alarms.as_deref()));
        findings.push(self.latency().await);
        let clock = "leases use the leader's monotonic clock, which cannot be set; a new leader \
                     counts them from the start, so they only get longer";
        findings.push(Finding::new("store clock", Health::Fine, clock));
        let size = statuses.iter().flatten().map(|status| status.db_size).max().unwrap_or(0);
        let what =
            format!("{} MiB of data; etcd refuses to write when its quota is full", size >> 20);
        findings.push(Finding::new("space", Health::Fine, what));
        findings
    }

    async fn status(&self, member: usize) -> Option<MemberStatus> {
        let client = self.connection.client_of(member);
        let asked = tokio::time::timeout(Duration::from_secs(2), client.status()).await;
        let status = asked.ok()?.ok()?;
        let (leader, db_size) = (status.leader, status.db_size);
        Some(MemberStatus { version: status.version, leader, db_size })
    }

    /// Measures a linearizable read, which needs a majority of the members.
    async fn latency(&self) -> Finding {
        let mut times = Vec::new();
        for _ in 0..SAMPLES {
            let began = self.clock.now();
            if self.connection.read(vec![RequestOp::get(self.keys.terms())]).await.is_ok() {
                times.push(self.clock.now().since(began));
            }
        }
        times.sort_unstable();
        judge_latency(times.get(times.len() / 2).copied())
    }
}

fn judge_members(
    members: &[String],
    statuses: &[Option<MemberStatus>],
    listed: Option<usize>,
) -> Finding {
    let away: Vec<_> =
        members.iter().zip(statuses).filter(|(_, s)| s.is_none()).map(|(m, _)| &**m).collect();
    let (all, up) = (members.len(), members.len() - away.len());
    if !away.is_empty() {
        let bad = up * 2 <= all;
        let what =
            format!("{} of {all} do not answer: {}; restart them", away.len(), away.join(", "));
        return Finding::new("members", if bad { Health::Bad } else { Health::Note }, what);
    }
    match listed {
        Some(1) => {
            let what = "one: its loss stops all locks, and nothing is left to take over; run three";
            Finding::new("members", Health::Note, what)
        }
        Some(listed) if listed > all => {
            let what = format!(
                "{all} of {listed} are in the URL; name all of them, so that any may be down"
            );
            Finding::new("members", Health::Note, what)
        }
        Some(listed) if listed % 2 == 0 => {
            let what = format!("{listed}: an even number survives no more losses than one less");
            Finding::new("members", Health::Note, what)
        }
        _ => Finding::new("members", Health::Fine, format!("{all}, and all of them answer")),
    }
}

fn judge_leader(statuses: &[Option<MemberStatus>]) -> Finding {
    let mut leaders: Vec<u64> = statuses.iter().flatten().map(|status| status.leader).collect();
    leaders.dedup();
    match leaders.as_slice() {
        [] | [0] => {
            let what = "none: no lock can be taken or kept; bring a majority of members back";
            Finding::new("leader", Health::Bad, what)
        }
        [leader] => Finding::new("leader", Health::Fine, format!("member {leader:x}")),
        _ => {
            let what =
                "members name different ones: an election or a network partition is in progress";
            Finding::new("leader", Health::Note, what)
        }
    }
}

fn judge_versions(statuses: &[Option<MemberStatus>], members: usize) -> Finding {
    let mut versions: Vec<&str> = statuses.iter().flatten().map(|s| &*s.version).collect();
    versions.sort_unstable();
    versions.dedup();
    let worst = versions.iter().map(|version| judge_version(version, members));
    let worst = worst.max_by_key(|(state, _)| *state);
    let (state, what) = worst.unwrap_or((Health::Note, "no member reports its version".to_owned()));
    Finding::new("server", state, what)
}

/// The bugs of a version that concern locks.
fn judge_version(version: &str, members: usize) -> (Health, String) {
    let mut numbers = version.split(['.', '-', '+']).map(|text| text.parse::<u32>().unwrap_or(0));
    let number =
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let say = |state, what: &str| (state, format!("etcd {version}: {what}"));
    match number {
        number if number < (3, 4, 0) => say(Health::Bad, "too old; 3.4 or later is needed"),
        (3, 5, 0..=2) => {
            say(Health::Bad, "members may come to differ after a crash; upgrade to 3.5.3 or later")
        }
        (3, 4, ..=20) | (3, 5, ..=4) if members == 1 => say(
            Health::Note,
            "a single member may lose its last write in a crash; upgrade, or run three",
        ),
        _ => say(Health::Fine, "no bug is known that concerns locks"),
    }
}

fn judge_alarms(alarms: Option<&[String]>) -> Finding {
    match alarms {
        None => Finding::new("alarms", Health::Note, "cannot be seen by this user"),
        Some([]) => Finding::new("alarms", Health::Fine, "none"),
        Some(alarms) => {
            let what = format!(
                "{}: writes are refused, so no lock can be acquired; fix the cause, then disarm it",
                alarms.join(", ")
            );
            Finding::new("alarms", Health::Bad, what)
        }
    }
}

fn judge_latency(time: Option<Duration>) -> Finding {
    match time {
        None => Finding::new("latency", Health::Bad, "no call was answered"),
        Some(time) if time > SLOW => {
            let what = format!("{time:.1?} a call: waits and renewals are slow; check the disks");
            Finding::new("latency", Health::Note, what)
        }
        Some(time) => Finding::new("latency", Health::Fine, format!("{time:.1?} a call")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a member that is down has no status")]
    fn status(version: &str, leader: u64) -> Option<MemberStatus> {
        Some(MemberStatus { version: version.to_owned(), leader, db_size: 0 })
    }

    #[test]
    fn versions_with_known_bugs_are_named() {
        let state = |version: &str, members| judge_version(version, members).0;
        assert_eq!(state("3.3.25", 3), Health::Bad);
        assert_eq!(state("3.5.1", 3), Health::Bad);
        assert_eq!(state("3.4.20", 1), Health::Note);
        assert_eq!(state("3.4.20", 3), Health::Fine);
        assert_eq!(state("3.4.23", 1), Health::Fine);
        assert_eq!(state("3.5.21", 1), Health::Fine);
        assert_eq!(state("3.7.0-rc.1", 3), Health::Fine);
    }

    #[test]
    fn a_minority_that_is_away_is_a_note_and_a_majority_is_bad() {
        let members = ["a", "b", "c"].map(str::to_owned);
        let up = || status("3.5.9", 7);
        let judged = |all: [Option<MemberStatus>; 3]| judge_members(&members, &all, Some(3)).state;
        assert_eq!(judged([up(), up(), up()]), Health::Fine);
        assert_eq!(judged([up(), None, up()]), Health::Note);
        assert_eq!(judged([up(), None, None]), Health::Bad);
        let one = ["a".to_owned()];
        assert_eq!(judge_members(&one, &[up()], Some(1)).state, Health::Note);
        assert_eq!(judge_members(&one, &[up()], Some(3)).state, Health::Note);
    }

    #[test]
    fn leader_alarms_and_latency_are_judged() {
        assert_eq!(judge_leader(&[status("3", 7), status("3", 7)]).state, Health::Fine);
        assert_eq!(judge_leader(&[status("3", 0)]).state, Health::Bad);
        assert_eq!(judge_leader(&[status("3", 7), status("3", 8)]).state, Health::Note);
        assert_eq!(judge_alarms(Some(&["NOSPACE".to_owned()])).state, Health::Bad);
        assert_eq!(judge_alarms(Some(&[])).state, Health::Fine);
        assert_eq!(judge_alarms(None).state, Health::Note);
        assert_eq!(judge_latency(Some(SLOW * 2)).state, Health::Note);
        assert_eq!(judge_latency(Some(SLOW / 2)).state, Health::Fine);
        assert_eq!(judge_latency(None).state, Health::Bad);
    }
}

//! Findings about sentinels: what each of them reports about the primary, whether they agree, and
//! whether a fail-over can happen. Pure.

use std::time::Duration;

use crate::contract::{Finding, Health};
use crate::engine::redis::client::sentinel::vote::{self, HostPort, SentinelVote};
use crate::engine::redis::client::sentinel::{PrimaryDetails, PrimaryStatus, SentinelReport};

/// Below this a busy server may be taken for a dead one.
const HASTY: Duration = Duration::from_secs(1);

/// One finding for each sentinel, and one for all of them.
pub(super) fn judge(name: &str, reports: &[SentinelReport]) -> Vec<Finding> {
    let votes = votes(reports);
    let best = vote::best(&votes);
    let one = |report: &SentinelReport| {
        let (state, what) = one(name, report, &best);
        Finding::new("sentinel", state, what)
    };
    let (state, what) = together(reports, &votes);
    reports.iter().map(one).chain([Finding::new("fail-over", state, what)]).collect()
}

fn votes(reports: &[SentinelReport]) -> Vec<SentinelVote> {
    let vote = |SentinelReport { sentinel, status }: &SentinelReport| {
        let status = status.as_ref().ok()?;
        let (primary, epoch) = (status.primary.clone(), status.epoch());
        Some(SentinelVote { sentinel: sentinel.clone(), primary, epoch })
    };
    reports.iter().filter_map(vote).collect()
}

/// The finding about one sentinel. `best` is what the votes of all are for: several servers in a
/// tie.
fn one(name: &str, report: &SentinelReport, best: &[&HostPort]) -> (Health, String) {
    let SentinelReport { sentinel, status } = report;
    let PrimaryStatus { primary, details } = match status {
        Ok(status) => status,
        Err(why) => return (Health::Note, format!("{sentinel} does not answer: {why}")),
    };
    if let [elected] = best
        && *elected != primary
    {
        let what = format!(
            "{sentinel} is out of date: it says that {name} is {}, which is {} by now; it may be \
             cut off from the servers (network, auth-pass) or from the other sentinels; look at \
             its log, then restart it",
            vote::place(primary),
            vote::place(elected)
        );
        return (Health::Bad, what);
    }
    let primary = vote::place(primary);
    let Some(PrimaryDetails { flags, quorum, other_sentinels, replicas, .. }) = details else {
        let what = format!(
            "{sentinel}: {name} is {primary}; what it thinks of it cannot be seen (SENTINEL MASTER \
             is refused)"
        );
        return (Health::Note, what);
    };
    let sentinels = other_sentinels + 1;
    let what = format!(
        "{sentinel}: {name} is {primary} with {replicas} replicas; it knows {sentinels} sentinels, \
         of which {quorum} must agree that it is down"
    );
    if flags == "master" {
        return (Health::Fine, what);
    }
    (Health::Bad, format!("{what}; it says: {flags}; look at its log"))
}

/// The finding about all sentinels together.
fn together(reports: &[SentinelReport], votes: &[SentinelVote]) -> (Health, String) {
    let known: Vec<&PrimaryStatus> =
        reports.iter().filter_map(|report| report.status.as_ref().ok()).collect();
    if vote::differ(votes) {
        let goes = match vote::best(votes)[..] {
            [elected] => format!("Tenure goes by {}", vote::place(elected)),
            _ => "Tenure tries one after the other".to_owned(),
        };
        let what = format!(
            "the sentinels name different primaries: {}. {goes}; clients that ask one sentinel \
             alone may lock at another; look at the sentinels' logs, and restart the one that is \
             out of date",
            vote::listed(votes)
        );
        return (Health::Bad, what);
    }
    let details: Vec<&PrimaryDetails> =
        known.iter().filter_map(|status| status.details.as_ref()).collect();
    let Some(first) = details.first() else {
        return (Health::Note, "whether one can happen cannot be seen".to_owned());
    };
    let (sentinels, down_after) = (first.other_sentinels + 1, first.down_after);
    let settings = |one: &PrimaryDetails| (one.quorum, one.down_after);
    if details.iter().any(|one| settings(one) != settings(first)) {
        let what = "the sentinels go by different settings (quorum, down-after-milliseconds); give \
                    all of them the same";
        return (Health::Note, what.to_owned());
    }
    let silent = reports.len() - known.len();
    let majority = sentinels / 2 + 1;
    if known.len() < reports.len() && (known.len() as u64) < majority {
        let what = format!(
            "{silent} of {} sentinels that the URL names do not answer us: if they are gone, the \
             rest of {sentinels} is no majority and cannot replace a primary; start them",
            reports.len()
        );
        return (Health::Note, what);
    }
    let problem = if first.replicas == 0 {
        "no replica can take the primary's place; start one".to_owned()
    } else if first.quorum > sentinels {
        format!("a quorum of {} among {sentinels} sentinels never agrees; lower it", first.quorum)
    } else if sentinels < 3 {
        format!("{sentinels} sentinels cannot spare one; run at least 3, on hosts of their own")
    } else if first.quorum < 2 {
        let what = "a quorum of 1: a single sentinel that cannot see the primary begins one; set 2";
        what.to_owned()
    } else if down_after < HASTY {
        format!(
            "a primary that is busy for {down_after:?} is replaced, and locks may be forgotten for \
             nothing; set down-after-milliseconds to 1000 or more"
        )
    } else {
        let what = format!(
            "a primary is replaced when it was silent for {down_after:?}; shorter leases are lost \
             meanwhile"
        );
        return (Health::Fine, what);
    };
    (Health::Note, problem)
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn status(primary: &str, flags: &str, (quorum, other_sentinels): (u64, u64)) -> PrimaryStatus {
        let details = PrimaryDetails {
            flags: flags.to_owned(),
            epoch: Some(1),
            quorum,
            other_sentinels,
            replicas: 2,
            down_after: Duration::from_secs(30),
        };
        PrimaryStatus { primary: (primary.to_owned(), 6379), details: Some(details) }
    }

    fn good() -> PrimaryStatus {
        status("db", "master", (2, 2))
    }

    fn reports(
        all: impl IntoIterator<Item = Result<PrimaryStatus, String>>,
    ) -> Vec<SentinelReport> {
        let one = |(at, status)| SentinelReport { sentinel: format!("s{at}:26379"), status };
        all.into_iter().enumerate().map(one).collect()
    }

    #[track_caller]
    fn finds(reports: &[SentinelReport], check: &str, state: Health, words: &str) {
        let all = judge("mine", reports);
        let fits = |found: &Finding| {
            found.check == check && found.state == state && found.what.contains(words)
        };
        assert!(all.iter().any(fits), "{check} {state:?} {words:?}: {all:#?}");
        assert!(all.iter().all(|found| !found.what.contains('\n')), "{all:#?}");
    }

    #[test]
    fn sentinels_that_agree_are_fine() {
        let all = reports([Ok(good()), Ok(good()), Ok(good())]);
        finds(&all, "sentinel", Health::Fine, "s2:26379: mine is db:6379 with 2 replicas");
        finds(&all, "fail-over", Health::Fine, "silent for 30s");
    }

    #[test]
    fn two_primaries_are_bad_whatever_else_is_said() {
        let other = status("old", "master", (2, 2));
        let all = reports([Ok(good()), Ok(other), Err("gone".to_owned())]);
        let words = "s0:26379 names db:6379 (epoch 1); s1:26379 names old:6379 (epoch 1)";
        finds(&all, "fail-over", Health::Bad, words);
        finds(&all, "fail-over", Health::Bad, "one after the other");
        finds(&all, "sentinel", Health::Note, "s2:26379 does not answer: gone");
    }

    #[test]
    fn a_sentinel_that_is_out_of_date_is_named_with_what_to_do() {
        let mut old = status("old", "s_down,master", (2, 2));
        old.details.as_mut().expect("details").epoch = Some(0);
        let all = reports([Ok(old), Ok(good())]);
        let words = "s0:26379 is out of date: it says that mine is old:6379, which is db:6379";
        finds(&all, "sentinel", Health::Bad, words);
        finds(&all, "sentinel", Health::Fine, "s1:26379: mine is db:6379");
        finds(&all, "fail-over", Health::Bad, "Tenure goes by db:6379");
    }

    #[test]
    fn a_primary_that_a_sentinel_takes_for_dead_is_bad() {
        let all = reports([Ok(status("db", "s_down,o_down,master", (2, 2)))]);
        finds(&all, "sentinel", Health::Bad, "s_down,o_down,master");
    }

    #[test]
    fn settings_that_do_harm_are_told_with_what_to_do() {
        let with = |change: fn(&mut PrimaryDetails)| {
            let mut status = good();
            change(status.details.as_mut().expect("details"));
            reports([Ok(status.clone()), Ok(status.clone()), Ok(status)])
        };
        for (all, words) in [
            (with(|it| it.quorum = 1), "quorum of 1"),
            (with(|it| it.quorum = 4), "never agrees"),
            (with(|it| it.other_sentinels = 1), "run at least 3"),
            (with(|it| it.replicas = 0), "start one"),
            (with(|it| it.down_after = Duration::from_millis(400)), "busy for 400ms"),
        ] {
            finds(&all, "fail-over", Health::Note, words);
        }
        let hasty = with(|it| it.down_after = Duration::from_secs(1)).remove(0);
        let mixed = [hasty, reports([Ok(good())]).remove(0)];
        finds(&mixed, "fail-over", Health::Note, "different settings");
    }

    #[test]
    fn silence_is_told_and_counts_when_no_majority_is_left() {
        let gone = || Err("no answer".to_owned());
        let all = reports([Ok(good()), gone(), gone()]);
        finds(&all, "fail-over", Health::Note, "no majority");
        let all = reports([Ok(good()), Ok(good()), gone()]);
        finds(&all, "fail-over", Health::Fine, "silent for 30s");
        // The URL need not name all of them.
        finds(&reports([Ok(good())]), "fail-over", Health::Fine, "silent for 30s");
    }

    #[test]
    fn who_may_say_little_is_understood() {
        let db = || ("db".to_owned(), 6379);
        let all = reports([Ok(PrimaryStatus::new(db(), None))]);
        finds(&all, "sentinel", Health::Note, "SENTINEL MASTER is refused");
        finds(&all, "fail-over", Health::Note, "cannot be seen");
        assert_eq!(PrimaryStatus::new(db(), Some(&Value::Nil)).epoch(), None);
    }
}

//! What sentinels think of a primary and of each other, and what that means for locks, in one line
//! each. Pure: knows their words, not how they are asked.

use std::time::Duration;

use redis::Value;

use super::words_of;
use crate::contract::{Finding, Health};
use crate::engine::redis::sentinel::vote::{self, Peer, Vote};

/// Below this a busy server may be taken for a dead one.
const HASTY: Duration = Duration::from_secs(1);

/// What one sentinel said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Heard {
    /// Where it is.
    pub(in super::super) sentinel: String,
    /// What it thinks, or why it did not say.
    pub(in super::super) answer: Result<Opinion, String>,
}

/// What a sentinel thinks of the primary. Only its address is known to everybody who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Opinion {
    primary: Peer,
    detail: Option<Detail>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Detail {
    flags: String,
    /// The number of the fail-over that its configuration is from.
    epoch: Option<u64>,
    quorum: u64,
    others: u64,
    replicas: u64,
    down_after: Duration,
}

impl Opinion {
    /// The server that a sentinel names, and its answer to `SENTINEL MASTER`, which may be a
    /// refusal.
    pub(in super::super) fn new(primary: Peer, reply: Option<&Value>) -> Self {
        Self { primary, detail: reply.and_then(Detail::read) }
    }

    pub(in super::super) fn epoch(&self) -> Option<u64> {
        self.detail.as_ref()?.epoch
    }
}

impl Detail {
    fn read(reply: &Value) -> Option<Self> {
        let Value::Map(pairs) = reply else { return None };
        let field = |name: &str| {
            let pair = pairs.iter().find(|(key, _)| words_of(key) == Some(name))?;
            words_of(&pair.1)
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        Some(Self {
            flags: field("flags")?.escape_debug().to_string(),
            epoch: number("config-epoch"),
            quorum: number("quorum")?,
            others: number("num-other-sentinels")?,
            replicas: number("num-slaves")?,
            down_after: Duration::from_millis(number("down-after-milliseconds")?),
        })
    }
}

/// One finding for each sentinel, and one for all of them.
pub(super) fn judge(name: &str, heard: &[Heard]) -> Vec<Finding> {
    let votes = votes(heard);
    let best = vote::best(&votes);
    let one = |heard: &Heard| {
        let (state, what) = one(name, heard, &best);
        Finding::new("sentinel", state, what)
    };
    let (state, what) = together(heard, &votes);
    heard.iter().map(one).chain([Finding::new("fail-over", state, what)]).collect()
}

fn votes(heard: &[Heard]) -> Vec<Vote> {
    let vote = |Heard { sentinel, answer }: &Heard| {
        let opinion = answer.as_ref().ok()?;
        let (primary, epoch) = (opinion.primary.clone(), opinion.epoch());
        Some(Vote { sentinel: sentinel.clone(), primary, epoch })
    };
    heard.iter().filter_map(vote).collect()
}

/// What one of them says. `best` is what the votes of all are for: several servers in a tie.
fn one(name: &str, Heard { sentinel, answer }: &Heard, best: &[&Peer]) -> (Health, String) {
    let Opinion { primary, detail } = match answer {
        Ok(opinion) => opinion,
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
    let Some(Detail { flags, quorum, others, replicas, .. }) = detail else {
        let what = format!(
            "{sentinel}: {name} is {primary}; what it thinks of it cannot be seen (SENTINEL MASTER \
             is refused)"
        );
        return (Health::Note, what);
    };
    let sentinels = others + 1;
    let what = format!(
        "{sentinel}: {name} is {primary} with {replicas} replicas; it knows {sentinels} sentinels, \
         of which {quorum} must agree that it is down"
    );
    if flags == "master" {
        return (Health::Fine, what);
    }
    (Health::Bad, format!("{what}; it says: {flags}; look at its log"))
}

/// What they can do together.
fn together(heard: &[Heard], votes: &[Vote]) -> (Health, String) {
    let opinions: Vec<&Opinion> = heard.iter().filter_map(|one| one.answer.as_ref().ok()).collect();
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
    let details: Vec<&Detail> = opinions.iter().filter_map(|one| one.detail.as_ref()).collect();
    let Some(first) = details.first() else {
        return (Health::Note, "whether one can happen cannot be seen".to_owned());
    };
    let (sentinels, down_after) = (first.others + 1, first.down_after);
    let settings = |one: &Detail| (one.quorum, one.down_after);
    if details.iter().any(|one| settings(one) != settings(first)) {
        let what = "the sentinels go by different settings (quorum, down-after-milliseconds); give \
                    all of them the same";
        return (Health::Note, what.to_owned());
    }
    let silent = heard.len() - opinions.len();
    let majority = sentinels / 2 + 1;
    if opinions.len() < heard.len() && (opinions.len() as u64) < majority {
        let what = format!(
            "{silent} of {} sentinels that the URL names do not answer us: if they are gone, the \
             rest of {sentinels} is no majority and cannot replace a primary; start them",
            heard.len()
        );
        return (Health::Note, what);
    }
    let trouble = if first.replicas == 0 {
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
    (Health::Note, trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinion(primary: &str, flags: &str, (quorum, others): (u64, u64)) -> Opinion {
        let detail = Detail {
            flags: flags.to_owned(),
            epoch: Some(1),
            quorum,
            others,
            replicas: 2,
            down_after: Duration::from_secs(30),
        };
        Opinion { primary: (primary.to_owned(), 6379), detail: Some(detail) }
    }

    fn good() -> Opinion {
        opinion("db", "master", (2, 2))
    }

    fn heard(answers: impl IntoIterator<Item = Result<Opinion, String>>) -> Vec<Heard> {
        let one = |(at, answer)| Heard { sentinel: format!("s{at}:26379"), answer };
        answers.into_iter().enumerate().map(one).collect()
    }

    #[track_caller]
    fn finds(heard: &[Heard], check: &str, state: Health, words: &str) {
        let all = judge("mine", heard);
        let fits = |found: &Finding| {
            found.check == check && found.state == state && found.what.contains(words)
        };
        assert!(all.iter().any(fits), "{check} {state:?} {words:?}: {all:#?}");
        assert!(all.iter().all(|found| !found.what.contains('\n')), "{all:#?}");
    }

    #[test]
    fn sentinels_that_agree_are_fine() {
        let all = heard([Ok(good()), Ok(good()), Ok(good())]);
        finds(&all, "sentinel", Health::Fine, "s2:26379: mine is db:6379 with 2 replicas");
        finds(&all, "fail-over", Health::Fine, "silent for 30s");
    }

    #[test]
    fn two_primaries_are_bad_whatever_else_is_said() {
        let other = opinion("old", "master", (2, 2));
        let all = heard([Ok(good()), Ok(other), Err("gone".to_owned())]);
        let words = "s0:26379 names db:6379 (epoch 1); s1:26379 names old:6379 (epoch 1)";
        finds(&all, "fail-over", Health::Bad, words);
        finds(&all, "fail-over", Health::Bad, "one after the other");
        finds(&all, "sentinel", Health::Note, "s2:26379 does not answer: gone");
    }

    #[test]
    fn a_sentinel_that_is_out_of_date_is_named_with_what_to_do() {
        let mut old = opinion("old", "s_down,master", (2, 2));
        old.detail.as_mut().expect("a detail").epoch = Some(0);
        let all = heard([Ok(old), Ok(good())]);
        let words = "s0:26379 is out of date: it says that mine is old:6379, which is db:6379";
        finds(&all, "sentinel", Health::Bad, words);
        finds(&all, "sentinel", Health::Fine, "s1:26379: mine is db:6379");
        finds(&all, "fail-over", Health::Bad, "Tenure goes by db:6379");
    }

    #[test]
    fn a_primary_that_a_sentinel_takes_for_dead_is_bad() {
        let all = heard([Ok(opinion("db", "s_down,o_down,master", (2, 2)))]);
        finds(&all, "sentinel", Health::Bad, "s_down,o_down,master");
    }

    #[test]
    fn settings_that_do_harm_are_told_with_what_to_do() {
        let with = |change: fn(&mut Detail)| {
            let mut opinion = good();
            change(opinion.detail.as_mut().expect("a detail"));
            heard([Ok(opinion.clone()), Ok(opinion.clone()), Ok(opinion)])
        };
        for (all, words) in [
            (with(|it| it.quorum = 1), "quorum of 1"),
            (with(|it| it.quorum = 4), "never agrees"),
            (with(|it| it.others = 1), "run at least 3"),
            (with(|it| it.replicas = 0), "start one"),
            (with(|it| it.down_after = Duration::from_millis(400)), "busy for 400ms"),
        ] {
            finds(&all, "fail-over", Health::Note, words);
        }
        let hasty = with(|it| it.down_after = Duration::from_secs(1)).remove(0);
        let mixed = [hasty, heard([Ok(good())]).remove(0)];
        finds(&mixed, "fail-over", Health::Note, "different settings");
    }

    #[test]
    fn silence_is_told_and_counts_when_no_majority_is_left() {
        let gone = || Err("no answer".to_owned());
        let all = heard([Ok(good()), gone(), gone()]);
        finds(&all, "fail-over", Health::Note, "no majority");
        let all = heard([Ok(good()), Ok(good()), gone()]);
        finds(&all, "fail-over", Health::Fine, "silent for 30s");
        // The URL need not name all of them.
        finds(&heard([Ok(good())]), "fail-over", Health::Fine, "silent for 30s");
    }

    #[test]
    fn who_may_say_little_is_understood() {
        let db = || ("db".to_owned(), 6379);
        let all = heard([Ok(Opinion::new(db(), None))]);
        finds(&all, "sentinel", Health::Note, "SENTINEL MASTER is refused");
        finds(&all, "fail-over", Health::Note, "cannot be seen");
        assert_eq!(Opinion::new(db(), Some(&Value::Nil)).epoch(), None);
    }
}

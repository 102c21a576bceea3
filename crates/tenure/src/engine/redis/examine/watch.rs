//! What sentinels think of a primary and of each other, and what that means for locks, in one line
//! each. Pure: knows their words, not how they are asked.

use std::time::Duration;

use redis::Value;

use super::words_of;
use crate::contract::{Finding, Health};

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
    primary: String,
    detail: Option<Detail>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Detail {
    flags: String,
    quorum: u64,
    others: u64,
    replicas: u64,
    down_after: Duration,
}

impl Opinion {
    /// The answer to `SENTINEL MASTER`.
    pub(in super::super) fn read(reply: &Value) -> Option<Self> {
        let Value::Map(pairs) = reply else { return None };
        let field = |name: &str| {
            let pair = pairs.iter().find(|(key, _)| words_of(key) == Some(name))?;
            words_of(&pair.1)
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        let detail = Detail {
            flags: field("flags")?.escape_debug().to_string(),
            quorum: number("quorum")?,
            others: number("num-other-sentinels")?,
            replicas: number("num-slaves")?,
            down_after: Duration::from_millis(number("down-after-milliseconds")?),
        };
        let primary = (field("ip")?, number("port")?);
        Some(Self { detail: Some(detail), ..Self::at(primary.0, primary.1) })
    }

    /// From somebody who may say no more than where the primary is.
    pub(in super::super) fn at(host: &str, port: u64) -> Self {
        Self { primary: format!("{}:{port}", host.escape_debug()), detail: None }
    }
}

/// One finding for each sentinel, and one for all of them.
pub(super) fn judge(name: &str, heard: &[Heard]) -> Vec<Finding> {
    let one = |heard: &Heard| {
        let (state, what) = one(name, heard);
        Finding::new("sentinel", state, what)
    };
    let (state, what) = together(heard);
    heard.iter().map(one).chain([Finding::new("fail-over", state, what)]).collect()
}

fn one(name: &str, Heard { sentinel, answer }: &Heard) -> (Health, String) {
    let Opinion { primary, detail } = match answer {
        Ok(opinion) => opinion,
        Err(why) => return (Health::Note, format!("{sentinel} does not answer: {why}")),
    };
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
fn together(heard: &[Heard]) -> (Health, String) {
    let opinions: Vec<&Opinion> = heard.iter().filter_map(|one| one.answer.as_ref().ok()).collect();
    let mut primaries: Vec<&str> = opinions.iter().map(|opinion| &*opinion.primary).collect();
    primaries.sort_unstable();
    primaries.dedup();
    if let [_, _, ..] = primaries[..] {
        let what = format!(
            "the sentinels name different primaries ({}): clients may lock at both; look at their \
             logs, and wait until they agree",
            primaries.join(", ")
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
            quorum,
            others,
            replicas: 2,
            down_after: Duration::from_secs(30),
        };
        Opinion { primary: primary.to_owned(), detail: Some(detail) }
    }

    fn good() -> Opinion {
        opinion("db:6379", "master", (2, 2))
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
        let other = opinion("old:6379", "master", (2, 2));
        let all = heard([Ok(good()), Ok(other), Err("gone".to_owned())]);
        finds(&all, "fail-over", Health::Bad, "(db:6379, old:6379)");
        finds(&all, "sentinel", Health::Note, "s2:26379 does not answer: gone");
    }

    #[test]
    fn a_primary_that_a_sentinel_takes_for_dead_is_bad() {
        let all = heard([Ok(opinion("db:6379", "s_down,o_down,master", (2, 2)))]);
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
        let all = heard([Ok(Opinion::at("db", 6379))]);
        finds(&all, "sentinel", Health::Note, "SENTINEL MASTER is refused");
        finds(&all, "fail-over", Health::Note, "cannot be seen");
        assert_eq!(Opinion::read(&Value::Nil), None);
    }
}

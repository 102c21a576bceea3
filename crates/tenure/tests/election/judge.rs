//! Judges what candidates and observers wrote down: no term was won twice, no two leaders acted in
//! turns, and every observer saw what was published, in order.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// What is known of one term.
#[derive(Debug, Default)]
struct TermStory {
    wins: usize,
    /// The first and the last instant at which its leader acted.
    acted: Option<(u64, u64)>,
    values: HashSet<String>,
}

/// All terms, in their order.
#[derive(Debug, Default)]
pub(crate) struct Story {
    terms: BTreeMap<u64, TermStory>,
}

/// What an observer was shown: a term and its value, or that there is no leader.
pub(crate) type Seen = Option<(u64, String)>;

impl Story {
    /// Reads what all candidates left in this directory.
    pub(crate) fn read(directory: &Path) -> Self {
        let mut story = Self::default();
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with("diary-") {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                text.lines().for_each(|line| story.note(line));
            }
        }
        story
    }

    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, term, rest] = words[..] else { panic!("what is {line:?}?") };
        let term = self.terms.entry(term.parse().unwrap()).or_default();
        match what {
            "won" => term.wins += 1,
            "value" => _ = term.values.insert(rest.to_owned()),
            "acted" => {
                let at = rest.parse().unwrap();
                let (first, last) = term.acted.unwrap_or((at, at));
                term.acted = Some((first.min(at), last.max(at)));
            }
            _ => panic!("what is {line:?}?"),
        }
    }

    /// How many terms were won.
    pub(crate) fn len(&self) -> usize {
        self.terms.len()
    }

    #[track_caller]
    pub(crate) fn judge(&self) {
        for (number, term) in &self.terms {
            assert_eq!(term.wins, 1, "term {number} was won {} times", term.wins);
        }
        let acts = self.terms.iter().filter_map(|(number, term)| Some((number, term.acted?)));
        let mut before = None;
        for (number, (first, last)) in acts {
            if let Some((other, end)) = before {
                assert!(first > end, "term {number} began before term {other} had ended");
            }
            before = Some((number, last));
        }
    }

    /// Judges what one observer was shown, from its first to its last word.
    #[track_caller]
    pub(crate) fn judge_observer(&self, seen: &[Seen]) {
        let leaders: Vec<_> = seen.iter().flatten().collect();
        for pair in leaders.windows(2) {
            assert!(pair[0].0 <= pair[1].0, "term {} follows {}", pair[1].0, pair[0].0);
        }
        for pair in seen.windows(2) {
            assert_ne!(pair[0], pair[1], "shown twice in a row");
        }
        for (number, value) in leaders {
            // A leader that was killed between its win and its first line left nothing.
            let Some(term) = self.terms.get(number) else {
                assert!(value.ends_with("-first"), "{number} {value}: of a term that was not won");
                continue;
            };
            let is_its_own = term.values.contains(value) || value.ends_with("-first");
            assert!(is_its_own, "{value} is not a value of term {number}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(lines: &[&str]) -> Story {
        let mut story = Story::default();
        for line in lines {
            story.note(line);
        }
        story
    }

    const GOOD: [&str; 6] =
        ["won 5 c", "value 5 a", "acted 5 100", "won 9 d", "value 9 b", "acted 9 101"];

    #[test]
    fn a_good_story_is_accepted() {
        let story = story(&GOOD);
        story.judge();
        assert_eq!(story.len(), 2);
        story.judge_observer(&[None, Some((5, "a".into())), Some((9, "b".into())), None]);
    }

    #[test]
    #[should_panic(expected = "was won 2 times")]
    fn a_term_that_was_won_twice_is_found() {
        story(&["won 5 c", "won 5 d"]).judge();
    }

    #[test]
    #[should_panic(expected = "began before term 5 had ended")]
    fn leaders_that_act_in_turns_are_found() {
        story(&[GOOD.as_slice(), &["acted 5 102"]].concat()).judge();
    }

    #[test]
    #[should_panic(expected = "term 5 follows 9")]
    fn a_term_that_follows_a_later_one_is_found() {
        story(&GOOD).judge_observer(&[Some((9, "b".into())), Some((5, "a".into()))]);
    }

    #[test]
    #[should_panic(expected = "not a value of term 9")]
    fn a_value_of_another_term_is_found() {
        story(&GOOD).judge_observer(&[Some((9, "a".into()))]);
    }
}

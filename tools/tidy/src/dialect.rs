//! Counts the words of comments: a reader who searches for the word of the field should find it,
//! and a mechanism is no person.

use std::fmt;
use std::path::Path;

use crate::source::code_only;

/// Groups of words. The first are those of stories, the last those of the field.
const GROUPS: &[(&str, &[&str])] = &[
    ("somebody, nobody, everybody, anybody", &["somebody", "nobody", "everybody", "anybody"]),
    (
        "hear, tell, say, word",
        &[
            "hear", "hears", "heard", "tell", "tells", "told", "say", "says", "said", "word",
            "words",
        ],
    ),
    ("whoever, whom, whose, those", &["whoever", "whom", "whose", "those"]),
    ("stand", &["stand", "stands", "standing", "stood"]),
    ("own", &["own"]),
    (
        "request, response, return",
        &[
            "request",
            "requests",
            "response",
            "responses",
            "reply",
            "replies",
            "return",
            "returns",
            "returned",
        ],
    ),
    (
        "retry, timeout, backoff, reconnect",
        &[
            "retry",
            "retries",
            "retried",
            "timeout",
            "timeouts",
            "backoff",
            "reconnect",
            "reconnects",
        ],
    ),
    (
        "queue, buffer, cache, thread, task",
        &[
            "queue", "queues", "queued", "buffer", "buffers", "cache", "cached", "thread",
            "threads", "task", "tasks",
        ],
    ),
];

/// Words that make a person of a mechanism. In comments of the library each needs a reason.
const PERSONS: &[&str] = &["somebody", "everybody", "anybody", "whoever", "whomever"];

/// How often the words of each group occur, and how dense comments are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Lines of code and of comments.
    lines: usize,
    /// Comments inside functions: `//`, not `///` or `//!`.
    inline: usize,
    words: usize,
    groups: [usize; GROUPS.len()],
}

impl Count {
    /// Adds a file.
    pub fn add(&mut self, text: &str) {
        for (_, line) in comments(text) {
            self.inline += usize::from(line.starts_with("// "));
            for word in words(line) {
                self.words += 1;
                for (at, (_, group)) in GROUPS.iter().enumerate() {
                    self.groups[at] += usize::from(group.contains(&&*word));
                }
            }
        }
        self.lines += text.lines().filter(|line| !line.trim().is_empty()).count();
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = |count: usize, of: usize, scale: usize| {
            let tenths = (count * scale * 10).checked_div(of).unwrap_or(0);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        writeln!(f, "{} words of comments; of 1,000:", self.words)?;
        for ((name, _), count) in GROUPS.iter().zip(self.groups) {
            writeln!(f, "  {:>5}  {name}", per(count, self.words, 1_000))?;
        }
        writeln!(f, "inline comments for each 100 lines: {}", per(self.inline, self.lines, 100))
    }
}

/// Complains about persons in the comments of the library, in Rust, Lua and SQL.
#[must_use]
pub fn persons(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("crates/tenure/src/") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let comments: Vec<(usize, &str)> = match Path::new(path).extension() {
        Some(it) if it == "rs" => comments(text).collect(),
        // Lua and SQL: comments are lines of their own, or stand behind code that has no `--`.
        _ => {
            let lines = text.lines().enumerate();
            lines.filter_map(|(at, line)| Some((at + 1, line.split_once("--")?.1))).collect()
        }
    };
    for (number, line) in comments {
        for word in words(line).filter(|word| PERSONS.contains(&&**word)) {
            complaints.push(format!(
                "{path}:{number}: \"{word}\" in a comment; which thread, session, process or \
                 caller is it?"
            ));
        }
    }
    complaints
}

/// The comments of a file: the number of each line, and the comment in it with its slashes.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = code_only(text);
    let starts: Vec<Option<usize>> = text
        .lines()
        .zip(code.lines())
        .map(|(line, code)| {
            // What is blank as code and begins with slashes is a comment; in a string it is not.
            line.match_indices("//").map(|(at, _)| at).find(|at| {
                code.get(*at..).is_some_and(|rest| rest.trim().is_empty())
                    && !line[..*at].contains('"')
            })
        })
        .collect();
    let lines = text.lines().enumerate();
    lines.zip(starts).filter_map(|((at, line), start)| Some((at + 1, &line[start?..])))
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_in_comments_alone() {
        let mut count = Count::default();
        count.add(
            "/// Nobody returns.\nfn a() {\n    // Told to retry.\n    let s = \"// said\";\n}\n",
        );
        assert_eq!((count.words, count.inline, count.lines), (5, 1, 5));
        assert_eq!(count.groups, [1, 1, 0, 0, 0, 1, 1, 0]);
        assert!(count.to_string().contains("  200.0  somebody, nobody"), "{count}");
        assert!(count.to_string().ends_with("for each 100 lines: 20.0\n"), "{count}");
    }

    #[test]
    fn a_person_in_a_comment_of_the_library_is_asked_about() {
        let text = "fn a() {}\n/// Wakes whoever waits.\nfn somebody() {}\n";
        let found = persons("crates/tenure/src/a.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/tenure/src/a.rs:2: \"whoever\""), "{found:?}");
        assert!(persons("crates/tenure/tests/a.rs", text).is_empty());
        let text = "-- Adds a row.\nSELECT somebody; -- Everybody waits.\n";
        let found = persons("crates/tenure/src/a.sql", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a.sql:2: \"everybody\""), "{found:?}");
    }
}

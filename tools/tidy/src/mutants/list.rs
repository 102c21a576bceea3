//! The lists of mutants. Text in, mutants out; reads no file itself.
//!
//! A list is made of blocks. `@ PATH` names the file, below `crates/tenure/src`, of the blocks that
//! follow. A block says in a line or more what the mistake would do; then `- ` lines are the text
//! before and `+ ` lines the text after. `! ` lines give the reason why no test can notice it,
//! where that is so: the mutant is run all the same and counts as survived, and the reason is
//! printed. An empty line ends a block; `#` begins a comment.
//!
//! The text before occurs exactly once in its file, which `place` checks: a list whose files have
//! moved on is a complaint, never a mutant that changes something else.

use std::ops::Range;
use std::path::Path;

/// One mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutant {
    /// How it is called on the command line: `7`, or `m7` for a mechanical one.
    pub id: String,
    /// The file, below `crates/tenure/src`.
    pub file: String,
    /// What the mistake would do.
    pub does: String,
    /// The text that is replaced.
    pub before: String,
    /// What replaces it.
    pub after: String,
    /// The line of a mechanical mutant, from 1: `before` is that line.
    pub line: Option<usize>,
    /// Why no test can notice it.
    pub excuse: Option<String>,
}

impl Mutant {
    /// Whether the file is read by the tests when they run, so that nothing has to be built.
    #[must_use]
    pub fn is_text(&self) -> bool {
        Path::new(&self.file).extension().is_none_or(|extension| extension != "rs")
    }

    /// The text of the file with the mistake in it.
    ///
    /// # Errors
    /// If the text before does not occur exactly once.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        let place = match self.line {
            Some(line) => Ok(line_range(text, line)),
            None => place(text, &self.before),
        };
        let place = place.map_err(|why| format!("{}: {}: {why}", self.file, self.does))?;
        Ok(format!("{}{}{}", &text[..place.start], self.after, &text[place.end..]))
    }
}

/// Where a text occurs, which must be exactly once.
fn place(text: &str, before: &str) -> Result<Range<usize>, String> {
    match text.matches(before).count() {
        1 => {}
        0 => return Err(format!("nowhere stands\n{before}")),
        many => return Err(format!("{many} times stands\n{before}")),
    }
    let start = text.find(before).expect("counted above");
    Ok(start..start + before.len())
}

fn line_range(text: &str, line: usize) -> Range<usize> {
    let start = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    start..text[start..].find('\n').map_or(text.len(), |end| start + end)
}

/// The mutants of a list, numbered from 1.
///
/// # Errors
/// Says which line cannot be understood.
pub fn parse(list: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants = Vec::new();
    let (mut file, mut block) = (String::new(), Mutant::default());
    for (index, line) in list.lines().chain([""]).enumerate() {
        let wrong = |why: &str| Err(format!("line {}: {why}", index + 1));
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            if block == Mutant::default() {
                continue;
            }
            if block.before.is_empty() || block.does.is_empty() || file.is_empty() {
                return wrong("a block needs a file, a description and a text before");
            }
            block.file.clone_from(&file);
            block.id = (mutants.len() + 1).to_string();
            mutants.push(std::mem::take(&mut block));
        } else if let Some(path) = line.strip_prefix("@ ") {
            path.clone_into(&mut file);
        } else if let Some(text) = text_of(line, '-') {
            add(&mut block.before, text);
        } else if let Some(text) = text_of(line, '+') {
            add(&mut block.after, text);
        } else if let Some(text) = text_of(line, '!') {
            let excuse = block.excuse.get_or_insert_default();
            format!("{excuse} {text}").trim().clone_into(excuse);
        } else if block.before.is_empty() {
            format!("{} {line}", block.does).trim().clone_into(&mut block.does);
        } else {
            return wrong("a description behind the texts");
        }
    }
    Ok(mutants)
}

fn text_of(line: &str, mark: char) -> Option<&str> {
    let rest = line.strip_prefix(mark)?;
    rest.strip_prefix(' ').or(rest.is_empty().then_some(""))
}

fn add(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

#[cfg(test)]
mod tests {
    use super::{Mutant, parse};

    const LIST: &str = "\
# A comment.
@ engine/a.lua
a hold outlives
its time
- x > 1
-   y
+ true

nothing is written
- z()
+
! z is idle

@ engine/b.rs
c
- c
+ d
";

    #[test]
    fn blocks_have_a_file_a_description_and_two_texts() {
        let mutants = parse(LIST).unwrap();
        let [a, b, c] = &mutants[..] else { panic!("{mutants:?}") };
        assert_eq!((&*a.id, &*a.file, &*a.does), ("1", "engine/a.lua", "a hold outlives its time"));
        assert_eq!((&*a.before, &*a.after, &a.excuse), ("x > 1\n  y", "true", &None));
        assert_eq!((&*b.after, b.excuse.as_deref()), ("", Some("z is idle")));
        assert!(b.is_text() && !c.is_text());
        assert_eq!(c.file, "engine/b.rs");
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for bad in ["@ a\nb\n\n", "a\n- b\n", "@ a\n- b\n+ c\n", "@ a\nb\n- c\nd\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_text_before_stands_exactly_once() {
        let mutant = |before: &str| Mutant {
            before: before.to_owned(),
            after: "-".to_owned(),
            ..Mutant::default()
        };
        assert_eq!(mutant("b").apply("abc").unwrap(), "a-c");
        assert!(mutant("b").apply("bb").is_err() && mutant("b").apply("a").is_err());
        let second = Mutant { line: Some(2), ..mutant("b") };
        assert_eq!(second.apply("b\nb\nb").unwrap(), "b\n-\nb");
    }
}

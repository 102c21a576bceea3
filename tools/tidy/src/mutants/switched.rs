//! Many mutants of Rust in one build. Text in, text out; builds nothing.
//!
//! A function with mutants gets a body for each of them: `if crate::mutant_on(7) { body with the
//! mistake } else { body as it was }`. The test binaries read the number from `TENURE_MUTANT`, so
//! one build serves a whole list, and without the variable they are the code as it stands. A mutant
//! that is not inside the body of one function (a constant, a signature, a `const fn`) cannot be
//! switched; one that does not compile is found by the line of the error, since [`Woven`] says
//! which lines belong to which mutant. Those are built one by one.
//!
//! Functions are found by the layout that rustfmt gives them: a line with `fn`, a line that ends
//! with ` {`, and a line with `}` at the indentation of the first.

use std::fmt::Write as _;
use std::ops::Range;

use super::list::Mutant;

/// What the library needs so that mutants can be switched on.
pub const SWITCH: &str = "
/// Whether the mutant with this number is to be judged.
#[allow(dead_code, missing_docs)]
pub(crate) fn mutant_on(number: u64) -> bool {
    static ON: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    let read = || std::env::var(\"TENURE_MUTANT\").ok()?.parse().ok();
    *ON.get_or_init(read) == Some(number)
}
";

/// A file with mutants that can be switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Woven {
    /// The text of the file.
    pub text: String,
    /// The lines, from 1, of each mutant by its number.
    pub lines: Vec<(u64, Range<usize>)>,
}

/// Where the body of a function is, and what its mutants have instead, by their numbers.
type Body = (Range<usize>, Vec<(u64, String)>);

/// Puts mutants (number, mutant) into the text of their file. Those that cannot be switched are
/// left out.
#[must_use]
pub fn weave(whole: &str, mutants: &[(u64, &Mutant)]) -> Woven {
    let mut bodies: Vec<Body> = Vec::new();
    for (number, mutant) in mutants {
        let Some(body) = body_of(whole, mutant) else { continue };
        let Ok(mutated) = mutant.apply(&whole[body.clone()]) else { continue };
        match bodies.iter().position(|(known, _)| overlap(known, &body)) {
            Some(at) if bodies[at].0 == body => bodies[at].1.push((*number, mutated)),
            // A function inside a function that is changed as well.
            Some(_) => {}
            None => bodies.push((body, vec![(*number, mutated)])),
        }
    }
    bodies.sort_by_key(|(body, _)| body.start);
    let mut woven = Woven::default();
    let mut at = 0;
    for (body, switched) in bodies {
        woven.text.push_str(&whole[at..body.start]);
        woven.text.push('\n');
        for (number, mutated) in switched {
            let _ = write!(woven.text, "if crate::mutant_on({number}) {{");
            let first = woven.text.matches('\n').count() + 1;
            woven.text.push_str(&mutated);
            woven.lines.push((number, first..woven.text.matches('\n').count() + 1));
            woven.text.push_str("} else ");
        }
        woven.text.push('{');
        woven.text.push_str(&whole[body.clone()]);
        woven.text.push_str("}\n");
        at = body.end;
    }
    woven.text.push_str(&whole[at..]);
    woven
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What is between the braces of the function that a mutant changes.
fn body_of(whole: &str, mutant: &Mutant) -> Option<Range<usize>> {
    let start = whole.find(&mutant.before)?;
    let change = start..start + mutant.before.len();
    let mut heads: Vec<(usize, &str)> = Vec::new();
    let mut at = 0;
    for line in whole.split_inclusive('\n') {
        if at >= change.start {
            break;
        }
        heads.push((at, line));
        at += line.len();
    }
    let heads = heads.into_iter().rev().filter(|(_, line)| is_function(line));
    let bodies = heads.filter_map(|(at, line)| Some((line, body_at(whole, at)?)));
    let (head, body) = bodies
        .filter(|(_, body)| body.start <= change.start && change.end <= body.end)
        .min_by_key(|(_, body)| body.len())?;
    (!head.contains("const fn ")).then_some(body)
}

fn is_function(line: &str) -> bool {
    let line = line.trim_start();
    let words = ["fn ", "pub fn ", "async fn ", "const fn "];
    !line.starts_with("//")
        && (words.iter().any(|word| line.starts_with(word))
            || (line.starts_with("pub") && line.contains(" fn ")))
}

/// What is between the braces of the function whose head begins here.
fn body_at(whole: &str, head: usize) -> Option<Range<usize>> {
    let rest = &whole[head..];
    let indent = rest.len() - rest.trim_start_matches(' ').len();
    let close = format!("{}}}", " ".repeat(indent));
    let mut begin = None;
    let mut at = head;
    for line in rest.split_inclusive('\n') {
        let text = line.trim_end();
        match begin {
            None if text.ends_with(';') => return None,
            None if text.ends_with(" {") || text.trim() == "{" => begin = Some(at + text.len()),
            Some(begin) if text == close => return Some(begin..at + indent),
            _ => {}
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Woven, weave};
    use crate::mutants::list::Mutant;

    const FILE: &str = "\
const A: u32 = 1;
impl B {
    pub(super) fn c(
        &self,
    ) -> u32 {
        let d = 1;
        d + 2
    }

    fn e(&self) -> u32;
}
fn f() {
    g();
}
";

    fn mutant(before: &str, after: &str) -> Mutant {
        let (before, after) = (before.to_owned(), after.to_owned());
        Mutant { before, after, ..Mutant::default() }
    }

    #[test]
    fn a_function_has_a_body_for_each_of_its_mutants() {
        let (a, b, c) = (mutant("d + 2", "d"), mutant("= 1;\n        d", "= 9;\n        d"), "g()");
        let c = mutant(c, "h()");
        let Woven { text, lines } = weave(FILE, &[(4, &a), (5, &b), (6, &c)]);
        let expected = "    ) -> u32 {
if crate::mutant_on(4) {
        let d = 1;
        d
    } else if crate::mutant_on(5) {
        let d = 9;
        d + 2
    } else {
        let d = 1;
        d + 2
    }
}
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("if crate::mutant_on(6) {\n    h();\n} else {\n    g();\n}\n}"));
        assert_eq!(lines, [(4, 6..9), (5, 9..12), (6, 21..23)]);
    }

    #[test]
    fn what_is_in_no_function_is_left_out() {
        let (a, b) = (mutant("u32 = 1", "u32 = 2"), mutant("fn f() {\n    g()", "fn f() {\n  h()"));
        assert_eq!(weave(FILE, &[(1, &a), (2, &b)]).text, FILE);
    }
}

//! Mutants of Lua and SQL that need no thought: a comparison flipped, a sum turned into a
//! difference, a condition joined the other way, a statement left out. Text in, mutants out.
//!
//! Every line of code gives candidates, one for each place where a rule of `RULES` applies, and
//! one if the line is a whole statement. A sample of them is taken by the digest of what they are,
//! so that the same texts give the same sample on every machine, and a line that is added moves no
//! other one in or out.

use std::path::Path;

use super::list::Mutant;
use super::results::digest;

/// What is replaced by what; `true` for Lua.
const RULES: &[(bool, &str, &str)] = &[
    (true, " < ", " <= "),
    (true, " <= ", " < "),
    (true, " > ", " >= "),
    (true, " >= ", " > "),
    (true, " == ", " ~= "),
    (true, " ~= ", " == "),
    (true, " + ", " - "),
    (true, " - ", " + "),
    (true, " and ", " or "),
    (true, " or ", " and "),
    (true, " max(", " math.min("),
    (true, "math.min(", "max("),
    (false, " < ", " <= "),
    (false, " <= ", " < "),
    (false, " > ", " >= "),
    (false, " >= ", " > "),
    (false, " <> ", " = "),
    (false, " + ", " - "),
    (false, " - ", " + "),
    (false, " AND ", " OR "),
    (false, " OR ", " AND "),
    (false, "greatest(", "least("),
    (false, "least(", "greatest("),
    (false, " IS NULL", " IS NOT NULL"),
    (false, " IS NOT NULL", " IS NULL"),
];

/// A sample of the mutants of these files (path, text), numbered `m1` and on.
#[must_use]
pub fn sample(files: &[(String, String)], most: usize) -> Vec<Mutant> {
    let mut all: Vec<Mutant> =
        files.iter().flat_map(|(path, text)| candidates(path, text)).collect();
    all.sort_by_cached_key(|one| digest(&[&one.file, &one.before, &one.after]));
    all.dedup_by(|a, b| (&a.file, &a.before, &a.after) == (&b.file, &b.before, &b.after));
    all.truncate(most);
    for (index, one) in all.iter_mut().enumerate() {
        one.id = format!("m{}", index + 1);
    }
    all
}

fn candidates(path: &str, text: &str) -> Vec<Mutant> {
    let lua = Path::new(path).extension().is_some_and(|extension| extension == "lua");
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split("--").next().unwrap_or_default();
        // What a table or a function is called, and what it may hold, is no rule.
        if code.trim().is_empty() || code.contains("CREATE ") || code.contains("NOT NULL DEFAULT") {
            continue;
        }
        let mut put = |does: String, after: String| {
            let (file, before) = (path.to_owned(), line.to_owned());
            let line = Some(index + 1);
            found.push(Mutant { file, does, before, after, line, ..Mutant::default() });
        };
        for (_, from, to) in RULES.iter().filter(|(of_lua, ..)| *of_lua == lua) {
            for (at, _) in code.match_indices(from) {
                let after = format!("{}{to}{}", &line[..at], &line[at + from.len()..]);
                put(format!("`{}` for `{}` in: {}", to.trim(), from.trim(), code.trim()), after);
            }
        }
        if is_statement(code.trim(), lua) {
            put(format!("left out: {}", code.trim()), String::new());
        }
    }
    found
}

/// Whether a line is a statement of its own that something is missing without.
fn is_statement(code: &str, lua: bool) -> bool {
    let balanced = code.matches(['(', '{', '[']).count() == code.matches([')', '}', ']']).count();
    if !lua {
        let begins = ["PERFORM ", "DELETE ", "UPDATE ", "s := ", "EXIT WHEN ", "CONTINUE WHEN "];
        let assigns = code.split_once(" := ").is_some_and(|(to, _)| !to.contains(' '));
        let declares = code.contains(" := ") && !assigns;
        return balanced
            && !declares
            && code.ends_with(';')
            && (assigns || begins.iter().any(|begin| code.starts_with(begin)));
    }
    let begins = ["call(", "redis.call(", "redis.pcall(", "F.", "S.", "group.", "hold.", "list."];
    // An end of line in the middle of an expression.
    let open = [" and", " or", "..", ",", " =", "{", "("].iter().any(|end| code.ends_with(end));
    balanced && !open && begins.iter().any(|begin| code.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::{candidates, sample};

    fn afters(path: &str, text: &str) -> Vec<String> {
        candidates(path, text).into_iter().map(|one| one.after).collect()
    }

    #[test]
    fn comparisons_sums_and_statements_are_changed() {
        assert_eq!(
            afters("a.lua", "if a < b + 1 then -- c < d"),
            ["if a <= b + 1 then -- c < d", "if a < b - 1 then -- c < d"]
        );
        assert_eq!(afters("a.lua", "  call('DEL', key)\n-- a < b"), [""]);
        assert_eq!(
            afters("a.sql", "  WHERE a > b AND c"),
            ["  WHERE a >= b AND c", "  WHERE a > b OR c"]
        );
        assert_eq!(afters("a.sql", "  s := f(s);\n  v bigint := 0;\nIF a THEN"), [""]);
    }

    #[test]
    fn a_sample_is_always_the_same_and_no_larger_than_asked() {
        let files =
            [("a.lua".to_owned(), "if a < b then\nif c < d then\nif e < f then".to_owned())];
        let (two, all) = (sample(&files, 2), sample(&files, 9));
        assert_eq!((two.len(), all.len()), (2, 3));
        assert_eq!(two[..], all[..2]);
        assert_eq!(all[2].id, "m3");
    }
}

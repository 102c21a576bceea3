//! Words that do not belong in the tree: unfinished code, tests that do not run, talk of tooling.
//! The needles are built from pieces, so that this file does not find itself.

/// Unfinished code and tests that are switched off.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
    concat!("#[ig", "nore"),
];

/// Talk about how text was made, which tells a reader of the project nothing.
const TOOLING: &[&[&str]] =
    &[&[concat!("l", "lm")], &["ai", "agent"], &["closing", "note"], &["prompt", "engineering"]];

/// Complains about unfinished code and switched-off tests.
#[must_use]
pub fn unfinished(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for needle in UNFINISHED.iter().filter(|needle| line.contains(**needle)) {
            complaints.push(format!("{path}:{}: `{needle}` is left; what is missing?", index + 1));
        }
    }
    complaints
}

/// Complains about words that speak of internal tooling; whole words, in any case, singular or
/// plural, also across a line break.
#[must_use]
pub fn tooling(path: &str, text: &str) -> Vec<String> {
    let words = words(text);
    let mut complaints = Vec::new();
    for start in 0..words.len() {
        for phrase in TOOLING {
            if begins_with(&words[start..], phrase) {
                let (line, phrase) = (words[start].line, phrase.join(" "));
                complaints
                    .push(format!("{path}:{line}: speaks of \"{phrase}\"; what is it to a user?"));
            }
        }
    }
    complaints
}

struct Word {
    line: usize,
    text: String,
    /// Whether a full stop or the like stands between this word and the one before.
    opens_phrase: bool,
}

fn words(text: &str) -> Vec<Word> {
    let mut found = Vec::new();
    let mut opens_phrase = true;
    for (index, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some(start) = rest.find(char::is_alphanumeric) {
            opens_phrase |= rest[..start].contains(['.', ',', ';', ':', '"', '|']);
            rest = &rest[start..];
            let end = rest.find(|char: char| !char.is_alphanumeric()).unwrap_or(rest.len());
            found.push(Word { line: index + 1, text: rest[..end].to_lowercase(), opens_phrase });
            opens_phrase = false;
            rest = &rest[end..];
        }
        opens_phrase |= rest.contains(['.', ',', ';', ':', '"', '|']) || line.trim().is_empty();
    }
    found
}

fn begins_with(words: &[Word], phrase: &[&str]) -> bool {
    let Some(words) = words.get(..phrase.len()) else { return false };
    let joined = words.iter().skip(1).all(|word| !word.opens_phrase);
    let mut pairs = words.iter().zip(phrase);
    joined && pairs.all(|(word, part)| word.text.strip_suffix('s').unwrap_or(&word.text) == *part)
}

#[cfg(test)]
mod tests {
    use super::{TOOLING, UNFINISHED, tooling, unfinished};

    #[test]
    fn unfinished_code_is_found() {
        for needle in UNFINISHED {
            let found = unfinished("a.rs", &format!("\n    {needle}"));
            assert_eq!(found, [format!("a.rs:2: `{needle}` is left; what is missing?")]);
        }
        assert!(unfinished("a.rs", "a plan to do! (later)").is_empty());
    }

    #[test]
    fn talk_of_tooling_is_found_in_any_dress() {
        for phrase in TOOLING {
            let plain = phrase.join(" ");
            for text in [
                format!("an {plain} here"),
                format!("THE {}S", plain.to_uppercase()),
                format!("// said {}.", phrase.join("\n// ")),
                phrase.join("-"),
            ] {
                assert_eq!(tooling("a.md", &text).len(), 1, "{text:?}");
            }
        }
    }

    #[test]
    fn words_that_only_look_alike_are_left_alone() {
        for text in
            ["hallmark", "the file is closing. Note that", "closing\n\nnote", "agents of change"]
        {
            assert!(tooling("a.md", text).is_empty(), "{text:?}");
        }
    }
}

//! Whether the links of a Markdown page lead somewhere. Knows pages and files, not the network.

use std::path::Path;

/// Complains about relative links from the page at `path` below `root` to files that do not exist.
#[must_use]
pub fn dead(root: &Path, path: &str, text: &str) -> Vec<String> {
    let folder = root.join(path).parent().unwrap_or(root).to_owned();
    let mut complaints = Vec::new();
    for (line, target) in targets(text) {
        if !folder.join(&target).exists() {
            complaints.push(format!("{path}:{line}: links to `{target}`; where did it go?"));
        }
    }
    complaints
}

/// The files a page links to, with the line of each link; code, addresses and anchors left out.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let targets = inline(line).into_iter().chain(reference(line));
            found.extend(targets.filter_map(file).map(|target| (index + 1, target)));
        }
    }
    found
}

/// `[words](target)`, outside of inline code.
fn inline(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find(['`', ']']) {
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = after;
        if mark == b'`' {
            // Only what lies between two ticks is skipped: the words of a link may be code.
            rest = after.split_once('`').map_or(after, |(_, after)| after);
        } else if let Some((target, after)) =
            after.strip_prefix('(').and_then(|link| link.split_once(')'))
        {
            found.push(target);
            rest = after;
        }
    }
    found
}

/// `[words]: target`.
fn reference(line: &str) -> Option<&str> {
    let (words, target) = line.strip_prefix('[')?.split_once("]: ")?;
    (!words.contains(']')).then_some(target)
}

/// The file part of a target: no title, no anchor; nothing for addresses and places on the page.
fn file(target: &str) -> Option<String> {
    let target = target.split_whitespace().next()?;
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let target = target.split('#').next().unwrap_or_default();
    let is_address = target.contains("://") || target.starts_with("mailto:");
    (!target.is_empty() && !is_address).then(|| target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{dead, targets};
    use crate::tree::root;
    use std::path::PathBuf;

    fn here() -> PathBuf {
        root().join("tools/tidy")
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let page =
            "See [one](src/lib.rs).\nSee [two](src/gone.rs#part) and [three]( src/lost.rs \"T\").";
        assert_eq!(
            dead(&here(), "README.md", page),
            [
                "README.md:2: links to `src/gone.rs`; where did it go?",
                "README.md:2: links to `src/lost.rs`; where did it go?",
            ]
        );
    }

    #[test]
    fn links_count_from_the_page_not_from_the_root() {
        assert!(dead(&here(), "src/page.md", "[up](../Cargo.toml)").is_empty());
        assert_eq!(dead(&here(), "src/page.md", "[here](Cargo.toml)").len(), 1);
    }

    #[test]
    fn images_references_and_code_words_are_links_too() {
        let page = "![a](a.png) [`b`](b.md)\n[c]: c.md\n[![d](d.svg)](e.md)";
        let found: Vec<_> = targets(page).into_iter().map(|(_, target)| target).collect();
        assert_eq!(found, ["a.png", "b.md", "c.md", "d.svg", "e.md"]);
    }

    #[test]
    fn addresses_anchors_and_code_are_left_alone() {
        let page = "[a](https://example.org/x) [b](#part) [c](mailto:a@example.org) `[d](e)`\n\
                    ```\n[f](g)\n```\narray[0] (not a link)";
        assert_eq!(targets(page), []);
    }
}

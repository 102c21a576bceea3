//! Whether examples and tests keep to directories of their own. Two versions of the project that
//! are tested on one machine, or a run that was killed and its successor, meet in a path that is
//! spelled out, and one finds a store of the format of the other.
//!
//! A path counts as spelled out if it is below `/tmp`, or joined to the system's directory for
//! temporary files, and nothing in it is computed. Paths in prose are no concern of this check.

use std::path::Path;

/// How a path in the common directory begins.
const BEGINNINGS: [&str; 4] = ["\"/tmp/", "://tmp/", ":///tmp/", "temp_dir().join(\""];

/// Complains about lines of code that name a fixed path below the directory for temporary files.
#[must_use]
pub fn fixed_paths(path: &str, text: &str) -> Vec<String> {
    let is_page = Path::new(path).extension().is_none_or(|end| end != "rs");
    let (mut code, mut complaints) = (!is_page, Vec::new());
    for (index, line) in text.lines().enumerate() {
        if is_page && line.trim_start().starts_with("```") {
            code = !code;
        }
        if code && BEGINNINGS.iter().any(|beginning| is_fixed_after(line, beginning)) {
            complaints.push(format!(
                "{path}:{}: a fixed path, in which two runs meet; take tempfile::tempdir()",
                index + 1
            ));
        }
    }
    complaints
}

/// Whether a path that begins so ends without a placeholder.
fn is_fixed_after(line: &str, beginning: &str) -> bool {
    line.match_indices(beginning).any(|(at, _)| {
        let rest = &line[at + beginning.len()..];
        let path = rest.split(['"', '`', ' ']).next().unwrap_or(rest);
        !path.contains(['{', '*'])
    })
}

#[cfg(test)]
mod tests {
    use super::fixed_paths;

    #[test]
    fn a_fixed_path_is_found_in_code_alone() {
        let fixed = [
            "let url = \"embedded:///tmp/example\";",
            "let file = std::env::temp_dir().join(\"report.csv\");",
            "let path = Path::new(\"/tmp/store\");",
        ];
        for line in fixed {
            let complaints = fixed_paths("crates/a/tests/b.rs", line);
            assert_eq!(complaints.len(), 1, "{line}");
            assert!(complaints[0].starts_with("crates/a/tests/b.rs:1: "), "{complaints:?}");
            let page = format!("text\n```rust\n{line}\n```\n");
            assert!(fixed_paths("docs/a.md", &page)[0].starts_with("docs/a.md:3: "));
            assert!(fixed_paths("docs/a.md", line).is_empty(), "prose: {line}");
        }
        let computed = [
            "let dir = format!(\"/tmp/tcli-{}-{number}\", std::process::id());",
            "let url = format!(\"embedded:///tmp/{name}\");",
            "Err(\"remove /tmp/servers-*\".to_owned())",
            "let file = std::env::temp_dir().join(name);",
        ];
        for line in computed {
            assert!(fixed_paths("crates/a/tests/b.rs", line).is_empty(), "{line}");
        }
    }
}

//! Whether every dependency says why it is there. Reads TOML line by line; knows no versions.

/// Complains about dependencies without a reason on their line or directly above it.
///
/// Members of the workspace and lines that point to the workspace's own table need none.
#[must_use]
pub fn reasons(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for entry in entries(text) {
        if !entry.has_reason && !is_ours(&entry.value) {
            let Entry { line, name, .. } = entry;
            complaints.push(format!("{path}:{line}: `{name}` gives no reason; why is it here?"));
        }
    }
    complaints
}

/// One dependency, on one line or on several.
struct Entry {
    line: usize,
    name: String,
    value: String,
    has_reason: bool,
}

fn entries(text: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut in_list = false;
    let mut above_is_reason = false;
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let mut has_reason = above_is_reason || gives_reason(line);
        above_is_reason = line.trim_start().starts_with('#') && gives_reason(line);
        let mut value = without_comment(line).trim().to_owned();
        let mut name = value.split(['=', '.']).next().unwrap_or_default().trim().to_owned();
        if value.starts_with('[') {
            let table = value.trim_matches(['[', ']']).trim();
            in_list = is_list(table);
            // `[dependencies.name]` is one dependency, spread over the lines that follow.
            let Some((_, one)) = table.rsplit_once('.').filter(|(list, _)| is_list(list)) else {
                continue;
            };
            (name, value) = (one.to_owned(), table_body(text, index));
        } else if !in_list || value.is_empty() {
            continue;
        }
        // A value that is still open goes on below, and may give its reason there.
        while in_list && open_brackets(&value) > 0 {
            let Some((_, more)) = lines.next() else { break };
            has_reason |= gives_reason(more);
            value.push_str(without_comment(more));
        }
        found.push(Entry { line: index + 1, name, value, has_reason });
    }
    found
}

fn is_list(table: &str) -> bool {
    let last = table.rsplit('.').next().unwrap_or(table);
    ["dependencies", "dev-dependencies", "build-dependencies"].contains(&last)
}

/// The lines of a table after its header, joined.
fn table_body(text: &str, header: usize) -> String {
    let body = text.lines().skip(header + 1).take_while(|line| !line.starts_with('['));
    body.map(without_comment).collect::<Vec<_>>().join("\n")
}

/// Whether the entry names a path or leaves the choice to the workspace.
fn is_ours(entry: &str) -> bool {
    let mut keys = entry.split(['=', '{', ',', '.', '\n']).map(str::trim);
    keys.any(|key| key == "workspace" || key == "path")
}

fn gives_reason(line: &str) -> bool {
    let comment = &line[without_comment(line).len()..];
    comment.chars().any(char::is_alphabetic)
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, char) in line.char_indices() {
        match quote {
            Some(open) if char == open => quote = None,
            None if char == '"' || char == '\'' => quote = Some(char),
            None if char == '#' => return &line[..at],
            _ => {}
        }
    }
    line
}

fn open_brackets(entry: &str) -> usize {
    entry.matches(['[', '{']).count().saturating_sub(entry.matches([']', '}']).count())
}

#[cfg(test)]
mod tests {
    use super::reasons;

    #[test]
    fn a_dependency_without_a_reason_is_asked_about() {
        let text = "[dependencies]\nserde = \"1\"\n";
        assert_eq!(reasons("a.toml", text), ["a.toml:2: `serde` gives no reason; why is it here?"]);
    }

    #[test]
    fn every_table_of_dependencies_counts() {
        for table in [
            "dependencies",
            "dev-dependencies",
            "build-dependencies",
            "workspace.dependencies",
            "target.'cfg(target_os = \"linux\")'.dependencies",
            "dependencies.serde",
        ] {
            let text = format!("[{table}]\nversion = \"1\"\n[lints]\nworkspace = true\n");
            assert_eq!(reasons("a.toml", &text).len(), 1, "{table}");
        }
    }

    #[test]
    fn a_reason_stands_on_the_line_above_it_or_at_its_end() {
        let text = "[dependencies]\na = \"1\" # shapes\n# Colours.\nb = { version = \"1\" }\n\
                    c = { version = \"1\", features = [\n  \"x\", # only this\n] }\n";
        assert_eq!(reasons("a.toml", text), [""; 0]);
        let wide =
            "[dependencies]\nc = { version = \"1\", features = [\n  \"x\",\n] }\nd = \"1\" # why\n";
        assert_eq!(reasons("a.toml", wide).len(), 1);
    }

    #[test]
    fn a_reason_serves_one_dependency_and_an_empty_one_none() {
        let text = "[dependencies]\n# Both.\na = \"1\"\nb = \"1\"\nc = \"1\" #\nd = \"#why\"\n";
        let names: Vec<_> = reasons("a.toml", text);
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn members_of_the_workspace_need_no_reason() {
        let text = "[dependencies]\ntenure = { path = \"../tenure\", version = \"0.1\" }\n\
                    a.workspace = true\nb = { workspace = true, features = [\"x\"] }\n\
                    [dependencies.c]\npath = \"../c\"\n[package]\nname = \"x\"\n";
        assert_eq!(reasons("a.toml", text), [""; 0]);
    }

    #[test]
    fn a_feature_called_path_is_no_member() {
        let text =
            "[dependencies]\na = { version = \"1\", features = [\"path\", \"workspace\"] }\n";
        assert_eq!(reasons("a.toml", text).len(), 1);
    }
}

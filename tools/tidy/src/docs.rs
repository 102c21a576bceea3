//! Whether every public async function of the libraries has the headings that its users look for.

use crate::is_test_file;
use crate::source::{Function, code_only, functions, line_of, without_tests, words};

/// The crates whose API is documented for users.
const LIBRARIES: [&str; 4] = [
    "crates/tenure/src/",
    "crates/tenure-fence/src/",
    "crates/tenure-postgres/src/",
    "crates/tenure-rate/src/",
];

/// Complains about public async functions whose docs lack `# Cancel safety`, or `# Errors` where
/// they return a `Result`.
#[must_use]
pub fn async_headings(path: &str, text: &str) -> Vec<String> {
    if !LIBRARIES.iter().any(|library| path.starts_with(library)) || is_test_file(path) {
        return Vec::new();
    }
    let code = without_tests(&code_only(text));
    let mut complaints = Vec::new();
    for function in functions(&code) {
        if !is_public_async(&code, &function) {
            continue;
        }
        let line = line_of(&code, function.at);
        let docs = docs_above(text, line);
        let fails = words(function.returns()).any(|(_, word)| word.ends_with("Result"));
        let questions = [(fails, "# Errors"), (true, "# Cancel safety")];
        for (_, heading) in questions.iter().filter(|(asked, _)| *asked) {
            if !docs.iter().any(|said| said == heading) {
                let name = function.name;
                complaints.push(format!("{path}:{line}: `{name}` is silent on `{heading}`"));
            }
        }
    }
    complaints
}

fn is_public_async(code: &str, function: &Function<'_>) -> bool {
    let line_start = code[..function.at].rfind('\n').map_or(0, |at| at + 1);
    let before = &code[line_start..function.at];
    let is = |wanted: &str| words(before).any(|(_, word)| word == wanted);
    // `pub(crate)` and its like are not part of the API.
    let is_public = is("pub") && !before.contains("pub(");
    let answer = function.returns();
    let promises_future = words(answer).any(|(_, word)| word == "impl")
        && words(answer).any(|(_, word)| word == "Future" || word == "IntoFuture");
    is_public && (is("async") || promises_future)
}

/// The doc comment above a line, attributes skipped, without its slashes.
fn docs_above(text: &str, line: usize) -> Vec<String> {
    let mut docs = Vec::new();
    let mut in_attribute = false;
    let lines: Vec<_> = text.lines().take(line - 1).map(str::trim).collect();
    for line in lines.into_iter().rev() {
        if let Some(said) = line.strip_prefix("///").filter(|_| !in_attribute) {
            docs.push(said.trim().to_owned());
        } else if line.starts_with("#[") {
            in_attribute = false;
        } else if line.ends_with(")]") {
            // The last line of an attribute that began further up.
            in_attribute = true;
        } else if !in_attribute && !line.starts_with("//") {
            break;
        }
    }
    docs
}

#[cfg(test)]
mod tests {
    use super::async_headings;

    const PATH: &str = "crates/tenure/src/primitives/mutex.rs";

    fn silent_on(text: &str) -> Vec<String> {
        let found = async_headings(PATH, text);
        found.iter().map(|said| said.rsplit("silent on ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn an_async_function_must_say_what_happens_when_it_is_dropped() {
        let text = "impl M {\n    /// Waits.\n    pub async fn ready(&self) {}\n}";
        assert_eq!(
            async_headings(PATH, text),
            ["crates/tenure/src/primitives/mutex.rs:3: `ready` is silent on `# Cancel safety`"]
        );
    }

    #[test]
    fn one_that_can_fail_must_say_how() {
        let text = "/// # Cancel safety\npub async fn lock(&self) -> Result<Guard> {}";
        assert_eq!(silent_on(text), ["`# Errors`"]);
        let text = "pub fn lock(&self) -> impl Future<Output = Result<Guard>> + Send {}";
        assert_eq!(silent_on(text), ["`# Errors`", "`# Cancel safety`"]);
    }

    #[test]
    fn answers_are_found_above_attributes() {
        let text = "/// Locks.\n///\n/// # Errors\n/// Some.\n///\n/// # Cancel safety\n/// Safe.\n\
                    #[must_use]\n#[cfg_attr(\n    a,\n    b(c)\n)]\n// Why.\n\
                    pub async fn lock(\n    &self,\n) -> Result<Guard> {\n}";
        assert_eq!(silent_on(text), [""; 0]);
    }

    #[test]
    fn the_answers_of_a_neighbour_do_not_count() {
        let text = "/// # Cancel safety\npub async fn a() {}\npub async fn b() {}";
        assert_eq!(silent_on(text).len(), 1);
    }

    #[test]
    fn private_and_blocking_functions_and_tests_are_not_asked() {
        for text in [
            "async fn a() -> Result<()> {}",
            "pub(crate) async fn a() -> Result<()> {}",
            "pub fn a() -> Result<()> {}",
            "pub fn a(work: impl Future) {}",
            "#[cfg(test)]\nmod tests { pub async fn a() {} }",
            "/// ```\n/// pub async fn a() {}\n/// ```\npub fn b() {}",
        ] {
            assert_eq!(silent_on(text), [""; 0], "{text}");
        }
        assert!(async_headings("crates/tenure-cli/src/main.rs", "pub async fn a() {}").is_empty());
        let other = "crates/tenure-postgres/src/rows.rs";
        assert_eq!(async_headings(other, "pub async fn a() {}").len(), 1);
    }
}

//! The scripts of a node, assembled from the files in `lua/`, and calls of them. A script is called
//! by its digest; a server that does not have it gets the text.

use std::sync::LazyLock;

use crate::engine::common::texts::text;
use crate::engine::redis::client::pack;

/// One script.
#[derive(Clone, Debug)]
pub(super) struct NodeScript {
    pub(super) text: String,
    pub(super) sha: String,
}

/// All scripts.
#[derive(Clone, Debug)]
pub(super) struct NodeScripts {
    pub(super) acquire: NodeScript,
    pub(super) raise: NodeScript,
    pub(super) extend: NodeScript,
    pub(super) release: NodeScript,
    pub(super) look: NodeScript,
    pub(super) evict: NodeScript,
    pub(super) raise_fences: NodeScript,
    pub(super) connect: NodeScript,
    pub(super) change_terms: NodeScript,
    pub(super) open: NodeScript,
    #[cfg(feature = "conformance")]
    pub(super) end_session: NodeScript,
}

/// Returns the scripts that read the node's clock.
pub(super) fn on_node_clock() -> &'static NodeScripts {
    static SCRIPTS: LazyLock<NodeScripts> =
        LazyLock::new(|| NodeScripts::new(text!("redlock/lua/clock.lua").get()));
    &SCRIPTS
}

/// Returns the scripts that take the time as their first argument, for tests.
#[cfg(feature = "conformance")]
pub(super) fn on_given_clock() -> &'static NodeScripts {
    static SCRIPTS: LazyLock<NodeScripts> =
        LazyLock::new(|| NodeScripts::new("local now = tonumber(ARGV[1])"));
    &SCRIPTS
}

impl NodeScripts {
    fn new(clock: &str) -> Self {
        let make = |text: &str| NodeScript::new(text, clock);
        Self {
            acquire: make(text!("redlock/lua/acquire.lua").get()),
            raise: make(text!("redlock/lua/raise.lua").get()),
            extend: make(text!("redlock/lua/extend.lua").get()),
            release: make(text!("redlock/lua/release.lua").get()),
            look: make(text!("redlock/lua/look.lua").get()),
            evict: make(text!("redlock/lua/evict.lua").get()),
            raise_fences: make(text!("redlock/lua/raise_fences.lua").get()),
            connect: make(text!("redlock/lua/connect.lua").get()),
            change_terms: make(text!("redlock/lua/change_terms.lua").get()),
            open: make(text!("redlock/lua/open.lua").get()),
            #[cfg(feature = "conformance")]
            end_session: make(include_str!("../../conformance/lua/end_quorum_session.lua")),
        }
    }
}

impl NodeScript {
    fn new(verb: &str, clock: &str) -> Self {
        let mut text = String::new();
        for line in verb.lines() {
            match line {
                "--#include clock" => push(&mut text, clock),
                "--#include head" => push(&mut text, text!("redlock/lua/head.lua").get()),
                line => push(&mut text, line),
            }
        }
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// Appends lines without comments and indentation.
fn push(text: &mut String, lines: &str) {
    for line in lines.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
}

/// The call of a script, the same for every node.
#[derive(Clone, Debug)]
pub(super) struct ScriptCall {
    script: &'static NodeScript,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl ScriptCall {
    pub(super) fn new(script: &'static NodeScript, keys: Vec<String>, clock: String) -> Self {
        Self { script, keys, arguments: vec![clock.into_bytes()] }
    }

    /// Adds an argument.
    pub(super) fn with(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.push(argument);
        self
    }

    /// Adds an argument.
    pub(super) fn push(&mut self, argument: impl Into<Vec<u8>>) {
        self.arguments.push(argument.into());
    }

    /// Returns the words of an `EVAL` command.
    #[cfg(all(test, feature = "conformance"))]
    pub(super) fn words(&self) -> Vec<Vec<u8>> {
        let count = self.keys.len().to_string();
        let first = ["EVAL", &self.script.text, &count].map(|word| word.as_bytes().to_vec());
        let keys = self.keys.iter().map(|key| key.as_bytes().to_vec());
        first.into_iter().chain(keys).chain(self.arguments.iter().cloned()).collect()
    }

    /// Encodes the command: `EVALSHA` with the digest, or `EVAL` with the text.
    pub(super) fn packed(&self, by_text: bool) -> Vec<u8> {
        let NodeScript { text, sha } = self.script;
        let (verb, script) = if by_text { ("EVAL", text) } else { ("EVALSHA", sha) };
        let count = self.keys.len().to_string();
        let mut words: Vec<&[u8]> = Vec::with_capacity(3 + self.keys.len() + self.arguments.len());
        words.extend([verb.as_bytes(), script.as_bytes(), count.as_bytes()]);
        words.extend(self.keys.iter().map(String::as_bytes));
        words.extend(self.arguments.iter().map(Vec::as_slice));
        pack(&words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_whole_and_read_the_clock_once() {
        let scripts = on_node_clock();
        for script in [&scripts.acquire, &scripts.raise, &scripts.extend, &scripts.release] {
            assert_eq!(script.text.matches("'TIME'").count(), 1);
            assert!(!script.text.contains("#include"));
        }
    }
}

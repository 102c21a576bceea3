//! The scripts of a node, assembled from the files in `lua/` (`common/redis/scripts.rs`), and calls
//! of them.

use std::sync::LazyLock;

pub(super) use crate::engine::common::redis::scripts::LuaScript;
use crate::engine::common::redis::scripts::push_lines;
use crate::engine::common::texts::text;
use crate::engine::redis::client::pack;

/// All scripts.
#[derive(Clone, Debug)]
pub(super) struct NodeScripts {
    pub(super) acquire: LuaScript,
    pub(super) raise: LuaScript,
    pub(super) extend: LuaScript,
    pub(super) release: LuaScript,
    pub(super) look: LuaScript,
    pub(super) evict: LuaScript,
    pub(super) raise_fences: LuaScript,
    pub(super) connect: LuaScript,
    pub(super) change_terms: LuaScript,
    pub(super) open: LuaScript,
    #[cfg(feature = "conformance")]
    pub(super) end_session: LuaScript,
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
        let part = |name: &str| match name {
            "clock" => clock,
            _ => text!("redlock/lua/head.lua").get(),
        };
        let make = |text: &str| LuaScript::assemble("", text, part, push_lines);
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

/// The call of a script, the same for every node.
#[derive(Clone, Debug)]
pub(super) struct ScriptCall {
    script: &'static LuaScript,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl ScriptCall {
    pub(super) fn new(script: &'static LuaScript, keys: Vec<String>, clock: String) -> Self {
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
        let LuaScript { text, sha } = self.script;
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

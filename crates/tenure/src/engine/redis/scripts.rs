//! The scripts, put together from their files and known by their digests. Knows texts, not answers.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::engine::texts::{Text, text};

/// One verb's script.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The whole text.
    pub(super) text: String,
    /// Its digest, by which a store knows it.
    pub(super) sha: String,
}

/// The scripts of all verbs.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) inspect: Script,
    pub(super) evict: Script,
    pub(super) raise_fences: Script,
    pub(super) connect: Script,
    pub(super) change_terms: Script,
    pub(super) put: Script,
    pub(super) get: Script,
    pub(super) rights: Script,
    #[cfg(feature = "conformance")]
    pub(super) end_session: Script,
}

const PARTS: &[(&str, Text)] = &[
    ("head", text!("redis/lua/head.lua")),
    ("tail", text!("redis/lua/tail.lua")),
    ("slot", text!("redis/lua/slot.lua")),
    ("rules", text!("redis/lua/rules.lua")),
];
const CLOCK: Text = text!("redis/lua/clock.lua");
const KEY_CLOCK: Text = text!("redis/lua/keyclock.lua");

/// The scripts on the store's own clock, for stores that know flags (Redis 7) and for others.
pub(super) fn on_store_clock(flags: bool) -> &'static Scripts {
    static PLAIN: LazyLock<Scripts> =
        LazyLock::new(|| Scripts::new(CLOCK.get(), KEY_CLOCK.get(), false));
    static FLAGS: LazyLock<Scripts> =
        LazyLock::new(|| Scripts::new(CLOCK.get(), KEY_CLOCK.get(), true));
    if flags { &FLAGS } else { &PLAIN }
}

/// The scripts on a clock that is handed in.
#[cfg(feature = "conformance")]
pub(super) fn on_given_clock() -> &'static Scripts {
    const GIVEN: &str = include_str!("../../conformance/lua/clock.lua");
    const KEYS: &str = include_str!("../../conformance/lua/keyclock.lua");
    static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(GIVEN, KEYS, true));
    &SCRIPTS
}

impl Scripts {
    fn new(clock: &str, key_clock: &str, flags: bool) -> Self {
        // To give back, to renew and to look must be possible when memory is full.
        let any = if flags { "#!lua flags=allow-oom\n" } else { "" };
        let make = |flags: &str, text: &str| Script::new(flags, text, clock, key_clock);
        Self {
            claim: make("", text!("redis/lua/claim.lua").get()),
            renew: make(any, text!("redis/lua/renew.lua").get()),
            release: make(any, text!("redis/lua/release.lua").get()),
            inspect: make(any, text!("redis/lua/inspect.lua").get()),
            evict: make(any, text!("redis/lua/evict.lua").get()),
            raise_fences: make(any, text!("redis/lua/raise_fences.lua").get()),
            connect: make(any, text!("redis/lua/connect.lua").get()),
            change_terms: make(any, text!("redis/lua/change_terms.lua").get()),
            put: make("", text!("redis/lua/put.lua").get()),
            get: make(any, text!("redis/lua/get.lua").get()),
            rights: make(any, text!("redis/lua/rights.lua").get()),
            #[cfg(feature = "conformance")]
            end_session: make(any, include_str!("../../conformance/lua/end_session.lua")),
        }
    }
}

impl Scripts {
    /// All commands that the verbs call: in a cluster, or elsewhere.
    pub(super) fn commands(&self, cluster: bool) -> BTreeSet<&str> {
        let Self { claim, renew, release, inspect, evict, raise_fences, .. } = self;
        let Self { connect, put, get, .. } = self;
        // What changes the terms is left out: few ever do, and it says itself what it lacks.
        let verbs = [claim, renew, release, inspect, evict, raise_fences, connect, put, get];
        let calls = verbs.into_iter().flat_map(|verb| verb.text.split("call('").skip(1));
        let other = if cluster { "PUBLISH" } else { "SPUBLISH" };
        calls.filter_map(|rest| rest.split('\'').next()).filter(|name| *name != other).collect()
    }
}

impl Script {
    fn new(flags: &str, verb: &str, clock: &str, key_clock: &str) -> Self {
        let mut text = flags.to_owned();
        for line in verb.lines() {
            match line.trim().strip_prefix("--#include ") {
                Some("clock") => push(&mut text, clock),
                Some("keyclock") => push(&mut text, key_clock),
                Some(part) => push(&mut text, part_called(part)),
                None => push(&mut text, line),
            }
        }
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

fn part_called(name: &str) -> &'static str {
    let part = PARTS.iter().find(|(part, _)| *part == name);
    part.unwrap_or_else(|| panic!("no script part is called {name}")).1.get()
}

/// Adds lines without comments and indentation: they travel once per connection, and a store may
/// have to keep several versions of them.
fn push(text: &mut String, lines: &str) {
    for line in lines.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    #[test]
    fn scripts_and_the_rest_of_the_house_agree_on_limits() {
        let slot = part_called("slot");
        let line = format!(
            "HOLDERS = {}, WAITERS = {}, NAMED = {},",
            limits::HOLDERS,
            limits::WAITERS,
            limits::NAMED_HOLDERS
        );
        assert!(slot.contains(&line), "{line}");
        assert!(slot.contains(&format!("ALL = {},", limits::FULL_WEIGHT)));
        assert!(part_called("head").contains(&format!("< {}", limits::FENCE)));
        assert!(part_called("head").contains(&format!("or {}", limits::FENCE / 2)));
    }

    #[test]
    fn every_part_is_found_and_nothing_is_included_twice_in_vain() {
        for scripts in [on_store_clock(false), on_store_clock(true)] {
            let all = [&scripts.claim, &scripts.renew, &scripts.release, &scripts.inspect];
            let rest = [&scripts.evict, &scripts.connect, &scripts.put, &scripts.get];
            for script in all.into_iter().chain(rest).chain([&scripts.raise_fences]) {
                assert!(!script.text.contains("#include"), "{}", script.text);
                assert!(script.text.contains("'TIME'"), "the store's own clock");
                assert_eq!(script.sha.len(), 40);
            }
        }
    }
}

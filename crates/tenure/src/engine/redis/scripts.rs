//! The Lua scripts of the engine, and the options that all of them read. `common/redis/scripts.rs`
//! assembles a script from its files.
//!
//! Every script has the same arguments: `KEYS[1]` is the top (the largest number given out),
//! `ARGV[1]` the options ([`ScriptOptions::argument`], parsed by `lua/head.lua`); then come the
//! keys and arguments of the verb. There are three assemblies of each script: with Redis 7's flags,
//! without them, and for tests on a clock that is an argument.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client::pack;
#[cfg(feature = "conformance")]
use crate::engine::common::paths;
pub(super) use crate::engine::common::redis::scripts::LuaScript;
use crate::engine::common::redis::scripts::push_lines;
use crate::engine::common::texts::{Text, text};
#[cfg(feature = "conformance")]
use crate::time::Clock;

/// In a cluster, how much longer than it is needed the top of a name is kept: it keeps the fences
/// of the name growing through clock corrections.
const LINGER: Duration = Duration::from_secs(60 * 60);

/// The hash in which the scripts of the suite count the paths they take.
#[cfg(feature = "conformance")]
pub(super) const COUNTERS: &str = "tenure:{suite-paths}";

/// The scripts of all verbs.
#[derive(Clone, Debug)]
pub(super) struct ScriptSet {
    pub(super) claim: LuaScript,
    pub(super) renew: LuaScript,
    pub(super) release: LuaScript,
    pub(super) inspect: LuaScript,
    pub(super) evict: LuaScript,
    pub(super) refuse_victim: LuaScript,
    pub(super) raise_fences: LuaScript,
    pub(super) connect: LuaScript,
    pub(super) change_terms: LuaScript,
    pub(super) write: LuaScript,
    pub(super) get: LuaScript,
    pub(super) take: LuaScript,
    pub(super) settle: LuaScript,
    pub(super) reset: LuaScript,
    pub(super) push: LuaScript,
    pub(super) turn: LuaScript,
    pub(super) change_job: LuaScript,
    pub(super) look: LuaScript,
    pub(super) rights: LuaScript,
    #[cfg(feature = "conformance")]
    pub(super) end_session: LuaScript,
}

const PARTS: &[(&str, Text)] = &[
    ("head", text!("redis/lua/head.lua")),
    ("tail", text!("redis/lua/tail.lua")),
    ("slot", text!("redis/lua/slot.lua")),
    ("rules", text!("redis/lua/rules.lua")),
    ("rate", text!("redis/lua/rate.lua")),
    ("jobs", text!("redis/lua/jobs.lua")),
];
const CLOCK: Text = text!("redis/lua/clock.lua");
const KEY_CLOCK: Text = text!("redis/lua/keyclock.lua");
const NUMBER_CLOCK: Text = text!("redis/lua/now.lua");

/// The parts of scripts that read the clock.
struct ClockParts<'a> {
    clock: &'a str,
    keyclock: &'a str,
    now: &'a str,
}

impl ClockParts<'_> {
    /// The store's own clock.
    fn of_store() -> ClockParts<'static> {
        let [clock, keyclock, now] = [CLOCK, KEY_CLOCK, NUMBER_CLOCK].map(Text::get);
        ClockParts { clock, keyclock, now }
    }
}

/// The scripts on the store's own clock, for servers that know flags (Redis 7) and for others.
fn on_store_clock(flags: bool) -> &'static ScriptSet {
    static PLAIN: LazyLock<ScriptSet> =
        LazyLock::new(|| ScriptSet::new(&ClockParts::of_store(), false, push_lines));
    static FLAGS: LazyLock<ScriptSet> =
        LazyLock::new(|| ScriptSet::new(&ClockParts::of_store(), true, push_lines));
    if flags { &FLAGS } else { &PLAIN }
}

/// The scripts on a clock that is an argument.
#[cfg(feature = "conformance")]
fn on_given_clock() -> &'static ScriptSet {
    const GIVEN: ClockParts<'_> = ClockParts {
        clock: include_str!("../../conformance/lua/clock.lua"),
        keyclock: include_str!("../../conformance/lua/keyclock.lua"),
        now: include_str!("../../conformance/lua/now.lua"),
    };
    static SCRIPTS: LazyLock<ScriptSet> =
        LazyLock::new(|| ScriptSet::new(&GIVEN, true, push_counted));
    &SCRIPTS
}

impl ScriptSet {
    fn new(clocks: &ClockParts<'_>, flags: bool, push: fn(&mut String, &str)) -> Self {
        // Release, renew and inspect have to work when the server's memory is full.
        let any = if flags { "#!lua flags=allow-oom\n" } else { "" };
        let part = |name: &str| match name {
            "clock" => clocks.clock,
            "keyclock" => clocks.keyclock,
            "now" => clocks.now,
            part => part_called(part),
        };
        let make = |flags: &str, text: &str| LuaScript::assemble(flags, text, part, push);
        Self {
            claim: make("", text!("redis/lua/claim.lua").get()),
            renew: make(any, text!("redis/lua/renew.lua").get()),
            release: make(any, text!("redis/lua/release.lua").get()),
            inspect: make(any, text!("redis/lua/inspect.lua").get()),
            evict: make(any, text!("redis/lua/evict.lua").get()),
            refuse_victim: make(any, text!("redis/lua/refuse_victim.lua").get()),
            raise_fences: make(any, text!("redis/lua/raise_fences.lua").get()),
            connect: make(any, text!("redis/lua/connect.lua").get()),
            change_terms: make(any, text!("redis/lua/change_terms.lua").get()),
            write: make("", text!("redis/lua/write.lua").get()),
            get: make(any, text!("redis/lua/get.lua").get()),
            take: make("", text!("redis/lua/take.lua").get()),
            settle: make("", text!("redis/lua/settle.lua").get()),
            reset: make(any, text!("redis/lua/reset.lua").get()),
            push: make("", text!("redis/lua/push.lua").get()),
            turn: make(any, text!("redis/lua/turn.lua").get()),
            change_job: make(any, text!("redis/lua/change_job.lua").get()),
            look: make(any, text!("redis/lua/look.lua").get()),
            rights: make(any, text!("redis/lua/rights.lua").get()),
            #[cfg(feature = "conformance")]
            end_session: make(any, include_str!("../../conformance/lua/end_session.lua")),
        }
    }
}

impl ScriptSet {
    /// Returns the commands that the scripts of all verbs call.
    pub(super) fn commands(&self, cluster: bool) -> BTreeSet<&str> {
        let Self { claim, renew, release, inspect, evict, raise_fences, .. } = self;
        let Self { refuse_victim, connect, write, get, take, settle, reset, .. } = self;
        let Self { push, turn, change_job, look, .. } = self;
        // Without `change_terms`: few clients run it, and its error names what is missing.
        let verbs = [claim, renew, release, inspect, evict, refuse_victim, raise_fences];
        let values = [connect, write, get, take, settle, reset, push, turn, change_job, look];
        let calls =
            verbs.into_iter().chain(values).flat_map(|verb| verb.text.split("call('").skip(1));
        let other = if cluster { "PUBLISH" } else { "SPUBLISH" };
        calls.filter_map(|rest| rest.split('\'').next()).filter(|name| *name != other).collect()
    }
}

/// Packs the call of a script.
pub(super) fn pack_script(
    (command, script): (&str, &str),
    top: &str,
    keys: &[&str],
    options: &str,
    items: &[&[u8]],
) -> Vec<u8> {
    let count = (keys.len() + 1).to_string();
    let mut words: Vec<&[u8]> = Vec::with_capacity(keys.len() + items.len() + 5);
    words.extend([command.as_bytes(), script.as_bytes(), count.as_bytes()]);
    words.push(top.as_bytes());
    words.extend(keys.iter().map(|key| key.as_bytes()));
    words.push(options.as_bytes());
    words.extend(items);
    pack(&words)
}

/// Which scripts an engine calls, and with which options.
#[derive(Debug)]
pub(super) struct ScriptOptions {
    /// For how long nothing is granted after a loss of memory.
    grace: Duration,
    /// For how long a top is kept after its last change: for ever, except in a cluster.
    linger: Option<Duration>,
    /// The server knows flags of scripts (Redis 7).
    flags: AtomicBool,
    /// In tests, the clock that replaces the store's.
    #[cfg(feature = "conformance")]
    clock: Option<std::sync::Arc<dyn Clock>>,
    /// How many calls were made and pushes received.
    #[cfg(feature = "conformance")]
    pub(super) activity: std::sync::atomic::AtomicU64,
}

impl ScriptOptions {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            linger: None,
            flags: AtomicBool::new(false),
            #[cfg(feature = "conformance")]
            clock: None,
            #[cfg(feature = "conformance")]
            activity: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// For a cluster, where every name has a top of its own.
    pub(super) fn in_cluster(max_lease: Duration) -> Self {
        // A top also says until when tombstones are kept: one lease. Servers before 7 are refused.
        let linger = Some(LINGER + max_lease);
        Self { linger, flags: AtomicBool::new(true), ..Self::new(Duration::ZERO) }
    }

    /// Replaces the store's clock.
    #[cfg(feature = "conformance")]
    pub(super) fn with_clock(mut self, clock: std::sync::Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Returns the scripts to call.
    pub(super) fn scripts(&self) -> &'static ScriptSet {
        #[cfg(feature = "conformance")]
        if self.clock.is_some() {
            return on_given_clock();
        }
        on_store_clock(self.flags.load(Ordering::Relaxed))
    }

    /// A call was sent or a push received; tests wait until the count rests.
    #[cfg_attr(not(feature = "conformance"), allow(clippy::unused_self, reason = "counts there"))]
    pub(super) fn count_activity(&self) {
        #[cfg(feature = "conformance")]
        self.activity.fetch_add(1, Ordering::SeqCst);
    }

    /// Selects the scripts for the version of the server.
    pub(super) fn set_server_version(&self, major: u32) {
        self.flags.store(major >= 7, Ordering::Relaxed);
    }

    /// Returns `ARGV[1]` of every script, see `lua/head.lua`. The short path is for calls that need
    /// none of the options.
    pub(super) fn argument(&self, short: bool) -> String {
        let options = match (self.grace.as_micros(), self.linger) {
            (0, None) if short => String::new(),
            (0, None) => ".".to_owned(),
            (grace, linger) => {
                format!(".{grace} {}", linger.map_or(0, |linger| linger.as_millis()))
            }
        };
        #[cfg(feature = "conformance")]
        if let Some(clock) = &self.clock {
            let space = if options.len() < 2 { "" } else { " " };
            return format!("{options}{space}{:016}", clock.wall_micros());
        }
        options
    }
}

fn part_called(name: &str) -> &'static str {
    let part = PARTS.iter().find(|(part, _)| *part == name);
    part.unwrap_or_else(|| panic!("no script part is called {name}")).1.get()
}

/// As [`push_lines`], with a counter for each path that is marked (`common/paths.rs`). In a cluster
/// the key of the counters may be on another node, where nothing is counted.
#[cfg(feature = "conformance")]
fn push_counted(text: &mut String, lines: &str) {
    for line in lines.lines() {
        let Some((path, condition)) = paths::counted(line) else {
            push_lines(text, line);
            continue;
        };
        let count = format!("redis.pcall('HINCRBY', '{COUNTERS}', '{path}', 1)");
        match condition {
            Some(condition) => push_lines(text, &format!("if {condition} then {count} end")),
            None => push_lines(text, &count),
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
        let write = text!("redis/lua/write.lua").get();
        assert!(write.contains(&format!("local RING = {}\n", limits::WRITE_IDS)));
        let (many, last) = (limits::RATE_ENTRIES, limits::RATE_LIMITS - 1);
        assert!(part_called("rate").contains(&format!("MANY, HEAD, near = {many},")));
        let take = text!("redis/lua/take.lua").get();
        assert!(
            take.contains(&format!(
                "count >= {many} and now - first <= math.floor(window / {many})"
            ))
        );
        assert!(take.contains(&format!("for i = 0, {last} do")));
        assert!(text!("redis/lua/reset.lua").get().contains(&format!("for i = 0, {last} do")));
        let line = format!(
            "ERRORS = {}, CRASHES = {}, DEAD_JOBS = {}, SLOTS = {}, PRIORITIES = {}, DELAY = {},",
            limits::ATTEMPT_ERRORS,
            limits::JOB_CRASHES,
            limits::DEAD_JOBS,
            limits::WORKER_SLOTS,
            limits::JOB_PRIORITIES,
            limits::JOB_DELAY.as_micros()
        );
        assert!(part_called("jobs").contains(&line), "{line}");
        let kept = limits::KEEP_DEAD.as_micros();
        assert!(part_called("jobs").contains(&format!("{{ J.FORMAT, 0, {kept}, 0, 0, 0, 0, 0 }}")));
        let get = text!("redis/lua/get.lua").get();
        assert!(get.contains(&format!("local MOST = {}\n", limits::CELL_BYTES)));
    }

    #[test]
    fn every_part_is_found_and_nothing_is_included_twice_in_vain() {
        for scripts in [on_store_clock(false), on_store_clock(true)] {
            let all = [&scripts.claim, &scripts.renew, &scripts.release, &scripts.inspect];
            let rest = [&scripts.evict, &scripts.connect, &scripts.write, &scripts.get];
            let rates = [&scripts.take, &scripts.settle, &scripts.reset];
            let more = [&scripts.raise_fences, &scripts.refuse_victim];
            let jobs = [&scripts.push, &scripts.turn, &scripts.change_job, &scripts.look];
            for script in all.into_iter().chain(rest).chain(rates).chain(more).chain(jobs) {
                assert!(!script.text.contains("#include"), "{}", script.text);
                assert!(script.text.contains("'TIME'"), "the store's own clock");
                assert_eq!(script.sha.len(), 40);
            }
        }
    }
}

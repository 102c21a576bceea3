//! Findings about one server, one line each: what its report and settings mean for locks. Pure.

use std::time::Duration;

use super::isolation;
use super::replica::ReplicaStatus;
use crate::contract::{Finding, Health};
use crate::engine::redis::client::ServerInfo;

/// Settings that only a user with `CONFIG GET` can read.
pub(super) const SETTINGS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];
/// Clocks that are further apart than this are reported.
const APART: Duration = Duration::from_secs(1);

/// Everything that the findings are made from; `None` is what the server refused to show.
#[derive(Debug)]
pub(super) struct ServerFacts {
    pub(super) server: ServerInfo,
    /// In the order of [`SETTINGS`].
    pub(super) settings: [Option<String>; SETTINGS.len()],
    pub(super) user: Option<String>,
    /// Commands that locks need and this user may not run.
    pub(super) forbidden: Option<Vec<String>>,
    pub(super) clock: Option<ClockOffset>,
    pub(super) link: LinkSecurity,
    /// For how long nothing is granted after a loss of memory, if the URL asks for it.
    pub(super) grace: Option<Duration>,
    /// Sentinels may promote a replica in the server's place.
    pub(super) watched: bool,
}

/// How far the server's clock is ahead of ours, in microseconds, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    ahead: i64,
    pub(super) give_or_take: Duration,
}

/// How the server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkSecurity {
    Tls,
    Unix,
    Loopback,
    Plain,
}

/// One check.
type Judge = fn(&ServerFacts) -> (Health, String);

impl ClockOffset {
    /// From the client's time before and after the server reported its own.
    pub(super) fn new(before: u64, theirs: u64, after: u64) -> Option<Self> {
        let middle = before.midpoint(after);
        let ahead = i64::try_from(i128::from(theirs) - i128::from(middle)).ok()?;
        Some(Self { ahead, give_or_take: Duration::from_micros(after.saturating_sub(before) / 2) })
    }
}

impl ServerFacts {
    pub(super) fn judge(&self) -> Vec<Finding> {
        let judges: [(&'static str, Judge); 7] = [
            ("server", Self::version),
            ("connection", Self::connection),
            ("access", Self::access),
            ("store clock", Self::clocks),
            ("persistence", Self::persistence),
            ("memory", Self::memory),
            ("replicas", Self::replicas),
        ];
        let found = judges.into_iter().map(|(check, judge)| {
            let (state, what) = judge(self);
            Finding::new(check, state, what)
        });
        let isolation = self.isolation();
        let isolation = isolation.map(|(state, what)| Finding::new("isolation", state, what));
        found.chain(isolation).collect()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings[SETTINGS.iter().position(|setting| *setting == name)?].as_deref()
    }

    fn count(&self, field: &str) -> Option<u64> {
        self.server.field(field)?.parse().ok()
    }

    fn version(&self) -> (Health, String) {
        let shown = |field: &str| self.server.field(field).map(|text| text.escape_debug());
        match (shown("valkey_version"), shown("redis_version")) {
            (Some(version), _) => (Health::Fine, format!("Valkey {version}")),
            (None, Some(version)) => (Health::Fine, format!("Redis {version}")),
            (None, None) => (Health::Note, "it does not report its version".to_owned()),
        }
    }

    fn connection(&self) -> (Health, String) {
        match self.link {
            LinkSecurity::Tls => (Health::Fine, "RESP3 over TLS".to_owned()),
            LinkSecurity::Unix => {
                (Health::Fine, "RESP3 over a Unix socket of this host".to_owned())
            }
            LinkSecurity::Loopback => (Health::Fine, "RESP3 on this host, without TLS".to_owned()),
            LinkSecurity::Plain => {
                let what = "RESP3 without TLS: everyone on the network path can read and release \
                            locks; use rediss://";
                (Health::Note, what.to_owned())
            }
        }
    }

    fn access(&self) -> (Health, String) {
        let user = self.user.as_ref().map(|user| user.escape_debug().to_string());
        let shown = user.as_deref().unwrap_or("of this connection");
        match (self.forbidden.as_deref(), &user) {
            (Some(forbidden @ [_, ..]), user) => {
                let commands = forbidden.join(", ");
                let user = user.as_deref().unwrap_or("USER");
                let what = format!(
                    "the user {shown} may not run {commands}, or not on our keys and channels; \
                     ACL SETUSER {user} ~tenure:* &tenure:* +{}",
                    forbidden.join(" +")
                );
                (Health::Bad, what)
            }
            (_, None) => {
                let what = "who we are cannot be seen (ACL WHOAMI is refused), which harms nothing";
                (Health::Note, what.to_owned())
            }
            (Some([]), Some(user)) => {
                (Health::Fine, format!("the user {user} may do all that locks need"))
            }
            (None, Some(user)) => {
                let what = format!("the user {user}; what it may do is shown from Redis 7 on");
                (Health::Fine, what)
            }
        }
    }

    fn clocks(&self) -> (Health, String) {
        let Some(ClockOffset { ahead, give_or_take }) = self.clock else {
            let what = "its clock cannot be seen (TIME is refused), and every lock needs it; \
                        allow it with ACL SETUSER USER +time";
            return (Health::Bad, what.to_owned());
        };
        let apart = Duration::from_micros(ahead.unsigned_abs());
        if apart <= APART + give_or_take {
            let what = format!("within {:.1?} of this host's", apart + give_or_take);
            return (Health::Fine, what);
        }
        let direction = if ahead > 0 { "ahead of" } else { "behind" };
        let what = format!(
            "{apart:.1?} {direction} this host's: leases do not mind, but fences rest on it after \
             a loss of memory; let NTP set both"
        );
        (Health::Note, what)
    }

    fn persistence(&self) -> (Health, String) {
        let failed = |field: &str| self.server.field(field).is_some_and(|status| status != "ok");
        let keeps_file = self.server.field("aof_enabled") == Some("1");
        let keeps_snapshots = self.setting("save").map(|save| !save.is_empty());
        let look = "look at its log, the disk may be full";
        if keeps_file && failed("aof_last_write_status") {
            let what = format!("the latest write to the append-only file failed; {look}");
            return (Health::Bad, what);
        }
        if keeps_snapshots != Some(false) && failed("rdb_last_bgsave_status") {
            let what =
                format!("the latest snapshot failed, so the server may refuse locks; {look}");
            return (Health::Bad, what);
        }
        let (kept, forgets) = if keeps_file {
            match self.setting("appendfsync") {
                Some("always") => {
                    let what = "append-only file, synced before each answer: held locks outlive a \
                                restart and a loss of power";
                    return (Health::Fine, what.to_owned());
                }
                Some("everysec") => {
                    ("append-only file, synced each second", "a loss of power forgets the last one")
                }
                Some(_) => (
                    "append-only file, synced when the system likes",
                    "a loss of power forgets what was not",
                ),
                None => (
                    "append-only file; how often it is synced cannot be seen (CONFIG is refused)",
                    "a loss of power may forget the latest locks",
                ),
            }
        } else {
            match keeps_snapshots {
                Some(false) => ("none", "a restart forgets all locks"),
                Some(true) => ("snapshots alone", "a restart forgets all locks since the latest"),
                None => (
                    "no append-only file; snapshots cannot be seen (CONFIG is refused)",
                    "a restart forgets at least the latest locks",
                ),
            }
        };
        if let Some(grace) = self.grace {
            let what = format!("{kept}: {forgets}, and then no grants for {grace:.1?}");
            return (Health::Fine, what);
        }
        let advice = if keeps_file { "set appendfsync to always" } else { "set appendonly to yes" };
        let what = format!(
            "{kept}: {forgets}, and other clients get locks while old holders still work; \
             {advice}, add ?grace=yes to every URL, or rely on fences"
        );
        (Health::Note, what)
    }

    fn memory(&self) -> (Health, String) {
        let policy = self.server.field("maxmemory_policy").unwrap_or("noeviction").escape_debug();
        if let Some(policy) = self.server.evicts() {
            let what = format!(
                "full memory evicts keys ({}), and with them held locks; set maxmemory-policy to \
                 noeviction, or use a server of its own for locks",
                policy.escape_debug()
            );
            return (Health::Bad, what);
        }
        let (most, used) = (self.count("maxmemory"), self.count("used_memory").unwrap_or(0));
        match most {
            Some(most) if most > 0 && used > most / 10 * 9 => {
                let percent = used.saturating_mul(100) / most;
                let what = format!(
                    "{percent} % of maxmemory is used: when it is full, new locks are refused; \
                     raise it or remove other data"
                );
                (Health::Note, what)
            }
            Some(most) if most > 0 => {
                let what = format!("{} % of maxmemory is used, and nothing is evicted", {
                    used.saturating_mul(100) / most
                });
                (Health::Fine, what)
            }
            _ if policy.to_string() != "noeviction" => {
                let what = format!(
                    "no limit now, but {policy} would evict held locks as soon as maxmemory is \
                     set; set maxmemory-policy to noeviction"
                );
                (Health::Note, what)
            }
            _ => (Health::Fine, "no limit, and nothing is evicted".to_owned()),
        }
    }

    fn replicas(&self) -> (Health, String) {
        if self.server.field("role") == Some("slave") {
            let field = |name: &str| self.server.field(name).unwrap_or("?").escape_debug();
            let what = format!(
                "this is a replica of {}:{}, which refuses locks; name the primary in the URL",
                field("master_host"),
                field("master_port")
            );
            return (Health::Bad, what);
        }
        let connected = self.count("connected_slaves").unwrap_or(0);
        let least: Option<u64> = self.setting("min-replicas-to-write").and_then(|n| n.parse().ok());
        let least = least.unwrap_or(0);
        let good = self.count("min_slaves_good_slaves").unwrap_or(connected);
        if good < least {
            let what = format!(
                "{good} in touch, and min-replicas-to-write is {least}: locks are refused; start \
                 replicas or lower it"
            );
            return (Health::Bad, what);
        }
        if connected == 0 {
            return (Health::Fine, "this is a primary without any".to_owned());
        }
        let followers = self.followers();
        let listed: Vec<String> = followers.iter().map(ToString::to_string).collect();
        let listed = if listed.is_empty() { String::new() } else { listed.join("; ") + ": " };
        let late = followers.iter().any(ReplicaStatus::is_late);
        let advice = if late {
            "one of them does not keep up; look at its log"
        } else {
            "rely on fences where that matters"
        };
        let what = format!(
            "{connected}: {listed}a lock is granted before they know of it, so a fail-over may \
             forget the latest; {advice}"
        );
        (Health::Note, what)
    }

    /// The finding about a primary that is cut off, if a replica can be promoted in its place.
    fn isolation(&self) -> Option<(Health, String)> {
        let is_primary = self.server.field("role") != Some("slave");
        let followed = self.count("connected_slaves").is_some_and(|connected| connected > 0);
        let replaceable = is_primary && (followed || self.watched);
        replaceable.then(|| isolation::judge(self.setting("min-replicas-to-write")))
    }

    /// Returns the replicas that the server reports.
    fn followers(&self) -> Vec<ReplicaStatus> {
        let offset = self.count("master_repl_offset").unwrap_or(0);
        let line = |at: u32| self.server.field(&format!("slave{at}"));
        (0..).map_while(line).filter_map(|line| ReplicaStatus::read(line, offset)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &str, settings: [Option<&str>; SETTINGS.len()]) -> ServerFacts {
        ServerFacts {
            server: ServerInfo::new(&info.replace(' ', "\r\n")),
            settings: settings.map(|setting| setting.map(str::to_owned)),
            user: Some("worker".to_owned()),
            forbidden: Some(Vec::new()),
            clock: ClockOffset::new(1_000, 1_050, 1_100),
            link: LinkSecurity::Loopback,
            grace: None,
            watched: false,
        }
    }

    /// Asserts that the finding named `check` has this state and that its text contains `words`.
    fn finds(facts: &ServerFacts, check: &str, state: Health, words: &str) {
        let all = facts.judge();
        let found = all.iter().find(|finding| finding.check == check).expect("a judge");
        assert_eq!(found.state, state, "{found:?}");
        assert!(found.what.contains(words), "{found:?} does not say {words:?}");
        assert!(!found.what.contains('\n'), "{found:?}");
    }

    const NOTHING: [Option<&str>; SETTINGS.len()] = [None; SETTINGS.len()];

    #[test]
    fn a_server_tells_its_kind() {
        for (info, state, words) in [
            ("redis_version:7.0.15", Health::Fine, "Redis 7.0.15"),
            ("redis_version:7.2.4 valkey_version:8.1.0", Health::Fine, "Valkey 8.1.0"),
            ("", Health::Note, "does not report"),
        ] {
            finds(&facts(info, NOTHING), "server", state, words);
        }
    }

    #[test]
    fn only_a_plain_connection_to_another_host_deserves_a_word() {
        for (link, state, words) in [
            (LinkSecurity::Tls, Health::Fine, "TLS"),
            (LinkSecurity::Unix, Health::Fine, "Unix"),
            (LinkSecurity::Loopback, Health::Fine, "this host"),
            (LinkSecurity::Plain, Health::Note, "use rediss://"),
        ] {
            finds(&ServerFacts { link, ..facts("", NOTHING) }, "connection", state, words);
        }
    }

    #[test]
    fn what_persistence_means_depends_on_how_much_of_it_can_be_seen() {
        let (file, none) = ("aof_enabled:1 aof_last_write_status:ok", "aof_enabled:0");
        let broken = "aof_enabled:1 aof_last_write_status:err";
        let snapshot = "aof_enabled:0 rdb_last_bgsave_status:err";
        for (info, fsync, save, state, words) in [
            (file, Some("always"), Some(""), Health::Fine, "loss of power"),
            (file, Some("everysec"), Some(""), Health::Note, "set appendfsync to always"),
            (file, Some("no"), Some(""), Health::Note, "set appendfsync to always"),
            (file, None, None, Health::Note, "CONFIG is refused"),
            (broken, Some("always"), Some(""), Health::Bad, "append-only file failed"),
            (none, Some("everysec"), Some(""), Health::Note, "none: a restart forgets all locks"),
            (none, Some("everysec"), Some("60 1"), Health::Note, "snapshots alone"),
            (none, None, None, Health::Note, "snapshots cannot be seen"),
            (snapshot, None, Some("60 1"), Health::Bad, "snapshot failed"),
            // Snapshots are switched off, so that an old failure does not matter.
            (snapshot, None, Some(""), Health::Note, "none"),
        ] {
            let facts = facts(info, [fsync, save, None]);
            finds(&facts, "persistence", state, words);
        }
        let grace = Some(Duration::from_secs(60));
        let facts = ServerFacts { grace, ..facts(none, [None, Some(""), None]) };
        finds(&facts, "persistence", Health::Fine, "no grants for 60.0s");
    }

    #[test]
    fn memory_that_is_full_evicts_or_refuses() {
        for (info, state, words) in [
            ("maxmemory:0 maxmemory_policy:noeviction", Health::Fine, "no limit"),
            ("maxmemory:0 maxmemory_policy:allkeys-lru", Health::Note, "as soon as"),
            ("maxmemory:100 maxmemory_policy:allkeys-lru", Health::Bad, "(allkeys-lru)"),
            ("maxmemory:1000 used_memory:100 maxmemory_policy:noeviction", Health::Fine, "10 %"),
            ("maxmemory:1000 used_memory:950 maxmemory_policy:noeviction", Health::Note, "95 %"),
        ] {
            finds(&facts(info, NOTHING), "memory", state, words);
        }
    }

    #[test]
    fn replicas_may_forget_and_are_no_place_for_locks() {
        let replica = "role:slave master_host:db-1 master_port:6379";
        for (info, least, state, words) in [
            ("role:master connected_slaves:0", Some("0"), Health::Fine, "without any"),
            ("role:master connected_slaves:2", None, Health::Note, "2: a lock is granted"),
            ("role:master connected_slaves:1", None, Health::Note, "rely on fences where"),
            ("role:master connected_slaves:1", Some("1"), Health::Note, "rely on fences where"),
            ("role:master connected_slaves:0", Some("1"), Health::Bad, "locks are refused"),
            (
                "role:master connected_slaves:2 min_slaves_good_slaves:1",
                Some("2"),
                Health::Bad,
                "1 in touch",
            ),
            (replica, None, Health::Bad, "replica of db-1:6379"),
        ] {
            finds(&facts(info, [None, None, least]), "replicas", state, words);
        }
    }

    #[test]
    fn a_primary_that_could_go_on_alone_is_told_how_to_stop() {
        let (alone, followed) =
            ("role:master connected_slaves:0", "role:master connected_slaves:1");
        let with =
            |info, least, watched| ServerFacts { watched, ..facts(info, [None, None, least]) };
        for facts in [with(followed, Some("0"), false), with(alone, Some("0"), true)] {
            finds(&facts, "isolation", Health::Note, "is 0; set it to 1 on all servers");
        }
        for facts in [with(alone, Some("0"), false), with("role:slave", Some("0"), true)] {
            assert!(facts.judge().iter().all(|finding| finding.check != "isolation"));
        }
    }

    #[test]
    fn each_replica_is_told_with_its_state_and_its_lag() {
        let info = "role:master connected_slaves:2 master_repl_offset:100 \
                    slave0:ip=10.0.0.2,port=6379,state=online,offset=90,lag=1 \
                    slave1:ip=10.0.0.3,port=6379,state=online,offset=100,lag=0";
        let words = "2: 10.0.0.2:6379 online, 10 bytes behind, heard 1s ago; 10.0.0.3:6379 online, \
                     0 bytes behind, heard 0s ago: a lock";
        finds(&facts(info, NOTHING), "replicas", Health::Note, words);
        for late in [info.replace("lag=1", "lag=9"), info.replacen("online", "send_bulk", 1)] {
            finds(&facts(&late, NOTHING), "replicas", Health::Note, "does not keep up");
        }
    }

    #[test]
    fn clocks_are_compared_as_closely_as_the_answers_allow() {
        let second = 1_000_000;
        for (theirs, after, state, words) in [
            (10 * second + 1_000, 10 * second + 2_000, Health::Fine, "within 1.0ms"),
            (13 * second, 10 * second, Health::Note, "3.0s ahead of"),
            (7 * second, 10 * second, Health::Note, "3.0s behind"),
            // The reply took so long that the difference may be the network's.
            (12 * second, 16 * second, Health::Fine, "within"),
        ] {
            let clock = ClockOffset::new(10 * second, theirs, after);
            finds(&ServerFacts { clock, ..facts("", NOTHING) }, "store clock", state, words);
        }
        let blind = ServerFacts { clock: None, ..facts("", NOTHING) };
        finds(&blind, "store clock", Health::Bad, "TIME is refused");
    }

    #[test]
    fn what_a_user_lacks_is_said_as_the_command_that_gives_it() {
        let forbidden = Some(vec!["publish".to_owned(), "script|load".to_owned()]);
        let lacking = ServerFacts { forbidden: forbidden.clone(), ..facts("", NOTHING) };
        let wanted = "ACL SETUSER worker ~tenure:* &tenure:* +publish +script|load";
        finds(&lacking, "access", Health::Bad, wanted);
        let nameless = ServerFacts { user: None, forbidden, ..facts("", NOTHING) };
        finds(&nameless, "access", Health::Bad, "ACL SETUSER USER");
        finds(&facts("", NOTHING), "access", Health::Fine, "worker may do all");
        let shy = ServerFacts { user: None, ..facts("", NOTHING) };
        finds(&shy, "access", Health::Note, "ACL WHOAMI");
        let old = ServerFacts { forbidden: None, ..facts("", NOTHING) };
        finds(&old, "access", Health::Fine, "from Redis 7 on");
    }
}

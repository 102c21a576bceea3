//! The checks of `tenure doctor` for a cluster: is every slot kept, has every master a replica, how
//! long does a fail-over take, do the clocks agree, does any node disagree with the others.

use std::sync::PoisonError;
use std::time::Duration;

use super::slots::{SLOTS, slot_of};
use super::topology::RefreshScope;
use super::views::{Membership, names};
use super::{ClusterEngine, ClusterNode};
use crate::contract::{Error, ErrorKind, Finding, Health, SessionId, short};
use crate::engine::common::redis::url::is_near;
use crate::engine::redis::client::{ServerInfo, info_text, pack};
use crate::engine::redis::doctor::{setting_in, time_in, unless_refused, words_in};

/// The commands that the engine sends outside of scripts.
const COMMANDS: [&str; 11] = [
    "ASKING",
    "CLUSTER|NODES",
    "CLUSTER|SLOTS",
    "EVAL",
    "EVALSHA",
    "INFO",
    "PING",
    "SCAN",
    "SCRIPT|LOAD",
    "SSUBSCRIBE",
    "SUNSUBSCRIBE",
];
/// Clocks that are further apart than this, in microseconds, are reported.
const APART: u64 = 1_000_000;
/// A replica whose last acknowledgement is older than this, in seconds, lags.
const LAG: u64 = 2;

/// The report of one master.
struct Master {
    at: String,
    /// None if it is not reachable.
    server: Option<ServerInfo>,
    /// How far its clock is ahead of ours, in microseconds.
    ahead: Option<i64>,
}

/// Everything that the findings are made from.
struct ClusterFacts {
    masters: Vec<Master>,
    uncovered: usize,
    membership: Membership,
    /// `cluster_state`, as a node reports it.
    state: Option<String>,
    timeout: Option<Duration>,
    full_coverage: Option<bool>,
    forbidden: Option<Vec<String>>,
    link: (Health, &'static str),
}

impl ClusterEngine {
    /// Asks all masters, and returns what was found.
    pub(super) async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.inner.refresh(RefreshScope::AllNodes).await?;
        let mut masters = Vec::new();
        for node in self.inner.keepers()? {
            masters.push(self.ask_master(&node).await?);
        }
        let node = self.inner.node_of(slot_of(&self.inner.keys.top))?;
        let connection = node.connections.for_caller();
        let setting =
            |name: &'static str| connection.call(&pack(&[b"CONFIG", b"GET", name.as_bytes()]));
        let (timeout, coverage) =
            (setting("cluster-node-timeout"), setting("cluster-require-full-coverage"));
        let info = connection.call(&pack(&[b"CLUSTER", b"INFO"]));
        let rights = self.rights_words();
        let rights = connection.call(&pack(&rights.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        let timeout = unless_refused(timeout.await)?.as_ref().and_then(setting_in);
        let coverage = unless_refused(coverage.await)?.as_ref().and_then(setting_in);
        let info = unless_refused(info.await)?.as_ref().and_then(info_text).map(ServerInfo::new);
        let location = &self.inner.handshake.location;
        let facts = ClusterFacts {
            masters,
            uncovered: self.uncovered(),
            membership: self.membership(),
            state: info.and_then(|info| info.field("cluster_state").map(str::to_owned)),
            timeout: timeout.and_then(|text| text.parse().ok()).map(Duration::from_millis),
            full_coverage: coverage.map(|text| text == "yes"),
            forbidden: unless_refused(rights.await)?.as_ref().and_then(words_in),
            link: match location.tls() {
                Some(_) => (Health::Fine, "RESP3 over TLS"),
                None if is_near(location.address()) => {
                    (Health::Fine, "RESP3 on this host, without TLS")
                }
                None => (
                    Health::Note,
                    "RESP3 without TLS: everyone on the network path can read and release locks; \
                     use rediss+cluster://",
                ),
            },
        };
        Ok(facts.judge())
    }

    fn uncovered(&self) -> usize {
        self.inner.map.read().unwrap_or_else(PoisonError::into_inner).uncovered()
    }

    fn membership(&self) -> Membership {
        self.inner.membership.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ask_master(&self, node: &ClusterNode) -> Result<Master, Error> {
        let at = format!("{}:{}", node.address.0, node.address.1);
        let connection = node.connections.for_caller();
        let info = match unless_refused(connection.call(&pack(&[b"INFO"])).await) {
            Ok(info) => info,
            // A node that is away is a finding, not an error.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                return Ok(Master { at, server: None, ahead: None });
            }
            Err(error) => return Err(error),
        };
        let before = self.inner.clock.wall_micros();
        let time = unless_refused(connection.call(&pack(&[b"TIME"])).await)?;
        let ours = before.midpoint(self.inner.clock.wall_micros());
        let ahead =
            time.as_ref().and_then(time_in).map(|theirs| theirs.cast_signed() - ours.cast_signed());
        Ok(Master { at, server: info.as_ref().and_then(info_text).map(ServerInfo::new), ahead })
    }

    /// Returns the command that asks which commands are forbidden.
    fn rights_words(&self) -> Vec<Vec<u8>> {
        let (scripts, keys) = (self.inner.options.scripts(), &self.inner.keys);
        let channel = keys.channel(SessionId::new());
        let first = ["EVAL", &scripts.rights.text, "1", &keys.top, &channel];
        let commands = scripts.commands(true).into_iter().chain(COMMANDS);
        first.into_iter().chain(commands).map(|word| word.as_bytes().to_vec()).collect()
    }
}

impl ClusterFacts {
    fn judge(&self) -> Vec<Finding> {
        let found = [
            ("server", self.versions()),
            ("connection", (self.link.0, self.link.1.to_owned())),
            ("access", self.access()),
            ("slots", self.slots()),
            ("store clock", self.clocks()),
            ("memory", self.memory()),
            ("replicas", self.replicas()),
            ("fail-over", self.fail_over()),
        ];
        found.into_iter().map(|(check, (state, what))| Finding::new(check, state, what)).collect()
    }

    fn servers(&self) -> impl Iterator<Item = (&str, &ServerInfo)> {
        self.masters.iter().filter_map(|one| Some((&*one.at, one.server.as_ref()?)))
    }

    fn versions(&self) -> (Health, String) {
        let away: Vec<&str> =
            self.masters.iter().filter(|one| one.server.is_none()).map(|one| &*one.at).collect();
        if !away.is_empty() {
            let what = format!("{} cannot be reached: its locks are out of reach", away.join(", "));
            return (Health::Bad, what);
        }
        let mut versions: Vec<String> = self
            .servers()
            .filter_map(|(_, server)| {
                let valkey = server.field("valkey_version").map(|version| ("Valkey", version));
                let (kind, version) =
                    valkey.or_else(|| Some(("Redis", server.field("redis_version")?)))?;
                Some(format!("{kind} {}", version.escape_debug()))
            })
            .collect();
        versions.sort();
        versions.dedup();
        (Health::Fine, format!("{} on {} masters", versions.join(", "), self.masters.len()))
    }

    fn access(&self) -> (Health, String) {
        match self.forbidden.as_deref() {
            Some([]) => (Health::Fine, "the user may do all that locks need".to_owned()),
            Some(forbidden) => {
                let what = format!(
                    "the user may not run {}, or not on our keys and channels; on every node: \
                     ACL SETUSER USER ~tenure:* &tenure:* +{}",
                    forbidden.join(", "),
                    forbidden.join(" +")
                );
                (Health::Bad, what)
            }
            None => (Health::Note, "what the user may do cannot be seen".to_owned()),
        }
    }

    fn slots(&self) -> (Health, String) {
        let lost = match self.uncovered {
            0 => String::new(),
            some => format!("{some} of {SLOTS} slots have no keeper: locks there fail; "),
        };
        if let Some((what, next)) = self.membership.problem(self.uncovered) {
            let health = if self.uncovered > 0 { Health::Bad } else { Health::Note };
            return (health, format!("{lost}{what}; {next}"));
        }
        if self.uncovered > 0 {
            let at = self.membership.members.first().map(std::slice::from_ref).map(names);
            return (
                Health::Bad,
                format!("{lost}redis-cli --cluster fix {}", at.unwrap_or_default()),
            );
        }
        match self.state.as_deref() {
            Some("ok") | None => (Health::Fine, format!("all {SLOTS} are kept")),
            Some(state) => {
                let state = state.escape_debug();
                (Health::Bad, format!("the cluster is in state {state}: redis-cli --cluster check"))
            }
        }
    }

    fn clocks(&self) -> (Health, String) {
        let known: Vec<i64> = self.masters.iter().filter_map(|one| one.ahead).collect();
        let (Some(least), Some(most)) = (known.iter().min(), known.iter().max()) else {
            let what = "clocks cannot be seen (TIME is refused), and every lock needs them; \
                        ACL SETUSER USER +time";
            return (Health::Bad, what.to_owned());
        };
        let apart = Duration::from_micros(most.abs_diff(*least));
        if most.abs_diff(*least) <= APART {
            return (Health::Fine, format!("clocks of masters within {}", short(apart)));
        }
        let what = format!(
            "clocks of masters are {} apart: a fence may fall by as much when a slot moves or a \
             replica takes over; run NTP on all nodes",
            short(apart)
        );
        (Health::Note, what)
    }

    fn memory(&self) -> (Health, String) {
        let evicts = |(at, server): (&str, &ServerInfo)| {
            server.evicts().map(|policy| format!("{at} ({})", policy.escape_debug()))
        };
        let evicting: Vec<String> = self.servers().filter_map(evicts).collect();
        if evicting.is_empty() {
            return (Health::Fine, "nothing is evicted".to_owned());
        }
        let what = format!(
            "{} may evict locks when memory is short; set maxmemory-policy to noeviction",
            evicting.join(", ")
        );
        (Health::Bad, what)
    }

    fn replicas(&self) -> (Health, String) {
        let mut count = 0;
        let (mut without, mut lagging) = (Vec::new(), Vec::new());
        for (at, server) in self.servers() {
            let replicas = (0..).map_while(|n| server.field(&format!("slave{n}")));
            let replicas: Vec<&str> = replicas.collect();
            count += replicas.len();
            if replicas.is_empty() {
                without.push(at);
            }
            lagging.extend(replicas.into_iter().filter(|line| lags(line)).map(|_| at));
        }
        if !without.is_empty() {
            let what = format!(
                "{} has no replica: when it dies, its locks are out of reach until it returns",
                without.join(", ")
            );
            return (Health::Note, what);
        }
        if !lagging.is_empty() {
            let what = format!(
                "a replica of {} is behind: a fail-over now would lose its last grants",
                lagging.join(", ")
            );
            return (Health::Note, what);
        }
        (Health::Fine, format!("{count}, every master has one that keeps up"))
    }

    fn fail_over(&self) -> (Health, String) {
        let timeout = self.timeout.map_or_else(
            || "cluster-node-timeout cannot be seen (CONFIG GET is refused)".to_owned(),
            |timeout| {
                let time = short(timeout);
                format!(
                    "begins after {time} of silence (cluster-node-timeout); leases that leave less \
                     than that and a second or two are lost meanwhile"
                )
            },
        );
        if self.full_coverage == Some(true) {
            let what = format!(
                "{timeout}. Until then all nodes refuse everything: set \
                 cluster-require-full-coverage no"
            );
            return (Health::Note, what);
        }
        (Health::Fine, timeout)
    }
}

/// Returns true if a replica lags, from its line in the master's report:
/// `ip=..,state=online,lag=1`.
fn lags(line: &str) -> bool {
    let field = |name: &str| line.split(',').find_map(|pair| pair.strip_prefix(name));
    field("state=") != Some("online")
        || field("lag=").and_then(|lag| lag.parse().ok()).is_none_or(|lag: u64| lag > LAG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> (String, u16) {
        ("h".to_owned(), port)
    }

    fn picture(infos: &[&str]) -> ClusterFacts {
        let master = |(n, info): (usize, &&str)| Master {
            at: format!("h:{n}"),
            server: Some(ServerInfo::new(info)),
            ahead: Some(0),
        };
        ClusterFacts {
            masters: infos.iter().enumerate().map(master).collect(),
            uncovered: 0,
            membership: Membership { members: vec![address(1), address(2)], apart: Vec::new() },
            state: Some("ok".to_owned()),
            timeout: Some(Duration::from_secs(15)),
            full_coverage: Some(false),
            forbidden: Some(Vec::new()),
            link: (Health::Fine, "RESP3 over TLS"),
        }
    }

    const SOUND: &str = "redis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
                         slave0:ip=h,port=1,state=online,offset=9,lag=1\r\n";

    #[track_caller]
    fn finds(picture: &ClusterFacts, check: &str, state: Health, words: &str) {
        let all = picture.judge();
        let found = all.iter().find(|finding| finding.check == check).unwrap();
        assert!(found.state == state && found.what.contains(words), "{found:?}");
    }

    #[test]
    fn a_sound_cluster_is_fine() {
        let picture = picture(&[SOUND, SOUND, SOUND]);
        for finding in picture.judge() {
            assert_eq!(finding.state, Health::Fine, "{finding:?}");
        }
        finds(&picture, "server", Health::Fine, "Redis 7.0.15 on 3 masters");
        finds(&picture, "replicas", Health::Fine, "3, every master");
        finds(&picture, "fail-over", Health::Fine, "15s of silence");
    }

    #[test]
    fn what_is_wrong_with_a_cluster_is_said_with_what_to_do() {
        let alone = SOUND.replace("slave0", "other");
        let behind = SOUND.replace("lag=1", "lag=9");
        let evicting = SOUND.replace("maxmemory:0", "maxmemory:9").replace("noev", "allkeys-");
        finds(&picture(&[SOUND, &alone]), "replicas", Health::Note, "h:1 has no replica");
        finds(&picture(&[SOUND, &behind]), "replicas", Health::Note, "h:1 is behind");
        finds(&picture(&[SOUND, &evicting]), "memory", Health::Bad, "h:1 (allkeys-iction)");
        let mut bad = picture(&[SOUND, SOUND]);
        (bad.uncovered, bad.full_coverage) = (7, Some(true));
        finds(&bad, "slots", Health::Bad, "7 of 16384");
        finds(&bad, "slots", Health::Bad, "--cluster fix h:1");
        bad.membership.apart = vec![address(3)];
        finds(&bad, "slots", Health::Bad, "h:3 answers, but is not in the cluster as h:1, h:2");
        (bad.uncovered, bad.membership.members) = (9_000, vec![address(3)]);
        bad.membership.apart.clear();
        finds(&bad, "slots", Health::Bad, "do not run redis-cli --cluster fix on h:3");
        finds(&bad, "fail-over", Health::Note, "cluster-require-full-coverage no");
        (bad.uncovered, bad.state) = (0, Some("fail".to_owned()));
        finds(&bad, "slots", Health::Bad, "state fail");
        bad.masters[0].ahead = Some(-3_000_000);
        finds(&bad, "store clock", Health::Note, "3s apart");
        bad.masters[1].server = None;
        finds(&bad, "server", Health::Bad, "h:1 cannot be reached");
        bad.forbidden = Some(vec!["spublish".to_owned()]);
        finds(&bad, "access", Health::Bad, "+spublish");
    }
}

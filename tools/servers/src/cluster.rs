//! A Redis Cluster: masters, their replicas, and slots that move between them. Knows how nodes
//! meet, move slots and take each other's place, not who uses them.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::certificates::Certificates;
use crate::papers::Papers;
use crate::patience::eventually;
use crate::ports;
use crate::redis::{Builder, Redis};
use crate::resp::Reply;

/// How many slots a cluster has.
const SLOTS: u32 = 16_384;
/// How many masters there are, and as many replicas.
const MASTERS: usize = 3;

/// Three masters with a replica each, all on loopback. A node that is silent for a second counts as
/// down, and its replica takes its place.
///
/// Dropping it kills all of them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    papers: Option<Papers>,
    /// Ports of nodes that were cut off or removed: what these say of others is old.
    apart: Mutex<Vec<u16>>,
}

impl Cluster {
    /// Starts six nodes, and returns when all of them agree on who keeps what.
    ///
    /// # Panics
    /// When they cannot be started, or do not agree.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Redis::builder)
    }

    /// The same with nodes that are to be different.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(node: impl Fn() -> Builder) -> Self {
        let nodes: Vec<Redis> = (0..2 * MASTERS).map(|_| configured(node()).start()).collect();
        let cluster = Self { nodes, papers: None, apart: Mutex::default() };
        cluster.meet();
        cluster
    }

    /// The same with nodes that speak TLS to each other and to clients, with certificates of one
    /// authority. Plain ports stay, for this crate's own commands.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with_tls(node: impl Fn() -> Builder) -> Self {
        let papers = Papers::make();
        let node = || configured(papers.shown_by(node(), None)).arg("tls-cluster", "yes").start();
        let nodes: Vec<Redis> = (0..2 * MASTERS).map(|_| node()).collect();
        let cluster = Self { nodes, papers: Some(papers), apart: Mutex::default() };
        cluster.meet();
        cluster
    }

    /// One cluster for the whole process, started when first asked for. Those who share it do it no
    /// harm, so a node that is silent has only to wait for the machine: it counts as down after a
    /// minute.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| {
            let cluster = Self::start();
            // Not from the start: nodes that meet would gossip less often.
            for node in &cluster.nodes {
                done(node, &["CONFIG", "SET", "cluster-node-timeout", "60000"]);
            }
            cluster
        })
    }

    /// `redis+cluster://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`: the nodes that were masters
    /// first.
    #[must_use]
    pub fn url(&self) -> String {
        let seeds: Vec<_> =
            self.nodes[..MASTERS].iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// `127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`: the same nodes where they speak TLS.
    #[must_use]
    pub fn tls_hosts(&self) -> String {
        let hosts = self.nodes[..MASTERS].iter().map(|one| format!("127.0.0.1:{}", one.tls_port()));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// What the nodes show.
    ///
    /// # Panics
    /// Where they do not speak TLS.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        self.papers.as_ref().expect("started with TLS").certificates()
    }

    /// All nodes, in the order in which they were started.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The slot of a key.
    ///
    /// # Panics
    /// When no node answers.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        let asked = self.nodes.iter().find_map(|node| node.cmd(&["CLUSTER", "KEYSLOT", key]).ok());
        match asked {
            Some(Reply::Int(slot)) => u16::try_from(slot).expect("a slot"),
            other => panic!("no slot: {other:?}"),
        }
    }

    /// The node that keeps a slot, as most nodes see it.
    ///
    /// # Panics
    /// When they do not agree on one.
    #[must_use]
    pub fn keeper(&self, slot: u16) -> &Redis {
        let mut agreed = None;
        eventually("the nodes agree on who keeps the slot", || {
            let says = |node: &Redis| keeper_in(&node.cmd(&["CLUSTER", "SLOTS"]).ok()?, slot);
            let ports: Vec<u16> = self.members().filter_map(says).collect();
            agreed = ports.first().copied().filter(|one| ports.iter().all(|port| port == one));
            agreed.is_some() && ports.len() > self.nodes.len() / 2
        });
        self.nodes.iter().find(|node| Some(node.port()) == agreed).expect("one of ours")
    }

    /// The nodes that keep slots, as the first that answers sees it.
    ///
    /// # Panics
    /// When none does.
    #[must_use]
    pub fn masters(&self) -> Vec<&Redis> {
        let is_master = |node: &&Redis| {
            let role = node.cmd(&["ROLE"]);
            role.is_ok_and(|role| role.list().first().and_then(Reply::text) == Some("master"))
        };
        self.members().filter(is_master).collect()
    }

    /// Moves a slot to another master with everything in it, as an operator would while clients go
    /// on. `midway` runs when the slot is half here and half there.
    ///
    /// # Panics
    /// When a node refuses.
    pub fn move_slot(&self, slot: u16, to: &Redis, midway: impl FnOnce()) {
        let from = self.keeper(slot);
        let (text, there) = (slot.to_string(), id_of(to));
        done(to, &["CLUSTER", "SETSLOT", &text, "IMPORTING", &id_of(from)]);
        done(from, &["CLUSTER", "SETSLOT", &text, "MIGRATING", &there]);
        move_keys(from, to, &text, 1);
        midway();
        while move_keys(from, to, &text, 10) > 0 {}
        // The new keeper first: for a moment both think that it is theirs, never neither.
        done(to, &["CLUSTER", "SETSLOT", &text, "NODE", &there]);
        done(from, &["CLUSTER", "SETSLOT", &text, "NODE", &there]);
        for other in &self.nodes {
            // A replica learns it from its master.
            let _ = other.cmd(&["CLUSTER", "SETSLOT", &text, "NODE", &there]);
        }
        assert_eq!(self.keeper(slot).port(), to.port());
    }

    /// Another master than the one that keeps a slot.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn another(&self, slot: u16) -> &Redis {
        let keeper = self.keeper(slot).port();
        let masters = self.masters();
        masters.into_iter().find(|node| node.port() != keeper).expect("a second master")
    }

    /// Has a replica take the place of the node that keeps a slot, which becomes a replica itself.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn failover(&self, slot: u16) {
        let old = self.keeper(slot);
        let id = id_of(old);
        let follows = |node: &&Redis| {
            let myself = line_of_itself(node);
            myself.is_some_and(|line| line.contains("slave") && line.contains(&id))
        };
        let replica = self.nodes.iter().find(follows).expect("a replica of the keeper");
        done(replica, &["CLUSTER", "FAILOVER"]);
        self.wait_for_another(slot, old.port());
    }

    /// Kills the node that keeps a slot with -9, and returns when another has its place. Which one
    /// was killed.
    ///
    /// # Panics
    /// If no replica takes its place.
    #[must_use = "it is dead until it is started again"]
    pub fn kill_keeper(&self, slot: u16) -> &Redis {
        let old = self.keeper(slot);
        old.kill();
        self.wait_for_another(slot, old.port());
        old
    }

    /// Waits until every node that answers says that a slot is kept by another node than the one at
    /// this port.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_for_another(&self, slot: u16, old: u16) {
        eventually("another node keeps the slot", || {
            let says = |node: &Redis| keeper_in(&node.cmd(&["CLUSTER", "SLOTS"]).ok()?, slot);
            let others = self.members().filter(|node| node.port() != old);
            let ports: Vec<_> = others.filter_map(says).collect();
            !ports.is_empty() && ports.iter().all(|port| *port != old && *port == ports[0])
        });
    }

    /// Waits until the cluster is whole: every slot is kept, every master has a replica that
    /// follows.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_settled(&self) {
        eventually("the cluster is whole", || {
            let info = |node: &Redis, what: &str, line: &str| {
                let info = node.cmd(&what.split(' ').collect::<Vec<_>>());
                info.is_ok_and(|info| info.text().is_some_and(|text| text.contains(line)))
            };
            let known = format!("cluster_known_nodes:{}", self.nodes.len());
            self.nodes.iter().all(|node| {
                info(node, "CLUSTER INFO", "cluster_state:ok")
                    && info(node, "CLUSTER INFO", &known)
                    && (info(node, "INFO replication", "master_link_status:up")
                        || info(node, "INFO replication", "connected_slaves:1"))
            })
        });
    }

    /// Cuts a master off from the cluster bus: its replica takes its place, and it answers clients
    /// with the map that it had, without hearing of the others or being heard by them.
    ///
    /// # Panics
    /// If no replica takes its place.
    pub fn cut_off(&self, node: &Redis) {
        let slot = slot_at(node).expect("a master");
        node.kill();
        self.wait_for_another(slot, node.port());
        // It looks for the others where none of them listens, and listens where none looks for it.
        let (map, config) = (node.dir().join("nodes.conf"), node.dir().join("redis.conf"));
        let known = std::fs::read_to_string(&map).expect("the map of a node");
        let lost = known.lines().map(|line| match line.split_once('@') {
            Some((before, after)) if !line.contains("myself") => {
                let rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
                format!("{before}@1{rest}\n")
            }
            _ => format!("{line}\n"),
        });
        std::fs::write(&map, lost.collect::<String>()).expect("the map of a node");
        let text = std::fs::read_to_string(&config).expect("the configuration");
        let text = format!("{text}\ncluster-port {}\n", ports::free());
        std::fs::write(&config, text).expect("the configuration");
        self.set_apart(node);
        node.restart();
    }

    /// Removes a master with `CLUSTER FORGET`: no other node knows it any more, and it knows no
    /// other. Its slots are kept by itself only. Its replicas follow another master first.
    ///
    /// # Panics
    /// When a node refuses.
    pub fn forget(&self, node: &Redis) {
        let id = id_of(node);
        let masters = self.masters();
        let other = masters.iter().find(|one| one.port() != node.port()).expect("another master");
        let others: Vec<&Redis> = self.members().filter(|one| one.port() != node.port()).collect();
        for replica in
            others.iter().filter(|one| line_of_itself(one).is_some_and(|l| l.contains(&id)))
        {
            done(replica, &["CLUSTER", "REPLICATE", &id_of(other)]);
        }
        for one in &others {
            done(one, &["CLUSTER", "FORGET", &id]);
            done(node, &["CLUSTER", "FORGET", &id_of(one)]);
        }
        self.set_apart(node);
    }

    fn set_apart(&self, node: &Redis) {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner).push(node.port());
    }

    /// The nodes that were not set apart.
    fn members(&self) -> impl Iterator<Item = &Redis> {
        let apart = self.apart.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.nodes.iter().filter(move |node| !apart.contains(&node.port()))
    }

    /// Hands out the slots, has the nodes meet, and gives each master its replica.
    fn meet(&self) {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (at, node) in (0_u32..).zip(masters) {
            let count = u32::try_from(MASTERS).expect("few");
            let (first, last) = (SLOTS * at / count, SLOTS * (at + 1) / count - 1);
            done(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            // Else two nodes may have the same epoch for a while.
            done(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for node in &self.nodes[1..] {
            // With TLS between nodes, the port that counts is the one for TLS.
            let first = &self.nodes[0];
            let port = if self.papers.is_some() { first.tls_port() } else { first.port() };
            done(node, &["CLUSTER", "MEET", "127.0.0.1", &port.to_string()]);
        }
        for (master, replica) in masters.iter().zip(replicas) {
            let id = id_of(master);
            eventually("a replica knows its master", || {
                let said = replica.cmd(&["CLUSTER", "REPLICATE", &id]);
                said.is_ok_and(|said| said.error().is_none())
            });
        }
        self.wait_until_settled();
    }
}

fn configured(node: Builder) -> Builder {
    node.arg("cluster-enabled", "yes")
        .arg("cluster-node-timeout", "1000")
        .arg("cluster-replica-validity-factor", "0")
        .arg("cluster-config-file", "nodes.conf")
}

/// Moves some keys of a slot. How many there were.
fn move_keys(from: &Redis, to: &Redis, slot: &str, most: usize) -> usize {
    let keys = from.read(&["CLUSTER", "GETKEYSINSLOT", slot, &most.to_string()]);
    let keys: Vec<&str> = keys.list().iter().filter_map(Reply::text).collect();
    if !keys.is_empty() {
        let port = to.port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        words.extend(&keys);
        done(from, &words);
    }
    keys.len()
}

fn id_of(node: &Redis) -> String {
    let id = node.read(&["CLUSTER", "MYID"]);
    id.text().expect("an id").to_owned()
}

/// What a node says of itself, unless it is dead.
fn line_of_itself(node: &Redis) -> Option<String> {
    let nodes = node.cmd(&["CLUSTER", "NODES"]).ok()?;
    nodes.text()?.lines().find(|line| line.contains("myself")).map(str::to_owned)
}

/// A slot that a node keeps itself.
fn slot_at(node: &Redis) -> Option<u16> {
    let line = line_of_itself(node)?;
    let first = line.split_whitespace().nth(8)?.split('-').next()?;
    first.parse().ok()
}

/// The port of the node that keeps a slot, in an answer to `CLUSTER SLOTS`.
fn keeper_in(slots: &Reply, slot: u16) -> Option<u16> {
    let has = |range: &&Reply| match range.list() {
        [Reply::Int(first), Reply::Int(last), ..] => (*first..=*last).contains(&i64::from(slot)),
        _ => false,
    };
    match slots.list().iter().find(has)?.list().get(2)?.list().get(1)? {
        Reply::Int(port) => u16::try_from(*port).ok(),
        _ => None,
    }
}

fn done(node: &Redis, words: &[&str]) -> Reply {
    let reply = node.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert!(reply.error().is_none(), "{words:?}: {reply:?}");
    reply
}

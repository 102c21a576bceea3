//! A primary, its replicas, and the sentinels that watch over them. Knows how a fail-over is asked
//! for and when it is over, not who uses the servers.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use rustix::process::Signal;

use crate::patience::{LIMIT, eventually, within};
use crate::ports;
use crate::process::{Process, Program, directory, locked, remove, write};
use crate::redis::{Builder, Redis};
use crate::resp::{Client, Reply};

/// What the sentinels call the primary.
const NAME: &str = "mymaster";

/// Three sentinels, a primary and its replicas, all on loopback. A primary that is silent for 0.4 s
/// counts as down.
///
/// Dropping it kills all of them.
#[derive(Debug)]
pub struct Sentinels {
    // First, so that nobody starts a fail-over while servers are killed.
    sentinels: Vec<Sentinel>,
    nodes: Vec<Redis>,
}

impl Sentinels {
    /// Starts a primary with so many replicas, and returns when all sentinels know all of them.
    ///
    /// # Panics
    /// When they cannot be started, or do not find each other.
    #[must_use]
    pub fn start(replicas: usize) -> Self {
        Self::start_with(replicas, Redis::builder)
    }

    /// The same with servers that are to be different.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(replicas: usize, node: impl Fn() -> Builder) -> Self {
        let primary = node().start();
        let mut nodes = Vec::with_capacity(replicas + 1);
        for _ in 0..replicas {
            nodes.push(node().replica_of(&primary).start());
        }
        nodes.insert(0, primary);
        let sentinels = (0..3).map(|_| Sentinel::start(nodes[0].port())).collect();
        let all = Self { sentinels, nodes };
        all.wait_until_settled();
        all
    }

    /// One set without replicas for the whole process, started when first asked for. Those who
    /// share it do it no harm.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Sentinels> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(0))
    }

    /// `redis+sentinel://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT/mymaster`.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The servers, in the order in which they were started.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// The server that a sentinel takes for the primary.
    ///
    /// # Panics
    /// When no sentinel answers.
    #[must_use]
    pub fn primary(&self) -> &Redis {
        let port = self.sentinels.iter().find_map(Sentinel::primary_port);
        let port = port.expect("no sentinel says where the primary is");
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.unwrap_or_else(|| panic!("a stranger at port {port} is the primary"))
    }

    /// The servers that follow the primary, as the sentinels see it.
    ///
    /// # Panics
    /// As [`primary`](Self::primary).
    #[must_use]
    pub fn replicas(&self) -> Vec<&Redis> {
        let primary = self.primary().port();
        self.nodes.iter().filter(|node| node.port() != primary).collect()
    }

    /// Has the sentinels put a replica in the primary's place, which becomes a replica itself;
    /// returns when the new one writes.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn failover(&self) {
        let old = self.primary().port();
        let mut said = Reply::Nil;
        // Refused for a moment after the one before.
        let begun = within(LIMIT, || {
            said = self.sentinels[0].cmd(&["SENTINEL", "FAILOVER", NAME]).unwrap_or(Reply::Nil);
            said.error().is_none() && said != Reply::Nil
        });
        assert!(begun, "no fail-over: {said:?}");
        self.wait_for_another(old);
    }

    /// Kills the primary with -9, and returns when another server writes. Which one was killed.
    ///
    /// # Panics
    /// When no other server takes its place.
    #[must_use = "it is dead until it is started again"]
    pub fn kill_primary(&self) -> &Redis {
        let old = self.primary();
        old.kill();
        self.wait_for_another(old.port());
        old
    }

    /// Waits until every sentinel names a primary other than the server at this port, and that one
    /// writes.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_for_another(&self, old: u16) {
        eventually("another server is the primary", || {
            let ports = self.sentinels.iter().map(Sentinel::primary_port);
            let moved = ports.clone().all(|port| port.is_some_and(|port| port != old));
            let first = self.sentinels[0].primary_port();
            moved && ports.into_iter().all(|port| port == first) && is_primary(self.primary())
        });
    }

    /// Waits until all sentinels know each other and all servers, and all servers that are not the
    /// primary follow it.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_settled(&self) {
        let others = self.sentinels.len() - 1;
        eventually("the sentinels know each other and all servers", || {
            self.sentinels.iter().all(|one| {
                one.count("SENTINELS") == others && one.count("REPLICAS") + 1 == self.nodes.len()
            })
        });
        eventually("all servers follow the primary", || {
            let primary = self.primary();
            let port = primary.port().to_string();
            // Asked in one breath, and not asked again when it fails: sentinels cut a server's
            // connections when they change its role.
            let follows = |node: &&Redis| {
                let Ok(info) = node.cmd(&["INFO", "replication"]) else { return false };
                let has = |line: String| info.text().is_some_and(|text| text.contains(&line));
                has(format!("master_port:{port}\r")) && has("master_link_status:up\r".to_owned())
            };
            is_primary(primary) && self.replicas().iter().all(follows)
        });
    }
}

fn is_primary(node: &Redis) -> bool {
    let role = node.cmd(&["ROLE"]);
    role.is_ok_and(|role| role.list().first().and_then(Reply::text) == Some("master"))
}

/// One sentinel. Dropping it kills it.
#[derive(Debug)]
pub struct Sentinel {
    process: Mutex<Process>,
    port: u16,
    dir: PathBuf,
}

impl Sentinel {
    fn start(primary: u16) -> Self {
        let dir = directory("sentinel").unwrap_or_else(|error| panic!("{error}"));
        let mut last = String::new();
        // The port was free a moment ago; with another moment's bad luck, try another one.
        for _ in 0..10 {
            let port = ports::free();
            write(&dir.join("sentinel.conf"), &config(port, primary, &dir.display().to_string()))
                .unwrap_or_else(|error| panic!("{error}"));
            match launch(&dir, port) {
                Ok(process) => return Self { process: Mutex::new(process), port, dir },
                Err(why) => last = why,
            }
        }
        panic!("no sentinel: {last}");
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops it where it is (SIGSTOP): it neither answers nor goes.
    pub fn stop(&self) {
        locked(&self.process).signal(Signal::STOP);
    }

    /// Lets it go on after [`stop`](Self::stop).
    pub fn cont(&self) {
        locked(&self.process).signal(Signal::CONT);
    }

    /// Kills it with -9.
    pub fn kill(&self) {
        locked(&self.process).kill();
    }

    /// Has the sentinel answer one command.
    ///
    /// # Errors
    /// When it is not there, or does not answer. A refusal is an answer.
    pub fn cmd<W: AsRef<[u8]>>(&self, words: &[W]) -> Result<Reply, String> {
        Client::connect(("127.0.0.1", self.port))?.cmd(words)
    }

    fn primary_port(&self) -> Option<u16> {
        let reply = self.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
        reply.list().get(1)?.text()?.parse().ok()
    }

    fn count(&self, whom: &str) -> usize {
        self.cmd(&["SENTINEL", whom, NAME]).map_or(0, |reply| reply.list().len())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        remove(&self.dir);
    }
}

fn config(port: u16, primary: u16, dir: &str) -> String {
    let mut text = format!("bind 127.0.0.1\nport {port}\ndir {dir}\ndaemonize no\n");
    let _ = writeln!(text, "sentinel monitor {NAME} 127.0.0.1 {primary} 2");
    let _ = writeln!(text, "sentinel down-after-milliseconds {NAME} 400");
    let _ = writeln!(text, "sentinel failover-timeout {NAME} 3000");
    let _ = writeln!(text, "sentinel parallel-syncs {NAME} 2");
    text
}

fn launch(dir: &std::path::Path, port: u16) -> Result<Process, String> {
    let mut program = Program::find("redis-server", "redis-server")?;
    program.command.arg(dir.join("sentinel.conf")).arg("--sentinel").current_dir(dir);
    let log = dir.join("log");
    let process = Process::start(program, &log)?;
    let answers = || Client::connect(("127.0.0.1", port)).and_then(|mut it| it.cmd(&["PING"]));
    let ready = within(LIMIT, || !process.lives() || answers().is_ok());
    if ready && process.lives() {
        return Ok(process);
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    Err(format!("a sentinel on port {port} does not answer; it said: {said}"))
}

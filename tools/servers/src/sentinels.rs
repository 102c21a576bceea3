//! A primary, its replicas, and the sentinels that watch over them. Knows how a fail-over is asked
//! for and when it is over, not who uses the servers.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::papers::Papers;
use crate::patience::{LIMIT, eventually, repeated, within};
use crate::ports;
use crate::process::{Process, Program, directory, locked, remove, write};
use crate::redis::{ADMIN, Builder, Redis, admin_password};
use crate::resp::{Client, Reply};

/// What the sentinels call the primary.
const NAME: &str = "mymaster";

/// How a primary, its replicas and their sentinels are to be.
#[derive(Clone, Default)]
#[must_use = "it is `start` that starts servers"]
pub struct SentinelsBuilder {
    replicas: usize,
    node: Builder,
    users: Vec<String>,
    tls: bool,
    lines: Vec<String>,
}

impl SentinelsBuilder {
    /// So many replicas beside the primary.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// What the primary and its replicas are like.
    pub fn node(mut self, node: Builder) -> Self {
        self.node = node;
        self
    }

    /// A user of the sentinels themselves: `user default on >pw ~* &* +@all` has them ask everybody
    /// for a password.
    pub fn sentinel_acl_line(mut self, line: &str) -> Self {
        self.users.push(line.to_owned());
        self
    }

    /// All of them speak TLS to each other and to clients, with certificates of one authority.
    /// Plain ports stay, for this crate's own commands.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A line about the primary in the sentinels' configuration, which outdoes the default:
    /// `.sentinel("down-after-milliseconds", "60000")`.
    pub fn sentinel(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("sentinel {name} {NAME} {value}"));
        self
    }

    /// Starts all of them, and returns when all sentinels know all of them.
    ///
    /// # Panics
    /// When they cannot be started, or do not find each other.
    #[must_use]
    pub fn start(self) -> Sentinels {
        let papers = self.tls.then(Papers::make);
        let node = |of: Option<&Redis>| {
            let node = match of {
                Some(primary) => self.node.clone().replica_of(primary),
                None => self.node.clone(),
            };
            match &papers {
                Some(papers) => papers.shown_by(node, of).start(),
                None => node.start(),
            }
        };
        let mut nodes = vec![node(None)];
        for _ in 0..self.replicas {
            nodes.push(node(Some(&nodes[0])));
        }
        let primary = if self.tls { nodes[0].tls_port() } else { nodes[0].port() };
        let watchers = (0..3).map(|_| Sentinel::start(primary, &self, papers.as_ref())).collect();
        let all = Sentinels { watchers, nodes, papers };
        all.wait_until_settled();
        all
    }
}

impl fmt::Debug for SentinelsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Lines and users may hold passwords.
        let mut it = f.debug_struct("SentinelsBuilder");
        it.field("replicas", &self.replicas).field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// Three sentinels, a primary and its replicas, all on loopback. A primary that is silent for 0.4 s
/// counts as down.
///
/// Dropping it kills all of them.
#[derive(Debug)]
pub struct Sentinels {
    // First, so that nobody starts a fail-over while servers are killed.
    watchers: Vec<Sentinel>,
    nodes: Vec<Redis>,
    papers: Option<Papers>,
}

impl Sentinels {
    /// Starts a primary with so many replicas, and returns when all sentinels know all of them.
    ///
    /// # Panics
    /// When they cannot be started, or do not find each other.
    #[must_use]
    pub fn start(replicas: usize) -> Self {
        Self::builder().replicas(replicas).start()
    }

    /// A set that is to be different.
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder::default()
    }

    /// One set without replicas for the whole process, started when first asked for. Those who
    /// share it do it no harm, so a primary that is silent has only to wait for the machine: it
    /// counts as down after a minute.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Sentinels> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().sentinel("down-after-milliseconds", "60000").start())
    }

    /// `redis+sentinel://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT/mymaster`, without a user.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_by(self.watchers.iter().map(Sentinel::port))
    }

    /// The same by way of these ports, for instance those of proxies before the sentinels.
    #[must_use]
    pub fn url_by(&self, ports: impl IntoIterator<Item = u16>) -> String {
        let hosts: Vec<_> = ports.into_iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// `rediss+sentinel://..`, with the authority to believe as `ca=`.
    ///
    /// # Panics
    /// When they were not started with [`SentinelsBuilder::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let url = self.url_by(self.watchers.iter().map(|one| one.tls_port));
        let url = url.replacen("redis", "rediss", 1);
        format!("{url}?ca={}", self.certificates().ca().display())
    }

    /// The authority and the certificates that all of them show.
    ///
    /// # Panics
    /// When they were not started with [`SentinelsBuilder::tls`].
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        self.papers.as_ref().expect("these have no TLS; start them with `.tls()`").certificates()
    }

    /// The port by which sentinels and replicas know a server.
    fn known_by(&self, node: &Redis) -> u16 {
        if self.papers.is_some() { node.tls_port() } else { node.port() }
    }

    /// Starts one more sentinel that neither the servers nor the other sentinels talk to: it has a
    /// wrong password for the servers, by way of which sentinels find each other. Clients can ask
    /// it, and it names for ever the server that is the primary now. It is not among
    /// [`sentinels`](Self::sentinels).
    ///
    /// # Panics
    /// When it cannot be started, or the servers ask for no password: start them with
    /// `.node(Redis::builder().password(..))`.
    #[must_use]
    pub fn cut_off_sentinel(&self) -> Sentinel {
        let primary = self.primary();
        let anybody =
            Client::connect(("127.0.0.1", primary.port())).and_then(|mut it| it.cmd(&["PING"]));
        assert!(anybody.is_ok_and(|reply| reply.error().is_some()), "servers without a password");
        let wrong = SentinelsBuilder::default().sentinel("auth-pass", "wrong");
        Sentinel::start(primary.port(), &wrong, None)
    }

    /// The servers, in the order in which they were started.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.watchers
    }

    /// The server that a sentinel takes for the primary.
    ///
    /// # Panics
    /// When no sentinel answers.
    #[must_use]
    pub fn primary(&self) -> &Redis {
        let port = self.watchers.iter().find_map(Sentinel::primary_port);
        let port = port.expect("no sentinel says where the primary is");
        let node = self.nodes.iter().find(|node| self.known_by(node) == port);
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
        let old = self.primary();
        let mut said = Reply::Nil;
        // Refused for a moment after the one before.
        let begun = within(LIMIT, || {
            said = self.watchers[0].cmd(&["SENTINEL", "FAILOVER", NAME]).unwrap_or(Reply::Nil);
            said.error().is_none() && said != Reply::Nil
        });
        assert!(begun, "no fail-over: {said:?}");
        self.wait_until_replaced(old);
    }

    /// Kills the primary with -9, and returns when another server writes. Which one was killed.
    ///
    /// # Panics
    /// When no other server takes its place.
    #[must_use = "it is dead until it is started again"]
    pub fn kill_primary(&self) -> &Redis {
        let old = self.primary();
        old.kill();
        self.wait_until_replaced(old);
        old
    }

    /// Waits until every sentinel names a primary other than this server, and that one writes.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_replaced(&self, old: &Redis) {
        let old = self.known_by(old);
        eventually("another server is the primary", || {
            let ports = self.watchers.iter().map(Sentinel::primary_port);
            let moved = ports.clone().all(|port| port.is_some_and(|port| port != old));
            let first = self.watchers[0].primary_port();
            moved && ports.into_iter().all(|port| port == first) && is_primary(self.primary())
        });
    }

    /// Waits until all sentinels know each other and all servers, and all servers that are not the
    /// primary follow it.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_settled(&self) {
        let others = self.watchers.len() - 1;
        eventually("the sentinels know each other and all servers", || {
            self.watchers.iter().all(|one| {
                one.count("SENTINELS") == others && one.count("REPLICAS") + 1 == self.nodes.len()
            })
        });
        eventually("all servers follow the primary", || {
            let primary = self.primary();
            let port = self.known_by(primary).to_string();
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
    tls_port: u16,
    dir: PathBuf,
}

impl Sentinel {
    fn start(primary: u16, like: &SentinelsBuilder, papers: Option<&Papers>) -> Self {
        let dir = directory("sentinel").unwrap_or_else(|error| panic!("{error}"));
        let mut last = String::new();
        // The port was free a moment ago; with another moment's bad luck, try another one.
        for _ in 0..10 {
            let (port, tls_port) = (ports::free(), papers.map_or(0, |_| ports::free()));
            let mut text = format!("bind 127.0.0.1\nport {port}\ndir {}\n", dir.display());
            if let Some(papers) = papers {
                let _ = writeln!(text, "tls-port {tls_port}\ntls-auth-clients optional");
                for (name, value) in papers.lines() {
                    let _ = writeln!(text, "{name} {value}");
                }
            }
            text += &config(primary, like);
            write(&dir.join("sentinel.conf"), &text).unwrap_or_else(|error| panic!("{error}"));
            match launch(&dir, port) {
                Ok(process) => return Self { process: Mutex::new(process), port, tls_port, dir },
                Err(why) => last = why,
            }
        }
        panic!("no sentinel: {last}");
    }

    /// Its port without TLS.
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

    /// Kills it with -9. [`restart`](Self::restart) brings it back.
    pub fn kill(&self) {
        locked(&self.process).kill();
    }

    /// Kills it with -9 and starts it again with the same port and what it knew.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self) {
        let mut process = locked(&self.process);
        process.kill();
        let mut outcome = Err(String::new());
        // Another process may be on the port for a moment.
        within(LIMIT, || {
            outcome = launch(&self.dir, self.port);
            outcome.is_ok()
        });
        *process = outcome.unwrap_or_else(|why| panic!("no restart: {why}"));
    }

    /// Has the sentinel answer one command, as a user who may do everything.
    ///
    /// # Errors
    /// When it is not there, or does not answer. A refusal is an answer.
    pub fn cmd<W: AsRef<[u8]>>(&self, words: &[W]) -> Result<Reply, String> {
        admin(self.port)?.cmd(words)
    }

    /// Sends a command that only reads, again while the connection breaks.
    ///
    /// # Panics
    /// When the sentinel is gone or does not answer.
    #[must_use]
    pub fn read<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let reply = repeated(|| self.cmd(words), || locked(&self.process).lives());
        reply.unwrap_or_else(|error| panic!("a sentinel does not answer: {error}"))
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

fn admin(port: u16) -> Result<Client, String> {
    let mut client = Client::connect(("127.0.0.1", port))?;
    let answer = client.cmd(&["AUTH", ADMIN, admin_password()])?;
    match answer.error() {
        Some(error) => Err(error.to_owned()),
        None => Ok(client),
    }
}

/// What a sentinel watches, and as whom it speaks: to servers and to other sentinels as the user of
/// this crate's own commands, whatever a test asks of others.
fn config(primary: u16, like: &SentinelsBuilder) -> String {
    let mut text = String::from("daemonize no\n");
    let password = admin_password();
    let _ = writeln!(text, "sentinel monitor {NAME} 127.0.0.1 {primary} 2");
    let _ = writeln!(text, "sentinel down-after-milliseconds {NAME} 400");
    let _ = writeln!(text, "sentinel failover-timeout {NAME} 3000");
    let _ = writeln!(text, "sentinel parallel-syncs {NAME} 2");
    let _ = writeln!(text, "sentinel auth-user {NAME} {ADMIN}");
    let _ = writeln!(text, "sentinel auth-pass {NAME} {password}");
    let _ = writeln!(text, "sentinel sentinel-user {ADMIN}");
    let _ = writeln!(text, "sentinel sentinel-pass {password}");
    let _ = writeln!(text, "user {ADMIN} on >{password} ~* &* +@all");
    for line in like.lines.iter().chain(&like.users) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn launch(dir: &Path, port: u16) -> Result<Process, String> {
    let mut program = Program::find("redis-server", "redis-server")?;
    program.command.arg(dir.join("sentinel.conf")).arg("--sentinel").current_dir(dir);
    let log = dir.join("log");
    let process = Process::start(program, &log)?;
    let answers = || admin(port).and_then(|mut it| it.cmd(&["PING"]));
    let ready = within(LIMIT, || !process.lives() || answers().is_ok());
    if ready && process.lives() {
        return Ok(process);
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let said = said.replace(admin_password(), "***");
    Err(format!("a sentinel on port {port} does not answer; it said: {said}"))
}

//! One member of an etcd cluster: its ports, its process, its last words. Knows no other member
//! but by the list that all are started with.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::patience::{LIMIT, within};
use crate::ports;
use crate::process::{Process, Program, locked, tool};
use crate::wall::{self, Wall};

/// Where a program of etcd is: in the directory that `TENURE_TEST_ETCD` names, if it is set.
pub(super) fn etcd_tool(name: &str, package: &str) -> Result<PathBuf, String> {
    let Some(directory) = std::env::var_os("TENURE_TEST_ETCD") else { return tool(name, package) };
    let path = Path::new(&directory).join(name);
    let what = format!("`{}` is missing; TENURE_TEST_ETCD names its directory", path.display());
    if path.is_file() { Ok(path) } else { Err(what) }
}

/// With which arguments a member is started.
pub(super) struct Plan {
    name: String,
    dir: PathBuf,
    port: u16,
    peer_port: u16,
    metrics_port: u16,
    arguments: Vec<String>,
}

impl Plan {
    /// Plans for all members of a cluster.
    pub(super) fn cluster(
        dir: &Path,
        members: usize,
        certificates: Option<&Certificates>,
        more: &[String],
    ) -> Vec<Self> {
        let mut plans: Vec<Self> = (0..members).map(|at| Self::new(dir, at)).collect();
        let peers: Vec<_> = plans.iter().map(Self::peer).collect();
        for plan in &mut plans {
            plan.arguments = plan.describe(certificates, &peers.join(","));
            plan.arguments.extend(more.iter().cloned());
        }
        plans
    }

    fn new(dir: &Path, at: usize) -> Self {
        let name = format!("member{at}");
        let dir = dir.join(&name);
        let [port, peer_port, metrics_port] = [ports::free(), ports::free(), ports::free()];
        Self { name, dir, port, peer_port, metrics_port, arguments: Vec::new() }
    }

    fn peer(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.peer_port)
    }

    fn describe(&self, certificates: Option<&Certificates>, peers: &str) -> Vec<String> {
        let (scheme, host) =
            if certificates.is_some() { ("https", "localhost") } else { ("http", "127.0.0.1") };
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut pairs = vec![
            ("--name", self.name.clone()),
            ("--data-dir", self.data().display().to_string()),
            // Members speak to each other in the clear: this is loopback.
            ("--listen-peer-urls", peer.clone()),
            ("--initial-advertise-peer-urls", peer),
            ("--initial-cluster", peers.to_owned()),
            ("--listen-client-urls", format!("{scheme}://127.0.0.1:{}", self.port)),
            ("--advertise-client-urls", format!("{scheme}://{host}:{}", self.port)),
            ("--listen-metrics-urls", format!("http://127.0.0.1:{}", self.metrics_port)),
            // Three times the default pace: a test should not wait long for a new leader.
            ("--heartbeat-interval", "50".to_owned()),
            ("--election-timeout", "500".to_owned()),
            ("--logger", "zap".to_owned()),
            ("--log-level", "warn".to_owned()),
        ];
        if let Some(certificates) = certificates {
            let path = |path: PathBuf| path.display().to_string();
            pairs.push(("--cert-file", path(certificates.server_cert())));
            pairs.push(("--key-file", path(certificates.server_key())));
            pairs.push(("--trusted-ca-file", path(certificates.ca())));
        }
        let mut all: Vec<String> =
            pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        if certificates.is_some() {
            all.push("--client-cert-auth".to_owned());
        }
        all
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn launch(&self) -> Result<Process, String> {
        let mut program = Program::at(&etcd_tool("etcd", "etcd-server")?, None)?;
        program.command.args(&self.arguments).current_dir(&self.dir);
        // What is set in the environment would count as arguments.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD") {
                program.command.env_remove(name);
            }
        }
        Process::start(program, &self.log())
    }
}

/// One member.
pub(super) struct Member {
    plan: Plan,
    process: Mutex<Process>,
    /// Its wall clock, once it was moved, and by how many seconds; of which process.
    wall: Mutex<Option<(u32, Wall, i64)>>,
}

impl Member {
    pub(super) fn start(plan: Plan) -> Result<Self, String> {
        let made = std::fs::create_dir(&plan.dir);
        made.map_err(|error| format!("{} cannot be made: {error}", plan.dir.display()))?;
        let process = Mutex::new(plan.launch()?);
        Ok(Self { plan, process, wall: Mutex::default() })
    }

    pub(super) fn port(&self) -> u16 {
        self.plan.port
    }

    pub(super) fn pid(&self) -> u32 {
        locked(&self.process).pid()
    }

    pub(super) fn kill(&self) {
        locked(&self.process).kill();
    }

    pub(super) fn stop(&self) {
        locked(&self.process).signal(Signal::STOP);
    }

    pub(super) fn cont(&self) {
        locked(&self.process).signal(Signal::CONT);
    }

    /// Moves its wall clock by so many seconds, until it is started anew.
    pub(super) fn step_clock(&self, by: i64) -> Result<(), String> {
        let (pid, mut wall) = (self.pid(), locked(&self.wall));
        if wall.as_ref().is_none_or(|(of, ..)| *of != pid) {
            self.stop();
            let taken = wall::wait_until_elsewhere(pid).and_then(|()| Wall::take_over(pid));
            self.cont();
            *wall = Some((pid, taken?, 0));
        }
        let Some((_, wall, seconds)) = wall.as_mut() else { return Ok(()) };
        *seconds += by;
        wall.add(*seconds)
    }

    pub(super) fn restart(&self) -> Result<(), String> {
        let mut process = locked(&self.process);
        process.kill();
        *process = self.plan.launch()?;
        drop(process);
        // Alone it cannot be healthy where others are away; that it speaks is enough.
        if within(LIMIT, || self.ask("/metrics").is_some() || !self.lives()) && self.lives() {
            return Ok(());
        }
        Err(self.last_words())
    }

    pub(super) fn restore(&self, snapshot: &Path, token: Option<&str>) -> Result<(), String> {
        let process = locked(&self.process);
        process.kill();
        drop(process);
        let data = self.plan.data();
        std::fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        // Since 3.6 `etcdctl` cannot restore; 3.4 has no `etcdutl`.
        let tool = etcd_tool("etcdutl", "").or_else(|_| etcd_tool("etcdctl", "etcd-client"))?;
        let mut command = Command::new(tool);
        command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(snapshot);
        command.arg("--data-dir").arg(&data).args(["--name", &self.plan.name]);
        let peer = self.plan.peer();
        let url = peer.split_once('=').map_or("", |(_, url)| url).to_owned();
        command.args(["--initial-cluster", &peer, "--initial-advertise-peer-urls", &url]);
        if let Some(token) = token {
            command.args(["--initial-cluster-token", token]);
        }
        let done = command.output().map_err(|error| format!("etcdctl: {error}"))?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        self.restart()?;
        if within(LIMIT, || self.is_healthy()) { Ok(()) } else { Err(self.last_words()) }
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.ask("/health").is_some_and(|text| text.contains(r#""health":"true""#))
    }

    pub(super) fn leads(&self) -> bool {
        self.lives() && (self.metric("etcd_server_is_leader") - 1.0).abs() < f64::EPSILON
    }

    pub(super) fn metric(&self, name: &str) -> f64 {
        let text = self.ask("/metrics").unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let value =
            lines.find(|(label, _)| *label == name).and_then(|(_, value)| value.parse().ok());
        value.unwrap_or(0.0)
    }

    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.plan.log()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        // The first line as well: about arguments etcd complains before it explains them all.
        let (first, rest) =
            lines.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
        let last = &rest[rest.len().saturating_sub(8)..];
        format!("{} on port {}:\n{first}\n{}", self.plan.name, self.plan.port, last.join("\n"))
    }

    pub(super) fn lives(&self) -> bool {
        locked(&self.process).lives()
    }

    /// Asks over the port for metrics, which has no TLS and no users.
    fn ask(&self, path: &str) -> Option<String> {
        let limit = Some(Duration::from_secs(2));
        let mut stream = TcpStream::connect(("127.0.0.1", self.plan.metrics_port)).ok()?;
        stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.0 200").then_some(text)
    }
}

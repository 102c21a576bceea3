//! An etcd of one's own: one member or three, killed, stopped and brought back one by one. Knows
//! the processes, not what is kept in them.

mod member;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::children::output_within;
use crate::clock::Direction;
use crate::patience::{LIMIT, eventually, within};
use crate::ports;
use crate::process::{directory, remove};

use member::{Member, Plan, etcd_tool};

/// An etcd cluster on free loopback ports, in a directory of its own.
///
/// Dropping it kills the members and removes the directory. So does the end of the process, also
/// by `kill -9`.
pub struct Etcd {
    members: Vec<Member>,
    certificates: Option<Certificates>,
    root_password: Option<String>,
    dir: PathBuf,
}

impl Etcd {
    /// Starts a cluster of one member.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts a cluster of three members.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_three() -> Self {
        Self::builder().members(3).start()
    }

    /// A cluster that is to be different.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// One cluster of one member for the whole process, started when first asked for. Those who
    /// share it keep to names of their own and do it no harm.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// `etcd://127.0.0.1:PORT,127.0.0.1:PORT`, all members, without a user; with TLS `etcds:` and
    /// the name `localhost`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// The same with a user and a password, which must be fit for a URL.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(&format!("{user}:{password}@"))
    }

    fn url_with(&self, login: &str) -> String {
        let (scheme, host) = if self.certificates.is_some() {
            ("etcds", "localhost")
        } else {
            ("etcd", "127.0.0.1")
        };
        let hosts: Vec<_> =
            self.members.iter().map(|one| format!("{host}:{}", one.port())).collect();
        format!("{scheme}://{login}{}", hosts.join(","))
    }

    /// The port on which clients meet a member.
    #[must_use]
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].port()
    }

    /// How many members there are.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The process of a member as it is now; another one after a restart.
    #[must_use]
    pub fn pid(&self, member: usize) -> u32 {
        self.members[member].pid()
    }

    /// Which member leads.
    ///
    /// # Panics
    /// When there is no leader within half a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("a member leads", || {
            leader = self.members.iter().position(Member::leads);
            leader.is_some()
        });
        leader.expect("there is one by now")
    }

    /// The certificates of this cluster and of a client.
    ///
    /// # Panics
    /// When the cluster was not started with [`Builder::tls`].
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("this cluster has no TLS; start it with `.tls()`")
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kills a member with -9. [`restart`](Self::restart) brings it back.
    pub fn kill(&self, member: usize) {
        self.members[member].kill();
    }

    /// Stops a member in its tracks. It answers nothing, but its connections stand.
    pub fn stop(&self, member: usize) {
        self.members[member].stop();
    }

    /// Lets it go on after [`stop`](Self::stop).
    pub fn cont(&self, member: usize) {
        self.members[member].cont();
    }

    /// Steps the wall clock of a member, as an administrator or a time server does. It counts
    /// leases and elections on a clock that does not step. A restart sets it right.
    ///
    /// # Panics
    /// When the clock cannot be moved.
    pub fn step_clock(&self, member: usize, by: Duration, direction: Direction) {
        let seconds = i64::try_from(by.as_secs()).expect("a step of less than 292 years");
        let seconds = if direction == Direction::Forward { seconds } else { -seconds };
        let moved = self.members[member].step_clock(seconds);
        moved.unwrap_or_else(|why| panic!("the clock cannot be moved: {why}"));
    }

    /// Kills a member with -9 and starts it again with the same ports and files.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self, member: usize) {
        self.members[member].restart().unwrap_or_else(|why| panic!("no restart: {why}"));
    }

    /// Waits until every member answers that it is healthy.
    ///
    /// # Panics
    /// When that takes longer than half a minute.
    pub fn wait_until_healthy(&self) {
        eventually("all members are healthy", || self.members.iter().all(Member::is_healthy));
    }

    /// A number that a member tells about itself, by its name among the metrics; with labels as
    /// they stand there. Zero if it is not told.
    #[must_use]
    pub fn metric(&self, member: usize, name: &str) -> f64 {
        self.members[member].metric(name)
    }

    /// Runs `etcdctl` against all members, as root if there are users, and says what it printed.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn ctl(&self, words: &[&str]) -> Result<String, String> {
        self.ctl_with(words, "")
    }

    /// The same, with something to read.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn ctl_with(&self, words: &[&str], input: &str) -> Result<String, String> {
        let hosts: Vec<_> =
            self.members.iter().map(|one| format!("{}:{}", self.host(), one.port())).collect();
        let mut command = Command::new(etcd_tool("etcdctl", "etcd-client")?);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &hosts.join(",")]);
        if let Some(certificates) = &self.certificates {
            command.arg("--cacert").arg(certificates.ca());
            command.arg("--cert").arg(certificates.client_cert());
            command.arg("--key").arg(certificates.client_key());
        }
        if let Some(password) = &self.root_password {
            command.args(["--user", &format!("root:{password}")]);
        }
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error| format!("etcdctl: {error}");
        let mut child = command.spawn().map_err(failed)?;
        // Whether it reads what it is given is its own affair.
        let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let done = output_within(child, LIMIT).map_err(failed)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    /// Writes what the cluster holds now into a file, as a backup.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn snapshot(&self) -> PathBuf {
        let file = self.dir.join(format!("snapshot-{}.db", self.members[0].port()));
        // The command takes one endpoint alone.
        let endpoint = format!("{}:{}", self.host(), self.members[0].port());
        let mut command = Command::new(etcd_tool("etcdctl", "etcd-client").unwrap());
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "snapshot", "save"]);
        let done = command.arg(&file).output().expect("etcdctl runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        file
    }

    /// Replaces what a cluster of one member holds by a backup, as an operator would: a new cluster
    /// on the same port, with an older revision.
    ///
    /// # Panics
    /// When that fails, or there are more members.
    pub fn restore(&self, snapshot: &Path) {
        assert_eq!(self.members.len(), 1, "the members of a larger cluster are restored together");
        // Another cluster, so that no member mistakes it for the old one.
        let token = format!("restored-{}", ports::free());
        let restored = self.members[0].restore(snapshot, Some(&token));
        restored.unwrap_or_else(|why| panic!("no restore: {why}"));
    }

    /// The same without a new token, as it is easily done by hand: the cluster keeps its id.
    ///
    /// # Panics
    /// When that fails, or there are more members.
    pub fn restore_with_same_id(&self, snapshot: &Path) {
        assert_eq!(self.members.len(), 1, "the members of a larger cluster are restored together");
        let restored = self.members[0].restore(snapshot, None);
        restored.unwrap_or_else(|why| panic!("no restore: {why}"));
    }

    fn host(&self) -> &'static str {
        if self.certificates.is_some() { "https://localhost" } else { "http://127.0.0.1" }
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Etcd");
        it.field("url", &self.url()).field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &self.members {
            member.kill();
        }
        remove(&self.dir);
    }
}

/// A cluster about to be started.
#[derive(Debug, Clone)]
pub struct Builder {
    members: usize,
    tls: bool,
    root_password: Option<String>,
    arguments: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { members: 1, tls: false, root_password: None, arguments: Vec::new() }
    }
}

impl Builder {
    /// With so many members.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Clients speak TLS and show a certificate, or are refused.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// With users: only who logs in is heard, and `root` has this password.
    #[must_use]
    pub fn root_password(mut self, password: &str) -> Self {
        self.root_password = Some(password.to_owned());
        self
    }

    /// With one more argument for every member.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Starts it, and waits until it is healthy.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn start(&self) -> Etcd {
        self.try_start().unwrap_or_else(|why| panic!("{why}"))
    }

    /// Starts it, and waits until it is healthy.
    ///
    /// # Errors
    /// Why it cannot be started, and what to do.
    pub fn try_start(&self) -> Result<Etcd, String> {
        let dir = directory("etcd")?;
        let certificates = if self.tls { Some(Certificates::make(&dir)?) } else { None };
        let plans = Plan::cluster(&dir, self.members, certificates.as_ref(), &self.arguments);
        let members = plans.into_iter().map(Member::start).collect::<Result<Vec<_>, _>>();
        let mut etcd = Etcd { members: members?, certificates, root_password: None, dir };
        let up = || etcd.members.iter().all(Member::is_healthy);
        let ended = || !etcd.members.iter().all(Member::lives);
        if !within(LIMIT, || up() || ended()) || !up() {
            let said: Vec<_> = etcd.members.iter().map(Member::last_words).collect();
            return Err(format!("etcd does not become healthy:\n{}", said.join("\n")));
        }
        if let Some(password) = &self.root_password {
            etcd.ctl(&["user", "add", &format!("root:{password}")])?;
            etcd.ctl(&["user", "grant-role", "root", "root"])?;
            etcd.ctl(&["auth", "enable"])?;
            etcd.root_password = Some(password.clone());
        }
        Ok(etcd)
    }
}

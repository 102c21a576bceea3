//! How a PostgreSQL is to be: its data, its port, its configuration. Knows files, not the process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::certificates::Certificates;
use crate::clock::Clock;
use crate::patience::eventually;
use crate::ports;
use crate::process::{Program, User, directory, open_to, remove, write};

use super::{ADMIN, Postgres};

/// A [`Postgres`] that is about to be started.
#[derive(Clone, Debug, Default)]
#[must_use = "it is `start` that starts a server"]
pub struct Builder {
    lines: Vec<String>,
    durable: bool,
    tls: bool,
    clock: bool,
    origin: Origin,
}

/// What the data of a server begin as.
#[derive(Clone, Debug, Default)]
enum Origin {
    /// An empty cluster.
    #[default]
    Fresh,
    /// An empty cluster, which may be a copy.
    MayCopy,
    /// A copy of the server at this host and port, set to follow it.
    Standby(PathBuf, u16),
}

impl Builder {
    /// A line of the configuration, by name and value: `.set("max_connections", "20")`. Later
    /// lines outdo earlier ones, also those that stand there by default.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} = '{}'", value.replace('\'', "''")));
        self
    }

    /// Syncs what it commits, so that a crash of the host would lose nothing either.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Speaks TLS too, on the same port, with [`Certificates`] made for this server.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Has a clock that can be moved: [`Postgres::step_clock`].
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// May begin as a copy of the empty cluster in the directory that `TENURE_TEST_INITDB` names,
    /// which takes a tenth of the time. Servers that begin so have one identifier.
    pub(super) fn may_copy(mut self) -> Self {
        self.origin = Origin::MayCopy;
        self
    }

    /// Follows another server.
    pub fn standby_of(mut self, other: &Postgres) -> Self {
        self.origin = Origin::Standby(other.dir().to_owned(), other.port());
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn start(self) -> Postgres {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// What is missing, or what the server said before it died.
    pub fn try_start(self) -> Result<Postgres, String> {
        Postgres::from_builder(&self)
    }

    /// Makes the files a server starts from.
    pub(super) fn furnish(&self) -> Result<Place, String> {
        let dir = directory("postgres")?;
        let user = ready::user()?;
        open_to(&dir, user)?;
        let place = Place {
            certificates: self.tls.then(|| Certificates::make(&dir)).transpose()?,
            clock: self.clock.then(|| Clock::new(&dir)).transpose()?,
            port: ports::free(),
            bin: ready::bin()?,
            user,
            dir,
        };
        match &self.origin {
            Origin::Fresh => place.fresh()?,
            Origin::MayCopy => place.fresh_or_copy()?,
            Origin::Standby(host, port) => place.copy_of(host, *port)?,
        }
        for file in std::fs::read_dir(&place.dir).map_err(|error| error.to_string())?.flatten() {
            open_to(&file.path(), user)?;
        }
        let config = place.data().join("postgresql.auto.conf");
        let before = std::fs::read_to_string(&config).unwrap_or_default();
        write(&config, &format!("{before}\n{}", self.config(&place)))?;
        write(&place.data().join("pg_hba.conf"), HBA)?;
        for file in ["postgresql.auto.conf", "pg_hba.conf"] {
            open_to(&place.data().join(file), user)?;
        }
        Ok(place)
    }

    fn config(&self, place: &Place) -> String {
        let dir = place.dir.display();
        let mut lines = vec![
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("port = {}", place.port),
            format!("unix_socket_directories = '{dir}'"),
            "max_connections = 500".to_owned(),
            "shared_buffers = 32MB".to_owned(),
            "log_min_messages = warning".to_owned(),
            "max_wal_size = 256MB".to_owned(),
            "wal_level = replica".to_owned(),
            "wal_receiver_timeout = 5s".to_owned(),
            // Nothing of a test waits for a statistics collector or a log rotation.
            "logging_collector = off".to_owned(),
            // Shared memory as files among its own: elsewhere it would outlive a killed server.
            "dynamic_shared_memory_type = mmap".to_owned(),
        ];
        if !self.durable {
            lines.extend(["fsync = off".to_owned(), "full_page_writes = off".to_owned()]);
        }
        if let Some(made) = &place.certificates {
            lines.push("ssl = on".to_owned());
            lines.push(format!("ssl_cert_file = '{}'", made.server_cert().display()));
            lines.push(format!("ssl_key_file = '{}'", made.server_key().display()));
            lines.push(format!("ssl_ca_file = '{}'", made.ca().display()));
        }
        lines.extend(self.lines.iter().cloned());
        lines.join("\n") + "\n"
    }
}

/// Everybody on this host is let in without a password, except those whose role has one: they are
/// in `pw` and must say it.
const HBA: &str = "\
local all postgres trust
host all +pw 127.0.0.1/32 scram-sha-256
local all all trust
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
local replication all trust
";

/// Where a server lives.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) port: u16,
    pub(super) certificates: Option<Certificates>,
    pub(super) clock: Option<Clock>,
    bin: PathBuf,
    user: Option<User>,
}

impl Place {
    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// A program of PostgreSQL's own, where it is.
    pub(super) fn tool(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.bin.join(name);
        if path.is_file() { Ok(path) } else { Err(ready::missing(&path)) }
    }

    /// The same, to be run as the server's user.
    pub(super) fn program(&self, name: &str) -> Result<Program, String> {
        Program::at(&self.tool(name)?, self.user)
    }

    /// An empty cluster.
    fn fresh(&self) -> Result<(), String> {
        let mut program = self.program("initdb")?;
        program.command.args(["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C"]);
        program.command.args(["--no-sync", "--no-instructions", "-D"]).arg(self.data());
        run(program.command)
    }

    /// The same; a copy if there is one to copy.
    fn fresh_or_copy(&self) -> Result<(), String> {
        let Some(kept) = std::env::var_os("TENURE_TEST_INITDB").map(PathBuf::from) else {
            return self.fresh();
        };
        if kept.is_dir() {
            return copy(&kept, &self.data());
        }
        self.fresh()?;
        // Beside it first: another process may do the same, and the first to rename it wins.
        let beside = kept.with_extension(std::process::id().to_string());
        copy(&self.data(), &beside)?;
        if std::fs::rename(&beside, &kept).is_err() {
            remove(&beside);
        }
        Ok(())
    }

    /// A copy of a server that runs, set to follow it.
    fn copy_of(&self, host: &Path, port: u16) -> Result<(), String> {
        let mut program = self.program("pg_basebackup")?;
        program.command.arg("-h").arg(host).args(["-p", &port.to_string(), "-U", ADMIN]);
        program.command.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"]);
        program.command.arg(self.data());
        run(program.command)
    }

    /// Waits until no process has the data any more: those of a killed server notice a little
    /// later.
    pub(super) fn wait_until_empty(&self) {
        let data = self.data();
        eventually("the processes of a killed server are gone", || {
            let Ok(all) = std::fs::read_dir("/proc") else { return true };
            let here = |entry: std::fs::DirEntry| {
                std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data)
            };
            !all.flatten().any(here)
        });
    }

    /// Gives back what a killed server leaves behind outside its directory: a little System V
    /// memory, by which others would have seen that it runs.
    fn forget_memory(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid"));
        let file = file.unwrap_or_default();
        let Some(id) = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) else {
            return;
        };
        let mut command = Command::new("ipcrm");
        // It may be gone already.
        let _ = command.args(["-m", id]).stdin(Stdio::null()).output();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.wait_until_empty();
        self.forget_memory();
        remove(&self.dir);
    }
}

/// Copies a directory with the owners and rights of its files.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    run(command)
}

fn run(mut command: Command) -> Result<(), String> {
    command.stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// What must be there before a server can be made.
pub(super) mod ready {
    use super::{ADMIN, Path, PathBuf, User};

    /// Where Debian keeps the programs: the newest version that is installed.
    pub(in super::super) fn bin() -> Result<PathBuf, String> {
        let root = Path::new("/usr/lib/postgresql");
        let versions = std::fs::read_dir(root).map_err(|_| missing(root))?;
        let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
        let newest = versions.flatten().map(|entry| entry.path()).filter_map(|path| {
            let found = path.join("bin/postgres").is_file();
            number(&path).filter(|_| found).map(|number| (number, path.join("bin")))
        });
        newest.max().map(|(_, path)| path).ok_or_else(|| missing(root))
    }

    pub(in super::super) fn missing(path: &Path) -> String {
        let path = path.display();
        format!("{path} is missing; on Debian it comes with `apt-get install postgresql`")
    }

    /// Whom servers run as: PostgreSQL does not run as root.
    pub(in super::super) fn user() -> Result<Option<User>, String> {
        if rustix::process::geteuid().is_root() { User::named(ADMIN).map(Some) } else { Ok(None) }
    }

    /// The end of what was said.
    pub(in super::super) fn last_words(log: &Path) -> String {
        let said = std::fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

//! How a Redis is to be: its port, its files, its users. Knows the configuration, not the process.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::certificates::Certificates;
use crate::clock::Clock;
use crate::ports;
use crate::process::{directory, remove, write};

use super::Redis;

/// How often the append-only file is brought to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before every answer.
    Always,
    /// Once a second.
    EverySecond,
    /// When the system likes to.
    No,
}

/// A [`Redis`] that is about to be started.
#[derive(Clone, Default)]
#[must_use = "it is `start` that starts a server"]
pub struct Builder {
    lines: Vec<String>,
    users: Vec<String>,
    port: Option<u16>,
    tls: bool,
    clock: bool,
    pub(super) is_replica: bool,
}

impl Builder {
    /// A line of the configuration, by name and value: `.arg("--maxmemory", "2mb")`. The two
    /// dashes may be left out. Later lines outdo earlier ones, also those that stand there by
    /// default.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        let value = if value.is_empty() { "\"\"" } else { value };
        self.lines.push(format!("{} {value}", name.trim_start_matches('-')));
        self
    }

    /// Keeps an append-only file, which [`Redis::restart`] reads again.
    pub fn append_only(self, fsync: Fsync) -> Self {
        let fsync = match fsync {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
            Fsync::No => "no",
        };
        self.arg("appendonly", "yes").arg("appendfsync", fsync)
    }

    /// A user, as a line of an ACL file: `user tenure on >pw ~tenure:* &tenure:* +@all`.
    pub fn acl_line(mut self, line: &str) -> Self {
        self.users.push(line.to_owned());
        self
    }

    /// Asks everybody for a password, as `requirepass` does.
    ///
    /// # Panics
    /// When the password is empty or has white space in it, which an ACL file cannot say.
    pub fn password(self, password: &str) -> Self {
        let says = !password.is_empty() && !password.contains(char::is_whitespace);
        assert!(says, "a password for a test server needs characters, and no white space");
        self.acl_line(&format!("user default on >{password} ~* &* +@all"))
    }

    /// Listens for TLS too, on a port of its own, with [`Certificates`] made for this server.
    /// Clients may show a certificate; `.arg("tls-auth-clients", "yes")` makes them.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Follows another server. `start` returns when the first copy has arrived.
    pub fn replica_of(mut self, other: &Redis) -> Self {
        self.is_replica = true;
        self.arg("replicaof", &format!("127.0.0.1 {}", other.port()))
    }

    /// Has a clock that can be moved: [`Redis::step_clock`].
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Listens on this port, for instance that of a server whose place it takes.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn start(self) -> Redis {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// What is missing, or what the server said before it died.
    pub fn try_start(self) -> Result<Redis, String> {
        Redis::from_builder(&self)
    }

    /// Writes the files a server starts from.
    pub(super) fn furnish(&self) -> Result<Place, String> {
        let dir = directory("redis")?;
        let place = Place {
            certificates: self.tls.then(|| Certificates::make(&dir)).transpose()?,
            clock: self.clock.then(|| Clock::new(&dir)).transpose()?,
            port: self.port.unwrap_or_else(ports::free),
            has_fixed_port: self.port.is_some(),
            tls_port: if self.tls { ports::free() } else { 0 },
            secrets: self.secrets(),
            dir,
        };
        write(&place.dir.join("users.acl"), &self.users())?;
        write(&place.config(), &self.config(&place))?;
        Ok(place)
    }

    fn config(&self, place: &Place) -> String {
        let dir = place.dir.display();
        let mut text = format!(
            "bind 127.0.0.1\nport {}\nunixsocket {}\nunixsocketperm 700\n",
            place.port,
            place.socket().display()
        );
        let _ = write!(text, "dir {dir}\ndaemonize no\nsave \"\"\nappendonly no\n");
        let _ = writeln!(text, "aclfile {dir}/users.acl");
        // Every server can follow every other one. A copy is sent at once: waiting five seconds
        // for more replicas, as is the default, helps nobody here.
        let _ = write!(text, "masteruser {ADMIN}\nmasterauth {}\n", admin_password());
        text.push_str("repl-diskless-sync-delay 0\n");
        if let Some(made) = &place.certificates {
            let _ = write!(
                text,
                "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
                 tls-auth-clients optional\n",
                place.tls_port,
                made.server_cert().display(),
                made.server_key().display(),
                made.ca().display()
            );
        }
        if self.clock {
            // Its thread sleeps until a time of day: when the clock is put back, it never sleeps.
            text.push_str("jemalloc-bg-thread no\n");
        }
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// The users: those asked for, and one of ours, who can do everything whatever a test forbids
    /// the others.
    fn users(&self) -> String {
        let mut text = format!("user {ADMIN} on >{} ~* &* +@all\n", admin_password());
        if !self.users.iter().any(|line| line.split_whitespace().nth(1) == Some("default")) {
            text.push_str("user default on nopass ~* &* +@all\n");
        }
        for line in &self.users {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn secrets(&self) -> Vec<String> {
        let words = self.users.iter().flat_map(|line| line.split_whitespace());
        let mut secrets: Vec<_> =
            words.filter_map(|word| word.strip_prefix('>')).map(ToOwned::to_owned).collect();
        for line in &self.lines {
            if let Some(("requirepass" | "masterauth", secret)) = line.split_once(' ') {
                secrets.push(secret.to_owned());
            }
        }
        secrets.push(admin_password().to_owned());
        // The longest first: one may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.retain(|secret| !secret.is_empty());
        secrets
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Lines and users may hold passwords.
        let mut it = f.debug_struct("Builder");
        it.field("port", &self.port).field("tls", &self.tls).field("clock", &self.clock);
        it.field("is_replica", &self.is_replica).finish_non_exhaustive()
    }
}

/// Where a server lives: what is the same before and after a restart.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) port: u16,
    pub(super) has_fixed_port: bool,
    pub(super) tls_port: u16,
    pub(super) certificates: Option<Certificates>,
    pub(super) clock: Option<Clock>,
    secrets: Vec<String>,
}

impl Place {
    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("redis.conf")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The last lines the server said, without passwords.
    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let mut said = String::from_utf8_lossy(&log).into_owned();
        for secret in &self.secrets {
            said = said.replace(secret, "***");
        }
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// The user of this crate's own commands, and of replicas at their masters.
pub(crate) const ADMIN: &str = "harness";

/// The password of [`ADMIN`], the same for all servers of this process, so that one can be made
/// the replica of another at any time. It is left to chance, because loopback is open to every
/// user of the machine.
pub(crate) fn admin_password() -> &'static str {
    static PASSWORD: OnceLock<String> = OnceLock::new();
    PASSWORD.get_or_init(|| {
        let mut chance = [0; 16];
        let read = std::fs::File::open(Path::new("/dev/urandom"))
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut chance));
        read.unwrap_or_else(|error| panic!("/dev/urandom cannot be read: {error}"));
        chance.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    })
}

#[cfg(test)]
mod tests {
    use super::{ADMIN, Builder, admin_password};

    #[test]
    fn later_lines_outdo_the_defaults() {
        let builder = Builder::default().arg("--save", "").arg("appendonly", "yes");
        let place = builder.furnish().unwrap();
        let config = std::fs::read_to_string(place.config()).unwrap();
        let lines: Vec<_> = config.lines().collect();
        let last = |name: &str| lines.iter().rposition(|line| line.starts_with(name));
        assert_eq!(lines[last("save").unwrap()], "save \"\"");
        assert_eq!(lines[last("appendonly").unwrap()], "appendonly yes");
        let dir = place.dir.clone();
        drop(place);
        assert!(!dir.exists());
    }

    #[test]
    fn the_default_user_is_open_unless_somebody_says_otherwise() {
        let open = Builder::default().acl_line("user a on >b ~* +@all").users();
        assert!(open.contains("user default on nopass"), "{open}");
        let closed = Builder::default().password("secret").users();
        assert!(!closed.contains("nopass"), "{closed}");
        assert!(closed.starts_with(&format!("user {ADMIN} on >")), "{closed}");
    }

    #[test]
    fn passwords_are_in_no_debug_text_and_in_no_last_words() {
        let builder = Builder::default().password("hunter2").acl_line("user a on >hunter22");
        let builder = builder.arg("--requirepass", "abc123");
        assert!(!format!("{builder:?}").contains("hunter"));
        let place = builder.furnish().unwrap();
        let said = format!("bad: >hunter22 >hunter2 abc123 {}\n", admin_password());
        std::fs::write(place.log(), said).unwrap();
        assert_eq!(place.last_words(), "bad: >*** >*** *** ***");
    }

    #[test]
    #[should_panic(expected = "no white space")]
    fn a_password_that_an_acl_file_cannot_say_is_refused() {
        let _ = Builder::default().password("two words");
    }
}

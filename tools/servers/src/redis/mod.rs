//! A Redis of one's own: started, asked, stopped, killed. Knows the process, not how it is
//! configured.

mod builder;

pub use builder::{Builder, Fsync};

use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::clock::Direction;
use crate::patience::{LIMIT, eventually, repeated, within};
use crate::process::{Process, Program, locked};
use crate::resp::{Client, Reply};

use builder::Place;
pub(crate) use builder::{ADMIN, admin_password};

/// A `redis-server` on a free loopback port and on a Unix socket, in a directory of its own,
/// without persistence unless asked for.
///
/// Dropping it kills the server and removes the directory. So does the end of the process, also
/// by `kill -9`.
pub struct Redis {
    process: Mutex<Process>,
    place: Place,
}

impl Redis {
    /// Starts a plain server.
    ///
    /// # Panics
    /// When it cannot be started; the message says why and what to do.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server that is to be different.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// One plain server for the whole process, started when first asked for. Those who share it
    /// keep to names of their own and do it no harm.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// `redis://127.0.0.1:PORT`, without a user.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The same with a user and a password; the user may be empty. Both must be fit for a URL.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port())
    }

    /// `unix:///path/to/socket`.
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.place.socket().display())
    }

    /// `rediss://localhost:PORT`.
    ///
    /// # Panics
    /// When the server was not started with [`Builder::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
    }

    /// The port without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.place.port
    }

    /// The port with TLS.
    ///
    /// # Panics
    /// When the server was not started with [`Builder::tls`].
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        assert!(self.place.tls_port != 0, "this server has no TLS; start it with `.tls()`");
        self.place.tls_port
    }

    /// The authority and the certificates of this server and of a client.
    ///
    /// # Panics
    /// When the server was not started with [`Builder::tls`].
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        let made = self.place.certificates.as_ref();
        made.expect("this server has no TLS; start it with `.tls()`")
    }

    /// Where its files are: configuration, log, append-only file, socket.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// The process as it is now; another one after a restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        locked(&self.process).pid()
    }

    /// Kills it with -9 and waits until it is gone. [`restart`](Self::restart) brings it back.
    pub fn kill(&self) {
        locked(&self.process).kill();
    }

    /// Stops it in its tracks. It answers nothing, but its connections stand.
    pub fn stop(&self) {
        locked(&self.process).signal(Signal::STOP);
    }

    /// Lets it go on after [`stop`](Self::stop).
    pub fn cont(&self) {
        locked(&self.process).signal(Signal::CONT);
    }

    /// Kills it with -9 and starts it again with the same ports and files. What it kept, it has.
    ///
    /// This is the crash of a process, not of a host: what was written is not lost, synced or not.
    /// For a loss of power, put a copy of the append-only directory back before the restart.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self) {
        let mut process = locked(&self.process);
        process.kill();
        // The port is ours by custom only: somebody may be on it for a moment.
        let mut outcome = Err(Trouble::PortTaken(String::new()));
        within(LIMIT, || {
            outcome = launch(&self.place);
            !matches!(outcome, Err(Trouble::PortTaken(_)))
        });
        match outcome {
            Ok(started) => *process = started,
            Err(Trouble::PortTaken(why) | Trouble::Other(why)) => panic!("no restart: {why}"),
        }
    }

    /// Asks it to end without saving anything, and waits until it has.
    ///
    /// # Panics
    /// When it stays.
    pub fn shutdown_nosave(&self) {
        // The answer to this is the end of the connection.
        let answer = self.cmd(&["SHUTDOWN", "NOSAVE", "NOW", "FORCE"]);
        let ended = locked(&self.process).ends_within(LIMIT);
        assert!(ended, "SHUTDOWN NOSAVE did not end the server; it said {answer:?}");
    }

    /// Has the server answer one command, on a connection of its own over the Unix socket, as a
    /// user who may do everything. Works behind every proxy's back.
    ///
    /// # Errors
    /// When the server is not there, or does not answer within 20 s. A refusal is an answer.
    pub fn cmd<W: AsRef<[u8]>>(&self, words: &[W]) -> Result<Reply, String> {
        admin(&self.place)?.cmd(words)
    }

    /// Sends a command that only reads, again while the connection breaks: sentinels and
    /// administrators cut a server's connections whenever its role changes.
    ///
    /// # Panics
    /// When the server is gone or does not answer, and when it refuses.
    #[must_use]
    pub fn read<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let reply = repeated(|| self.cmd(words), || locked(&self.process).lives());
        let shown = || words.iter().map(|word| String::from_utf8_lossy(word.as_ref()));
        let text = || shown().collect::<Vec<_>>().join(" ");
        let reply = reply.unwrap_or_else(|error| panic!("{}: {error}", text()));
        assert!(reply.error().is_none(), "{}: {reply:?}", text());
        reply
    }

    /// A connection over TCP, as the user `default`.
    ///
    /// # Errors
    /// When the server is not there.
    pub fn connect(&self) -> Result<Client, String> {
        Client::connect(("127.0.0.1", self.port()))
    }

    /// One field of one section of `INFO`; none if the server does not know it.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let answer = self.read(&["INFO", section]);
        let text = answer.text().unwrap_or_else(|| panic!("INFO: {answer:?}"));
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned())
    }

    /// How often a command was called since the start or since `CONFIG RESETSTAT`, in lower case:
    /// `evalsha`, `script|load`. Calls from inside scripts count too, under their own names.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn commands(&self, name: &str) -> u64 {
        self.statistic(name, "calls")
    }

    /// How many microseconds of the server a command has cost altogether, likewise.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn command_micros(&self, name: &str) -> u64 {
        self.statistic(name, "usec")
    }

    /// Steps the wall clock of the server; the step outlives a restart.
    ///
    /// # Panics
    /// When the server was not started with [`Builder::clock`].
    pub fn step_clock(&self, by: Duration, direction: Direction) {
        let clock = self.place.clock.as_ref();
        clock
            .expect("this server has no clock of its own; start it with `.clock()`")
            .step(by, direction);
    }

    /// Lets the wall clock of the server run so many percent faster, or slower, until `over` is
    /// set. A thread of the caller's has to do this.
    ///
    /// # Panics
    /// When the server was not started with [`Builder::clock`].
    pub fn slew_clock(&self, percent: u32, direction: Direction, over: &AtomicBool) {
        let clock = self.place.clock.as_ref();
        clock
            .expect("this server has no clock of its own; start it with `.clock()`")
            .slew(percent, direction, over);
    }

    /// Waits until a replica has all its master has said so far and hears it.
    ///
    /// # Panics
    /// When that takes too long, or this is no replica.
    pub fn wait_until_synced(&self) {
        let role = self.info("replication", "role");
        assert_eq!(role.as_deref(), Some("slave"), "only a replica follows a master");
        eventually("the replica hears its master", || {
            self.info("replication", "master_link_status").as_deref() == Some("up")
        });
    }

    /// Waits until so many replicas follow, as this server sees it: it counts one only once that
    /// one has said how far it is.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_followed(&self, by: usize) {
        eventually("replicas follow", || {
            let online = |at: &usize| {
                let line = self.info("replication", &format!("slave{at}"));
                line.is_some_and(|line| line.contains("state=online"))
            };
            (0..by).filter(online).count() == by
        });
    }

    fn statistic(&self, name: &str, what: &str) -> u64 {
        // A command that was never called is not in the list.
        let Some(line) = self.info("commandstats", &format!("cmdstat_{name}")) else { return 0 };
        let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(key, _)| *key == what).and_then(|(_, value)| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {what} in {line:?}"))
    }

    fn from_builder(builder: &Builder) -> Result<Self, String> {
        let mut last = String::new();
        // The port was free a moment ago; with another moment's bad luck, try another one.
        for _ in 0..10 {
            let place = builder.furnish()?;
            match launch(&place) {
                Ok(process) => {
                    let redis = Self { process: Mutex::new(process), place };
                    if builder.is_replica {
                        redis.wait_until_synced();
                    }
                    return Ok(redis);
                }
                Err(Trouble::PortTaken(why)) if !place.has_fixed_port => last = why,
                Err(Trouble::PortTaken(why) | Trouble::Other(why)) => return Err(why),
            }
        }
        Err(last)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Redis");
        it.field("url", &self.url()).field("dir", &self.dir()).finish_non_exhaustive()
    }
}

/// Why a server did not start.
enum Trouble {
    PortTaken(String),
    Other(String),
}

/// Starts the process and waits until it answers.
fn launch(place: &Place) -> Result<Process, Trouble> {
    let mut program = Program::find("redis-server", "redis-server").map_err(Trouble::Other)?;
    program.command.arg(place.config()).current_dir(&place.dir);
    if let Some(clock) = &place.clock {
        clock.put_on(&mut program.command);
    }
    // What an earlier process said would be taken for the words of this one, and its socket for a
    // server that is there.
    let _ = std::fs::remove_file(place.log());
    let _ = std::fs::remove_file(place.socket());
    let process = Process::start(program, &place.log()).map_err(Trouble::Other)?;
    let mut answer = String::new();
    let ready = within(LIMIT, || match ping(place) {
        Ok(()) => true,
        Err(why) => {
            answer = why;
            !process.lives()
        }
    });
    if ready && process.lives() {
        return Ok(process);
    }
    let said = place.last_words();
    let what = if process.lives() { "does not answer" } else { "died at its start" };
    let why = format!("redis-server on port {} {what}: {answer}\n{said}", place.port);
    Err(if said.contains("Address already in use") {
        Trouble::PortTaken(why)
    } else {
        Trouble::Other(why)
    })
}

/// Asks over the Unix socket, which is in our own directory: on the port a stranger might answer.
/// The server opens it after its ports, so its answer says that they are open too.
fn ping(place: &Place) -> Result<(), String> {
    let answer = admin(place)?.cmd(&["PING"])?;
    match answer.error() {
        // It is there and reads its files; the data is not there yet.
        Some(error) if error.starts_with("LOADING") => Err(error.to_owned()),
        _ => Ok(()),
    }
}

fn admin(place: &Place) -> Result<Client, String> {
    let mut client = Client::connect_unix(&place.socket())?;
    match client.cmd(&["AUTH", ADMIN, admin_password()])? {
        Reply::Error(error) => Err(format!("the user {ADMIN} is refused: {error}")),
        _ => Ok(client),
    }
}

//! A PostgreSQL of one's own: started, asked, stopped, killed. Knows the process, not who talks to
//! it; a pooler before it is next door.

mod bouncer;
mod builder;

pub use bouncer::PgBouncer;
pub use builder::Builder;

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::certificates::Certificates;
use crate::children::output_within;
use crate::clock::Direction;
use crate::patience::{LIMIT, eventually, within};
use crate::process::{Process, Program, locked};

use builder::{Place, ready};

/// The user who may do everything.
pub(crate) const ADMIN: &str = "postgres";

/// A `postgres` on a free loopback port and on a Unix socket, in a directory of its own. It syncs
/// nothing to disk unless asked to.
///
/// Dropping it kills the server and removes the directory. So does the end of the process, also
/// by `kill -9`.
pub struct Postgres {
    process: Mutex<Process>,
    place: Place,
}

impl Postgres {
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
    /// keep to schemas and namespaces of their own and do it no harm.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().may_copy().start())
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`: whoever comes over loopback is let in.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{ADMIN}@127.0.0.1:{}/postgres", self.port())
    }

    /// The same with a minute to connect, for tests that connect often: on a busy machine a server
    /// may need longer than clients wait by default.
    #[must_use]
    pub fn patient_url(&self) -> String {
        format!("{}?connect_timeout=60", self.url())
    }

    /// The same as another user, with a password. Both must be fit for a URL.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@127.0.0.1:{}/postgres", self.port())
    }

    /// The same over the Unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        let dir = self.place.dir.display().to_string().replace('/', "%2F");
        format!("postgres://{ADMIN}@{dir}:{}/postgres", self.port())
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.place.port
    }

    /// Where its files are: data, configuration, log, socket.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.place.dir
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

    /// The process as it is now; another one after a restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        locked(&self.process).pid()
    }

    /// Kills the first process with -9 and waits until all others have noticed and are gone: the
    /// crash of a server. [`restart`](Self::restart) brings it back.
    pub fn kill(&self) {
        let process = locked(&self.process);
        process.kill();
        self.place.wait_until_empty();
    }

    /// Stops the process that writes what commits have not waited for. Such commits stay in memory
    /// until [`lose_power`](Self::lose_power) forgets them.
    ///
    /// # Panics
    /// When the server does not answer, or has no such process.
    pub fn stop_wal_writer(&self) {
        let text = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
        let pid = self.done(text).trim().parse().ok().and_then(Pid::from_raw);
        let stopped = kill_process(pid.expect("a process that writes the log"), Signal::STOP);
        stopped.expect("the process that writes the log is ours");
    }

    /// Kills every process with -9 at once, before one could write what it has in memory.
    ///
    /// # Panics
    /// When the processes cannot be listed.
    pub fn lose_power(&self) {
        self.stop_all();
        let process = locked(&self.process);
        process.signal_children(Signal::KILL);
        process.kill();
        self.place.wait_until_empty();
    }

    /// Stops the first process in its tracks: nobody new is let in. What is connected goes on.
    pub fn stop(&self) {
        locked(&self.process).signal(Signal::STOP);
    }

    /// Stops every process that serves somebody, too: nothing is answered, but connections stand.
    ///
    /// # Panics
    /// When the processes cannot be listed.
    pub fn stop_all(&self) {
        let process = locked(&self.process);
        process.signal(Signal::STOP);
        process.signal_children(Signal::STOP);
    }

    /// Lets it go on after [`stop`](Self::stop) or [`stop_all`](Self::stop_all).
    pub fn cont(&self) {
        let process = locked(&self.process);
        process.signal_children(Signal::CONT);
        process.signal(Signal::CONT);
    }

    /// Asks it to end at once but in order, and waits until it has.
    ///
    /// # Panics
    /// When it stays.
    pub fn shutdown(&self) {
        let process = locked(&self.process);
        process.signal(Signal::INT);
        assert!(process.ends_within(LIMIT), "a fast shutdown did not end the server");
    }

    /// Starts it again with the same port and files, after it was killed if it still runs.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self) {
        let mut process = locked(&self.process);
        if process.lives() {
            process.kill();
            self.place.wait_until_empty();
        }
        // What a killed server leaves behind would be taken for a server that is there.
        let _ = std::fs::remove_file(self.place.data().join("postmaster.pid"));
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

    /// Has the server answer a statement, over the Unix socket, as a user who may do everything.
    /// Rows are lines, columns are parted by `|`. Works behind every proxy's back.
    ///
    /// # Errors
    /// When the server is not there or refuses.
    pub fn sql(&self, text: &str) -> Result<String, String> {
        psql(&self.place, "postgres", text)
    }

    /// The same, where it must not fail.
    ///
    /// # Panics
    /// When the server is not there or refuses.
    #[track_caller]
    pub fn done(&self, text: &str) -> String {
        self.sql(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Ends all connections from outside but this one, as an administrator does. How many.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn terminate_all(&self) -> usize {
        let text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.done(text).lines().count()
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

    /// Another server that follows this one and can be read from.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn standby(&self) -> Self {
        Self::builder().standby_of(self).start()
    }

    /// Makes a standby the server that takes writes, and waits until it does.
    ///
    /// # Panics
    /// When it does not.
    pub fn promote(&self) {
        self.done("SELECT pg_promote()");
        eventually("the standby is promoted", || {
            self.sql("SELECT pg_is_in_recovery()").is_ok_and(|said| said.trim() == "f")
        });
    }

    /// Waits until a standby has all that the other one has written so far.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_caught_up(&self, with: &Self) {
        let at = with.done("SELECT pg_current_wal_insert_lsn()");
        let text = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", at.trim());
        eventually("the standby has caught up", || {
            self.sql(&text).is_ok_and(|said| said.trim() == "t")
        });
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    fn from_builder(builder: &Builder) -> Result<Self, String> {
        let mut last = String::new();
        // The port was free a moment ago; with another moment's bad luck, try another one.
        for _ in 0..10 {
            let place = builder.furnish()?;
            match launch(&place) {
                Ok(process) => return Ok(Self { process: Mutex::new(process), place }),
                Err(Trouble::PortTaken(why)) => last = why,
                Err(Trouble::Other(why)) => return Err(why),
            }
        }
        Err(last)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // All of it: its children end when they notice, and the directory can only go then.
        let process = locked(&self.process);
        process.signal_children(Signal::CONT);
        process.signal(Signal::CONT);
        process.signal(Signal::QUIT);
        process.ends_within(LIMIT);
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Postgres");
        it.field("url", &self.url()).field("dir", &self.dir()).finish_non_exhaustive()
    }
}

/// Why a server did not start.
pub(super) enum Trouble {
    PortTaken(String),
    Other(String),
}

/// Starts the process and waits until it answers.
fn launch(place: &Place) -> Result<Process, Trouble> {
    let mut program = place.program("postgres").map_err(Trouble::Other)?;
    program.command.arg("-D").arg(place.data()).current_dir(place.data());
    if let Some(clock) = &place.clock {
        clock.put_on(&mut program.command);
    }
    // What an earlier process said would be taken for the words of this one.
    let _ = std::fs::remove_file(place.log());
    let process = Process::start(program, &place.log()).map_err(Trouble::Other)?;
    let mut answer = String::new();
    let up = within(LIMIT, || match psql(place, "postgres", "SELECT 1") {
        Ok(_) => true,
        Err(why) => {
            answer = why;
            !process.lives()
        }
    });
    if up && process.lives() {
        return Ok(process);
    }
    let said = ready::last_words(&place.log());
    let what = if process.lives() { "does not answer" } else { "died at its start" };
    let why = format!("postgres on port {} {what}: {answer}\n{said}", place.port);
    Err(if said.contains("Address already in use") {
        Trouble::PortTaken(why)
    } else {
        Trouble::Other(why)
    })
}

/// Asks over the Unix socket, which is in our own directory: on the port a stranger might answer.
pub(super) fn psql(place: &Place, database: &str, text: &str) -> Result<String, String> {
    let mut command = Command::new(place.tool("psql")?);
    command.arg("-h").arg(&place.dir).args(["-p", &place.port.to_string(), "-U", ADMIN]);
    command.args(["-d", database, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"]);
    command.env("PGCONNECT_TIMEOUT", "10").stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error: std::io::Error| format!("psql: {error}");
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // Who does not read to the end says why below.
        let _ = std::io::Write::write_all(&mut input, text.as_bytes());
    }
    let output = output_within(child, 2 * LIMIT).map_err(failed)?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// A program of another package, run as whoever the servers run as.
pub(super) fn other_program(name: &str, package: &str) -> Result<Program, String> {
    Program::find_as(name, package, ready::user()?)
}

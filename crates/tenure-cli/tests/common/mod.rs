//! What all tests of the command share: the real binary, a store of their own, patience.
#![allow(dead_code, unused_imports, unused_macros, reason = "every file of tests uses its part")]

pub(crate) mod report;
pub(crate) mod terminal;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use servers::{Etcd, Postgres, Redis, output_within, reset_signals_of_children};

/// How long anything may take on a busy machine before it counts as not happening.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes a test of each of these functions on each of these stores, which [`Place`] has by name. A
/// function that is not named would be dead code, and no build lets that pass.
macro_rules! on_stores {
    ([$($(#[$only:meta])* $store:ident),*], $tests:tt) => {
        $(common::on_stores!(@one $(#[$only])* $store, $tests);)*
    };
    (@one $(#[$only:meta])* $store:ident, [$($test:ident),* $(,)?]) => {
        $(#[$only])*
        mod $store {
            $(
                #[test]
                fn $test() {
                    super::$test(&super::Place::$store());
                }
            )*
        }
    };
}
pub(crate) use on_stores;

/// A directory of one test, gone with it. Beside the store's files there is room for others.
pub(crate) struct Place {
    dir: PathBuf,
    url: String,
    redis: Option<Redis>,
    etcd: Option<Etcd>,
    postgres: Option<Postgres>,
}

impl Place {
    /// A store on this host that all processes of the test share.
    pub(crate) fn embedded() -> Self {
        let mut place = Self::memory();
        place.url = format!("embedded://{}", place.dir.join("store").display());
        place
    }

    /// A Redis of its own.
    pub(crate) fn redis() -> Self {
        Self::on(Redis::start())
    }

    /// This Redis, which goes with the place.
    pub(crate) fn on(redis: Redis) -> Self {
        let mut place = Self::memory();
        place.url = redis.url();
        place.redis = Some(redis);
        place
    }

    /// An etcd of its own, with one member.
    pub(crate) fn etcd() -> Self {
        Self::in_cluster(Etcd::start())
    }

    /// This cluster, which goes with the place.
    pub(crate) fn in_cluster(etcd: Etcd) -> Self {
        let mut place = Self::memory();
        place.url = etcd.url();
        place.etcd = Some(etcd);
        place
    }

    /// A PostgreSQL of its own.
    pub(crate) fn postgres() -> Self {
        Self::on_postgres(Postgres::start())
    }

    /// This PostgreSQL, which goes with the place.
    pub(crate) fn on_postgres(postgres: Postgres) -> Self {
        let mut place = Self::memory();
        place.url = postgres.url();
        place.postgres = Some(postgres);
        place
    }

    /// A store that every process has for itself.
    pub(crate) fn memory() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        reset_signals_of_children();
        let dir = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            // Short, because sockets live below it.
            let dir = PathBuf::from(format!("/tmp/tcli-{}-{number}", std::process::id()));
            match std::fs::create_dir(&dir) {
                Ok(()) => break dir,
                // Left behind by an older process of our number, maybe with a store of its format.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be made: {error}", dir.display()),
            }
        };
        Self { dir, url: "memory:".to_owned(), redis: None, etcd: None, postgres: None }
    }

    /// The same place, where the store is reached by another URL.
    pub(crate) fn reached_by(mut self, url: String) -> Self {
        self.url = url;
        self
    }

    /// The server of a place that has one.
    pub(crate) fn server(&self) -> &Redis {
        self.redis.as_ref().expect("a place with a server")
    }

    /// The cluster of a place that has one.
    pub(crate) fn cluster(&self) -> &Etcd {
        self.etcd.as_ref().expect("a place with a cluster")
    }

    /// The database server of a place that has one.
    pub(crate) fn postgres_server(&self) -> &Postgres {
        self.postgres.as_ref().expect("a place with a database server")
    }

    /// Takes the store away from present and later clients.
    pub(crate) fn lose_store(&self) {
        if let Some(redis) = &self.redis {
            redis.kill();
            return;
        }
        if let Some(etcd) = &self.etcd {
            (0..etcd.members()).for_each(|member| etcd.kill(member));
            return;
        }
        if let Some(postgres) = &self.postgres {
            postgres.kill();
            return;
        }
        // If no client has opened it yet, there is nothing to move.
        let _ = std::fs::rename(self.file("store"), self.file("elsewhere"));
        self.write("store", "a file where the directory should be");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// `tenure` with these arguments, on this store, with nothing of the surroundings.
    pub(crate) fn tenure<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        self.furnish(&mut command);
        command
    }

    /// A shell in whose PATH `tenure` is found.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        self.furnish(&mut command);
        command
    }

    pub(crate) fn furnish(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        let bin = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("TENURE_URL", &self.url)
            .env("HOME", &self.dir)
            .env_remove("XDG_CONFIG_HOME")
            .current_dir(&self.dir)
            .stdin(Stdio::null());
    }

    /// Runs to the end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        output(&mut self.tenure(arguments))
    }

    /// The exit code.
    pub(crate) fn code<S: AsRef<OsStr>>(&self, arguments: &[S]) -> i32 {
        self.run(arguments).status.code().expect("tenure exits by itself")
    }

    /// What it printed, when it must have succeeded and said nothing else.
    pub(crate) fn says<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        let output = self.run(arguments);
        assert_eq!(stderr(&output), "");
        assert_eq!(output.status.code(), Some(0));
        stdout(&output)
    }

    /// What it printed, as JSON.
    pub(crate) fn says_json<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Value {
        serde_json::from_str(&self.says(arguments)).expect("JSON")
    }

    /// Starts and does not wait; standard output is a pipe.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Running {
        Running::start(self.tenure(arguments))
    }

    /// Holds a lock in another process until it is dropped.
    pub(crate) fn held(&self, name: &str) -> Running {
        let mut running = self.start(&["run", name, "--", "sh", "-c", "echo held; exec sleep 600"]);
        assert_eq!(running.line(), "held");
        running
    }

    /// How many wait for a lock.
    pub(crate) fn waiting(&self, name: &str) -> usize {
        let output = self.run(&["show", name, "--json"]);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        shown["queue"].as_array().map_or(0, Vec::len)
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn wait_for_line(&self, name: &str, length: usize) {
        eventually("the line", || self.waiting(name) == length);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A process that runs, killed at the end of the test at the latest.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        // Read on a thread of its own, so that a line that never comes is an error, not a hang.
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).all(|sent| sent.is_ok())
        });
        Self { child, lines }
    }

    /// The next line it prints; empty at the end of its output.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line.trim_end().to_owned(),
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("no line within {} s", LIMIT.as_secs()),
        }
    }

    /// The process that holds the lock for it.
    pub(crate) fn guardian(&self) -> Pid {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("a process");
        let first = children.split_whitespace().next().expect("a guardian");
        Pid::from_raw(first.parse().expect("a number")).expect("a process")
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it can be signalled");
    }

    /// Its exit code; it must end by itself.
    pub(crate) fn ends(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code().unwrap_or(-1);
            }
            assert!(began.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end, and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    ended(child.expect("it starts"))
}

/// Waits for the end of a process, and returns what it wrote to its pipes.
pub(crate) fn ended(child: Child) -> Output {
    output_within(child, 4 * LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

/// Waits for the end of a process, and returns its exit code unless a signal ended it.
pub(crate) fn code(child: Child) -> Option<i32> {
    ended(child).status.code()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is alive; a zombie is not.
pub(crate) fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

//! What a test has in its own process: a directory, and other processes it talks to by lines of
//! text. Knows nothing of locks.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::Tenure;
use tenure::contract::Namespace;
use tenure::engine::Terms;
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::time::SystemClock;

/// Set in the processes that a test starts.
pub(crate) const WORKER: &str = "TENURE_TEST_WORKER";

/// How long a test waits for a line before it has failed. Shorter than a third of the lease that
/// processes are told to use: what comes within it was not the lease's doing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(19);

/// A directory for a store, which goes with the test.
pub(crate) struct Host {
    directory: TempDir,
}

/// Another process.
pub(crate) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Where the store is. It has a directory of its own, made by the engine.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("store")
    }

    /// Where a test keeps files of its own.
    pub(crate) fn scratch(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("embedded://{}", self.path().display())
    }

    /// A session of this process.
    pub(crate) fn tenure(&self) -> Tenure {
        tenure::block_on(Tenure::connect(&self.url())).unwrap()
    }

    /// The file set of this boot.
    pub(crate) fn file_set(&self) -> std::path::PathBuf {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        self.path().join(format!("boot-{}", boot.trim()))
    }

    /// Another process with a session on the store, and a lease so long that nothing in a test
    /// can be its doing.
    pub(crate) fn worker(&self) -> Worker {
        self.worker_with("lease=60000")
    }

    pub(crate) fn worker_with(&self, options: &str) -> Worker {
        let mut worker = Worker::start();
        let connect = format!("connect {} {options}", self.path().display());
        worker.ask(&connect, "connected");
        worker
    }

    /// Nothing is held and nothing waits.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        use tenure::contract::{Engine, Page, Query};
        let engine = open(&Location::at(self.path())).unwrap();
        // A look removes the dead first.
        tenure::block_on(engine.inspect(&Query::Page(Page::default()))).unwrap();
        let census = engine.census().unwrap();
        assert_eq!((census.holds, census.tickets), (0, 0), "left behind");
    }
}

/// Opens an engine with the terms of all tests.
pub(crate) fn open(location: &Location) -> Result<EmbeddedEngine, tenure::Error> {
    EmbeddedEngine::open(location, terms())
}

pub(crate) fn terms() -> Terms {
    Terms {
        namespace: Namespace::default(),
        max_lease: Duration::from_secs(60),
        clock: std::sync::Arc::new(SystemClock),
    }
}

impl Worker {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]);
        command.env(WORKER, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        servers::reset_signals_of_children();
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take();
        let output = child.stdout.take().unwrap();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The harness says its own lines.
                if let Some(line) = line.strip_prefix("@ ")
                    && tell.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, orders, lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order without waiting for the answer.
    pub(crate) fn say(&mut self, line: &str) {
        let orders = self.orders.as_mut().expect("the process listens");
        writeln!(orders, "{line}").unwrap();
        orders.flush().unwrap();
    }

    /// The next line must begin with this word; gives the rest of it.
    #[track_caller]
    pub(crate) fn hear(&self, word: &str) -> String {
        self.hear_within(PATIENCE, word)
    }

    /// The same for work that takes its time on a slow machine.
    #[track_caller]
    pub(crate) fn hear_within(&self, patience: Duration, word: &str) -> String {
        match self.lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix(word) {
                Some(rest) => rest.trim().to_owned(),
                None => panic!("process {} should say {word:?}, said {line:?}", self.pid()),
            },
            Err(RecvTimeoutError::Timeout) => {
                panic!("process {} should say {word:?}, said nothing", self.pid())
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("process {} should say {word:?}, and is gone", self.pid())
            }
        }
    }

    /// The lines that were said and not heard yet, of a process that is gone.
    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.iter().collect()
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str, word: &str) -> String {
        self.say(line);
        self.hear(word)
    }

    /// Takes a lock that must be free, and gives its fence.
    #[track_caller]
    pub(crate) fn take(&mut self, name: &str) -> u64 {
        self.ask(&format!("lock {name}"), "held").parse().unwrap()
    }

    /// Asks for a lock that is taken; returns when the process stands in line.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, name: &str) {
        self.ask(&format!("lock {name}"), "queued");
    }

    /// The next line must tell of a lock that is held, perhaps after some of waiting.
    #[track_caller]
    pub(crate) fn hear_held(&self) -> u64 {
        let mut answer = self.hear("");
        while answer == "queued" {
            answer = self.hear("");
        }
        let fence = answer.strip_prefix("held ").unwrap_or_else(|| panic!("{answer}"));
        fence.parse().unwrap()
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        self.until_stopped();
    }

    /// Waits until the process has stopped.
    pub(crate) fn until_stopped(&self) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.raw_pid()), options).unwrap();
        assert!(status.is_some_and(|status| status.stopped()), "it should have stopped");
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// `kill -9`, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes its input: an order to leave.
    pub(crate) fn dismiss(mut self) {
        self.orders = None;
        let left = self.child.wait().unwrap();
        assert!(left.success(), "{left}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.raw_pid(), signal).unwrap();
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Processes that die with ours, and directories that go with it. Knows no kind of server.
//!
//! Two things must hold even if a test process is killed with -9. Its servers die: each is started
//! through `setpriv --pdeathsig`, so the kernel kills it when its parent is gone. Its files go: a
//! janitor, a small shell, waits at the other end of a pipe that only our end keeps open.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::children::reset_signals_of_children;
use crate::patience::within;

/// A child process of ours.
#[derive(Debug)]
pub(crate) struct Process {
    child: Mutex<Child>,
    pid: u32,
    /// Who started it. A forked copy of us has this value too, but not the child.
    parent: u32,
}

impl Process {
    /// Starts a program that dies with this process; what it says goes to a file.
    pub(crate) fn start(mut program: Program, log: &Path) -> Result<Self, String> {
        let name = program.name.display().to_string();
        let failed = |error: io::Error| format!("{name} cannot be started: {error}");
        let output = File::options().create(true).append(true).open(log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        program.command.stdin(Stdio::null()).stdout(output).stderr(errors);
        reset_signals_of_children();
        let child = spawn(program.command).map_err(failed)?;
        let (pid, parent) = (child.id(), std::process::id());
        Ok(Self { child: Mutex::new(child), pid, parent })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs, or is stopped and could run again.
    pub(crate) fn lives(&self) -> bool {
        matches!(locked(&self.child).try_wait(), Ok(None))
    }

    /// Whether it ends by itself within a time.
    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        within(limit, || !self.lives())
    }

    /// Sends a signal, unless the process is gone already: its number may be another's by now.
    pub(crate) fn signal(&self, signal: Signal) {
        let mut child = locked(&self.child);
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
        if self.is_ours() && matches!(child.try_wait(), Ok(None)) {
            let sent = kill_process(pid, signal);
            sent.unwrap_or_else(|error| panic!("{signal:?} to process {}: {error}", self.pid));
        }
    }

    /// Kills it with -9, stopped or not, and waits until it is gone.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        if self.is_ours() {
            // The end of a killed process cannot fail; that it was reaped before is as good.
            let _ = locked(&self.child).wait();
        }
    }

    /// Sends a signal to the processes that it started itself.
    ///
    /// # Panics
    /// When the system does not tell which these are.
    pub(crate) fn signal_children(&self, signal: Signal) {
        if !self.is_ours() || !self.lives() {
            return;
        }
        let path = format!("/proc/{0}/task/{0}/children", self.pid);
        let children =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for child in children.split_whitespace() {
            let Some(pid) = child.parse().ok().and_then(Pid::from_raw) else { continue };
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    fn is_ours(&self) -> bool {
        self.parent == std::process::id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program about to be started.
pub(crate) struct Program {
    name: PathBuf,
    pub(crate) command: Command,
}

impl Program {
    /// Finds a program by name; the Debian package is for the message if it is missing.
    pub(crate) fn find(name: &str, package: &str) -> Result<Self, String> {
        Self::find_as(name, package, None)
    }

    /// The same, to be run as another user.
    pub(crate) fn find_as(name: &str, package: &str, user: Option<User>) -> Result<Self, String> {
        Self::at(&tool(name, package)?, user)
    }

    /// A program where it is known to be.
    pub(crate) fn at(name: &Path, user: Option<User>) -> Result<Self, String> {
        // In a session of its own, as a service is: what is typed at our terminal is not meant for
        // it, and the scheduler, which weighs sessions against each other, does not count it as
        // one more of our threads. (`setsid` forks only if it leads a group, which a child does
        // not.)
        let (setsid, setpriv) = (tool("setsid", "util-linux")?, tool("setpriv", "util-linux")?);
        let mut command = Command::new(setsid);
        command.arg(setpriv);
        if let Some(User { uid, gid }) = user {
            command
                .args([format!("--reuid={uid}"), format!("--regid={gid}")])
                .arg("--clear-groups");
        }
        command.args(["--pdeathsig", "KILL", "--"]).arg(name);
        Ok(Self { name: name.to_owned(), command })
    }
}

/// Somebody else, whom a server runs as that refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user of this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let all = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
        let mut users = all.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let line = users.find(|fields| fields.first() == Some(&name));
        let number = |at: usize| line.as_ref()?.get(at)?.parse().ok();
        match (number(2), number(3)) {
            (Some(uid), Some(gid)) => Ok(Self { uid, gid }),
            _ => Err(format!("there is no user `{name}`; who should the server run as?")),
        }
    }
}

/// Gives a file or directory of ours to a user, and lets that user come to it.
pub(crate) fn open_to(path: &Path, user: Option<User>) -> Result<(), String> {
    let Some(User { uid, gid }) = user else { return Ok(()) };
    let failed = |error: io::Error| format!("{} cannot be given away: {error}", path.display());
    std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed)?;
    // Others may pass through, but see nothing: all that is inside has owners of its own.
    std::fs::set_permissions(home()?, Permissions::from_mode(0o711)).map_err(failed)
}

/// Where a command is.
pub(crate) fn tool(name: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps some servers where only root looks by default.
    find(name, &path).or_else(|| find(name, "/usr/sbin".as_ref())).ok_or_else(|| {
        format!("`{name}` is missing; on Debian it comes with `apt-get install {package}`")
    })
}

fn find(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    let runs = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|folder| folder.join(name)).find(runs)
}

/// A new directory of ours alone. It goes with this process, whatever becomes of it.
pub(crate) fn directory(kind: &str) -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let dir = home()?.join(format!("{kind}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(error) => Err(format!("{} cannot be made: {error}", dir.display())),
    }
}

/// Removes a directory, unless it belongs to the process of which we are a forked copy.
pub(crate) fn remove(dir: &Path) {
    if home().is_ok_and(|home| dir.starts_with(home)) {
        // What cannot be removed now, the janitor process removes (see the head of this file).
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Writes a file that nobody else may read.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("{} cannot be written: {error}", path.display());
    std::fs::write(path, text).map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)
}

/// A mutex whose holder panicked is as good as any: a failed test must not hide behind it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory of this process, and the janitor who removes it.
struct Home {
    dir: PathBuf,
    owner: u32,
    /// Closed by the kernel when we end, in whatever way.
    _pipe: ChildStdin,
}

fn home() -> Result<&'static Path, String> {
    static HOME: OnceLock<Result<Home, String>> = OnceLock::new();
    match HOME.get_or_init(Home::new) {
        Ok(home) if home.owner == std::process::id() => Ok(&home.dir),
        Ok(_) => Err("a forked process has no servers of its own; start them before".to_owned()),
        Err(error) => Err(error.clone()),
    }
}

impl Home {
    fn new() -> Result<Self, String> {
        let dir = Self::make()?;
        // The kernel kills the servers a moment after it closed our pipe, and until then they may
        // write: hence the second look. A PostgreSQL that is killed leaves a piece of memory behind
        // that is in no directory; its number is in this file.
        let clean = "read -r _
            for file in \"$1\"/*/data/postmaster.pid; do
                ipcrm -m \"$(sed -n '7s/.* //p' \"$file\")\"
            done
            rm -rf -- \"$1\"; sleep 0.2; rm -rf -- \"$1\"";
        let mut janitor = Command::new("/bin/sh");
        janitor.args(["-c", clean, "janitor"]).arg(&dir).process_group(0);
        // Whatever a test makes of the path, the janitor finds its broom.
        janitor.env("PATH", "/usr/bin:/bin");
        janitor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |error| format!("/bin/sh cannot be started to clean up: {error}");
        let pipe = janitor.spawn().map_err(failed)?.stdin.take();
        let pipe = pipe.ok_or("the janitor has no pipe")?;
        Ok(Self { dir, owner: std::process::id(), _pipe: pipe })
    }

    /// Below `/tmp` whatever `TMPDIR` says: the path of a Unix socket must be short. Or where
    /// `TENURE_TEST_HOME` says: in memory, stores that sync every write are many times faster.
    fn make() -> Result<PathBuf, String> {
        let below = std::env::var("TENURE_TEST_HOME").unwrap_or_else(|_| "/tmp".to_owned());
        for number in 0..1_000 {
            let dir = PathBuf::from(format!("{below}/servers-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(dir),
                // Left behind by an older process of our number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{} cannot be made: {error}", dir.display())),
            }
        }
        Err("/tmp is full of directories named like ours; remove /tmp/servers-*".to_owned())
    }
}

/// Starts a process from a thread that lives as long as we do: the kernel takes the thread that
/// started a child for its parent, and a test's thread ends long before a shared server should.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        let serve = move || {
            for (mut command, reply) in inbox {
                // Nobody waits for the answer only if the asker's thread is gone.
                let _ = reply.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(serve).expect("a thread");
        orders
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::{Process, Program, directory, find, remove, tool};
    use crate::patience::eventually;
    use rustix::process::Signal;

    #[test]
    fn a_missing_program_is_named_together_with_its_package() {
        let error = tool("no-such-server", "no-such-package").unwrap_err();
        assert!(error.contains("`no-such-server` is missing"), "{error}");
        assert!(error.contains("apt-get install no-such-package"), "{error}");
        assert!(Program::find("no-such-server", "no-such-package").is_err());
    }

    #[test]
    fn only_what_can_be_run_is_a_program() {
        let dir = directory("tool").unwrap();
        std::fs::write(dir.join("text"), "").unwrap();
        std::fs::create_dir(dir.join("folder")).unwrap();
        assert_eq!(find("text", dir.as_os_str()), None);
        assert_eq!(find("folder", dir.as_os_str()), None);
        assert!(find("sh", "/usr/bin:/bin".as_ref()).is_some());
        remove(&dir);
        assert!(!dir.exists());
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it_and_not_its_handle() {
        let dir = directory("child").unwrap();
        let log = dir.join("log");
        let asker = std::thread::spawn(move || {
            let mut program = Program::find("sh", "dash").unwrap();
            program.command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"]);
            Process::start(program, &log).unwrap()
        });
        let child = asker.join().unwrap();
        eventually("the child is ready", || {
            std::fs::read_to_string(dir.join("log")).is_ok_and(|text| text == "ready\n")
        });
        // The child ignores this signal; had it died with the thread, it would not be there.
        child.signal(Signal::TERM);
        assert!(child.lives());
        child.kill();
        assert!(!child.lives());
        remove(&dir);
    }
}

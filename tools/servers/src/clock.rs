//! The clock of a server, moved while it runs. Knows the shim and its two offsets, no server.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::process::{directory, locked, tool};

/// Loaded into the server. libfaketime will not do: redis-server dies of it at start.
const SHIM: &str = include_str!("clockshim.c");

/// Where a clock is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Into the future.
    Forward,
    /// Into the past.
    Back,
}

/// The clocks one server sees: the kernel's, moved by what it was told.
///
/// It moves what programs ask libc for. A program that asks the kernel itself, as those written in
/// Go do, does not notice: for etcd there is [`Etcd::step_clock`](crate::Etcd::step_clock).
#[derive(Debug)]
pub struct Clock {
    file: File,
    path: PathBuf,
    shim: &'static Path,
    /// Nanoseconds added to the wall clock and to the monotonic clocks.
    offsets: Mutex<[i64; 2]>,
}

impl Clock {
    /// A clock that is right, kept in a directory that is there.
    ///
    /// # Errors
    /// When there is no C compiler, or a file cannot be written.
    pub fn new(dir: &Path) -> Result<Self, String> {
        let shim = shim()?;
        let path = dir.join("clock");
        let options = File::options().create(true).truncate(true).write(true).open(&path);
        let file = options.map_err(|error| format!("{}: {error}", path.display()))?;
        let clock = Self { file, path, shim, offsets: Mutex::new([0; 2]) };
        clock.write([0; 2])?;
        Ok(clock)
    }

    /// Makes a command see this clock.
    pub fn put_on(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.shim).env("TENURE_CLOCK_FILE", &self.path);
    }

    /// Steps the wall clock, as an administrator or a time server does.
    ///
    /// # Panics
    /// When the file of offsets cannot be written.
    pub fn step(&self, by: Duration, direction: Direction) {
        self.move_by(0, by, direction);
    }

    /// Steps the clocks that never step: what a suspended host or another host looks like.
    ///
    /// # Panics
    /// When the file of offsets cannot be written.
    pub fn step_monotonic(&self, by: Duration, direction: Direction) {
        self.move_by(1, by, direction);
    }

    /// Lets the wall clock run so many percent faster, or slower, until `over` is set. A thread of
    /// the caller's has to do this.
    ///
    /// # Panics
    /// When the file of offsets cannot be written.
    pub fn slew(&self, percent: u32, direction: Direction, over: &AtomicBool) {
        let mut last = Instant::now();
        while !over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
            let now = Instant::now();
            self.step((now - last) * percent / 100, direction);
            last = now;
        }
    }

    fn move_by(&self, which: usize, by: Duration, direction: Direction) {
        let nanos = i64::try_from(by.as_nanos()).expect("a step of less than 292 years");
        let mut offsets = locked(&self.offsets);
        offsets[which] += if direction == Direction::Forward { nanos } else { -nanos };
        self.write(*offsets).unwrap_or_else(|error| panic!("the clock cannot be moved: {error}"));
    }

    /// One write per number: each is read whole, in the middle of whatever the server does.
    fn write(&self, offsets: [i64; 2]) -> Result<(), String> {
        for (at, offset) in [0, 8].into_iter().zip(offsets) {
            let written = self.file.write_all_at(&offset.to_ne_bytes(), at);
            written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        }
        Ok(())
    }
}

/// Sets a flag when it is dropped, so that a thread that waits for it ends with a test that fails.
#[derive(Debug)]
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The shim, compiled once per process.
fn shim() -> Result<&'static Path, String> {
    static SHIM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    SHIM.get_or_init(compile).as_deref().map_err(Clone::clone)
}

fn compile() -> Result<PathBuf, String> {
    let cc = tool("cc", "gcc libc6-dev")?;
    let dir = directory("clockshim")?;
    // A server that runs as another user must be able to load it.
    let readable = std::fs::set_permissions(&dir, Permissions::from_mode(0o755));
    readable.map_err(|error| format!("{}: {error}", dir.display()))?;
    let (source, shim) = (dir.join("clockshim.c"), dir.join("clockshim.so"));
    std::fs::write(&source, SHIM).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut command = Command::new(cc);
    command.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    let output = command.arg(&shim).arg(&source).output();
    let output = output.map_err(|error| format!("`cc` cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`cc` cannot build the clock shim; is libc6-dev installed? {said}"));
    }
    Ok(shim)
}

#[cfg(test)]
mod tests {
    use super::{Clock, Direction};
    use crate::process::{directory, remove};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

    /// What `date` takes for now, in seconds.
    fn date(clock: &Clock) -> u64 {
        let mut date = Command::new("date");
        clock.put_on(&mut date);
        let output = date.arg("+%s").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_clock_that_is_slewed_runs_ahead_by_its_share_and_never_steps() {
        let dir = directory("clock").unwrap();
        let (clock, over) = (Clock::new(&dir).unwrap(), AtomicBool::new(false));
        let began = Instant::now();
        let took = std::thread::scope(|scope| {
            let slewing = scope.spawn(|| clock.slew(50, Direction::Forward, &over));
            std::thread::sleep(Duration::from_millis(300));
            over.store(true, Ordering::SeqCst);
            slewing.join().unwrap();
            began.elapsed()
        });
        let ahead = Duration::from_nanos(clock.offsets.lock().unwrap()[0].unsigned_abs());
        assert!(ahead >= Duration::from_millis(150) / 2, "{ahead:?}");
        assert!(ahead <= took / 2, "{ahead:?} of {took:?}");
        remove(&dir);
    }

    #[test]
    fn the_wall_clock_is_moved_both_ways_and_the_steps_add_up() {
        let dir = directory("clock").unwrap();
        let clock = Clock::new(&dir).unwrap();
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        // Between two looks at the true time: a busy machine may be slow in between.
        let ahead_by = |seconds: i64| {
            let before = now().checked_add_signed(seconds).unwrap();
            let seen = date(&clock);
            let after = now().checked_add_signed(seconds).unwrap();
            assert!((before..=after).contains(&seen), "{seen} is not in {before}..={after}");
        };
        ahead_by(0);
        clock.step(Duration::from_secs(120), Direction::Forward);
        ahead_by(120);
        clock.step(Duration::from_secs(180), Direction::Back);
        ahead_by(-60);
        clock.step_monotonic(Duration::from_secs(1_000), Direction::Forward);
        ahead_by(-60);
        remove(&dir);
    }
}

//! Files that refuse stale writers, between the processes of one host.
//!
//! Beside `report.csv` stands `report.csv.fence`, which has the largest fence seen and carries an
//! OS lock (`File::lock`) for as long as a write takes. A write, under that lock:
//!
//! 1. compares the fences, and refuses a smaller one;
//! 2. stores the new fence and syncs it;
//! 3. writes the data to `report.csv.fence-new` and syncs it;
//! 4. renames it to `report.csv`, and syncs the directory.
//!
//! The fence comes before the data. So data of a fence is never there without that fence: a writer
//! that is killed between 2 and 4 leaves old data and a fence that refuses every earlier holder,
//! and may write again itself, because its fence is equal. The OS lock ends with its process. A
//! process that is stopped while it has the lock keeps the others out until it goes on, and ends
//! its write first: they time out, and none overtakes it.
//!
//! `report.csv.fence` is never renamed or removed: a lock on a file that has another name by now
//! excludes no one. Its two slots (`slots.rs`) are written in turn, so that one of them is whole.

mod slots;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tenure::{Error, ErrorKind, Fence};

use self::slots::Slots;
use crate::refusal::{Resource, check, valid};

/// How long a write waits for another one.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between two tries for the lock.
const PAUSE: Duration = Duration::from_millis(20);
/// Data is written in pieces of this size.
const PIECE: usize = 1 << 20;

/// A file that refuses a smaller fence than has written it.
///
/// Every write replaces the whole file, and every reader sees the old or the new data. Calls block:
/// in async code use `spawn_blocking` or its like.
///
/// # Examples
/// ```
/// use tenure::Tenure;
/// use tenure_fence::{Refusal, file::FencedFile};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("report.csv");
/// let tenure = Tenure::blocking_connect("memory:")?;
/// let report = FencedFile::new(path);
///
/// let guard = tenure.mutex("report")?.blocking_lock()?;
/// let late = guard.fence()?;
/// guard.blocking_release()?;
///
/// let guard = tenure.mutex("report")?.blocking_lock()?;
/// report.write("from the second holder", guard.fence()?)?;
///
/// // The first holder wakes up and writes with the fence it had.
/// let error = report.write("from the first holder", late).unwrap_err();
/// assert_eq!(Refusal::in_error(&error).unwrap().given(), late);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedFile {
    path: PathBuf,
    timeout: Duration,
}

impl FencedFile {
    /// The file at this path. Its directory must exist; the file need not. The directory is to be
    /// on a local disk: locks of network file systems are not what this was tested with.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), timeout: TIMEOUT }
    }

    /// How long a call waits for a write of another process, 30 s unless set.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Replaces the file, unless a larger fence has written it. The permissions of the file stay,
    /// its owner becomes that of the process; a symbolic link is followed.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with a [`Refusal`](crate::Refusal) as its cause if a larger fence
    /// has written; [`ErrorKind::TimedOut`] if another write goes on for too long;
    /// [`ErrorKind::Corrupt`] if the file of the fence has none. Nothing is written then.
    /// Otherwise if the disk refuses: the fence may be raised, and the error says whether the file
    /// may be replaced all the same. Repeating it with the same fence does no harm.
    pub fn write(&self, data: impl AsRef<[u8]>, fence: Fence) -> Result<(), Error> {
        valid(fence)?;
        let target = resolve(&self.path).map_err(|error| self.trouble("find", error))?;
        let lock = self.lock(&target)?;
        step();
        let slots = Slots::read(&lock).map_err(|error| self.trouble("read the fence of", error))?;
        let seen = slots.largest().ok_or_else(|| self.corrupt())?;
        check(Resource::File, &self.path.to_string_lossy(), fence, seen)?;
        step();
        let raised = slots.raise(&lock, fence).and_then(|()| {
            // The file of the fence may be new: its name must last as its contents do.
            if seen.is_none() { sync_directory(&target) } else { Ok(()) }
        });
        raised.map_err(|error| self.trouble("raise the fence of", error))?;
        step();
        let new = with_suffix(&target, ".fence-new");
        write_beside(&target, &new, data.as_ref()).map_err(|error| self.trouble("write", error))?;
        step();
        let renamed = fs::rename(&new, &target).and_then(|()| {
            step();
            sync_directory(&target)
        });
        renamed.map_err(|error| self.trouble("replace", error).effect_unknown())?;
        step();
        Ok(())
    }

    /// The largest fence that has written the file.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if a write goes on for too long; [`ErrorKind::Corrupt`] if the file
    /// of the fence has none; otherwise if the disk refuses.
    pub fn fence(&self) -> Result<Option<Fence>, Error> {
        let target = resolve(&self.path).map_err(|error| self.trouble("find", error))?;
        // To look makes no file.
        if !with_suffix(&target, ".fence").exists() {
            return Ok(None);
        }
        let lock = self.lock(&target)?;
        let slots = Slots::read(&lock).map_err(|error| self.trouble("read the fence of", error))?;
        slots.largest().ok_or_else(|| self.corrupt())
    }

    /// Opens the file of the fence and locks it. The lock ends when the file is dropped.
    fn lock(&self, target: &Path) -> Result<File, Error> {
        let path = with_suffix(target, ".fence");
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        loop {
            let file = open_lock(&path).map_err(|error| self.trouble("lock", error))?;
            step();
            match file.try_lock() {
                // If it was removed meanwhile, the lock is on a file that others do not find.
                Ok(()) if is_at(&file, &path) => return Ok(file),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(self.trouble("lock", error)),
            }
            if began.elapsed() >= self.timeout {
                let what =
                    format!("another process has been writing {} for too long", shown(&self.path));
                return Err(Error::new(ErrorKind::TimedOut, what).with_help(
                    "see which process has its .fence file open, and if it is stopped",
                ));
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
    }

    fn trouble(&self, verb: &str, error: io::Error) -> Error {
        let what = format!("could not {verb} {}: {error}", shown(&self.path));
        Error::new(ErrorKind::Unavailable, what).caused_by(error)
    }

    fn corrupt(&self) -> Error {
        let what = format!("the file {} has no fence", shown(&with_suffix(&self.path, ".fence")));
        Error::new(ErrorKind::Corrupt, what)
            .with_help("find out which program writes there; remove it once no holder can be late")
    }
}

/// Where the file is, so that all names of a directory and all symbolic links meet at one lock.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok(fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
        }
        found => found,
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Whether an open file is the one that its name leads to.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let (open, named) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Writes and syncs the data under another name, with the permissions of the file it will replace.
fn write_beside(target: &Path, new: &Path, data: &[u8]) -> io::Result<()> {
    // What a killed writer left. Made anew, so that no link is followed.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => step(),
    }
    let replaced = fs::metadata(target).ok();
    let mode = replaced.as_ref().map_or(0o666, |meta| meta.mode() & 0o777);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(new)?;
    step();
    if let Some(meta) = replaced {
        file.set_permissions(meta.permissions())?;
    }
    for piece in data.chunks(PIECE) {
        file.write_all(piece)?;
        step();
    }
    file.sync_all()
}

/// Makes the names in the directory of a file last.
fn sync_directory(of: &Path) -> io::Result<()> {
    File::open(of.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(OsStr::new("")).to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// A path as a literal, so that one with a line break stays one line.
fn shown(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

/// Stands between two system calls. Tests kill the process here.
#[cfg(not(test))]
fn step() {}
#[cfg(test)]
fn step() {
    tests::kill_if_due();
}

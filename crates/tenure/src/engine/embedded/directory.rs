//! The directory of a store: its layout, and the checks that it may be used at all.
//!
//! ```text
//! ROOT/format             which version of the format
//! ROOT/setup.lock         held while a file set is opened or made
//! ROOT/durable/           the synced environment: cells, and how far fences are reserved
//! ROOT/boot-ID/           one file set per boot: a reboot ends every holder
//!     about               the pid namespace it belongs to
//!     users               a record lock by every process that has it open
//!     guard               the page of the gate (`gate.rs`)
//!     writes              writes of cells on their way to the process that commits (`handover.rs`)
//!     locks/              the lock environment
//!     sessions/           liveness files and sockets
//!     watches/            the ranges of cells that processes watch, and sockets
//! ROOT/damaged-...        what was found damaged, set aside
//! ```
//!
//! Opening and creating file sets is serialized by the lock on `setup.lock`, with a timeout. A file
//! set without a user is one whose file `users` has no record lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::liveness::{self, Liveness};
use crate::contract::{Error, ErrorKind};
use crate::sync::random_bytes;

/// The format this version reads and writes.
pub(super) const FORMAT: u32 = 1;

/// How long to wait for a process that is opening the store: tries, and the pause between two.
const SETUP_TRIES: u32 = 40_000;
const SETUP_STEP: Duration = Duration::from_micros(500);

/// The directory of a store, checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreDirectory(PathBuf);

impl StoreDirectory {
    /// Checks the directory that a URL names, or the user's own if it names none. Creates it if it
    /// does not exist.
    pub(super) fn of(path: Option<&Path>) -> Result<Self, Error> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => default_directory(),
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| cannot("make", &path, error))?;
        let path = path.canonicalize().map_err(|error| cannot("find", &path, error))?;
        check_directory(&path)?;
        check_file_system(&path)?;
        check_clock()?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn durable(&self) -> PathBuf {
        self.0.join("durable")
    }

    pub(super) fn file_set(&self, boot: &str) -> PathBuf {
        self.0.join(format!("boot-{boot}"))
    }

    /// Locks out other processes from opening or creating a file set, until the lock is dropped.
    pub(super) fn lock_setup(&self) -> Result<SetupLock, Error> {
        let path = self.0.join("setup.lock");
        let mut file = private(&path).map_err(|error| cannot("open", &path, error))?;
        let mut tries = 0;
        while let Err(error) = file.try_lock() {
            let fs::TryLockError::WouldBlock = error else {
                return Err(cannot("lock", &path, io::Error::from(error)));
            };
            if tries == SETUP_TRIES {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let what = format!("process {} has been opening the store too long", pid.trim());
                return Err(Error::new(ErrorKind::Unavailable, what)
                    .with_help("let it go on (kill -CONT) or end it"));
            }
            tries += 1;
            std::thread::sleep(SETUP_STEP);
        }
        // Our pid, for the error message of a process that times out.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = write!(file, "{}", std::process::id());
        let setup = SetupLock { lock: file };
        self.check_format()?;
        Ok(setup)
    }

    fn check_format(&self) -> Result<(), Error> {
        let path = self.0.join("format");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Renamed when it is whole: a process that is killed must not leave half of it.
                let draft = self.0.join("format.new");
                let written = private(&draft)
                    .and_then(|mut file| writeln!(file, "{FORMAT}"))
                    .and_then(|()| fs::rename(&draft, &path));
                return written.map_err(|error| cannot("write", &path, error));
            }
            Err(error) => return Err(cannot("read", &path, error)),
        };
        match text.trim().parse::<u32>() {
            Ok(FORMAT) => Ok(()),
            Ok(newer) if newer > FORMAT => {
                let what = format!(
                    "{} has format {newer}; this version of Tenure knows format {FORMAT}",
                    self.0.display()
                );
                Err(Error::new(ErrorKind::Unsupported, what)
                    .with_help("use the newer version of Tenure everywhere on this host"))
            }
            _ => {
                let what = format!("it says {:?}", text.chars().take(16).collect::<String>());
                Err(super::files::set_aside(self, &path, &what))
            }
        }
    }

    /// Removes the file sets of other boots, unless one is in use after all.
    pub(super) fn clear_old(&self, boot: &str, _lock: &SetupLock) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let current = self.file_set(boot);
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let old = name.starts_with("boot-") && entry.path() != current;
            if name.starts_with("new-") || old && !in_use(&entry.path()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Renames something damaged. Returns its new path.
    pub(super) fn set_aside(&self, path: &Path) -> io::Result<PathBuf> {
        let what = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tag = uuid::Uuid::from_bytes(random_bytes()).simple().to_string();
        let aside = self.0.join(format!("damaged-{what}-{}", &tag[..8]));
        fs::rename(path, &aside)?;
        Ok(aside)
    }
}

/// The lock on `setup.lock`: no other process opens the store or creates its files.
#[derive(Debug)]
pub(super) struct SetupLock {
    lock: File,
}

impl Drop for SetupLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked meanwhile has the descriptor too.
        let _ = self.lock.unlock();
    }
}

/// Returns whether any process has this file set open.
pub(super) fn in_use(file_set: &Path) -> bool {
    let users = File::open(file_set.join("users"));
    users.is_ok_and(|file| matches!(liveness::check_file(&file), Ok(Liveness::Alive(_))))
}

/// Opens or creates a file that only this user can read.
pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Creates a directory that only this user can enter.
pub(super) fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns the id of this boot of the machine.
pub(super) fn boot_id() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(|error| cannot("read", path, error))?;
    Ok(id.trim().to_owned())
}

/// Returns the inode of this process's pid namespace.
pub(super) fn pid_namespace() -> Result<u64, Error> {
    let path = Path::new("/proc/self/ns/pid");
    let about = fs::metadata(path).map_err(|error| cannot("read", path, error))?;
    Ok(about.ino())
}

/// Returns the user's own directory. It depends on the user alone, so that cron, a shell and a
/// service find the same store.
fn default_directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    let home = user.ok().flatten().map(|user| user.dir).filter(|home| home.is_dir());
    match home {
        Some(home) => home.join(".local/state/tenure"),
        // A user without a home directory.
        None => PathBuf::from(format!("/var/tmp/tenure-{uid}")),
    }
}

/// Refuses a directory in which another user could change files.
fn check_directory(path: &Path) -> Result<(), Error> {
    let about = fs::metadata(path).map_err(|error| cannot("look at", path, error))?;
    let uid = rustix::process::geteuid().as_raw();
    let what = if !about.is_dir() {
        format!("{} is not a directory", path.display())
    } else if about.uid() != uid {
        format!("{} belongs to user {}, not to {uid}", path.display(), about.uid())
    } else if about.mode() & 0o022 != 0 {
        let mode = about.mode() & 0o777;
        format!("{} can be written by others (mode {mode:03o})", path.display())
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidOption, what)
        .with_help("name a directory of this user's own, closed to others (chmod 700)"))
}

/// File systems over a network, or that may be: locks and shared memory do not hold there.
const REMOTE: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x564c, "NCP"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x4750_4653, "GPFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x1983_0326, "BeeGFS"),
];

fn check_file_system(path: &Path) -> Result<(), Error> {
    let about = rustix::fs::statfs(path).map_err(|error| cannot("look at", path, error.into()))?;
    // The kernel's numbers are 32 bits wide, whatever the type of the field.
    #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "differs by platform")]
    let kind = about.f_type as u64 & 0xffff_ffff;
    match remote(kind) {
        None => Ok(()),
        Some(name) => {
            let what = format!("{} is on {name}, which may be a network", path.display());
            Err(Error::new(ErrorKind::Unsupported, what)
                .with_help("name a directory on a local disk, or use a server for several hosts"))
        }
    }
}

fn remote(kind: u64) -> Option<&'static str> {
    REMOTE.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// Leases count on the boot-time clock, which a time namespace may shift.
fn check_clock() -> Result<(), Error> {
    let Ok(offsets) = fs::read_to_string("/proc/self/timens_offsets") else { return Ok(()) };
    let shifted = offsets.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("boottime") && words.any(|number| number.trim_matches('-') != "0")
    });
    if !shifted {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, "this process is in a time namespace of its own")
        .with_help("use one clock for all users of an embedded store, or a server"))
}

/// Like `cannot`, with a help text for a full disk: `needs` says how much space is missing.
pub(super) fn cannot_without(verb: &str, path: &Path, error: io::Error, needs: &str) -> Error {
    let full = is_full(&error);
    let error = cannot(verb, path, error);
    if full { error.with_help(format!("make room on the disk: {needs}")) } else { error }
}

/// Returns whether there was no space for what was to be written.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Builds the error for an operation that the file system refused.
pub(super) fn cannot(verb: &str, path: &Path, error: io::Error) -> Error {
    let what = format!("cannot {verb} {}: {error}", path.display());
    let next = match error.kind() {
        _ if is_full(&error) => "make room on the disk",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "name a directory this user can write, as in embedded:///var/tmp/tenure-me"
        }
        _ => "check the directory, or name another: embedded:///path",
    };
    Error::new(ErrorKind::Unavailable, what).with_help(next).caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn network_file_systems_are_known() {
        assert_eq!(remote(0x6969), Some("NFS"));
        assert_eq!(remote(0x6573_5546), Some("FUSE"));
        assert_eq!(remote(0xef53), None, "ext4");
        assert_eq!(remote(0x0102_1994), None, "tmpfs");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = StoreDirectory::of(Some(directory.path())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{mode:o}");
            assert!(error.to_string().contains("can be written by others"), "{error}");
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        StoreDirectory::of(Some(directory.path())).unwrap();
    }

    #[test]
    fn the_directory_of_another_user_is_refused() {
        // As root any other owner will do; otherwise root's own directory is another owner's.
        let directory = tempfile::tempdir().unwrap();
        let path = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(12_345), None).unwrap();
            directory.path()
        } else {
            Path::new("/etc")
        };
        let error = StoreDirectory::of(Some(path)).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }

    #[test]
    fn the_own_directory_does_not_depend_on_the_environment() {
        let directory = default_directory();
        assert!(directory.is_absolute());
        let known = directory.ends_with(".local/state/tenure");
        assert!(known || directory.starts_with("/var/tmp"));
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = StoreDirectory::of(Some(directory.path())).unwrap();
        fs::write(directory.path().join("format"), "7\n").unwrap();
        let error = root.lock_setup().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("format 7"), "{error}");
        assert_eq!(fs::read_to_string(directory.path().join("format")).unwrap(), "7\n");
    }
}

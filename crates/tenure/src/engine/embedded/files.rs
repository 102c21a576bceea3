//! Creates, opens and sets aside the files of a store.
//!
//! A file set is created under another name and renamed when it is whole, so a process that is
//! killed meanwhile leaves nothing that looks like one. Damaged files are renamed, never deleted.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use heed::{Env, EnvFlags, EnvOpenOptions, MdbError, WithoutTls};
use rustix::fs::{FallocateFlags, fallocate};

use super::directory::{self, SetupLock, StoreDirectory, cannot, cannot_without};
use super::gate::Gate;
use super::handover::Handover;
use super::store::WAIT;
use super::txn::LmdbTable;
use crate::contract::{Error, ErrorKind};

/// The map of a new store.
pub(super) const FIRST_MAP: usize = 4 << 20;
/// What the disk must have space for: the first map, and a few small files beside it.
const NEW_STORE: &str = "a new store needs 5 MiB";

/// Why a file set could not be opened.
pub(super) enum OpenError {
    /// An error to return.
    Failed(Error),
    /// The files are damaged, unless another process uses them; what was found.
    Damaged(String),
}

impl OpenError {
    pub(super) fn new(error: heed::Error, path: &Path) -> Self {
        if is_damage(&error) {
            return Self::Damaged(format!("{}: {error}", path.display()));
        }
        match error {
            heed::Error::Io(error) => Self::Failed(cannot("open", path, error)),
            error => {
                let what = format!("cannot open {}: {error}", path.display());
                Self::Failed(Error::new(ErrorKind::Unavailable, what).caused_by(error))
            }
        }
    }
}

pub(super) fn is_damage(error: &heed::Error) -> bool {
    use MdbError::{BadTxn, Corrupted, Invalid, PageNotFound, Panic, VersionMismatch};
    let heed::Error::Mdb(error) = error else { return false };
    matches!(error, Corrupted | Invalid | PageNotFound | Panic | VersionMismatch | BadTxn)
}

/// Renames a damaged file set. Returns the error, which says what was found and the new name.
pub(super) fn set_aside(root: &StoreDirectory, damaged: &Path, what: &str) -> Error {
    let place = match root.set_aside(damaged) {
        Ok(aside) => format!("set aside as {}", aside.display()),
        Err(error) => format!("could not be set aside: {error}"),
    };
    Error::new(ErrorKind::Corrupt, format!("{} is damaged ({what}); {place}", damaged.display()))
        .with_help("connect again: a new one is made; locks that were held in it are lost")
}

/// Creates a file set under another name, and renames it when it is whole.
pub(super) fn create(
    root: &StoreDirectory,
    file_set: &Path,
    _lock: &SetupLock,
) -> Result<(), Error> {
    let draft = root.path().join(format!("new-{}", std::process::id()));
    let created = create_in(&draft).and_then(|()| {
        fs::rename(&draft, file_set).map_err(|error| cannot("make", file_set, error))
    });
    if created.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    created
}

fn create_in(draft: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| cannot_without("make", draft, error, NEW_STORE);
    let _ = fs::remove_dir_all(draft);
    directory::private_directory(&draft.join("locks")).map_err(failed)?;
    directory::private_directory(&draft.join("sessions")).map_err(failed)?;
    let namespace = directory::pid_namespace()?;
    directory::private(&draft.join("about"))
        .and_then(|mut file| file.write_all(namespace.to_string().as_bytes()))
        .map_err(failed)?;
    directory::private_directory(&draft.join("watches")).map_err(failed)?;
    directory::private(&draft.join("users")).map_err(failed)?;
    directory::private(&draft.join("writes"))
        .and_then(|file| Handover::open(&file, true))
        .map_err(failed)?;
    let page = directory::private(&draft.join("guard")).map_err(failed)?;
    let gate = Gate::open(&page, true).map_err(failed)?;
    let path = draft.join("locks/data.mdb");
    let data = directory::private(&path).map_err(failed)?;
    fallocate(&data, FallocateFlags::empty(), 0, FIRST_MAP as u64)
        .map_err(|error| failed(error.into()))?;
    // LMDB creates a new environment in an empty file; the allocated blocks prove the space.
    data.set_len(0).map_err(failed)?;
    let (env, _) = open_env(&draft.join("locks"), FIRST_MAP).map_err(|error| {
        let what = format!("cannot make {}: {error}", path.display());
        Error::new(ErrorKind::Unavailable, what)
            .with_help(format!("see whether the disk is full: {NEW_STORE}"))
    })?;
    fallocate(&data, FallocateFlags::empty(), 0, FIRST_MAP as u64)
        .map_err(|error| failed(error.into()))?;
    env.prepare_for_closing().wait();
    gate.counters().map_size.store(FIRST_MAP as u64, Ordering::Release);
    Ok(())
}

#[allow(unsafe_code, reason = "heed cannot see which processes map the file")]
pub(super) fn open_env(path: &Path, map: usize) -> heed::Result<(Env<WithoutTls>, LmdbTable)> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map);
    until_closed(path);
    // SAFETY: not synced, because a reboot ends every holder; the writable map is only written by
    // LMDB, and the directory is closed to other users.
    unsafe { options.flags(EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC) };
    // SAFETY: opened once in this process (see `sessions`), in one pid namespace, on a local file
    // system (see `directory`); nothing but LMDB writes these files.
    let env = unsafe { options.open(path) }?;
    let mut txn = env.write_txn()?;
    let table = env.create_database(&mut txn, None)?;
    txn.commit()?;
    Ok((env, table))
}

/// Waits until this process has closed the environment at this path, if it is closing one.
pub(super) fn until_closed(path: &Path) {
    if let Some(closing) = heed::env_closing_event(path) {
        closing.wait_timeout(WAIT);
    }
}

/// Refuses a file set of another pid namespace: the robust mutex does not work across them.
pub(super) fn check_namespace(file_set: &Path) -> Result<(), Error> {
    let ours = directory::pid_namespace()?;
    let theirs = fs::read_to_string(file_set.join("about"));
    if theirs.is_ok_and(|text| text.trim() == ours.to_string()) {
        return Ok(());
    }
    if !directory::in_use(file_set) {
        // No process uses it: it is created anew for this namespace.
        return fs::remove_dir_all(file_set).map_err(|error| cannot("remove", file_set, error));
    }
    let what = format!("{} is in use in another pid namespace (a container?)", file_set.display());
    Err(Error::new(ErrorKind::Unsupported, what)
        .with_help("name a directory of its own for each container, or use a server between them"))
}

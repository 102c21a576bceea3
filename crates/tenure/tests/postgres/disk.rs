//! Disks that fill up: a small one, mounted where no other process sees it, or files that may not
//! grow. Knows how to make one, fill it and make room; knows no locks.
//!
//! Either is given to a process, so a test starts itself once more and goes on in there.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{getegid, geteuid};
use servers::Postgres;

/// Tells a test that was started once more where it is.
const WHERE: &str = "TENURE_TEST_DISK";

/// A disk of this size has room for a fresh server and its log of writes.
const SIZE: &str = "160m";

/// How large a file may become, in units of 512 bytes: more than a piece of the server's log of
/// writes, which is 16 MiB, and half a page too much, so that the last page is begun. (A page that
/// is not even begun is no full disk for the server, but a file that is too large.)
const BLOCKS: u32 = (17 << 11) + 8;

/// Mounts a small disk on `$1`, which no process outside sees, and goes on as the user that it was:
/// as root of a world of its own a user may mount, but no server runs as root.
const MOUNT: &str = "\
mount -t tmpfs -o size=$2 tmpfs \"$1\" || exit 1
shift 2
exec \"$@\"";

const LIMIT: &str = "ulimit -S -f \"$1\" || exit 1; shift; exec \"$@\"";

/// Where the files of the server are.
#[derive(Debug)]
pub(crate) enum Disk {
    /// On a small disk, mounted here.
    Small(PathBuf),
    /// Where no file may grow beyond a size.
    Limited,
}

impl Disk {
    /// The one that this process was given, if it was.
    pub(crate) fn inside() -> Option<Self> {
        let place = std::env::var(WHERE).ok()?;
        Some(if place.is_empty() { Self::Limited } else { Self::Small(place.into()) })
    }

    /// Until nothing more fits.
    pub(crate) fn fill(&self, server: &Postgres) {
        match self {
            Self::Small(dir) => blow_up(&dir.join("balloon")),
            Self::Limited => {
                let error = server.sql(BLOAT).unwrap_err();
                assert!(error.contains("could not extend file"), "{error}");
            }
        }
    }

    /// So that there is room again.
    pub(crate) fn free(&self, server: &Postgres) {
        match self {
            Self::Small(dir) => std::fs::remove_file(dir.join("balloon")).unwrap(),
            Self::Limited => _ = server.done("VACUUM tenure.claims"),
        }
    }
}

/// Whether this user may have a small disk. In many containers no user may.
pub(crate) fn may_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    on_small(dir.path(), Path::new("true"), &[]).status.success()
}

/// Plays a test of this program on a small disk.
#[track_caller]
pub(crate) fn play_on_small(test: &str) {
    // The path of a Unix socket must be short.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let this = std::env::current_exe().unwrap();
    judge(&on_small(dir.path(), &this, &[test, "--exact", "--nocapture"]));
}

/// Plays a test of this program where no file may grow beyond a size.
#[track_caller]
pub(crate) fn play_limited(test: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", LIMIT, "sh", &BLOCKS.to_string(), "setpriv", "--pdeathsig", "KILL", "--"]);
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    judge(&command.env(WHERE, "").output().unwrap());
}

fn on_small(dir: &Path, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    let root = geteuid().is_root();
    if !root {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT, "sh"]);
    command.arg(dir).arg(SIZE);
    if !root {
        command.args(["unshare", "--user"]);
        command.arg(format!("--map-user={}", geteuid().as_raw()));
        command.arg(format!("--map-group={}", getegid().as_raw()));
    }
    // Not longer than the caller waits for it.
    command.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
    command.env(WHERE, dir).env("TENURE_TEST_HOME", dir).output().unwrap()
}

#[track_caller]
fn judge(output: &Output) {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success(), "it failed there: {}", output.status);
    assert!(out.contains("1 passed"), "there is no test of that name");
}

/// Writes until not one page more fits.
fn blow_up(balloon: &Path) {
    let mut file = File::create(balloon).unwrap();
    let mut piece = vec![0_u8; 1 << 20];
    loop {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() != ErrorKind::StorageFull => panic!("{error}"),
            Err(_) if piece.len() > 4_096 => piece.truncate(4_096),
            Err(_) => return,
        }
    }
}

/// More claims than the file of the table may hold. They are never committed, but where they were
/// there is no room until an operator cleans up.
const BLOAT: &str = "\
INSERT INTO tenure.claims (ns, name, id, held, weight, owner, lineage, arrival, since, expires, \
  lease, delay, host, pid) \
SELECT 0, 'bloat' || n, gen_random_uuid(), true, 1, gen_random_uuid(), '{}', n, 0, 0, \
  0, 0, '', 0 FROM generate_series(1, 1000000) n";

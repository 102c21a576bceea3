//! Where the store stands: removed under its users, made anew, seen after a reboot; and who may
//! read it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use tenure::block_on;
use tenure::engine::Terms;
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::time::ManualClock;
use tenure::{ErrorKind, Loss, Tenure};

use crate::host::{Host, Worker, terms};

#[test]
fn a_holder_hears_at_once_that_the_store_was_removed() {
    let host = Host::new();
    let mut holder = host.worker();
    let fence = holder.take("a");
    holder.say("lost a");
    fs::remove_dir_all(host.path()).unwrap();
    holder.hear("lost");
    let error = holder.ask("try b", "error");
    assert!(error.contains("was removed or replaced"), "{error}");
    assert!(error.contains(&host.path().display().to_string()), "{error}");
    // Others go on in a new store, and so does this process.
    let next = host.worker().take("a");
    assert!(next > fence, "as far as the clock is right");
    holder.ask(&format!("connect {}", host.path().display()), "connected");
    holder.say("lock a");
    holder.hear_held();
}

#[test]
fn a_holder_hears_at_once_that_the_store_was_moved_away() {
    let host = Host::new();
    let mut holder = host.worker();
    holder.take("a");
    let moved = host.path().join("elsewhere");
    fs::rename(host.file_set(), &moved).unwrap();
    // Others begin anew at once; sessions from before were told by then.
    assert!(holder.ask("lost a", "lost").contains("no longer knows it"));
    host.worker().take("a");
    assert!(holder.ask("check a", "error").starts_with("Lost"));
}

#[test]
fn a_store_can_be_opened_anew_while_old_guards_are_still_about() {
    let host = Host::new();
    let old = host.tenure();
    let guard = block_on(old.mutex("a").unwrap().lock()).unwrap();
    fs::remove_dir_all(host.path()).unwrap();
    assert_eq!(block_on(guard.lost()), Loss::Forgotten);
    let new = host.tenure();
    let again = block_on(new.mutex("a").unwrap().try_lock()).unwrap();
    assert!(again.is_some());
    assert!(guard.fence().is_err());
}

#[test]
fn a_process_may_close_and_open_the_store_again_and_again() {
    let host = Host::new();
    let _other = host.worker();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let tenure = host.tenure();
                    drop(block_on(tenure.mutex("a").unwrap().lock()).unwrap());
                    block_on(tenure.close());
                }
            });
        }
    });
    host.assert_empty();
}

#[test]
fn a_reboot_ends_every_lock_and_fences_go_on() {
    let host = Host::new();
    let mut before = host.worker_with("lease=60000 boot=one");
    let fence = before.take("a");
    before.ask("put c kept", "put");
    before.kill();
    let mut after = host.worker_with("lease=60000 boot=two");
    let next: u64 = after.ask("try a", "held").parse().unwrap();
    assert!(next > fence);
    assert_eq!(after.ask("get c", "cell"), "kept");
    assert!(!host.path().join("boot-one").exists(), "the old file set is cleared away");
}

#[test]
fn fences_grow_though_the_lock_files_are_gone_and_the_clock_went_back() {
    let host = Host::new();
    let fence_at = |wall: u64| {
        let clock = ManualClock::new();
        clock.set_wall_micros(wall);
        let clock = Arc::new(clock);
        let terms = Terms { clock: Arc::clone(&clock) as _, ..terms() };
        let engine = EmbeddedEngine::open(&Location::at(host.path()), terms).unwrap();
        let tenure = Tenure::builder().clock(clock).open(Arc::new(engine)).unwrap();
        let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
        let fence = guard.fence().unwrap();
        block_on(guard.release()).unwrap();
        block_on(tenure.close());
        fence
    };
    let decade = 315_360_000_000_000;
    let now = 1_800_000_000_000_000;
    let mut last = fence_at(now);
    for wall in [now + decade, now, 1, now - decade] {
        let next = fence_at(wall);
        assert!(next > last, "at {wall}");
        fs::remove_dir_all(host.file_set()).unwrap();
        let anew = fence_at(wall);
        assert!(anew > next, "at {wall}, from new lock files");
        last = anew;
    }
}

#[test]
fn everything_in_the_store_is_private() {
    let host = Host::new();
    let mut worker = host.worker();
    worker.take("a");
    worker.ask("put c value", "put");
    let mut seen = Vec::new();
    look(&host.path(), &mut seen);
    for kind in ["data.mdb", "lock.mdb", "guard", "users", "about", "format", ".socket"] {
        assert!(seen.iter().any(|path| path.ends_with(kind)), "{kind} is missing in {seen:?}");
    }
}

fn look(path: &Path, seen: &mut Vec<String>) {
    let about = fs::symlink_metadata(path).unwrap();
    let wanted = if about.is_dir() { 0o700 } else { 0o600 };
    let mode = about.permissions().mode() & 0o7777;
    assert_eq!(mode, wanted, "{} has mode {mode:o}", path.display());
    seen.push(path.display().to_string());
    if about.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            look(&entry.unwrap().path(), seen);
        }
    }
}

#[test]
fn a_path_longer_than_a_socket_address_works() {
    let host = Host::new();
    let path = host.path().join("a-rather-long-name-of-a-directory/".repeat(6));
    assert!(path.as_os_str().len() > 200);
    let connect = format!("connect {} lease=60000", path.display());
    let [mut holder, mut waiter] = [(); 2].map(|()| Worker::start());
    holder.ask(&connect, "connected");
    waiter.ask(&connect, "connected");
    holder.take("a");
    waiter.wait_for("a");
    holder.ask("release a", "released");
    waiter.hear("held");
}

#[test]
fn processes_must_agree_on_the_longest_lease_while_one_is_there() {
    let host = Host::new();
    let first = host.worker_with("max_lease=50000 lease=1000");
    let mut second = Worker::start();
    let connect = format!("connect {} max_lease=40000 lease=1000", host.path().display());
    let error = second.ask(&connect, "error");
    assert!(error.starts_with("InvalidOption") && error.contains("max_lease"), "{error}");
    let other = block_on(Tenure::connect(&host.url())).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidOption);
    first.dismiss();
    second.ask(&connect, "connected");
}

#[test]
fn a_killed_process_has_no_say_in_the_longest_lease() {
    let host = Host::new();
    let mut first = host.worker_with("max_lease=50000 lease=1000");
    first.kill();
    host.worker_with("max_lease=40000 lease=1000");
}

#[test]
fn another_pid_namespace_is_refused_while_anybody_is_there_and_makes_the_store_its_own_after() {
    let host = Host::new();
    let mut holder = host.worker();
    holder.take("a");
    // As the file set would look to a process in another namespace.
    let about = host.file_set().join("about");
    let ours = fs::read_to_string(&about).unwrap();
    fs::write(&about, "1").unwrap();
    let error = block_on(Tenure::connect(&host.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("another pid namespace"), "{error}");
    holder.ask("fence a", "fence");
    holder.dismiss();
    let guard = block_on(host.tenure().mutex("a").unwrap().try_lock()).unwrap();
    assert!(guard.is_some());
    assert_eq!(fs::read_to_string(&about).unwrap(), ours);
}

#[test]
fn raised_fences_outlive_the_lock_files() {
    let host = Host::new();
    let before = host.worker().take("a");
    let tenure = host.tenure();
    let to = block_on(tenure.highest_fence()).unwrap().get().max(before) + 10 * 3_600_000_000;
    block_on(tenure.raise_fences(to)).unwrap();
    drop(tenure);
    fs::remove_dir_all(host.file_set()).unwrap();
    let after = host.worker().take("a");
    assert!(after > to, "{after} is not above {to}");
}

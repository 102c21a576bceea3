//! Files between real processes: killed between any two system calls, at random, and stopped.
//!
//! A test starts its own binary again to play the other process, and tells it by an environment
//! variable what to do ([`PART`]). `kill_if_due` is called between the system calls of a write.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use tenure::{ErrorKind, Fence, Tenure};

use super::{FencedFile, PIECE, with_suffix};
use crate::refusal::Refusal;

/// What a process that a test starts has to do, and with which file.
const PART: &str = "TENURE_FENCE_TEST_PART";
const FILE: &str = "TENURE_FENCE_TEST_FILE";
/// Before which step it kills itself, from 0.
const KILL_AT: &str = "TENURE_FENCE_TEST_KILL_AT";

/// Kills this process if it was started to die before this step.
pub(super) fn kill_if_due() {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let Ok(due) = env::var(KILL_AT) else { return };
    if STEPS.fetch_add(1, Ordering::SeqCst) == due.parse::<u64>().unwrap() {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
}

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

/// Data that says which fence wrote it, in more than one piece.
fn data(number: u64) -> Vec<u8> {
    let mut data = format!("{number}\n").into_bytes();
    data.resize(PIECE * 2 + 17, u8::try_from(number % 251).unwrap());
    data
}

/// The fence that wrote the file. Fails if the data is not whole.
fn written_by(path: &Path) -> Option<u64> {
    let found = fs::read(path).ok()?;
    let end = found.iter().position(|byte| *byte == b'\n').expect("data has a first line");
    let number = String::from_utf8_lossy(&found[..end]).parse().unwrap();
    assert!(found == data(number), "the data of fence {number} is not whole");
    Some(number)
}

fn refused(file: &FencedFile, number: u64) -> Option<(u64, u64)> {
    let error = file.write("stale", fence(number)).err()?;
    let refusal = Refusal::in_error(&error).unwrap_or_else(|| panic!("{error}"));
    Some((refusal.given().get(), refusal.seen().get()))
}

/// This binary again, to run one test that plays a part with a file.
fn other_process(test: &str, part: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("file::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env(FILE, path).stdout(Stdio::null());
    command
}

/// The part this process has, if a test has started it.
fn part() -> Option<(String, FencedFile)> {
    Some((env::var(PART).ok()?, FencedFile::new(env::var_os(FILE)?)))
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

#[test]
fn a_writer_killed_before_any_step_leaves_old_or_new_data_and_no_way_for_a_stale_one() {
    if let Some((part, file)) = part() {
        let number = part.parse().unwrap();
        return file.write(data(number), fence(number)).unwrap();
    }
    let name = "a_writer_killed_before_any_step_leaves_old_or_new_data_and_no_way_for_a_stale_one";
    // The first write of a file, and one that replaces the data of fence 5.
    for (old, least) in [(None, 11), (Some(5), 11)] {
        let (mut step, mut seen_old, mut seen_new) = (0, 0, 0);
        loop {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("report");
            let file = FencedFile::new(&path);
            if let Some(old) = old {
                file.write(data(old), fence(old)).unwrap();
            }
            let mut writer = other_process(name, "7", &path);
            let status = writer.env(KILL_AT, step.to_string()).status().unwrap();
            let now = written_by(&path);
            let context = format!("killed before step {step}: {now:?}");
            if !was_killed(status) {
                assert!(status.success() && now == Some(7), "{context}: {status}");
                break;
            }
            // Old or new, never a mixture, and never new data with an old fence.
            assert!(now == old || now == Some(7), "{context}");
            if now == Some(7) {
                seen_new += 1;
                assert_eq!(refused(&file, 6), Some((6, 7)), "{context}");
            } else {
                seen_old += 1;
                assert!(old.is_none_or(|old| refused(&file, old - 1).is_some()), "{context}");
            }
            // The lock went with the process. The same holder writes again, and the next one.
            file.write(data(7), fence(7)).unwrap();
            assert_eq!(
                (written_by(&path), refused(&file, 6)),
                (Some(7), Some((6, 7))),
                "{context}"
            );
            file.write(data(8), fence(8)).unwrap();
            assert!(!with_suffix(&path, ".fence-new").exists(), "{context}");
            step += 1;
        }
        // Every step was met, and both outcomes.
        assert!(step >= least && seen_old > 0 && seen_new > 0, "{step} {seen_old} {seen_new}");
    }
}

#[test]
fn a_writer_killed_at_random_never_leaves_a_way_for_a_stale_one() {
    if let Some((part, file)) = part() {
        let first: u64 = part.parse().unwrap();
        // Until it is killed; it ends by itself if the test does not come to that.
        for number in first..first + 10_000 {
            file.write(data(number), fence(number)).unwrap();
        }
        return;
    }
    let name = "a_writer_killed_at_random_never_leaves_a_way_for_a_stale_one";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    let file = FencedFile::new(&path);
    file.write(data(1), fence(1)).unwrap();
    let mut before = 1;
    for round in 0_u64..25 {
        let mut writer = other_process(name, &(before + 1).to_string(), &path).spawn().unwrap();
        let began = before;
        // It writes; then a pause of which no two are alike.
        servers::eventually("it writes", || written_by(&path).unwrap() > began);
        std::thread::sleep(Duration::from_micros(round * 7919 % 6000));
        writer.kill().unwrap();
        assert!(was_killed(writer.wait().unwrap()));
        let now = written_by(&path).unwrap();
        let seen = file.fence().unwrap().unwrap().get();
        assert!(now > began && (seen == now || seen == now + 1), "{now} with fence {seen}");
        assert_eq!(refused(&file, now - 1), Some((now - 1, seen)), "round {round}");
        file.write(data(seen), fence(seen)).unwrap();
        before = seen;
    }
}

#[test]
fn processes_that_write_at_once_leave_the_data_of_the_largest_fence() {
    const WRITERS: usize = 3;
    const EACH: usize = 20;
    if let Some((part, file)) = part() {
        let first: u64 = part.parse().unwrap();
        for number in (first..).step_by(WRITERS).take(EACH) {
            match file.write(data(number), fence(number)) {
                Ok(()) => {}
                Err(error) => assert!(Refusal::in_error(&error).is_some(), "{error}"),
            }
        }
        return;
    }
    let name = "processes_that_write_at_once_leave_the_data_of_the_largest_fence";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    let mut writers: Vec<Child> = (1..=WRITERS)
        .map(|first| other_process(name, &first.to_string(), &path).spawn().unwrap())
        .collect();
    let mut last = 0;
    while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
        let now = written_by(&path).unwrap_or(0);
        assert!(now >= last, "{now} was written over {last}");
        last = now;
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()));
    let largest = u64::try_from(WRITERS * EACH).unwrap();
    assert_eq!(written_by(&path), Some(largest));
    assert_eq!(FencedFile::new(&path).fence().unwrap(), Some(fence(largest)));
}

#[test]
fn a_holder_that_is_stopped_past_its_lease_wakes_late_and_is_refused() {
    const REFUSED: i32 = 17;
    let lock = |url: &str| {
        let tenure = Tenure::blocking_connect(url).unwrap();
        let mutex = tenure.mutex("report").unwrap().lease(Duration::from_secs(1));
        (mutex.blocking_lock().unwrap(), tenure)
    };
    if let Some((url, file)) = part() {
        let (guard, _tenure) = lock(&url);
        let fence = guard.fence().unwrap();
        kill_process(getpid(), Signal::STOP).unwrap();
        // This thread may run on for a moment, until the signal has reached all threads.
        servers::eventually("it goes on", || with_suffix(&file.path, ".go").exists());
        let error = file.write("from the late holder", fence).unwrap_err();
        let refusal = Refusal::in_error(&error).unwrap_or_else(|| panic!("{error}"));
        assert!(refusal.given() == fence && refusal.seen() > fence, "{refusal}");
        std::process::exit(REFUSED);
    }
    let name = "a_holder_that_is_stopped_past_its_lease_wakes_late_and_is_refused";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    let url = format!("embedded:{}", directory.path().join("locks").display());
    let mut holder = other_process(name, &url, &path).spawn().unwrap();
    let pid = Pid::from_child(&holder);
    servers::eventually("it holds the lock and is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", holder.id())).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    });
    let (guard, _tenure) = lock(&url);
    FencedFile::new(&path).write("from the next holder", guard.fence().unwrap()).unwrap();
    fs::write(with_suffix(&path, ".go"), "").unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(holder.wait().unwrap().code(), Some(REFUSED));
    assert_eq!(fs::read_to_string(&path).unwrap(), "from the next holder");
}

#[test]
fn a_write_that_another_process_keeps_out_times_out_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    let file = FencedFile::new(&path).lock_timeout(Duration::ZERO);
    file.write("old", fence(1)).unwrap();
    let other = fs::File::open(with_suffix(&path, ".fence")).unwrap();
    other.lock().unwrap();
    let error = file.write("new", fence(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    other.unlock().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    file.write("new", fence(2)).unwrap();
}

#[test]
fn permissions_stay_and_links_are_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (directory.path().join("report"), directory.path().join("latest"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("report", &link).unwrap();
    // What a killed writer left, as a link that must not be followed.
    let victim: PathBuf = directory.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    symlink(&victim, with_suffix(&path, ".fence-new")).unwrap();
    FencedFile::new(&link).write("new", fence(2)).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    // Both names lead to one fence.
    assert_eq!(refused(&FencedFile::new(&path), 1), Some((1, 2)));
}

#[test]
fn a_file_beside_it_that_has_no_fence_is_an_error_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report");
    fs::write(with_suffix(&path, ".fence"), "a fence around the garden").unwrap();
    let error = FencedFile::new(&path).write("new", fence(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!path.exists());
    let error = FencedFile::new(directory.path().join("none/report")).write("new", fence(2));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
}

//! Files that are not what they should be: an error says what was set aside, and the next one to
//! connect begins anew.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::host::{Host, Worker};

/// A store that was used, and that no process has open.
fn used() -> (Host, u64) {
    let host = Host::new();
    let mut worker = host.worker();
    let fence = worker.take("a");
    worker.ask("put c kept", "put");
    worker.dismiss();
    (host, fence)
}

fn garbage(path: &Path, count: usize) {
    let mut file = File::options().write(true).open(path).unwrap();
    let bytes: Vec<u8> = (0..count).map(|at| u8::try_from(at * 37 % 251).unwrap() | 1).collect();
    file.write_all(&bytes).unwrap();
}

fn cut(path: &Path, length: u64) {
    File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// What another process hears when it connects: in this one a crash would end the tests.
#[track_caller]
fn refusal(host: &Host) -> String {
    let mut worker = Worker::start();
    let connect = format!("connect {}", host.path().display());
    let error = worker.ask(&connect, "error");
    worker.dismiss();
    error
}

/// The error names what was set aside, which is there; and connecting again works.
#[track_caller]
fn set_aside_and_begun_anew(host: &Host, fence: u64, error: &str) {
    assert!(error.starts_with("Corrupt"), "{error}");
    let aside = error.split("set aside as ").nth(1).expect("says where it is now");
    let aside = aside.split([';', ' ', '\n']).next().unwrap().trim_end_matches('.');
    assert!(Path::new(aside).exists(), "{aside} of {error}");
    assert!(host.worker().take("a") > fence);
}

#[test]
fn garbage_in_the_lock_file_is_set_aside() {
    let (host, fence) = used();
    garbage(&host.file_set().join("locks/data.mdb"), 8192);
    let error = refusal(&host);
    set_aside_and_begun_anew(&host, fence, &error);
}

#[test]
fn a_lock_file_cut_short_is_set_aside() {
    for length in [0, 100, 4096, 1 << 20] {
        let (host, fence) = used();
        cut(&host.file_set().join("locks/data.mdb"), length);
        let error = refusal(&host);
        assert!(error.contains("cut short"), "{error}");
        set_aside_and_begun_anew(&host, fence, &error);
    }
}

#[test]
fn garbage_in_the_guard_page_is_set_aside() {
    for (from, until) in [(0, 8), (0, 4096), (8, 48), (48, 200)] {
        let (host, fence) = used();
        let path = host.file_set().join("guard");
        let mut bytes = fs::read(&path).unwrap();
        bytes[from..until].fill(0xa5);
        fs::write(&path, bytes).unwrap();
        let error = refusal(&host);
        set_aside_and_begun_anew(&host, fence, &error);
    }
}

#[test]
fn a_missing_file_is_noticed_and_the_rest_is_set_aside() {
    for file in ["guard", "locks/data.mdb"] {
        let (host, fence) = used();
        fs::remove_file(host.file_set().join(file)).unwrap();
        let error = refusal(&host);
        set_aside_and_begun_anew(&host, fence, &error);
    }
}

#[test]
fn garbage_in_the_format_file_is_set_aside() {
    let (host, fence) = used();
    fs::write(host.path().join("format"), "\u{1}garbage").unwrap();
    let error = refusal(&host);
    assert!(error.contains("format"), "{error}");
    set_aside_and_begun_anew(&host, fence, &error);
}

#[test]
fn what_a_killed_process_had_begun_to_make_is_in_nobodys_way() {
    let host = Host::new();
    fs::create_dir_all(host.path().join("new-12345/locks")).unwrap();
    fs::write(host.path().join("format.new"), "").unwrap();
    host.worker().take("a");
    assert!(!host.path().join("new-12345").exists());
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let (host, _) = used();
    fs::write(host.path().join("format"), "9\n").unwrap();
    for _ in 0..2 {
        let error = refusal(&host);
        assert!(error.starts_with("Unsupported") && error.contains("format 9"), "{error}");
    }
    assert!(host.file_set().exists());
}

#[test]
fn damage_in_the_synced_environment_is_set_aside() {
    let damages: [fn(&Path); 3] =
        [|path| garbage(path, 8192), |path| cut(path, 100), |path| cut(path, 8192)];
    for damage in damages {
        let (host, fence) = used();
        damage(&host.path().join("durable/data.mdb"));
        let mut worker = host.worker();
        // Locks need the synced environment only when the reserve of fences runs low.
        assert!(worker.take("a") > fence);
        let error = worker.ask("get c", "error");
        worker.dismiss();
        set_aside_and_begun_anew(&host, fence, &error);
        assert_eq!(host.worker().ask("get c", "cell"), "");
    }
}

/// LMDB takes an empty file for a new environment: cells and fences would begin anew in silence.
#[test]
fn a_synced_environment_that_was_emptied_is_refused_and_left_alone() {
    type Lose = fn(&Path);
    let empty: Lose = |path| cut(path, 0);
    let missing: Lose = |path| fs::remove_file(path).unwrap();
    for (said, loss) in [("is empty", empty), ("is missing", missing)] {
        let (host, fence) = used();
        let data = host.path().join("durable/data.mdb");
        let kept = fs::read(&data).unwrap();
        loss(&data);
        let mut worker = host.worker();
        // Locks do not need it before the reserve of fences runs low.
        assert!(worker.take("a") > fence);
        for _ in 0..2 {
            let error = worker.ask("get c", "error");
            assert!(error.starts_with("Corrupt") && error.contains(said), "{error}");
            assert!(error.contains("put a backup of the file in its place"), "{error}");
        }
        worker.dismiss();
        // A new file set needs it at once: where fences go on is written there.
        fs::remove_dir_all(host.file_set()).unwrap();
        for _ in 0..2 {
            let error = refusal(&host);
            assert!(error.starts_with("Corrupt") && error.contains(said), "{error}");
        }
        assert_eq!(fs::metadata(&data).map_or(0, |about| about.len()), 0, "nothing was written");
        fs::write(&data, kept).unwrap();
        let mut worker = host.worker();
        assert_eq!(worker.ask("get c", "cell"), "kept");
        assert!(worker.take("a") > fence);
        worker.dismiss();
        // What the error offers as the other way.
        loss(&data);
        fs::remove_dir_all(host.path().join("durable")).unwrap();
        assert_eq!(host.worker().ask("get c", "cell"), "");
    }
}

#[test]
fn damage_in_the_synced_environment_is_noticed_by_a_new_file_set() {
    let (host, fence) = used();
    fs::remove_dir_all(host.file_set()).unwrap();
    garbage(&host.path().join("durable/data.mdb"), 8192);
    let error = refusal(&host);
    set_aside_and_begun_anew(&host, fence, &error);
}

#[test]
fn a_damaged_row_is_noticed_by_whoever_reads_it() {
    let host = Host::new();
    let mut worker = host.worker();
    let fence = worker.take("a-name-to-be-found");
    // What a killed process held still stands in the file.
    worker.kill();
    let path = host.file_set().join("locks/data.mdb");
    let mut bytes = fs::read(&path).unwrap();
    let name = b"a-name-to-be-found";
    let found = (0..bytes.len() - 64).filter(|at| bytes[*at..].starts_with(name));
    for at in found.collect::<Vec<_>>() {
        bytes[at + name.len()..at + name.len() + 24].fill(0xff);
    }
    fs::write(&path, bytes).unwrap();
    let mut reader = host.worker();
    let error = reader.ask("try a-name-to-be-found", "error");
    assert!(error.contains("slot"), "{error}");
    set_aside_and_begun_anew(&host, fence, &error);
    // The process that noticed has lost all it had, and may connect again.
    reader.ask("try b", "error");
    reader.ask(&format!("connect {}", host.path().display()), "connected");
    reader.take("b");
}

//! Room: a disk that is full, and a store that grows. A full one refuses new locks and gives back
//! all it has.

use tenure::ErrorKind;
use tenure::block_on;

use crate::host::{Host, PATIENCE, Worker as Client};
use crate::worker::{Worker, say};

/// From here on no file of this process grows beyond this.
#[allow(unsafe_code, reason = "signal dispositions have no safe wrapper")]
pub(crate) fn limit_files(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // SAFETY: to ignore a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Fsize, limit).unwrap();
    say("limited");
}

/// Takes locks until there is no room for more, or until there are so many.
pub(crate) fn fill(worker: &mut Worker, kind: &str, most: usize) {
    while worker.guards.len() < most {
        let name = format!("{kind}-number-{}", worker.guards.len());
        match block_on(worker.tenure().mutex(&name).unwrap().try_lock()) {
            Ok(guard) => _ = worker.guards.insert(name, guard.expect("nobody has it")),
            Err(error) => {
                let count = worker.guards.len();
                return say(&format!("full {count} {:?}: {error}", error.kind()));
            }
        }
    }
    say(&format!("filled {}", worker.guards.len()));
}

/// Gives everything back, each confirmed.
pub(crate) fn drain(worker: &mut Worker) {
    for (name, guard) in std::mem::take(&mut worker.guards) {
        if let Err(error) = block_on(guard.release()) {
            say(&format!("violation {name} could not be released: {error}"));
        }
    }
    say("drained");
}

#[test]
fn a_full_disk_refuses_new_locks_and_gives_back_all_it_has() {
    let host = Host::new();
    let mut worker = host.worker();
    worker.ask(&format!("limit {}", 2 << 20), "limited");
    let full = worker.ask("fill lock 100000", "full");
    let (count, error) = full.split_once(' ').unwrap();
    assert!(count.parse::<usize>().unwrap() > 1_000, "{full}");
    let kinds = [ErrorKind::Unavailable, ErrorKind::Limit].map(|kind| format!("{kind:?}"));
    assert!(kinds.iter().any(|kind| error.starts_with(kind.as_str())), "{full}");
    assert!(error.contains("room on the disk: the store needs 4 MiB more"), "{full}");
    // Full for others too; and it stays full.
    let mut other = host.worker();
    other.ask(&format!("limit {}", 2 << 20), "limited");
    other.ask("fill other 100000", "full");
    worker.ask("fill lock 100000", "full");
    worker.ask("drain", "drained");
    other.ask("try again", "held");
    worker.ask("fill lock 500", "filled");
    worker.ask("drain", "drained");
    other.ask("drain", "drained");
    host.assert_empty();
}

#[test]
fn a_disk_that_is_too_small_for_a_new_store_is_told_how_much_that_needs() {
    let host = Host::new();
    let mut worker = Client::start();
    worker.ask(&format!("limit {}", 2 << 20), "limited");
    let error = worker.ask(&format!("connect {}", host.path().display()), "error");
    assert!(error.contains("make room on the disk: a new store needs 5 MiB"), "{error}");
    worker.dismiss();
    // Nothing is left behind of what was begun, and it is made when there is room.
    let left: Vec<_> = std::fs::read_dir(host.path()).unwrap().flatten().collect();
    assert!(left.iter().all(|one| !one.file_name().to_string_lossy().starts_with("new-")));
    let mut other = host.worker();
    other.take("a");
    other.dismiss();
    let size = |path: &std::path::Path| std::fs::metadata(path).unwrap().len();
    let all = walk(&host.path()).iter().map(|path| size(path)).sum::<u64>();
    assert!(all < 5 << 20, "what the error says is enough: {all}");
}

/// All files under a directory.
fn walk(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        match kind.is_dir() {
            true => files.extend(walk(&entry.path())),
            false if kind.is_file() => files.push(entry.path()),
            false => {}
        }
    }
    files
}

#[test]
fn locks_of_a_full_store_are_given_back_when_their_holder_is_killed() {
    let host = Host::new();
    let (mut worker, mut other) = (host.worker(), host.worker());
    worker.ask(&format!("limit {}", 2 << 20), "limited");
    other.ask(&format!("limit {}", 2 << 20), "limited");
    worker.ask("fill lock 100000", "full");
    worker.kill();
    other.ask("try lock-number-7", "held");
    other.ask("try elsewhere", "held");
}

#[test]
fn twenty_thousand_locks_are_held_while_another_process_goes_on() {
    let host = Host::new();
    let [mut many, mut one, mut two] = [(); 3].map(|()| host.worker());
    many.say("fill lock 20000");
    // A lock goes to and fro meanwhile, through every growth of the map.
    for _ in 0..200 {
        one.take("a");
        two.wait_for("a");
        one.ask("release a", "released");
        two.hear("held");
        two.ask("release a", "released");
    }
    assert_eq!(many.hear_within(PATIENCE * 5, "filled"), "20000");
    one.take("a");
    one.ask("try lock-number-19999", "busy");
    many.say("drain");
    many.hear_within(PATIENCE * 5, "drained");
    one.ask("try lock-number-19999", "held");
}

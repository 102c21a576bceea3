//! Cells between processes: writes that share a commit, committers that are killed, watches.

use std::time::Duration;

use tenure::block_on;
use tenure::contract::{Engine, Error, ErrorKind};
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::{
    Batch, BatchVerdict, CellChange, CellRange, Expect, Name, Put, PutVerdict, Tenure, Version,
    WriteId,
};

use crate::host::{Host, PATIENCE, Worker as Client, open};
use crate::worker::{Worker, say};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Orders about cells, in another process.
pub(crate) fn obey(worker: &Worker, words: &[&str]) -> Result<(), Error> {
    match *words {
        // Writes a cell that must not exist, so that a second time would be refused.
        ["create", cell, value] => {
            let put = Put::new(name(cell), value).expect(Expect::Absent);
            match block_on(worker.tenure().cells().put(&put))? {
                PutVerdict::Done(version) => say(&format!("created {}", version.0)),
                refused => say(&format!("not created {refused:?}")),
            }
        }
        ["increment", cell, times] => {
            for done in 1..=times.parse().unwrap() {
                increment(worker.tenure(), &name(cell));
                say(&format!("incremented {done}"));
            }
        }
        ["put-many", prefix, tasks] => put_many(worker.tenure(), prefix, tasks.parse().unwrap()),
        ["put-sizes", prefix, small, large] => put_sizes(worker.tenure(), prefix, small, large),
        ["die-in-commit", handed_over, committed] => {
            let committed = committed.parse().unwrap();
            worker.engine().die_in_commit(handed_over.parse().unwrap(), committed);
            say("will die");
        }
        ["watch", prefix] => watch(worker.tenure().clone(), prefix),
        _ => panic!("what is {words:?}?"),
    }
    Ok(())
}

/// Adds one to a number, however many others do the same.
fn increment(tenure: &Tenure, cell: &Name) {
    loop {
        let present = block_on(tenure.cells().get(cell)).unwrap();
        let number = present.as_ref().map_or(0, |cell| number(&cell.value));
        let expect = present.map_or(Expect::Absent, |cell| Expect::Version(cell.version));
        let put = Put::new(cell.clone(), (number + 1).to_string()).expect(expect);
        let put = put.id(WriteId::new());
        match block_on(tenure.cells().put(&put)) {
            Ok(PutVerdict::Done(_)) => return,
            Ok(PutVerdict::Refused(_)) => {}
            other => return say(&format!("violation {other:?}")),
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// Many tasks, each with a cell of its own.
fn put_many(tenure: &Tenure, prefix: &str, tasks: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let done = runtime.block_on(async {
        let put = |at: usize| {
            let (tenure, name) = (tenure.clone(), name(&format!("{prefix}{at:03}")));
            tokio::spawn(async move { tenure.cells().put(&Put::new(name, at.to_string())).await })
        };
        let all: Vec<_> = (0..tasks).map(put).collect();
        let mut done = 0;
        for task in all {
            done += usize::from(matches!(task.await.unwrap().unwrap(), PutVerdict::Done(_)));
        }
        done
    });
    say(&format!("put {done}"));
}

/// Several small cells and one large one at the same time.
fn put_sizes(tenure: &Tenure, prefix: &str, small: &str, large: &str) {
    let (small, large): (usize, usize) = (small.parse().unwrap(), large.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (done, error) = runtime.block_on(async {
        let put = |at: usize, bytes: usize| {
            let (tenure, name) = (tenure.clone(), name(&format!("{prefix}{at}")));
            tokio::spawn(async move { tenure.cells().put(&Put::new(name, vec![7; bytes])).await })
        };
        let first = put(100, 1);
        let big = put(0, large);
        let rest: Vec<_> = (1..=small).map(|at| put(at, 10)).collect();
        let mut done = usize::from(first.await.unwrap().is_ok());
        let big = big.await.unwrap();
        for task in rest {
            done += usize::from(task.await.unwrap().is_ok());
        }
        (done, big.map_or_else(|error| format!("{:?}: {error}", error.kind()), |_| "put".into()))
    });
    say(&format!("sizes {done} {error}"));
}

/// Says every change, on a thread of its own.
#[allow(clippy::needless_pass_by_value, reason = "the thread keeps the session")]
fn watch(tenure: Tenure, prefix: &str) {
    let range = CellRange::prefix(prefix).unwrap();
    let mut watch = block_on(tenure.cells().watch(range)).unwrap();
    say("watching");
    std::thread::spawn(move || {
        loop {
            match watch.blocking_next() {
                Ok(CellChange::Put(name, cell)) => {
                    say(&format!("change {name} {}", String::from_utf8_lossy(&cell.value)));
                }
                Ok(CellChange::Removed(name)) => say(&format!("removed {name}")),
                Ok(CellChange::Gap) => say("gap"),
                Err(_) => return,
            }
        }
    });
}

/// Waits until a process is inside the durable mutex.
fn until_committing(engine: &EmbeddedEngine, worker: &Client) {
    while engine.committer() != Some(worker.pid()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One process commits for two, and is killed inside. The other one waits for it with a write that
/// can be made once only.
fn killed_in_commit(committed: bool) -> (Host, u64) {
    let host = Host::new();
    let engine = open(&Location::at(host.path())).unwrap();
    let [mut committer, mut waiter] = [(); 2].map(|()| host.worker());
    waiter.ask("create before x", "created");
    committer.ask(&format!("die-in-commit 1 {committed}"), "will die");
    committer.say("create a of-the-killed");
    until_committing(&engine, &committer);
    let version = waiter.ask("create b of-the-waiter", "created").parse().unwrap();
    let cell = block_on(engine.cells().unwrap().get(&name("b"))).unwrap().unwrap();
    assert_eq!((cell.value, cell.version), (b"of-the-waiter".to_vec(), Version(version)));
    // Everything goes on, with the slots that the killed one has left.
    for at in 0..30 {
        waiter.ask(&format!("create later-{at} x"), "created");
    }
    (host, version)
}

#[test]
fn a_committer_killed_after_the_transaction_has_written_for_others_once() {
    let (host, version) = killed_in_commit(true);
    let tenure = host.tenure();
    let killed = block_on(tenure.cells().get(&name("a"))).unwrap().unwrap();
    assert_eq!(killed.version.0 + 1, version, "in one transaction, in this order");
    let later = block_on(tenure.cells().get(&name("later-0"))).unwrap().unwrap();
    assert_eq!(later.version.0, version + 1, "nothing was written in between");
}

#[test]
fn a_committer_killed_before_the_transaction_has_written_nothing() {
    let (host, _) = killed_in_commit(false);
    assert_eq!(block_on(host.tenure().cells().get(&name("a"))).unwrap(), None);
}

#[test]
fn a_process_that_stays_inside_a_commit_is_named_to_the_others() {
    let host = Host::new();
    let engine = open(&Location::at(host.path())).unwrap();
    let [mut stays, mut waiter] = [(); 2].map(|()| host.worker());
    // Waits for more than there will ever be.
    stays.ask("die-in-commit 1000 true", "will die");
    stays.say("put a x");
    until_committing(&engine, &stays);
    for write in ["put b x", "put-sizes b 1 100000"] {
        let error = waiter.ask(write, "");
        let process = format!("process {}", stays.pid());
        assert!(error.contains(&process) && error.contains("inside the store"), "{error}");
        assert!(!error.contains("may have acted"), "{error}");
    }
    stays.kill();
    waiter.ask("put b y", "put");
    assert_eq!(waiter.ask("get b", "cell"), "y");
    assert_eq!(waiter.ask("get a", "cell"), "");
}

#[test]
fn no_increment_is_lost_or_made_twice_while_processes_are_killed() {
    let host = Host::new();
    let mut workers: Vec<_> = (0..5).map(|_| host.worker()).collect();
    let times = 40;
    for worker in &mut workers {
        worker.say(&format!("increment counter {times}"));
    }
    let (mut least, mut most) = (0, 0);
    for (at, worker) in workers.iter_mut().enumerate() {
        // Two are killed after some of their work, with a write under way.
        let until = if at < 2 { 5 + at as u64 } else { times };
        let mut done = 0;
        while done < until {
            done = worker.hear_within(PATIENCE * 5, "incremented").parse().unwrap();
        }
        if at < 2 {
            worker.kill();
        }
        least += done;
        most += if at < 2 { times } else { done };
    }
    // What the killed ones have done since the line that was read is said in later lines.
    for worker in &workers[..2] {
        let more = worker.said().into_iter().filter(|line| line.starts_with("incremented"));
        least += more.count() as u64;
    }
    let cell = block_on(host.tenure().cells().get(&name("counter"))).unwrap().unwrap();
    let counted = number(&cell.value);
    // One increment of each killed process may have been made without a reply.
    assert!((least..=least + 2).contains(&counted), "{least} <= {counted} <= {least} + 2");
    assert!(counted <= most);
}

#[test]
fn processes_hand_their_writes_over_and_all_are_there() {
    let host = Host::new();
    let mut workers: Vec<_> = (0..6).map(|_| host.worker()).collect();
    for (at, worker) in workers.iter_mut().enumerate() {
        worker.say(&format!("put-many p{at}: 100"));
    }
    for worker in &workers {
        assert_eq!(worker.hear_within(PATIENCE * 3, "put"), "100");
    }
    let tenure = host.tenure();
    for at in 0..6 {
        let pattern = tenure::Pattern::prefix(&format!("p{at}:"));
        let listed = block_on(tenure.cells().list(&pattern, None, 1_000)).unwrap();
        let numbers: Vec<u64> = listed.iter().map(|(_, cell)| number(&cell.value)).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn a_watch_hears_of_writes_and_removals_by_other_processes() {
    let host = Host::new();
    let (mut watcher, mut writer) = (host.worker(), host.worker());
    writer.ask("put w:1 before", "put");
    watcher.ask("watch w:", "watching");
    assert_eq!(watcher.hear("change"), "w:1 before");
    writer.ask("put other unseen", "put");
    writer.ask("put w:2 seen", "put");
    assert_eq!(watcher.hear("change"), "w:2 seen");
    let tenure = host.tenure();
    block_on(tenure.cells().remove(&name("w:2"), Expect::Anything)).unwrap();
    assert_eq!(watcher.hear("removed"), "w:2");
}

/// The buffer of a socket has space for 10 datagrams by default.
#[test]
fn a_watch_whose_process_was_stopped_has_a_gap_and_then_the_present_state() {
    let host = Host::new();
    let (mut watcher, mut writer) = (host.worker(), host.worker());
    writer.ask("put w:before x", "put");
    watcher.ask("watch w:", "watching");
    watcher.hear("change w:before");
    watcher.stop();
    for at in 0..600 {
        writer.ask(&format!("put w:{:03} {at}", at % 20), "put");
    }
    watcher.go_on();
    let mut seen = std::collections::BTreeMap::new();
    let mut gap = false;
    while (0..20).any(|at| seen.get(&format!("w:{at:03}")) != Some(&(580 + at).to_string())) {
        let line = watcher.hear("");
        match line.strip_prefix("change ").and_then(|change| change.split_once(' ')) {
            Some((name, value)) => _ = seen.insert(name.to_owned(), value.to_owned()),
            None => gap |= line == "gap",
        }
    }
    assert!(gap, "600 datagrams cannot have fitted");
}

#[test]
fn a_watch_hears_of_a_commit_whose_process_was_killed_before_it_could_signal() {
    let host = Host::new();
    let (mut watcher, mut writer) = (host.worker(), host.worker());
    writer.ask("put w:1 before", "put");
    watcher.ask("watch w:", "watching");
    assert_eq!(watcher.hear("change"), "w:1 before");
    writer.ask("die-in-commit 0 true", "will die");
    writer.say("put w:1 after");
    // No other process writes.
    assert_eq!(watcher.hear(""), "gap");
    assert_eq!(watcher.hear("change"), "w:1 after");
}

#[test]
fn the_files_of_a_killed_watcher_are_removed() {
    let host = Host::new();
    let (mut watcher, mut writer) = (host.worker(), host.worker());
    watcher.ask("watch w:", "watching");
    let files = || std::fs::read_dir(host.file_set().join("watches")).unwrap().count();
    assert_eq!(files(), 2);
    watcher.kill();
    writer.ask("put w:1 x", "put");
    assert_eq!(files(), 0);
    // One that leaves takes them along.
    let mut watcher = host.worker();
    watcher.ask("watch w:", "watching");
    assert_eq!(files(), 2);
    watcher.dismiss();
    writer.ask("put w:1 y", "put");
    assert_eq!(files(), 0);
}

#[test]
fn a_watch_that_is_dropped_is_no_longer_registered() {
    let host = Host::new();
    let tenure = host.tenure();
    let files = || std::fs::read_dir(host.file_set().join("watches")).unwrap().count();
    let watch = block_on(tenure.cells().watch(CellRange::prefix("w:").unwrap())).unwrap();
    assert_eq!(files(), 2);
    drop(watch);
    while files() > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    // And it can begin again.
    let mut watch = block_on(tenure.cells().watch(CellRange::One(name("w:1")))).unwrap();
    assert_eq!(watch.blocking_next().unwrap(), CellChange::Removed(name("w:1")));
    let mut writer = host.worker();
    writer.ask("put w:1 again", "put");
    assert!(matches!(watch.blocking_next().unwrap(), CellChange::Put(_, _)));
}

#[test]
fn what_is_refused_repeated_or_only_checked_writes_nothing_to_the_file() {
    let host = Host::new();
    let engine = open(&Location::at(host.path())).unwrap();
    let cells = engine.cells().unwrap();
    let file = || std::fs::read(host.path().join("durable/data.mdb")).unwrap();
    let write = |batch: &Batch| block_on(cells.write(batch));
    let created = Batch::from(&Put::new(name("a"), "1").expect(Expect::Absent).id(WriteId::new()));
    let BatchVerdict::Done(version) = write(&created).unwrap() else { panic!() };
    let before = file();
    // In a namespace that has no cells yet, too.
    let terms = tenure::engine::Terms {
        namespace: tenure::contract::Namespace::try_from("unused").unwrap(),
        ..crate::host::terms()
    };
    let other = EmbeddedEngine::open(&Location::at(host.path()), terms).unwrap();
    let stale = Batch::from(&Put::new(name("a"), "2").expect(Expect::Version(version)));
    let refused = block_on(other.cells().unwrap().write(&stale)).unwrap();
    assert!(matches!(refused, BatchVerdict::Refused(_)));
    assert_eq!(write(&created).unwrap(), BatchVerdict::Done(version), "a repeat");
    let again = Batch::from(&Put::new(name("a"), "2").expect(Expect::Absent));
    assert!(matches!(write(&again).unwrap(), BatchVerdict::Refused(_)));
    let set = Batch::new().put(Put::new(name("b"), "1")).check(name("a"), Expect::Absent);
    assert!(matches!(write(&set).unwrap(), BatchVerdict::Refused(_)));
    let check = Batch::new().check(name("a"), Expect::Version(version));
    assert!(matches!(write(&check).unwrap(), BatchVerdict::Done(_)));
    assert!(file() == before, "not a byte has changed");
    assert!(matches!(write(&Batch::from(&Put::new(name("b"), "1"))), Ok(BatchVerdict::Done(_))));
    assert!(file() != before);
}

#[test]
fn a_damaged_row_fails_its_own_cell_alone_and_is_replaced_by_a_plain_write() {
    let host = Host::new();
    let engine = open(&Location::at(host.path())).unwrap();
    let cells = engine.cells().unwrap();
    let write = |put: Put| block_on(cells.write(&Batch::from(&put)));
    for cell in ["a", "b", "c"] {
        write(Put::new(name(cell), "1").id(WriteId::new())).unwrap();
    }
    engine.spoil_cell(&name("a"), false).unwrap();
    engine.spoil_cell(&name("b"), true).unwrap();
    let corrupt = |result: Result<BatchVerdict, Error>, cell: &str| {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.name()), (ErrorKind::Corrupt, Some(&name(cell))));
        assert!(error.to_string().contains("write the cell anew"), "{error}");
    };
    corrupt(write(Put::new(name("a"), "2").expect(Expect::Absent)), "a");
    corrupt(write(Put::new(name("b"), "2").id(WriteId::new())), "b");
    assert_eq!(block_on(cells.get(&name("a"))).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(matches!(write(Put::new(name("c"), "2")), Ok(BatchVerdict::Done(_))));
    let old = WriteId::new();
    for cell in ["a", "b"] {
        assert!(matches!(write(Put::new(name(cell), "3")), Ok(BatchVerdict::Done(_))));
        assert!(block_on(cells.get(&name(cell))).unwrap().is_some());
    }
    // Which ids wrote the cell before is not known any more; ids that are made now are.
    let mut repeat = Batch::from(&Put::new(name("b"), "4").id(old));
    repeat.age = Duration::from_secs(5);
    assert_eq!(block_on(cells.write(&repeat)).unwrap_err().kind(), ErrorKind::Limit);
    std::thread::sleep(Duration::from_millis(2));
    assert!(matches!(
        write(Put::new(name("b"), "4").id(WriteId::new())),
        Ok(BatchVerdict::Done(_))
    ));
}

#[test]
fn a_value_that_has_no_space_on_the_disk_fails_alone() {
    let host = Host::new();
    let mut worker = host.worker();
    worker.ask("put-many s: 50", "put");
    let size = std::fs::metadata(host.path().join("durable/data.mdb")).unwrap().len();
    worker.ask(&format!("limit {}", size + 65_536), "limited");
    let said = worker.ask("put-sizes s: 20 262144", "sizes");
    let (done, error) = said.split_once(' ').unwrap();
    assert_eq!(done, "21", "{said}");
    let says = ["make room on the disk", "see whether the disk is full"];
    assert!(says.iter().any(|says| error.contains(says)), "{said}");
    assert!(!error.contains("may have acted"), "{said}");
    assert!(!block_on(host.tenure().cells().get(&name("s:20"))).unwrap().unwrap().value.is_empty());
}

#[test]
fn writes_whose_futures_are_dropped_do_not_harm_the_others() {
    let host = Host::new();
    let tenure = host.tenure();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let put = |at: usize| {
            let (tenure, name) = (tenure.clone(), name(&format!("d:{at}")));
            tokio::spawn(async move { tenure.cells().put(&Put::new(name, "x")).await })
        };
        let tasks: Vec<_> = (0..200).map(put).collect();
        for (at, task) in tasks.into_iter().enumerate() {
            if at % 3 == 0 {
                task.abort();
            } else {
                assert!(matches!(task.await.unwrap().unwrap(), PutVerdict::Done(_)));
            }
        }
    });
    for at in (0..200).filter(|at| at % 3 != 0) {
        assert!(block_on(tenure.cells().get(&name(&format!("d:{at}")))).unwrap().is_some());
    }
}

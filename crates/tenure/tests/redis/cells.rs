//! Cells in the store itself: writes that carry a fence or an id, batches, lists.

use std::time::Duration;

use servers::{Fsync, Proxy, Redis, eventually};
use tenure::block_on;
use tenure::{
    Batch, BatchVerdict, Conflict, ConflictCause, Effect, ErrorKind, Expect, Fence, Name, Pattern,
    Put, PutVerdict, Tenure, WriteId,
};

use crate::host::{LONG, done};

#[test]
fn a_writer_that_lost_its_lock_is_refused() {
    let redis = Redis::start();
    let (one, two) = (
        block_on(Tenure::connect(&redis.url())).unwrap(),
        block_on(Tenure::connect(&redis.url())).unwrap(),
    );
    let report: Name = "report".parse().unwrap();
    let write = |tenure: &Tenure, value: &str, fence| {
        let put = Put::new(report.clone(), value).fenced(fence);
        block_on(tenure.cells().put(&put)).unwrap()
    };
    let slow = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let old = slow.fence().unwrap();
    assert!(matches!(write(&one, "draft", old), PutVerdict::Done(_)));
    // The lock is taken away by force, and another session has it.
    block_on(one.force_release("a", old, "too slow")).unwrap();
    let quick = block_on(two.mutex("a").unwrap().lock()).unwrap();
    let new = quick.fence().unwrap();
    assert!(new > old);
    assert!(matches!(write(&two, "final", new), PutVerdict::Done(_)));
    // The slow one had read its fence before, and comes now.
    assert_eq!(write(&one, "late", old), PutVerdict::Stale(new));
    let read = || block_on(two.cells().get(&report)).unwrap();
    assert_eq!(read().unwrap().value, b"final");
    // Also when the value is gone, and when the store has forgotten the scripts.
    let removed = block_on(two.cells().remove(&report, Expect::Fence(new))).unwrap();
    assert!(matches!(removed, PutVerdict::Done(_)));
    done(&redis, &["SCRIPT", "FLUSH"]);
    assert_eq!(write(&one, "later", old), PutVerdict::Stale(new));
    assert_eq!(read(), None);
}

/// How many changes the server has counted since it began.
fn changes(redis: &Redis) -> u64 {
    redis.info("persistence", "rdb_changes_since_last_save").unwrap().parse().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn a_batch_that_is_refused_changes_nothing_in_the_store() {
    let redis = Redis::builder().arg("save", "").start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    let first = Batch::new()
        .put(Put::new(name("a"), "1").fenced(Fence::new(7)))
        .put(Put::new(name("b"), "2"))
        .id(WriteId::new());
    assert!(matches!(cells.blocking_write(&first).unwrap(), BatchVerdict::Done(_)));
    let before = changes(&redis);
    let second = Batch::new()
        .put(Put::new(name("new"), "3"))
        .put(Put::new(name("b"), "4").fenced(Fence::new(9)))
        .remove(name("a"), Expect::Fence(Fence::new(6)))
        .check(name("b"), Expect::Absent)
        .id(WriteId::new());
    // A batch has one part for each cell.
    assert!(cells.blocking_write(&second).is_err());
    let second = Batch { parts: second.parts[..3].to_vec(), ..second };
    let BatchVerdict::Refused(conflicts) = cells.blocking_write(&second).unwrap() else {
        panic!("a larger fence has written the cell")
    };
    let stale = ConflictCause::Stale(Fence::new(7));
    assert_eq!(conflicts, [Conflict { name: name("a"), cause: stale }]);
    // A repeat of what was done is not written either.
    assert!(matches!(cells.blocking_write(&first).unwrap(), BatchVerdict::Done(_)));
    assert_eq!(changes(&redis), before, "no key was written, and no time to live moved");
    assert_eq!(cells.blocking_get(&name("new")).unwrap(), None);
    assert_eq!(cells.blocking_get(&name("b")).unwrap().unwrap().fence, None);
}

/// The server has written, and its reply never comes: the session sends the write again.
#[test]
fn a_write_whose_reply_is_lost_is_made_once() {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let builder = Tenure::builder().call_limit(Duration::from_millis(500));
    let tenure = block_on(builder.connect(&proxy.redis_url())).unwrap();
    let cells = tenure.cells();
    let put = |value: &str| Put::new(name("a"), value).id(WriteId::new());
    cells.blocking_put(&put("before")).unwrap();
    proxy.hold_replies(true);
    let (writing, again) = (tenure.clone(), put("once"));
    let writer = std::thread::spawn(move || writing.cells().blocking_put(&again));
    let recorded = || {
        let count = done(&redis, &["GETRANGE", "tenure:{default}:cell:a:w", "0", "15"]);
        count.text().unwrap().parse::<u64>().unwrap()
    };
    eventually("the server has written", || recorded() == 2);
    proxy.heal_dropping();
    let verdict = writer.join().unwrap().unwrap();
    let read = cells.blocking_get(&name("a")).unwrap().unwrap();
    assert_eq!((verdict, &*read.value), (PutVerdict::Done(read.version), &b"once"[..]));
    assert_eq!(recorded(), 2, "written once");
}

/// The server has decided and dies before its reply is sent. With an append-only file that is
/// synced with each write, the repeat after its restart gets the version of the first.
#[test]
fn a_write_whose_server_is_killed_before_the_reply_is_made_once() {
    let redis = Redis::builder().append_only(Fsync::Always).start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let tenure = block_on(Tenure::builder().lease(LONG).connect(&proxy.redis_url())).unwrap();
    let cells = tenure.cells();
    let put = |value: &str| Put::new(name("a"), value).id(WriteId::new());
    cells.blocking_put(&put("before")).unwrap();
    let once = put("once");
    proxy.hold_replies(true);
    let (writing, again) = (tenure.clone(), once.clone());
    let writer = std::thread::spawn(move || writing.cells().blocking_put(&again));
    let recorded = || {
        let count = done(&redis, &["GETRANGE", "tenure:{default}:cell:a:w", "0", "15"]);
        count.text().unwrap().parse::<u64>().unwrap()
    };
    eventually("the server has written", || recorded() == 2);
    redis.kill();
    proxy.heal_dropping();
    redis.restart();
    // The session repeats the write by itself, unless its time is up before the server is back.
    if let Err(error) = writer.join().unwrap() {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
    let mut again = None;
    eventually("the repeat is answered", || {
        again = cells.blocking_put(&once).ok();
        again.is_some()
    });
    let read = cells.blocking_get(&name("a")).unwrap().unwrap();
    assert_eq!((again, &*read.value), (Some(PutVerdict::Done(read.version)), &b"once"[..]));
    assert_eq!(recorded(), 2, "written once");
}

#[test]
fn ids_outlive_the_value_for_a_time_and_nothing_else_does() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    let put = Put::new(name("a"), "1").id(WriteId::new());
    let first = cells.blocking_put(&put).unwrap();
    cells.blocking_remove(&name("a"), Expect::Anything).unwrap();
    assert_eq!(cells.blocking_put(&put).unwrap(), first, "the repeat is recognized");
    assert_eq!(cells.blocking_get(&name("a")).unwrap(), None, "and not written again");
    let keys = done(&redis, &["KEYS", "tenure:{default}:cell*"]);
    let keys: Vec<_> = keys.list().iter().map(|key| key.text().unwrap().to_owned()).collect();
    assert_eq!(keys, ["tenure:{default}:cell:a:w"]);
    assert!(done(&redis, &["PTTL", &keys[0]]).int().unwrap() > 0);
}

#[test]
fn the_fence_of_a_removed_cell_is_kept_for_a_time() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let (cells, fence) = (tenure.cells(), Fence::new(7));
    // A value that would have stayed.
    cells.blocking_put(&Put::new(name("a"), "1").fenced(fence)).unwrap();
    cells.blocking_remove(&name("a"), Expect::Fence(fence)).unwrap();
    let older = Put::new(name("a"), "2").fenced(Fence::new(6));
    assert_eq!(cells.blocking_put(&older).unwrap(), PutVerdict::Stale(fence));
    let keys = done(&redis, &["KEYS", "tenure:{default}:cell*"]);
    let keys: Vec<_> = keys.list().iter().map(|key| key.text().unwrap().to_owned()).collect();
    assert_eq!(keys, ["tenure:{default}:cell:a"]);
    assert!(done(&redis, &["PTTL", &keys[0]]).int().unwrap() > 0);
}

#[test]
fn a_list_reads_the_index_and_takes_names_of_expired_values_out_of_it() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    for text in ["b", "a*", "a b", "é", "a/1", "a-1"] {
        cells.blocking_put(&Put::new(name(text), text)).unwrap();
    }
    let brief = Put::new(name("a/2"), "x").time_to_live(Duration::from_millis(1));
    cells.blocking_put(&brief).unwrap();
    let list = |pattern: &str, after: Option<&str>, limit: usize| -> Vec<String> {
        let after = after.map(name);
        let found = cells.blocking_list(&Pattern::new(pattern), after.as_ref(), limit).unwrap();
        found.into_iter().map(|(name, _)| name.to_string()).collect()
    };
    eventually("its time is over", || cells.blocking_get(&name("a/2")).unwrap().is_none());
    assert_eq!(list("*", None, 9), ["a b", "a*", "a-1", "a/1", "b", "é"]);
    assert_eq!(list("a?1", None, 9), ["a-1", "a/1"]);
    assert_eq!(list("a*", Some("a*"), 1), ["a-1"]);
    assert_eq!(list("a*", Some("a-1"), 9), ["a/1"]);
    let listed = done(&redis, &["ZCARD", "tenure:{default}:cells"]).int();
    assert_eq!(listed, Some(6), "the expired one was met and is gone");
    assert_eq!(redis.commands("scan"), 0);
}

#[test]
fn every_write_has_a_version_of_its_own() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let put = |text: &str| Batch::new().put(Put::new(name(text), text));
    let batches = [
        put("a"),
        put("b"),
        put("a"),
        Batch::new().remove(name("a"), Expect::Anything),
        put("a"),
        Batch::new().check(name("a"), Expect::Anything),
        put("c"),
    ];
    let versions = batches.map(|batch| match tenure.cells().blocking_write(&batch).unwrap() {
        BatchVerdict::Done(version) => version,
        BatchVerdict::Refused(conflicts) => panic!("{conflicts:?}"),
    });
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
}

#[test]
fn a_cell_is_kept_as_long_as_its_value_or_its_fence_is_needed() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    let ttl = || done(&redis, &["PTTL", "tenure:{default}:cell:a"]).int().unwrap();
    let put = Put::new(name("a"), "1");
    let brief = put.clone().time_to_live(LONG);
    cells.blocking_put(&brief).unwrap();
    let hour = 3_600_000;
    assert!((1..hour).contains(&ttl()), "{}", ttl());
    cells.blocking_put(&put).unwrap();
    assert_eq!(ttl(), -1, "it stays");
    cells.blocking_put(&brief.fenced(Fence::new(7))).unwrap();
    assert!(ttl() > hour, "its fence is remembered for longer than its value lives: {}", ttl());
    cells.blocking_remove(&name("a"), Expect::Anything).unwrap();
    assert!(ttl() > hour, "and longer than it is there, but not for ever: {}", ttl());
}

#[test]
fn names_of_expired_values_do_not_pile_up() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    let ttl = || done(&redis, &["PTTL", "tenure:{default}:cells"]).int().unwrap();
    cells.blocking_put(&Put::new(name("brief"), "").time_to_live(LONG)).unwrap();
    assert!(ttl() > 0, "the index goes with the last of its cells");
    cells.blocking_put(&Put::new(name("stays"), "")).unwrap();
    assert_eq!(ttl(), -1, "and stays with one that does");
    for at in 0..400 {
        let brief = Put::new(name(&format!("{at:03}")), "").time_to_live(Duration::from_micros(1));
        cells.blocking_put(&brief).unwrap();
    }
    let listed = done(&redis, &["ZCARD", "tenure:{default}:cells"]).int().unwrap();
    assert!(listed < 200, "{listed} names are listed, one has a value");
    assert_eq!(ttl(), -1);
}

#[test]
fn an_id_that_had_to_make_room_for_128_others_is_not_written_again() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    let write = |value: &str| {
        let put = Put::new(name("a"), value).id(WriteId::new());
        let PutVerdict::Done(version) = cells.blocking_put(&put).unwrap() else { panic!() };
        (put, version)
    };
    let (first, _) = write("first");
    let (second, version) = write("second");
    let rest: Vec<_> = (0..127).map(|at| write(&at.to_string())).collect();
    let last = rest.last().unwrap().1;
    assert_eq!(cells.blocking_put(&second).unwrap(), PutVerdict::Done(version), "still known");
    let error = cells.blocking_put(&first).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::Unknown), "{error}");
    let first = first.expect(Expect::Version(version));
    assert!(cells.blocking_put(&first).is_err(), "another version is there");
    assert_eq!(cells.blocking_get(&name("a")).unwrap().unwrap().version, last);
    // The version that is there proves that nothing was written since.
    let first = first.expect(Expect::Version(last));
    assert!(matches!(cells.blocking_put(&first).unwrap(), PutVerdict::Done(_)));
    let bytes = done(&redis, &["STRLEN", "tenure:{default}:cell:a:w"]).int();
    assert_eq!(bytes, Some(129 * 48), "the log has a fixed size");
}

/// Values that are larger than one call returns.
#[test]
fn large_values_are_listed_a_few_at_a_time() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    let cells = tenure.cells();
    for at in 0..5 {
        let put = Put::new(name(&at.to_string()), vec![at; 200 * 1024]);
        cells.blocking_put(&put).unwrap();
    }
    let before = redis.commands("evalsha") + redis.commands("eval");
    let found = cells.blocking_list(&Pattern::all(), None, 9).unwrap();
    let calls = redis.commands("evalsha") + redis.commands("eval") - before;
    let values: Vec<u8> = found.iter().map(|(_, cell)| cell.value[0]).collect();
    assert_eq!(values, [0, 1, 2, 3, 4]);
    assert!(calls >= 3, "{calls} calls for 1,000 KiB");
}

//! Cells as etcd keeps them: what a write sends and leaves behind, and watches through broken
//! connections.

use std::time::Duration;

use servers::{Etcd, Proxy, eventually};
use tenure::engine::etcd::client::{
    Client, ClientOptions, KeyValue, RequestOp, ResponseOp, Target, TxnRequest,
};
use tenure::{
    Batch, BatchVerdict, Cell, CellChange, CellRange, CellWatch, ConflictCause, Effect, ErrorKind,
    Expect, Fence, Name, Pattern, Put, PutVerdict, Tenure, Version, WriteId, block_on, limits,
};

use crate::host::PATIENCE;
use crate::recipes::engine_at;

/// How many watches a member has.
const WATCHES: &str = "etcd_debugging_mvcc_watcher_total";

fn session(url: &str, namespace: &str) -> Tenure {
    let builder = Tenure::builder().call_limit(PATIENCE).namespace(namespace);
    block_on(builder.connect(url)).unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn put(text: &str, value: &str) -> Put {
    Put::new(name(text), value)
}

#[track_caller]
fn done(verdict: PutVerdict) -> Version {
    match verdict {
        PutVerdict::Done(version) => version,
        other => panic!("should be written: {other:?}"),
    }
}

/// All keys with a prefix, and the revision of the store.
fn state(etcd: &Etcd, prefix: &str) -> (Vec<KeyValue>, i64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = format!("http://127.0.0.1:{}", etcd.port(0));
        let client = Client::new(&Target::new(&endpoint, &ClientOptions::default()).unwrap());
        let end = format!("{prefix}\x7f").into_bytes();
        let success = vec![RequestOp::range(prefix.as_bytes().to_vec(), end)];
        let read = client.txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
        let keys = read.responses.into_iter().flat_map(ResponseOp::into_kvs).collect();
        (keys, read.header.unwrap().revision)
    })
}

/// How many requests of a kind a member has served.
fn served(etcd: &Etcd, service: &str, method: &str) -> f64 {
    let labels = format!(
        "grpc_code=\"OK\",grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",\
         grpc_type=\"unary\""
    );
    etcd.metric(0, &format!("grpc_server_handled_total{{{labels}}}"))
}

/// How many leases there are.
fn leases(etcd: &Etcd) -> usize {
    let listed = etcd.ctl(&["lease", "list"]).unwrap();
    listed.lines().filter(|line| !line.starts_with("found")).count()
}

#[test]
fn a_refused_batch_changes_nothing_in_the_store() {
    let etcd = Etcd::start();
    let tenure = session(&etcd.url(), "refused");
    let cells = tenure.cells();
    let version = done(cells.blocking_put(&put("a", "1").id(WriteId::new())).unwrap());
    done(cells.blocking_put(&put("b", "1").fenced(Fence::new(5))).unwrap());
    let before = (state(&etcd, "tenure\trefused\t"), leases(&etcd));
    let batch = Batch::new()
        .put(put("a", "2").expect(Expect::Version(Version(version.0 - 1))))
        .put(put("b", "2").fenced(Fence::new(4)))
        .put(put("c", "2").time_to_live(Duration::from_secs(600)))
        .remove(name("d"), Expect::Fence(Fence::new(9)))
        .id(WriteId::new());
    let BatchVerdict::Refused(conflicts) = cells.blocking_write(&batch).unwrap() else {
        panic!("two conditions do not hold")
    };
    let names: Vec<&str> = conflicts.iter().map(|conflict| conflict.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let a = Cell { value: b"1".to_vec(), version, fence: None, expires_in: None };
    assert_eq!(conflicts[0].cause, ConflictCause::Changed(Some(a)));
    assert_eq!(conflicts[1].cause, ConflictCause::Stale(Fence::new(5)));
    eventually("its lease is revoked", || leases(&etcd) == before.1);
    assert_eq!(state(&etcd, "tenure\trefused\t"), before.0, "neither a key nor a revision");
}

#[test]
fn a_write_is_one_request_and_so_is_its_refusal() {
    let etcd = Etcd::start();
    // Without a session, which reads its eviction notices in the background.
    let engine = engine_at(&etcd.url(), "requests");
    let cells = engine.cells().unwrap();
    let requests = |batch: &Batch| {
        let before = served(&etcd, "KV", "Txn");
        let verdict = block_on(cells.write(batch)).unwrap();
        (served(&etcd, "KV", "Txn") - before, verdict)
    };
    let one = |batch: &Batch| {
        let (requests, verdict) = requests(batch);
        assert!((requests - 1.0).abs() < 0.1, "{requests} requests: {verdict:?}");
        verdict
    };
    let BatchVerdict::Done(version) = one(&Batch::from(&put("a", "1").expect(Expect::Absent)))
    else {
        panic!("a is absent")
    };
    one(&Batch::from(&put("a", "2").expect(Expect::Absent)));
    one(&Batch::from(&put("a", "2").expect(Expect::Version(version))));
    one(&Batch::from(&put("a", "3")));
    one(&Batch::new().remove(name("a"), Expect::Anything));
    let id = put("a", "4").id(WriteId::new());
    assert_eq!(one(&Batch::from(&id)), one(&Batch::from(&id)), "the same write");
    // The first fence of a cell is a request more: etcd cannot compare what is not there.
    let (first, _) = requests(&Batch::from(&put("a", "5").fenced(Fence::new(7))));
    assert!((first - 2.0).abs() < 0.1, "{first}");
    one(&Batch::from(&put("a", "6").fenced(Fence::new(8))));
    one(&Batch::from(&put("a", "7").fenced(Fence::new(8))));
    for stale in [7, 6, 0] {
        let refused = one(&Batch::from(&put("a", "8").fenced(Fence::new(stale))));
        assert_eq!(refused.into_single(), PutVerdict::Stale(Fence::new(8)));
    }
    let cell = block_on(cells.get(&name("a"))).unwrap().unwrap();
    assert_eq!(cell.fence, Some(Fence::new(8)));
}

#[test]
fn the_largest_batch_is_one_transaction() {
    let tenure = session(&Etcd::shared().url(), "largest");
    let cells = tenure.cells();
    let parts = |fence: u64| {
        (0..limits::CELL_PARTS).fold(Batch::new().id(WriteId::new()), |batch, at| {
            let value = vec![b'x'; limits::BATCH_BYTES / limits::CELL_PARTS];
            batch.put(Put::new(name(&format!("c{at:02}")), value).fenced(Fence::new(fence)))
        })
    };
    for fence in [3, 4] {
        let BatchVerdict::Done(version) = cells.blocking_write(&parts(fence)).unwrap() else {
            panic!("no larger fence")
        };
        let listed = cells.blocking_list(&Pattern::all(), None, 100).unwrap();
        assert_eq!(listed.len(), limits::CELL_PARTS);
        let same = |(_, cell): &(Name, Cell)| {
            cell.version == version && cell.fence == Some(Fence::new(fence))
        };
        assert!(listed.iter().all(same), "all have the version and the fence of the batch");
    }
    let BatchVerdict::Refused(conflicts) = cells.blocking_write(&parts(3)).unwrap() else {
        panic!("a larger fence")
    };
    assert_eq!(conflicts.len(), limits::CELL_PARTS);
}

#[test]
fn the_ids_of_writes_share_a_lease_and_end_with_it() {
    let etcd = Etcd::start();
    let builder = Tenure::builder().lease(Duration::from_secs(1)).max_lease(Duration::from_secs(1));
    let builder = builder.namespace("ids").call_limit(PATIENCE);
    let tenure = block_on(builder.connect(&etcd.url())).unwrap();
    let ids = || state(&etcd, "tenure\tids\to\t").0;
    for value in 0..50 {
        let put = put("a", &value.to_string()).id(WriteId::new());
        done(tenure.cells().blocking_put(&put).unwrap());
    }
    assert_eq!(leases(&etcd), 1);
    eventually("the ids are gone", || ids().is_empty());
    assert!(tenure.cells().blocking_get(&name("a")).unwrap().is_some(), "the value stays");
}

/// A reply that is lost: the session repeats the write, and the repeat finds the first.
#[test]
fn a_write_whose_reply_is_lost_is_made_once() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let tenure = session(&format!("etcd://{}", proxy.addr()), "lost-reply");
    let root = "tenure\tlost-reply\tc\t";
    // The connection stands, and the lease for ids is granted.
    done(tenure.cells().blocking_put(&put("b", "").id(WriteId::new())).unwrap());
    proxy.hold_replies(true);
    let writer = {
        let tenure = tenure.clone();
        std::thread::spawn(move || {
            tenure.cells().blocking_put(&put("a", "1").expect(Expect::Absent).id(WriteId::new()))
        })
    };
    eventually("it is written", || state(etcd, root).0.len() == 2);
    let written = state(etcd, root).0;
    proxy.heal_dropping();
    let version = done(writer.join().unwrap().unwrap());
    assert_eq!(state(etcd, root).0, written, "not written again");
    assert_eq!(tenure.cells().blocking_get(&name("a")).unwrap().unwrap().version, version);
}

/// The member has decided and dies before its reply is sent: the repeat after its restart gets the
/// version of the first write.
#[test]
fn a_write_whose_server_is_killed_before_the_reply_is_made_once() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let tenure = session(&format!("etcd://{}", proxy.addr()), "killed");
    let root = "tenure\tkilled\tc\t";
    // The connection stands, and the lease for ids is granted.
    done(tenure.cells().blocking_put(&put("b", "").id(WriteId::new())).unwrap());
    let once = put("a", "1").expect(Expect::Absent).id(WriteId::new());
    proxy.hold_replies(true);
    let writer = {
        let (tenure, once) = (tenure.clone(), once.clone());
        std::thread::spawn(move || tenure.cells().blocking_put(&once))
    };
    eventually("it is written", || state(&etcd, root).0.len() == 2);
    let written = state(&etcd, root).0;
    etcd.kill(0);
    proxy.heal_dropping();
    etcd.restart(0);
    etcd.wait_until_healthy();
    // The session repeats the write by itself, unless its time is up before the member is back.
    if let Err(error) = writer.join().unwrap() {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
    let mut again = None;
    eventually("the repeat is answered", || {
        again = tenure.cells().blocking_put(&once).ok();
        again.is_some()
    });
    let version = done(again.unwrap());
    assert_eq!(state(&etcd, root).0, written, "not written again");
    assert_eq!(tenure.cells().blocking_get(&name("a")).unwrap().unwrap().version, version);
}

#[test]
fn a_removal_of_what_is_absent_has_a_version_of_its_own() {
    // A cluster of its own, in which nothing else makes revisions.
    let etcd = Etcd::start();
    let tenure = session(&etcd.url(), "absent");
    let cells = tenure.cells();
    let first = done(cells.blocking_put(&put("a", "1")).unwrap());
    let removed = done(cells.blocking_remove(&name("a"), Expect::Anything).unwrap());
    let again = done(cells.blocking_remove(&name("a"), Expect::Anything).unwrap());
    let last = done(cells.blocking_put(&put("a", "2")).unwrap());
    assert!(first < removed && removed < again && again < last);
}

#[test]
fn versions_that_no_store_gives_out_match_nothing() {
    let tenure = session(&Etcd::shared().url(), "odd-versions");
    for version in [0, 1, limits::FENCE - 1] {
        let odd = put("a", "1").expect(Expect::Version(Version(version)));
        let verdict = tenure.cells().blocking_put(&odd).unwrap();
        assert_eq!(verdict, PutVerdict::Refused(None), "{version}");
    }
}

#[test]
fn a_list_has_the_fences_of_cells_among_many_that_were_removed() {
    let tenure = session(&Etcd::shared().url(), "fences");
    let cells = tenure.cells();
    for at in 0..60_u64 {
        let text = format!("k{at:02}");
        done(cells.blocking_put(&put(&text, &text).fenced(Fence::new(100 + at))).unwrap());
        if at % 20 != 19 {
            cells.blocking_remove(&name(&text), Expect::Anything).unwrap();
        }
    }
    done(cells.blocking_put(&put("k5", "without")).unwrap());
    let list = |after: Option<&str>, limit| {
        let listed = cells.blocking_list(&Pattern::new("k*"), after.map(name).as_ref(), limit);
        let fence = |cell: &Cell| cell.fence.map_or(0, Fence::get);
        listed
            .unwrap()
            .iter()
            .map(|(name, cell)| (name.to_string(), fence(cell)))
            .collect::<Vec<_>>()
    };
    let all = [("k19", 119), ("k39", 139), ("k5", 0), ("k59", 159)];
    let all = all.map(|(name, fence)| (name.to_owned(), fence));
    assert_eq!(list(None, 10), all);
    assert_eq!(list(None, 2), all[..2]);
    assert_eq!(list(Some("k20"), 2), all[1..3]);
}

/// Reads changes until a cell has a value. Returns what came before.
fn until_value(watch: &mut CellWatch, wanted: &str) -> Vec<CellChange> {
    let mut before = Vec::new();
    loop {
        match watch.blocking_next().unwrap() {
            CellChange::Put(_, cell) if cell.value == wanted.as_bytes() => return before,
            change => before.push(change),
        }
    }
}

#[test]
fn a_watch_through_broken_connections_comes_to_the_last_state() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let watching = session(&format!("etcd://{}", proxy.addr()), "broken");
    let writing = session(&etcd.url(), "broken");
    let range = CellRange::prefix("k").unwrap();
    let mut watch = watching.cells().blocking_watch(range).unwrap();
    done(writing.cells().blocking_put(&put("k", "first")).unwrap());
    until_value(&mut watch, "first");
    for round in 0..3 {
        // Nothing arrives any more, and what is written meanwhile is lost with the connection.
        proxy.hold_replies(true);
        done(writing.cells().blocking_put(&put("k", &format!("unseen {round}"))).unwrap());
        let last = format!("last {round}");
        done(writing.cells().blocking_put(&put("k", &last)).unwrap());
        eventually("an event is held back", || proxy.counts().held_to_client > 0);
        proxy.heal_dropping();
        // A signal from before may lead to a read that is faster than the news of the gap.
        let mut before = until_value(&mut watch, &last);
        let then = format!("then {round}");
        done(writing.cells().blocking_put(&put("k", &then)).unwrap());
        before.extend(until_value(&mut watch, &then));
        assert!(before.contains(&CellChange::Gap), "round {round}: the gap is told: {before:?}");
    }
}

#[test]
fn a_watch_goes_on_after_a_compaction_and_a_restart() {
    let etcd = Etcd::start();
    let (watching, writing) = (session(&etcd.url(), "on"), session(&etcd.url(), "on"));
    let mut watch = watching.cells().blocking_watch(CellRange::One(name("a"))).unwrap();
    assert_eq!(watch.blocking_next().unwrap(), CellChange::Removed(name("a")));
    done(writing.cells().blocking_put(&put("a", "1")).unwrap());
    until_value(&mut watch, "1");
    etcd.ctl(&["compact", &state(&etcd, "tenure").1.to_string()]).unwrap();
    done(writing.cells().blocking_put(&put("a", "2")).unwrap());
    until_value(&mut watch, "2");
    etcd.kill(0);
    etcd.restart(0);
    let written = || writing.cells().blocking_put(&put("a", "3"));
    eventually("the member serves again", || written().is_ok());
    let mut before = until_value(&mut watch, "3");
    done(writing.cells().blocking_put(&put("a", "4")).unwrap());
    before.extend(until_value(&mut watch, "4"));
    assert!(before.contains(&CellChange::Gap), "the stream was opened again: {before:?}");
}

#[test]
fn watchers_of_one_range_share_a_watch_that_ends_with_the_last_of_them() {
    let etcd = Etcd::start();
    let tenure = session(&etcd.url(), "shared");
    let cells = tenure.cells();
    // That of the stream, and that of the session's eviction notices.
    let others = 2.0;
    eventually("the session watches", || (etcd.metric(0, WATCHES) - others).abs() < 0.1);
    let count = || etcd.metric(0, WATCHES) - others;
    let range = || CellRange::prefix("k").unwrap();
    let mut first = cells.blocking_watch(range()).unwrap();
    let second = cells.blocking_watch(range()).unwrap();
    assert!((count() - 1.0).abs() < 0.1, "{}", count());
    drop(second);
    done(cells.blocking_put(&put("k1", "1")).unwrap());
    until_value(&mut first, "1");
    drop(first);
    done(cells.blocking_put(&put("k1", "2")).unwrap());
    eventually("the watch is canceled", || count() < 0.1);
    // A range without events is removed when another watch begins.
    drop(cells.blocking_watch(CellRange::One(name("quiet"))).unwrap());
    let _third = cells.blocking_watch(range()).unwrap();
    eventually("only the third is left", || (count() - 1.0).abs() < 0.1);
}

#[test]
fn an_expired_value_is_removed_and_its_watcher_is_told() {
    let tenure = session(&Etcd::shared().url(), "expiry");
    let cells = tenure.cells();
    let mut watch = cells.blocking_watch(CellRange::One(name("a"))).unwrap();
    let short = put("a", "1").time_to_live(Duration::from_secs(1));
    done(cells.blocking_put(&short).unwrap());
    while watch.blocking_next().unwrap() != CellChange::Removed(name("a")) {}
    let put = put("a", "2").expect(Expect::Absent);
    eventually("it is absent", || matches!(cells.blocking_put(&put).unwrap(), PutVerdict::Done(_)));
}

#[test]
fn an_id_as_old_as_ids_are_kept_is_not_written() {
    let etcd = Etcd::start();
    let engine = engine_at(&etcd.url(), "old");
    let cells = engine.cells().unwrap();
    let mut batch = Batch::from(&put("a", "1").id(WriteId::new()));
    // As old as `max_lease` of this engine.
    batch.age = Duration::from_secs(60);
    let before = state(&etcd, "tenure\told\t");
    let error = block_on(cells.write(&batch)).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::Unknown), "{error}");
    assert_eq!(state(&etcd, "tenure\told\t"), before);
    // A version that still stands proves that the batch was not written before.
    let BatchVerdict::Done(version) = block_on(cells.write(&Batch::from(&put("a", "1")))).unwrap()
    else {
        panic!("without a condition")
    };
    batch.parts[0].expect = Expect::Version(version);
    assert!(matches!(block_on(cells.write(&batch)).unwrap(), BatchVerdict::Done(_)));
}

#[test]
fn a_watch_does_not_begin_before_etcd_has_created_it() {
    let etcd = Etcd::shared();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let watching = session(&format!("etcd://{}", proxy.addr()), "begin");
    let writing = session(&etcd.url(), "begin");
    // The stream of watches stands.
    drop(watching.cells().blocking_watch(CellRange::One(name("b"))).unwrap());
    proxy.black_hole(true);
    let begin = {
        let watching = watching.clone();
        std::thread::spawn(move || watching.cells().blocking_watch(CellRange::One(name("a"))))
    };
    eventually("the request is held back", || proxy.counts().held_to_server > 0);
    assert!(!begin.is_finished(), "no change would be signalled yet");
    proxy.heal_delivering();
    let mut watch = begin.join().unwrap().unwrap();
    done(writing.cells().blocking_put(&put("a", "1")).unwrap());
    until_value(&mut watch, "1");
}

//! Several cells as one step, and ids of writes: a repeat is the same write, whatever happened to
//! the first reply.

use std::sync::Arc;
use std::time::Duration;

use super::cells::CellClient;
use super::{Fault, Link, RequestGate, Waiting, World, cells_of, list, name};
use crate::contract::{
    Batch, BatchVerdict, Conflict, ConflictCause, Effect, ErrorKind, Expect, Fence, Put,
    PutVerdict, Version, WriteId,
};
use crate::limits;
use crate::primitives::Tenure;

list! { Cells:
    several_cells_are_written_in_one_step cites [1] needs [Cells, AtomicSets];
    one_condition_that_fails_stops_all_writes cites [1] needs [Cells, AtomicSets];
    a_check_compares_and_writes_nothing cites [1] needs [Cells, AtomicSets];
    a_full_batch_fits_into_one_step cites [10] needs [Cells, AtomicSets];
    batches_in_any_order_never_wait_for_each_other cites [10] needs [Cells, AtomicSets];
    a_repeat_by_id_gets_the_first_reply_and_writes_nothing cites [5] needs [Cells];
    an_id_is_known_after_the_value_is_gone cites [5] needs [Cells];
    an_id_covers_all_cells_of_a_batch cites [5] needs [Cells, AtomicSets];
    a_refused_write_leaves_its_id_unused cites [5] needs [Cells];
    the_last_ids_of_a_cell_are_known cites [5] needs [Cells];
    what_cannot_be_told_is_not_written cites [5] needs [Cells];
    a_repeat_that_travels_longer_than_the_first_attempt_writes_nothing cites [5] needs [Cells];
    no_fault_of_the_link_writes_twice cites [5, 6] needs [Cells];
    a_dropped_write_is_done_or_not_done cites [7] needs [Cells];
}

fn put(cell: &str, text: &str) -> Put {
    Put::new(name(cell), text)
}

fn fence(number: u64) -> Expect {
    Expect::Fence(Fence::new(number))
}

/// An id for a write through a session, whose clock is the suite's: by the clock of the machine, an
/// id is as old as the machine has been running for less than the suite's clock says.
fn new_id(world: &World) -> WriteId {
    WriteId::made_at(world.stage().clock().now())
}

#[track_caller]
fn done(verdict: BatchVerdict) -> Version {
    match verdict {
        BatchVerdict::Done(version) => version,
        BatchVerdict::Refused(conflicts) => panic!("should be written: {conflicts:?}"),
    }
}

#[track_caller]
fn conflicts(verdict: BatchVerdict) -> Vec<Conflict> {
    match verdict {
        BatchVerdict::Refused(conflicts) => conflicts,
        BatchVerdict::Done(version) => panic!("should be refused, and is written: {version:?}"),
    }
}

fn text(client: &CellClient<'_>, cell: &str) -> Option<String> {
    client.get(cell).map(|cell| String::from_utf8(cell.value).expect("text"))
}

fn several_cells_are_written_in_one_step(world: &World) {
    let client = CellClient::new(world);
    let first = client.write(put("a", "old"));
    client.write(put("gone", "old"));
    let batch = Batch::new()
        .put(put("a", "new").expect(Expect::Version(first)))
        .put(put("b", "new").expect(Expect::Absent).time_to_live(world.long_lease()))
        .put(put("c", "new").fenced(Fence::new(7)))
        .remove(name("gone"), Expect::Anything);
    let version = done(client.batch(batch).unwrap());
    assert!(version > first);
    for cell in ["a", "b", "c"] {
        let found = client.get(cell).expect("it was written");
        assert_eq!((found.value, found.version), (b"new".to_vec(), version), "{cell}");
    }
    assert!(client.get("b").unwrap().expires_in.is_some());
    assert_eq!(client.get("c").unwrap().fence, Some(Fence::new(7)));
    assert_eq!(client.get("gone"), None);
    assert_eq!(client.names("*", None, 10), ["a", "b", "c"]);
}

fn one_condition_that_fails_stops_all_writes(world: &World) {
    let client = CellClient::new(world);
    let first = client.write(put("a", "old"));
    let second = client.write(put("a", "newer"));
    client.write(put("f", "fenced").fenced(Fence::new(9)));
    let present = client.get("a");
    let batch = Batch::new()
        .put(put("a", "no").expect(Expect::Version(first)))
        .put(put("b", "no").expect(Expect::Absent))
        .remove(name("f"), fence(8))
        .check(name("d"), Expect::Version(second))
        .put(put("g", "no").fenced(Fence::new(50)));
    let refused = conflicts(client.batch(batch).unwrap());
    let expected = [
        ("a", ConflictCause::Changed(present.clone())),
        ("f", ConflictCause::Stale(Fence::new(9))),
        ("d", ConflictCause::Changed(None)),
    ];
    let expected = expected.map(|(cell, cause)| Conflict { name: name(cell), cause });
    assert_eq!(refused, expected, "all that do not hold, in the order of the parts");
    assert_eq!(client.get("a"), present);
    assert_eq!(client.names("*", None, 10), ["a", "f"]);
    // The fence of a refused part was not raised.
    client.write(put("g", "yes").fenced(Fence::new(1)));
}

fn a_check_compares_and_writes_nothing(world: &World) {
    let client = CellClient::new(world);
    let version = client.write(put("a", "one").fenced(Fence::new(3)));
    let checked = |expect: Expect| {
        let batch = Batch::new().check(name("a"), expect).put(put("b", "x"));
        client.batch(batch).unwrap()
    };
    done(checked(Expect::Version(version)));
    done(checked(fence(5)));
    assert_eq!(client.get("a").unwrap().version, version);
    assert_eq!(client.get("a").unwrap().fence, Some(Fence::new(3)), "a check raises no fence");
    conflicts(checked(fence(2)));
    conflicts(checked(Expect::Absent));
    let alone = Batch::new().check(name("a"), Expect::Absent);
    conflicts(client.batch(alone).unwrap());
}

fn a_full_batch_fits_into_one_step(world: &World) {
    let client = CellClient::new(world);
    let cells: Vec<String> = (0..limits::CELL_PARTS).map(|at| format!("c{at:02}")).collect();
    let bytes = limits::BATCH_BYTES / limits::CELL_PARTS;
    let full = |fill: u8, number: u64| {
        let put = |cell: &String| Put::new(name(cell), vec![fill; bytes]);
        let puts = cells.iter().map(|cell| put(cell).fenced(Fence::new(number)));
        puts.fold(Batch::new().id(WriteId::new()), Batch::put)
    };
    done(client.batch(full(1, 1)).unwrap());
    let second = done(client.batch(full(2, 2)).unwrap());
    let refused = conflicts(client.batch(full(3, 1)).unwrap());
    assert_eq!(refused.len(), limits::CELL_PARTS);
    let found = client.get(&cells[limits::CELL_PARTS - 1]).unwrap();
    assert_eq!((found.version, found.value), (second, vec![2; bytes]));
}

fn batches_in_any_order_never_wait_for_each_other(world: &World) {
    let clients: Vec<CellClient<'_>> = (0..6).map(|_| CellClient::new(world)).collect();
    for round in 0..4 {
        let race = |(n, client): (usize, &CellClient<'_>)| {
            let mut cells = ["a", "b", "c", "d"];
            cells.rotate_left(n % 4);
            let puts = cells.iter().map(|cell| put(cell, &format!("{round}-{n}")));
            let batch = puts.fold(Batch::new().id(WriteId::new()), Batch::put);
            let engine = client.engine();
            Waiting::start(async move { cells_of(&*engine).write(&batch).await })
        };
        let race: Vec<_> = clients.iter().enumerate().map(race).collect();
        for one in race {
            done(one.done(world.stage()).unwrap());
        }
        let last: Vec<_> = ["a", "b", "c", "d"].map(|cell| text(&clients[0], cell)).to_vec();
        assert!(last.iter().all(|text| *text == last[0]), "one batch was last: {last:?}");
    }
}

fn a_repeat_by_id_gets_the_first_reply_and_writes_nothing(world: &World) {
    let (client, other) = (CellClient::new(world), CellClient::new(world));
    let mine = put("k", "mine").expect(Expect::Absent).id(WriteId::new());
    let first = client.write(mine.clone());
    assert_eq!(client.put(mine.clone()), PutVerdict::Done(first), "though the cell is there now");
    let second = other.write(put("k", "other"));
    assert_eq!(client.put(mine), PutVerdict::Done(first));
    let found = client.get("k").unwrap();
    assert_eq!((found.value, found.version), (b"other".to_vec(), second));
    // Another id is another write.
    let third = client.write(put("k", "again").id(WriteId::new()));
    assert!(third > second);
}

fn an_id_is_known_after_the_value_is_gone(world: &World) {
    let client = CellClient::new(world);
    let short = put("k", "short").time_to_live(world.lease()).id(WriteId::new());
    let first = client.write(short.clone());
    world.pass(world.lease() * 2);
    assert_eq!(client.get("k"), None);
    assert_eq!(client.put(short), PutVerdict::Done(first));
    assert_eq!(client.get("k"), None, "a repeat does not bring it back");

    let kept = put("j", "kept").id(WriteId::new());
    let second = client.write(kept.clone());
    let removal = Batch::new().remove(name("j"), Expect::Anything).id(WriteId::new());
    let third = done(client.batch(removal.clone()).unwrap());
    assert_eq!(client.put(kept), PutVerdict::Done(second));
    client.write(put("j", "anew"));
    assert_eq!(done(client.batch(removal).unwrap()), third, "a removal is a write too");
    assert_eq!(text(&client, "j").as_deref(), Some("anew"));
}

fn an_id_covers_all_cells_of_a_batch(world: &World) {
    let client = CellClient::new(world);
    let batch = Batch::new().put(put("a", "1")).put(put("b", "1")).id(WriteId::new());
    let first = done(client.batch(batch.clone()).unwrap());
    client.write(put("a", "2").id(WriteId::new()));
    client.write(put("b", "2").id(WriteId::new()));
    assert_eq!(done(client.batch(batch).unwrap()), first);
    assert_eq!(["a", "b"].map(|cell| text(&client, cell).unwrap()), ["2", "2"]);
}

fn a_refused_write_leaves_its_id_unused(world: &World) {
    let client = CellClient::new(world);
    client.write(put("k", "there"));
    let mine = put("k", "mine").expect(Expect::Absent).id(WriteId::new());
    assert!(matches!(client.put(mine.clone()), PutVerdict::Refused(Some(_))));
    client.remove("k", Expect::Anything);
    client.write(mine);
    assert_eq!(text(&client, "k").as_deref(), Some("mine"));
}

fn the_last_ids_of_a_cell_are_known(world: &World) {
    let client = CellClient::new(world);
    let mine = put("k", "mine").id(WriteId::new());
    let first = client.write(mine.clone());
    for _ in 1..limits::WRITE_IDS {
        client.write(put("k", "other").id(WriteId::new()));
    }
    // Writes without an id do not count.
    let last = client.write(put("k", "last"));
    assert_eq!(client.put(mine.clone()), PutVerdict::Done(first));
    assert_eq!(client.get("k").unwrap().version, last);
    // One more may push it out. Then the store must not write it again, if its id is old enough to
    // be the one that was pushed out.
    client.write(put("k", "more").id(WriteId::new()));
    let mut repeat = Batch::from(&mine);
    repeat.age = Duration::from_secs(50);
    match client.batch(repeat) {
        Ok(verdict) => assert_eq!(done(verdict), first),
        Err(error) => {
            let seen = (error.kind(), error.effect());
            assert_eq!(seen, (ErrorKind::Limit, Effect::Unknown), "{error}");
        }
    }
    assert_eq!(text(&client, "k").as_deref(), Some("more"));
}

fn what_cannot_be_told_is_not_written(world: &World) {
    let client = CellClient::new(world);
    let present = client.write(put("k", "there"));
    let aged = |put: Put| {
        let mut batch = Batch::from(&put.id(WriteId::new()));
        batch.age = limits::DEFAULT_MAX_LEASE * 10;
        client.batch(batch)
    };
    let error = aged(put("k", "late")).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::Unknown), "{error}");
    assert_eq!(error.name(), Some(&name("k")));
    aged(put("new", "late")).unwrap_err();
    aged(put("k", "late").expect(Expect::Version(Version(present.0 - 1)))).unwrap_err();
    aged(put("new", "late").expect(Expect::Version(present))).unwrap_err();
    assert_eq!(client.get("k").unwrap().version, present);
    assert_eq!(client.get("new"), None);
    // The version is still there: this write would have changed it, so it was not made.
    done(aged(put("k", "late").expect(Expect::Version(present))).unwrap());
}

/// The age of an id was taken when a call was sent. A repeat that was under way for longer than the
/// first attempt therefore looked younger than its first write, which 128 others had pushed out of
/// the log: it was written again.
fn a_repeat_that_travels_longer_than_the_first_attempt_writes_nothing(world: &World) {
    let (gate, other) = (Arc::new(RequestGate::default()), CellClient::new(world));
    let link = Link::gated(world.stage().client(), &gate);
    let builder = Tenure::builder().clock(world.stage().clock()).lease(world.lease());
    let builder = builder.call_limit(world.lease() / 3);
    let tenure = builder.open(Arc::clone(&link) as _).expect("a session opens");
    link.trouble_call(0, Fault::LoseReply);
    gate.close();
    let mine = put("k", "mine").id(new_id(world));
    let mut write = Waiting::start(async move { tenure.cells().put(&mine).await });
    world.until("the repeat is under way", || write.poll() || link.calls() == 2);
    let first = other.get("k").expect("the first attempt arrived").version;
    for _ in 0..limits::WRITE_IDS {
        other.write(put("k", "other").id(WriteId::new()));
    }
    world.pass(world.lease() / 6);
    gate.open();
    match write.done(world.stage()) {
        Ok(verdict) => assert_eq!(verdict, PutVerdict::Done(first)),
        Err(error) => {
            let seen = (error.kind(), error.effect());
            assert_eq!(seen, (ErrorKind::Limit, Effect::Unknown), "{error}");
        }
    }
    assert_eq!(text(&other, "k").as_deref(), Some("other"));
}

fn no_fault_of_the_link_writes_twice(world: &World) {
    let other = CellClient::new(world);
    for (round, fault) in Fault::CALLS.into_iter().enumerate() {
        let (actor, cell) = (world.actor(), format!("k{round}"));
        actor.link.trouble_call(actor.link.calls(), fault);
        let (tenure, mine) = (actor.tenure.clone(), put(&cell, "mine").id(new_id(world)));
        let write = Waiting::start(async move { tenure.cells().put(&mine).await });
        let PutVerdict::Done(version) = world.served(write).unwrap() else {
            panic!("{fault:?}: written in the end")
        };
        assert_eq!(other.get(&cell).unwrap().version, version, "{fault:?}: written once");
        // A copy that was held back arrives before one of these, and must change nothing.
        let last = other.write(put(&cell, "other"));
        for _ in 0..3 {
            let (tenure, extra) = (actor.tenure.clone(), put("extra", "x").id(new_id(world)));
            world.now(async move { tenure.cells().put(&extra).await }).unwrap();
        }
        assert_eq!(other.get(&cell).unwrap().version, last, "{fault:?}: a late copy was written");
    }
}

fn a_dropped_write_is_done_or_not_done(world: &World) {
    let (actor, other) = (world.actor(), CellClient::new(world));
    // Dropped after one poll more each time, until the write ends by itself.
    for polls in 0.. {
        let cell = format!("k{polls}");
        let old = other.write(put(&cell, "old"));
        let mine = put(&cell, "mine").expect(Expect::Version(old)).id(new_id(world));
        let (tenure, dropped) = (actor.tenure.clone(), mine.clone());
        let mut write = Waiting::start(async move { tenure.cells().put(&dropped).await });
        let ended = (0..polls).any(|_| {
            world.settle();
            write.poll()
        });
        drop(write);
        world.settle();
        let seen = text(&other, &cell).unwrap();
        assert!(seen == "mine" || seen == "old" && !ended, "{seen}, dropped after {polls} polls");
        let tenure = actor.tenure.clone();
        let again = world.now(async move { tenure.cells().put(&mine).await }).unwrap();
        let PutVerdict::Done(version) = again else { panic!("the same write: {again:?}") };
        assert_eq!(other.get(&cell).unwrap().version, version);
        if ended {
            return;
        }
    }
}

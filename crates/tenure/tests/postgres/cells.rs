//! Cells as rows: what a refused batch writes, which locks a batch takes, what is left of a cell
//! that is gone, and repeats of a write whose reply was lost.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use servers::{Postgres, Proxy, eventually};
use tenure::{
    Batch, BatchVerdict, Effect, ErrorKind, Expect, Name, Put, PutVerdict, Tenure, WriteId,
    block_on,
};

use crate::host::{micros, session};
use crate::stand::{LONG, Stand, uuid};

/// What a part of a batch does.
pub(crate) enum Act {
    Check,
    Put,
    /// With a time to live, in microseconds.
    PutFor(u64),
    Remove,
}

/// A part of a batch: name, condition, the version or fence of the condition, and what it does.
pub(crate) type Part<'a> = (&'a str, &'a str, u64, Act);

/// A batch as SQL, whose ids are kept for `keep`. Returns the column of each row.
pub(crate) fn write(column: &str, id: Option<u32>, keep: u64, parts: &[Part<'_>]) -> String {
    let array =
        |item: &dyn Fn(&Part<'_>) -> String| parts.iter().map(item).collect::<Vec<_>>().join(", ");
    let id = id.map_or("NULL".to_owned(), |id| format!("'{}'", uuid(id)));
    let names = array(&|part| format!("'{}'", part.0));
    let expects = array(&|part| format!("'{}'", part.1));
    let given = array(&|part| part.2.to_string());
    let writes = array(&|part| (!matches!(part.3, Act::Check)).to_string());
    let values = array(&|part| match part.3 {
        Act::Put | Act::PutFor(_) => "'x'".to_owned(),
        Act::Check | Act::Remove => "NULL".to_owned(),
    });
    let ttls = array(&|part| match part.3 {
        Act::PutFor(time) => time.to_string(),
        _ => "NULL".to_owned(),
    });
    format!(
        "SELECT ({column})::text FROM tenure.write(1, {keep}, {id}, 0, ARRAY[{names}], \
         ARRAY[{expects}], ARRAY[{given}]::bigint[], ARRAY[{writes}]::bool[], \
         ARRAY[{values}]::bytea[], ARRAY[{ttls}]::bigint[])"
    )
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn count(stand: &Stand, table: &str) -> String {
    stand.server.done(&format!("SELECT count(*) FROM tenure.{table}")).trim().to_owned()
}

#[test]
fn a_batch_that_is_refused_or_repeated_writes_nothing() {
    let stand = Stand::new();
    let put = |at: &'static str| (at, "any", 0, Act::Put);
    assert_eq!(stand.ask(&write("kind", Some(1), LONG, &[put("a")])), "d");
    let fenced = ("b", "fence", 5, Act::PutFor(1));
    assert_eq!(stand.ask(&write("kind", None, LONG, &[fenced])), "d");
    let cases: [(&str, Option<u32>, Vec<Part<'_>>); 6] = [
        ("r", None, vec![("a", "absent", 0, Act::Put)]),
        ("r", None, vec![("a", "version", 7, Act::Remove)]),
        ("s", None, vec![("b", "fence", 4, Act::Put)]),
        (
            "r r",
            Some(2),
            vec![put("c"), ("d", "version", 7, Act::Put), ("a", "absent", 0, Act::Check)],
        ),
        ("r", None, vec![("new", "version", 1, Act::Put)]),
        ("d", Some(1), vec![("a", "absent", 0, Act::Put)]),
    ];
    let number = stand.server.done("SELECT last_value FROM tenure.numbers");
    for (said, id, parts) in cases {
        stand.run("BEGIN");
        assert_eq!(stand.ask(&write("kind", id, LONG, &parts)), said);
        // A transaction that has written anything, be it a lock on a row, has a number.
        let wrote = stand.ask("SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::text");
        assert_eq!(wrote, "false", "{said}: {}", parts[0].0);
        stand.run("COMMIT");
    }
    assert_eq!(stand.server.done("SELECT last_value FROM tenure.numbers"), number);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("2".into(), "1".into()));
}

#[test]
fn writes_of_a_cell_that_stays_leave_its_indexes_alone() {
    let stand = Stand::new();
    let put = || write("kind", None, LONG, &[("a", "any", 0, Act::Put)]);
    stand.ask(&put());
    let counts = || {
        // Those of this connection, which change within a transaction only.
        let counts = "SELECT n_tup_ins || ' ' || n_tup_upd || ' ' || n_tup_hot_upd \
             FROM pg_stat_xact_user_tables WHERE relid = 'tenure.cells'::regclass";
        let counts = stand.ask(counts);
        counts.split(' ').map(|count| count.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        stand.run("BEGIN");
        let before = counts();
        stand.ask(&put());
        let written: Vec<u64> = counts().iter().zip(&before).map(|(now, was)| now - was).collect();
        assert_eq!(written, [0, 1, 1], "inserts, updates, updates of no index");
        stand.run("COMMIT");
    }
}

#[test]
fn cells_are_locked_in_one_order_whatever_that_of_the_parts() {
    let stand = Stand::new();
    let keys =
        "SELECT string_agg(n, ' ' ORDER BY tenure.cell_key(1, n)) FROM unnest(ARRAY['a', 'b']) n";
    let order = stand.ask(keys);
    let (first, second) = order.split_once(' ').unwrap();
    // No cell exists yet: what is locked is not a row.
    stand.run("BEGIN");
    stand.ask(&format!(
        "SELECT pg_advisory_xact_lock('tenure.cells'::regclass::oid::int, \
         tenure.cell_key(1, '{first}'))::text"
    ));
    let batch =
        |names: [&str; 2]| write("kind", None, LONG, &names.map(|name| (name, "any", 0, Act::Put)));
    let calls =
        [[first, second], [second, first]].map(|names| stand.call_that_waits(&batch(names)));
    let held = stand.server.done(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND classid = 'tenure.cells'::regclass",
    );
    assert_eq!(held.trim(), "1", "a call that waits for the first has locked the second");
    stand.run("COMMIT");
    for call in calls {
        assert_eq!(call.join().unwrap(), "d");
    }
}

#[test]
fn a_batch_that_waited_goes_by_what_was_committed_meanwhile() {
    let stand = Stand::new();
    let absent = || write("kind", None, LONG, &[("a", "absent", 0, Act::Put)]);
    stand.run("BEGIN");
    assert_eq!(stand.ask(&absent()), "d");
    let other = stand.call_that_waits(&absent());
    stand.run("COMMIT");
    assert_eq!(other.join().unwrap(), "r");
}

#[test]
fn a_batch_that_waited_goes_by_the_time_at_which_it_got_its_locks() {
    let stand = Stand::new();
    stand.run("BEGIN");
    // Locks the cell, and writes nothing.
    stand.ask(&write("kind", None, LONG, &[("a", "version", 1, Act::Put)]));
    let other =
        stand.call_that_waits(&write("kind", None, LONG, &[("a", "absent", 0, Act::PutFor(LONG))]));
    let before = micros(&stand.server);
    stand.run("COMMIT");
    assert_eq!(other.join().unwrap(), "d");
    let expires = stand.server.done("SELECT expires FROM tenure.cells");
    assert!(expires.trim().parse::<u64>().unwrap() >= before + LONG, "{expires}, not {before}");
}

#[test]
fn checks_of_one_cell_do_not_wait_for_each_other_and_a_write_waits_for_them() {
    let stand = Stand::new();
    let check = |at: &'static str| {
        write("kind", None, LONG, &[("a", "absent", 0, Act::Check), (at, "any", 0, Act::Put)])
    };
    stand.run("BEGIN");
    assert_eq!(stand.ask(&check("b")), "d");
    assert_eq!(stand.call(&check("c")).join().unwrap(), "d");
    let put = stand.call_that_waits(&write("kind", None, LONG, &[("a", "any", 0, Act::Put)]));
    stand.run("COMMIT");
    assert_eq!(put.join().unwrap(), "d");
}

#[test]
fn a_cell_that_is_gone_leaves_no_row_once_its_log_has_ended() {
    let stand = Stand::new();
    // Ids are kept for a microsecond, which is over with the next call.
    let one = |id: Option<u32>, act: Act, keep: u64| {
        stand.ask(&write("kind", id, keep, &[("a", "any", 0, act)]));
    };
    one(Some(1), Act::Put, LONG);
    one(Some(2), Act::Remove, LONG);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("1".into(), "2".into()));
    one(Some(3), Act::Remove, 1);
    let other = |act: Act| stand.ask(&write("kind", None, LONG, &[("b", "any", 0, act)]));
    other(Act::Put);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("1".into(), "0".into()));
    // A value whose time is over, and one that was removed without an id.
    one(None, Act::PutFor(1), LONG);
    other(Act::Remove);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("0".into(), "0".into()));
    // What is removed without an id goes at once, with a log that has ended.
    one(Some(4), Act::Put, 1);
    one(None, Act::Remove, 1);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("0".into(), "0".into()));
    // A fence stays, and so does a log that may be needed.
    stand.ask(&write("kind", None, LONG, &[("f", "fence", 5, Act::PutFor(1))]));
    one(Some(5), Act::PutFor(1), LONG);
    other(Act::Put);
    assert_eq!((count(&stand, "cells"), count(&stand, "cell_log")), ("3".into(), "1".into()));
}

#[test]
fn a_sweep_does_not_wait_for_a_cell_that_is_locked() {
    let stand = Stand::new();
    stand.ask(&write("kind", None, LONG, &[("a", "any", 0, Act::PutFor(1))]));
    stand.run("BEGIN");
    stand.ask(&write("kind", None, LONG, &[("a", "version", 1, Act::Put)]));
    let other = || write("kind", None, LONG, &[("b", "any", 0, Act::Put)]);
    assert_eq!(stand.call(&other()).join().unwrap(), "d");
    assert_eq!(count(&stand, "cells"), "2");
    stand.run("COMMIT");
    assert_eq!(stand.call(&other()).join().unwrap(), "d");
    assert_eq!(count(&stand, "cells"), "1");
}

#[test]
fn a_log_has_128_rows_however_often_a_cell_is_written() {
    let stand = Stand::new();
    for id in 0..140 {
        stand.ask(&write("kind", Some(id), LONG, &[("a", "any", 0, Act::Put)]));
    }
    assert_eq!(count(&stand, "cell_log"), tenure::limits::WRITE_IDS.to_string());
    let kept = "SELECT count(*) FROM tenure.cell_log l, tenure.cells c WHERE l.at > c.dropped \
         AND l.version > 0";
    assert_eq!(stand.server.done(kept).trim(), "128", "what was dropped is older than the rest");
}

#[test]
fn batches_of_many_clients_that_overlap_all_come_through() {
    let server = Postgres::start();
    let sessions: Vec<Tenure> = (0..4).map(|_| session(&server.url())).collect();
    let threads: Vec<_> = sessions
        .iter()
        .cloned()
        .enumerate()
        .map(|(who, tenure)| {
            std::thread::spawn(move || {
                for round in 0..40 {
                    let cell = |n: usize| name(&format!("c{}", (n + round) % 5));
                    let order: Vec<usize> =
                        if who % 2 == 0 { vec![0, 1, 2] } else { vec![2, 1, 0] };
                    let batch = order.into_iter().fold(Batch::new(), |batch, n| match n {
                        0 if round % 3 == 0 => batch.remove(cell(n), Expect::Anything),
                        1 if round % 2 == 0 => batch.check(cell(n), Expect::Anything),
                        _ => batch.put(Put::new(cell(n), "x")),
                    });
                    let verdict = block_on(tenure.cells().write(&batch)).unwrap();
                    assert!(matches!(verdict, BatchVerdict::Done(_)));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_write_whose_reply_was_lost_is_repeated_and_made_once() {
    let server = Postgres::start();
    let proxy = Proxy::to(("127.0.0.1", server.port()));
    let url = server.url().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let tenure = session(&url);
    proxy.hold_replies(true);
    let cells = tenure.clone();
    let put = Put::new(name("a"), "x").id(WriteId::new());
    let writer = std::thread::spawn(move || block_on(cells.cells().put(&put)).unwrap());
    eventually("the server has written it", || {
        server.done("SELECT count(*) FROM tenure.cells").trim() == "1"
    });
    // The reply is lost with the connection.
    proxy.cut();
    proxy.heal_dropping();
    let PutVerdict::Done(version) = writer.join().unwrap() else { panic!("it was written") };
    let row = server.done("SELECT version || ' ' || logged FROM tenure.cells");
    assert_eq!(row.trim(), format!("{} 1", version.0));
}

/// The database has decided and dies before its reply is sent: the repeat after its restart gets
/// the version of the first write.
#[test]
fn a_write_whose_server_is_killed_before_the_reply_is_made_once() {
    let server = Postgres::start();
    let proxy = Proxy::to(("127.0.0.1", server.port()));
    let url = server.url().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let tenure = session(&url);
    let put = Put::new(name("a"), "x").expect(Expect::Absent).id(WriteId::new());
    proxy.hold_replies(true);
    let writer = {
        let (tenure, put) = (tenure.clone(), put.clone());
        std::thread::spawn(move || block_on(tenure.cells().put(&put)))
    };
    let row = || server.done("SELECT version || ' ' || logged FROM tenure.cells").trim().to_owned();
    eventually("the server has written it", || !row().is_empty());
    let written = row();
    server.kill();
    proxy.heal_dropping();
    server.restart();
    // The session repeats the write by itself, unless its time is up before the server is back.
    if let Err(error) = writer.join().unwrap() {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
    let mut again = None;
    eventually("the repeat is answered", || {
        again = block_on(tenure.cells().put(&put)).ok();
        again.is_some()
    });
    let Some(PutVerdict::Done(version)) = again else { panic!("it was written: {again:?}") };
    assert_eq!((row(), format!("{} 1", version.0)), (written.clone(), written));
}

#[test]
fn a_write_whose_future_was_dropped_is_made_once() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    let batch = Batch::new().put(Put::new(name("a"), "x")).id(WriteId::new());
    block_on(async {
        let cells = tenure.cells();
        let mut first = pin!(cells.write(&batch));
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    let again = block_on(tenure.cells().write(&batch)).unwrap();
    assert!(matches!(again, BatchVerdict::Done(_)));
    let logged = server.done("SELECT logged FROM tenure.cells");
    assert_eq!(logged.trim(), "1");
}

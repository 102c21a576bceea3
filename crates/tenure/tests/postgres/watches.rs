//! Watches of cells: which writes notify, what a watch that begins during a write sees, and what a
//! watch returns after its connection was lost.

use std::sync::mpsc::{Receiver, channel};

use servers::{Postgres, Proxy, eventually};
use tenure::{CellChange, CellRange, CellWatch, Name, Put, Tenure, block_on};

use crate::cells::{Act, write};
use crate::host::{PATIENCE, session};
use crate::stand::{LONG, Stand, uuid};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn put(tenure: &Tenure, cell: &str, value: &str) {
    block_on(tenure.cells().put(&Put::new(name(cell), value))).unwrap();
}

fn watch(tenure: &Tenure, prefix: &str) -> CellWatch {
    block_on(tenure.cells().watch(CellRange::prefix(prefix).unwrap())).unwrap()
}

/// The changes of a watch, received on a thread of its own.
struct Changes(Receiver<CellChange>);

impl Changes {
    fn of(mut watch: CellWatch) -> Self {
        let (send, changes) = channel();
        std::thread::spawn(move || {
            while let Ok(change) = block_on(watch.next()) {
                if send.send(change).is_err() {
                    return;
                }
            }
        });
        Self(changes)
    }

    #[track_caller]
    fn next(&self) -> CellChange {
        self.0.recv_timeout(PATIENCE).expect("a change")
    }

    /// Reads until a cell has this value. Returns whether a gap was among the changes.
    #[track_caller]
    fn until(&self, cell: &str, value: &str) -> bool {
        let mut gap = false;
        loop {
            match self.next() {
                CellChange::Gap => gap = true,
                CellChange::Put(name, put)
                    if name.as_str() == cell && put.value == value.as_bytes() =>
                {
                    return gap;
                }
                CellChange::Put(..) | CellChange::Removed(_) => {}
            }
        }
    }
}

/// Whether a write of this cell notifies.
fn notifies(stand: &Stand, cell: &str) -> String {
    stand.ask(&write("watched", None, LONG, &[(cell, "any", 0, Act::Put)]))
}

#[test]
fn only_writes_of_watched_cells_notify() {
    let stand = Stand::new();
    assert_eq!(notifies(&stand, "a"), "false");
    let (one, two) = (session(&stand.server.url()), session(&stand.server.url()));
    let prefix = Changes::of(watch(&one, "w:"));
    let single = block_on(two.cells().watch(CellRange::One(name("a")))).unwrap();
    let single = Changes::of(single);
    single.until("a", "x");
    for (cell, watched) in [("a", "true"), ("ab", "false"), ("w:1", "true"), ("w", "false")] {
        assert_eq!(notifies(&stand, cell), watched, "{cell}");
    }
    prefix.until("w:1", "x");
    // A removal is a change, a check and a refused write are none.
    let checks = [("a", "any", 0, Act::Check), ("b", "any", 0, Act::Remove)];
    assert_eq!(stand.ask(&write("watched", None, LONG, &checks)), "false");
    let refused = [("a", "absent", 0, Act::Put)];
    assert_eq!(stand.ask(&write("watched", None, LONG, &refused)), "false");
    put(&two, "w:1", "y");
    prefix.until("w:1", "y");
    block_on(two.cells().remove(&name("w:1"), tenure::Expect::Anything)).unwrap();
    assert_eq!(prefix.next(), CellChange::Removed(name("w:1")));
}

#[test]
fn a_watch_that_is_dropped_is_registered_no_more() {
    let stand = Stand::new();
    let tenure = session(&stand.server.url());
    let (kept, dropped) = (watch(&tenure, "kept:"), watch(&tenure, "w:"));
    assert_eq!(
        (notifies(&stand, "w:1"), notifies(&stand, "kept:1")),
        ("true".into(), "true".into())
    );
    drop(dropped);
    eventually("its row is deleted", || notifies(&stand, "w:1") == "false");
    assert_eq!(notifies(&stand, "kept:1"), "true");
    drop(kept);
    eventually("nothing is watched", || {
        stand.server.done("SELECT count(*) FROM tenure.watches").trim() == "0"
    });
}

#[test]
fn a_watch_waits_for_a_write_that_has_not_seen_it() {
    let stand = Stand::new();
    let tenure = session(&stand.server.url());
    stand.run("BEGIN");
    assert_eq!(notifies(&stand, "w:1"), "false");
    let (before, begun) = (stand.waiting(), std::thread::spawn(move || watch(&tenure, "w:")));
    eventually("the watch waits for the write", || {
        assert!(!begun.is_finished(), "it did not wait");
        stand.waiting() > before
    });
    stand.run("COMMIT");
    Changes::of(begun.join().unwrap()).until("w:1", "x");
}

#[test]
fn a_write_that_waits_for_a_watch_sees_it() {
    let stand = Stand::new();
    let watcher = uuid(1);
    stand.run("BEGIN");
    let set =
        format!("SELECT tenure.watch('default', '{watcher}', false, ARRAY['w:'], ARRAY[true])");
    assert!(stand.ask(&set).starts_with("tenure:cells:"));
    let put = [("w:1", "any", 0, Act::Put)];
    let call = stand.call_that_waits(&write("watched", None, LONG, &put));
    stand.run("COMMIT");
    assert_eq!(call.join().unwrap(), "true");
}

#[test]
fn watches_of_a_client_that_is_gone_are_swept_and_those_of_others_stay() {
    let stand = Stand::new();
    let tenure = session(&stand.server.url());
    let _watch = watch(&tenure, "w:");
    let gone = uuid(1);
    // The call ends its connection, and with it the lock that protects the row.
    let set = format!("SELECT tenure.watch('default', '{gone}', false, ARRAY['g:'], ARRAY[true])");
    stand.call(&set).join().unwrap();
    let sweep = "SELECT count(*)::text FROM tenure.sweep(1, false)";
    eventually("its row is deleted", || {
        stand.ask(sweep);
        notifies(&stand, "g:1") == "false"
    });
    assert_eq!(notifies(&stand, "w:1"), "true");
}

#[test]
fn after_a_lost_connection_a_gap_and_the_present_state_follow() {
    let server = Postgres::start();
    let proxy = Proxy::to(("127.0.0.1", server.port()));
    let url = server.url().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let (watching, writing) = (session(&url), session(&server.url()));
    let changes = Changes::of(watch(&watching, "w:"));
    put(&writing, "w:1", "before");
    changes.until("w:1", "before");
    for round in 0..3 {
        proxy.refuse(true);
        proxy.cut();
        let meanwhile = format!("meanwhile {round}");
        put(&writing, "w:1", &meanwhile);
        proxy.refuse(false);
        if !changes.until("w:1", &meanwhile) {
            // A read that was under way when the connections were cut is repeated as soon as calls
            // get through, which may be before the listener is back.
            assert_eq!(changes.next(), CellChange::Gap, "a gap is told");
        }
        let after = format!("after {round}");
        put(&writing, "w:1", &after);
        changes.until("w:1", &after);
    }
}

#[test]
fn a_watch_survives_a_crash_of_the_server() {
    let server = Postgres::start();
    let (watching, writing) = (session(&server.url()), session(&server.url()));
    let changes = Changes::of(watch(&watching, "w:"));
    put(&writing, "w:1", "before");
    changes.until("w:1", "before");
    server.kill();
    server.restart();
    for value in ["once", "twice"] {
        eventually("it is written", || {
            block_on(writing.cells().put(&Put::new(name("w:1"), value))).is_ok()
        });
        changes.until("w:1", value);
    }
}

#[test]
fn a_watch_that_the_server_refuses_is_an_error_and_leaves_the_connection_in_use() {
    let server = Postgres::start();
    let (one, two) = (session(&server.url()), session(&server.url()));
    server.done("ALTER TABLE tenure.watches RENAME TO elsewhere");
    let refused = block_on(one.cells().watch(CellRange::prefix("w:").unwrap()));
    assert!(refused.is_err());
    server.done("ALTER TABLE tenure.elsewhere RENAME TO watches");
    let changes = Changes::of(watch(&one, "w:"));
    put(&two, "w:1", "x");
    changes.until("w:1", "x");
}

//! Watches of cells: every watch ends up with the last state, whatever becomes of the signals.

use std::sync::{Arc, Mutex};

use super::cells::CellClient;
use super::{Actor, Waiting, World, list, name};
use crate::contract::{Batch, CellRange, Error, ErrorKind, Expect, Put};
use crate::session::{CellChange, CellWatch};

list! { Cells:
    a_watch_begins_with_what_is_there cites [8] needs [Cells];
    a_watch_returns_what_other_clients_change cites [8] needs [Cells];
    a_change_is_pushed_at_once cites [8] needs [Cells, Push];
    a_batch_reaches_the_watch_of_each_cell cites [8] needs [Cells, AtomicSets];
    the_last_of_many_changes_is_never_missed cites [8] needs [Cells];
    a_value_that_expires_is_removed_in_a_watch cites [4, 8] needs [Cells];
    after_a_gap_a_watch_returns_what_has_changed cites [8] needs [Cells];
    a_watch_whose_future_is_dropped_loses_no_change cites [7, 8] needs [Cells];
    a_closed_session_ends_its_watches cites [10] needs [Cells];
}

/// A watch that a scenario takes changes from.
struct Watcher<'a> {
    world: &'a World,
    watch: Arc<Mutex<Option<CellWatch>>>,
}

/// Puts the watch back when the future that uses it ends or is dropped.
struct BorrowedWatch {
    home: Arc<Mutex<Option<CellWatch>>>,
    watch: Option<CellWatch>,
}

impl Drop for BorrowedWatch {
    fn drop(&mut self) {
        *self.home.lock().unwrap() = self.watch.take();
    }
}

impl<'a> Watcher<'a> {
    #[track_caller]
    fn begin(world: &'a World, actor: &Actor, range: CellRange) -> Self {
        let tenure = actor.tenure.clone();
        let watch = world.now(async move { tenure.cells().watch(range).await }).unwrap();
        Self { world, watch: Arc::new(Mutex::new(Some(watch))) }
    }

    fn one(world: &'a World, actor: &Actor, cell: &str) -> Self {
        Self::begin(world, actor, CellRange::One(name(cell)))
    }

    fn prefix(world: &'a World, actor: &Actor, text: &str) -> Self {
        Self::begin(world, actor, CellRange::prefix(text).expect("a good prefix"))
    }

    /// Returns the next change, for which time may pass.
    #[track_caller]
    fn next(&self) -> CellChange {
        self.world.served(self.start()).expect("the watch goes on")
    }

    /// Returns the next change, for which no time passes.
    #[track_caller]
    fn next_now(&self) -> CellChange {
        self.start().done(self.world.stage()).expect("the watch goes on")
    }

    /// Begins to wait for the next change. One call at a time.
    fn start(&self) -> Waiting<Result<CellChange, Error>> {
        let home = Arc::clone(&self.watch);
        let watch = home.lock().unwrap().take();
        let mut borrowed = BorrowedWatch { home, watch };
        Waiting::start(async move { borrowed.watch.as_mut().expect("one call").next().await })
    }

    /// Takes changes until the cell has this value, or none.
    #[track_caller]
    fn until(&self, cell: &str, value: Option<&str>) {
        for _ in 0..100 {
            if shown(&self.next()) == (cell.to_owned(), value.map(str::to_owned)) {
                return;
            }
        }
        panic!("{cell} should become {value:?}");
    }
}

/// A change as text: the cell, and its value if it has one.
fn shown(change: &CellChange) -> (String, Option<String>) {
    match change {
        CellChange::Put(name, cell) => {
            (name.to_string(), Some(String::from_utf8_lossy(&cell.value).into_owned()))
        }
        CellChange::Removed(name) => (name.to_string(), None),
        CellChange::Gap => ("(gap)".to_owned(), None),
    }
}

fn put(cell: &str, text: &str) -> Put {
    Put::new(name(cell), text)
}

fn a_watch_begins_with_what_is_there(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    let absent = Watcher::one(world, &actor, "a");
    assert_eq!(absent.next(), CellChange::Removed(name("a")));
    for cell in ["a", "b:2", "b:1", "c"] {
        client.write(put(cell, cell));
    }
    let present = Watcher::one(world, &actor, "a");
    let cell = client.get("a").unwrap();
    assert_eq!(present.next(), CellChange::Put(name("a"), cell));
    let range = Watcher::prefix(world, &actor, "b:");
    let first: Vec<_> = (0..2).map(|_| shown(&range.next()).0).collect();
    assert_eq!(first, ["b:1", "b:2"]);
}

fn a_watch_returns_what_other_clients_change(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    client.write(put("b:1", "one"));
    let one = Watcher::one(world, &actor, "b:1");
    let range = Watcher::prefix(world, &actor, "b:");
    one.until("b:1", Some("one"));
    range.until("b:1", Some("one"));
    client.write(put("a", "not watched"));
    client.write(put("b:2", "two"));
    assert_eq!(shown(&range.next()), ("b:2".to_owned(), Some("two".to_owned())));
    client.write(put("b:1", "three"));
    assert_eq!(shown(&range.next()), ("b:1".to_owned(), Some("three".to_owned())));
    assert_eq!(shown(&one.next()), ("b:1".to_owned(), Some("three".to_owned())));
    client.remove("b:1", Expect::Anything);
    assert_eq!(range.next(), CellChange::Removed(name("b:1")));
    assert_eq!(one.next(), CellChange::Removed(name("b:1")));
}

fn a_change_is_pushed_at_once(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    let one = Watcher::one(world, &actor, "k");
    one.next();
    for round in 0..3 {
        let text = round.to_string();
        client.write(put("k", &text));
        assert_eq!(shown(&one.next_now()), ("k".to_owned(), Some(text)));
    }
}

fn a_batch_reaches_the_watch_of_each_cell(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    let range = Watcher::prefix(world, &actor, "b:");
    let one = Watcher::one(world, &actor, "other");
    one.next();
    client.write(put("b:0", "old"));
    range.until("b:0", Some("old"));
    let batch = Batch::new()
        .put(put("b:1", "new"))
        .put(put("other", "new"))
        .remove(name("b:0"), Expect::Anything);
    client.batch(batch).unwrap();
    one.until("other", Some("new"));
    let mut both = [shown(&range.next()), shown(&range.next())];
    both.sort();
    assert_eq!(both, [("b:0".to_owned(), None), ("b:1".to_owned(), Some("new".to_owned()))]);
}

fn the_last_of_many_changes_is_never_missed(world: &World) {
    let actor = world.actor();
    let clients: Vec<CellClient<'_>> = (0..3).map(|_| CellClient::new(world)).collect();
    let one = Watcher::one(world, &actor, "k1");
    let range = Watcher::prefix(world, &actor, "k");
    for round in 0..5 {
        for (n, client) in clients.iter().enumerate() {
            client.write(put(&format!("k{n}"), &format!("{round}-{n}")));
            client.write(put("k1", &format!("{round}-{n}-again")));
        }
        client_removes(&clients[0], round);
        let last = format!("last {round}");
        clients[round % 3].write(put("k1", &last));
        one.until("k1", Some(&last));
        range.until("k1", Some(&last));
    }
}

fn client_removes(client: &CellClient<'_>, round: usize) {
    if round.is_multiple_of(2) {
        client.remove("k1", Expect::Anything);
    }
}

fn a_value_that_expires_is_removed_in_a_watch(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    let one = Watcher::one(world, &actor, "k");
    one.next();
    client.write(put("k", "short").time_to_live(world.lease()));
    one.until("k", Some("short"));
    assert_eq!(one.next(), CellChange::Removed(name("k")));
}

fn after_a_gap_a_watch_returns_what_has_changed(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    for cell in ["k:changed", "k:removed", "k:same"] {
        client.write(put(cell, "before"));
    }
    let range = Watcher::prefix(world, &actor, "k:");
    range.until("k:same", Some("before"));
    actor.link.cut(true);
    client.write(put("k:changed", "after"));
    client.write(put("k:new", "after"));
    client.remove("k:removed", Expect::Anything);
    world.settle();
    actor.link.cut(false);
    assert_eq!(range.next(), CellChange::Gap);
    let mut changes = [shown(&range.next()), shown(&range.next()), shown(&range.next())];
    changes.sort();
    let after = |cell: &str| (cell.to_owned(), Some("after".to_owned()));
    let expected = [after("k:changed"), after("k:new"), ("k:removed".to_owned(), None)];
    assert_eq!(changes, expected);
    client.write(put("k:new", "later"));
    range.until("k:new", Some("later"));
}

fn a_watch_whose_future_is_dropped_loses_no_change(world: &World) {
    let (client, actor) = (CellClient::new(world), world.actor());
    let one = Watcher::one(world, &actor, "k");
    one.next();
    // Dropped after one poll more each time, until the change is returned by the last of them.
    for round in 0.. {
        let text = round.to_string();
        // One future is dropped before the change, others in the middle of reading it.
        drop(one.start());
        client.write(put("k", &text));
        world.settle();
        let mut seen = None;
        if round > 0 {
            // To start it is its first poll.
            let mut waiting = one.start();
            let ended = waiting.is_served()
                || (1..round).any(|_| {
                    world.settle();
                    waiting.poll()
                });
            if ended {
                seen = Some(waiting.done(world.stage()).expect("the watch goes on"));
            }
        }
        let ended = seen.is_some();
        let change = seen.unwrap_or_else(|| one.next());
        assert_eq!(shown(&change), ("k".to_owned(), Some(text)));
        if ended {
            return;
        }
    }
}

fn a_closed_session_ends_its_watches(world: &World) {
    let actor = world.actor();
    let one = Watcher::one(world, &actor, "k");
    one.next();
    let mut waiting = one.start();
    world.still_waits(&mut waiting);
    let tenure = actor.tenure.clone();
    world.served(Waiting::start(async move { tenure.close().await }));
    assert_eq!(world.served(waiting).unwrap_err().kind(), ErrorKind::Closed);
}

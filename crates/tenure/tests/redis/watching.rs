//! Watches of cells: pushed while the link works, caught up on after it broke, and gone with the
//! last watcher.

use servers::{Proxy, Redis, eventually};
use tenure::{CellChange, CellRange, CellWatch, Expect, Name, Put, Tenure};

use crate::host::done;

const CHANNEL: &str = "tenure:{default}:changed";

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn put(tenure: &Tenure, cell: &str, value: &str) {
    tenure.cells().blocking_put(&Put::new(name(cell), value)).unwrap();
}

/// The next change, as text.
fn next(watch: &mut CellWatch) -> String {
    match watch.blocking_next().unwrap() {
        CellChange::Put(name, cell) => {
            format!("{name}={}", String::from_utf8(cell.value).unwrap())
        }
        CellChange::Removed(name) => format!("{name} removed"),
        CellChange::Gap => "gap".to_owned(),
    }
}

/// How many connections are subscribed to changes.
fn subscribed(redis: &Redis) -> i64 {
    done(redis, &["PUBSUB", "NUMSUB", CHANNEL]).list()[1].int().unwrap()
}

#[test]
fn changes_by_other_processes_are_pushed_to_watchers_of_their_range() {
    let redis = Redis::start();
    let (one, two) = (
        Tenure::blocking_connect(&redis.url()).unwrap(),
        Tenure::blocking_connect(&redis.url()).unwrap(),
    );
    put(&two, "config:a", "1");
    let mut prefix = one.cells().blocking_watch(CellRange::prefix("config:").unwrap()).unwrap();
    let mut single = one.cells().blocking_watch(CellRange::One(name("x y"))).unwrap();
    assert_eq!(next(&mut prefix), "config:a=1");
    assert_eq!(next(&mut single), "x y removed", "it begins with what is there");
    put(&two, "other", "2");
    put(&two, "x y", "3");
    put(&two, "config:b", "4");
    assert_eq!(next(&mut single), "x y=3");
    assert_eq!(next(&mut prefix), "config:b=4");
    two.cells().blocking_remove(&name("config:a"), Expect::Anything).unwrap();
    assert_eq!(next(&mut prefix), "config:a removed");
}

/// Published while the connection was down: no subscriber heard it.
#[test]
fn what_changed_while_the_connection_was_down_is_returned_after_the_gap() {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let watching = Tenure::blocking_connect(&proxy.redis_url()).unwrap();
    let writing = Tenure::blocking_connect(&redis.url()).unwrap();
    for text in ["a", "b"] {
        put(&writing, text, "1");
    }
    let mut watch = watching.cells().blocking_watch(CellRange::prefix("").unwrap()).unwrap();
    assert_eq!((next(&mut watch), next(&mut watch)), ("a=1".to_owned(), "b=1".to_owned()));
    proxy.refuse(true);
    proxy.cut();
    eventually("the server knows of no subscriber", || subscribed(&redis) == 0);
    put(&writing, "a", "2");
    put(&writing, "c", "3");
    writing.cells().blocking_remove(&name("b"), Expect::Anything).unwrap();
    proxy.refuse(false);
    let seen: Vec<String> = (0..4).map(|_| next(&mut watch)).collect();
    assert_eq!(seen, ["gap", "b removed", "a=2", "c=3"]);
    // And it is subscribed again.
    put(&writing, "d", "4");
    assert_eq!(next(&mut watch), "d=4");
}

/// Changes meet the end of the connection, its handshake and its resubscription.
#[test]
fn a_writer_and_a_link_that_breaks_again_and_again_never_hide_the_last_state() {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let watching = Tenure::blocking_connect(&proxy.redis_url()).unwrap();
    let writing = Tenure::blocking_connect(&redis.url()).unwrap();
    let mut watch = watching.cells().blocking_watch(CellRange::One(name("a"))).unwrap();
    for round in 0..20 {
        for step in 0..10 {
            put(&writing, "a", &format!("{round}.{step}"));
        }
        proxy.cut();
        put(&writing, "a", &format!("{round} last"));
        let last = format!("a={round} last");
        while next(&mut watch) != last {}
    }
}

#[test]
fn the_subscription_ends_with_the_last_watcher_and_begins_with_the_next() {
    let redis = Redis::start();
    let tenure = Tenure::blocking_connect(&redis.url()).unwrap();
    put(&tenure, "a", "0");
    assert_eq!(subscribed(&redis), 0, "nothing is watched");
    let cells = tenure.cells();
    let one = cells.blocking_watch(CellRange::One(name("a"))).unwrap();
    let two = cells.blocking_watch(CellRange::One(name("b"))).unwrap();
    assert_eq!(subscribed(&redis), 1);
    drop(one);
    put(&tenure, "a", "1");
    put(&tenure, "a", "2");
    assert_eq!(subscribed(&redis), 1, "one is left");
    drop(two);
    put(&tenure, "a", "3");
    eventually("the first change ends it", || subscribed(&redis) == 0);
    for round in 0..50 {
        // The end of one subscription and the beginning of the next meet.
        let mut watch = cells.blocking_watch(CellRange::One(name("a"))).unwrap();
        assert!(next(&mut watch).starts_with("a="));
        put(&tenure, "a", &format!("round {round}"));
        assert_eq!(next(&mut watch), format!("a=round {round}"));
        drop(watch);
        put(&tenure, "a", "between");
    }
}

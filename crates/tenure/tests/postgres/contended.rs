//! Looking: pages of contended slots follow every verb that begins or ends a queue, and are read
//! from the index of the queues alone.

use servers::{Postgres, eventually};
use tenure::{Page, Pattern, Query, Tenure, block_on};

use crate::host::{Waiter, session};
use crate::stand::{LONG, Stand, uuid};

/// The names of contended slots, with the length of their queues.
fn contended(tenure: &Tenure, pattern: &str) -> Vec<(String, usize)> {
    let page = Page { pattern: Pattern::new(pattern), contended: true, ..Page::default() };
    let seen = block_on(tenure.inspect(&Query::Page(page))).unwrap();
    seen.slots.iter().map(|slot| (slot.name.to_string(), slot.queue.len())).collect()
}

#[test]
fn contended_slots_are_shown_while_they_have_a_queue() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    let lock = |name: &str| block_on(tenure.mutex(name).unwrap().lock()).unwrap();
    let (a, b, _free) = (lock("a"), lock("b"), lock("c"));
    assert_eq!(contended(&tenure, "*"), []);
    let (first, second) = (Waiter::behind(&tenure, "a", 0), Waiter::behind(&tenure, "a", 1));
    let other = Waiter::behind(&tenure, "b", 0);
    assert_eq!(contended(&tenure, "*"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    assert_eq!(contended(&tenure, "b*"), [("b".to_owned(), 1)]);
    // A hand-off, then the end of a queue by one.
    block_on(a.release()).unwrap();
    let a = first.served();
    assert_eq!(contended(&tenure, "a"), [("a".to_owned(), 1)]);
    block_on(a.release()).unwrap();
    let a = second.served();
    assert_eq!(contended(&tenure, "a"), []);
    // A forced release.
    let fence = b.fence().unwrap();
    block_on(tenure.force_release("b", fence, "by hand")).unwrap();
    let _b = other.served();
    assert_eq!(contended(&tenure, "*"), []);
    // A wait that is given up.
    let brief = std::time::Duration::from_millis(1);
    let late = block_on(tenure.mutex("a").unwrap().timeout(brief).lock());
    assert!(late.is_err());
    eventually("it is withdrawn", || contended(&tenure, "*").is_empty());
    block_on(a.release()).unwrap();
}

/// A claim for a mutex that waits, as SQL.
fn claim(id: u32, name: &str, lease: u64) -> String {
    let (id, owner, all) = (uuid(id), uuid(id + 100_000), tenure::limits::FULL_WEIGHT);
    format!(
        "SELECT kind FROM tenure.claim_one(1, false, '{id}', '{name}', -1, {all}, {lease}, 0, \
         true, NULL, NULL, ARRAY['{owner}'::uuid], 'h', 1, NULL, NULL, 0)"
    )
}

#[test]
fn a_queue_whose_tickets_have_expired_is_not_shown() {
    let stand = Stand::new();
    let tenure = session(&stand.server.url());
    assert_eq!(stand.ask(&claim(1, "a", LONG)), "g");
    assert_eq!(stand.ask(&claim(2, "a", 1)), "q");
    assert_eq!(contended(&tenure, "*"), []);
    assert_eq!(stand.ask(&claim(3, "b", 1)), "g");
    // Granted by the look, since the holder has expired.
    assert_eq!(stand.ask(&claim(4, "b", LONG)), "g");
    assert_eq!(contended(&tenure, "*"), []);
}

#[test]
fn names_of_contended_slots_are_read_from_the_index_of_queues() {
    let stand = Stand::new();
    for settings in ["enable_seqscan", "enable_bitmapscan"] {
        stand.run(&format!("SET {settings} = off"));
    }
    for id in 0..300 {
        stand.ask(&claim(id, &format!("free{id}"), LONG));
    }
    for id in 300..500 {
        stand.ask(&claim(id, if id % 2 == 0 { "x" } else { "y" }, LONG));
    }
    // Counts of this connection, which change within a transaction only.
    let counts = || {
        let counts = "SELECT string_agg((coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) \
             ::text, ' ' ORDER BY relname) FROM pg_stat_xact_user_tables \
             WHERE relid IN ('tenure.slots'::regclass, 'tenure.claims'::regclass)";
        let counts = stand.ask(counts);
        counts.split(' ').map(|count| count.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let read = |after: &str, contended: bool| {
        stand.run("BEGIN");
        let before = counts();
        let names = stand.ask(&format!(
            "SELECT names FROM tenure.names(1, '{after}', '', NULL, {contended}, 100)"
        ));
        let rows: Vec<u64> = counts().iter().zip(&before).map(|(now, was)| now - was).collect();
        stand.run("ROLLBACK");
        (names, rows)
    };
    let (names, rows) = read("", true);
    assert_eq!((&*names, &rows[..]), ("x y", &[2, 0][..]), "claims, slots");
    // A page of all names reads as many as it has.
    let (names, rows) = read("free7", false);
    assert_eq!((names.split(' ').count(), &rows[..]), (34, &[0, 34][..]), "claims, slots");
}

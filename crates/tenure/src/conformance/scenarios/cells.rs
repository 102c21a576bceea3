//! Cells: versioned bytes beside the locks, with compare-and-set, time to live and fenced writes.

use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Raw, Waiting, World, cells_of, list, name};
use crate::contract::{
    Batch, BatchVerdict, Cell, CellQuery, Engine, Error, ErrorKind, Expect, Fence, Name, Page,
    Pattern, Put, PutVerdict, Query, Version,
};
use crate::limits;

list! { Cells:
    a_cell_keeps_what_was_written cites [3] needs [Cells];
    any_bytes_and_sizes_survive cites [10] needs [Cells];
    compare_and_set_writes_only_over_what_was_read cites [5] needs [Cells];
    absent_means_absent cites [5] needs [Cells];
    versions_grow_across_removal_and_expiry cites [3] needs [Cells];
    a_time_to_live_ends_the_value cites [4] needs [Cells];
    a_smaller_fence_is_stale_and_stays_so cites [3] needs [Cells];
    a_fenced_removal_keeps_the_fence cites [3] needs [Cells];
    of_many_at_once_only_one_wins cites [1] needs [Cells];
    a_list_goes_page_by_page_in_the_order_of_names cites [10] needs [Cells];
    a_cell_and_a_lock_of_one_name_never_meet cites [9] needs [Cells];
    odd_names_are_distinct_cells cites [9] needs [Cells];
}

/// A client of the cells.
pub(super) struct CellClient<'a> {
    world: &'a World,
    raw: Raw,
}

impl<'a> CellClient<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        Self { world, raw: world.raw() }
    }

    pub(super) fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(self.raw.engine())
    }

    #[track_caller]
    pub(super) fn get(&self, name: &str) -> Option<Cell> {
        let (engine, name) = (self.engine(), super::name(name));
        self.world.now(async move { cells_of(&*engine).get(&name).await }).unwrap()
    }

    #[track_caller]
    #[allow(clippy::needless_pass_by_value, reason = "a put is made where it is used")]
    pub(super) fn put(&self, put: Put) -> PutVerdict {
        self.batch(Batch::from(&put)).unwrap().into_single()
    }

    pub(super) fn batch(&self, batch: Batch) -> Result<BatchVerdict, Error> {
        let engine = self.engine();
        self.world.now(async move { cells_of(&*engine).write(&batch).await })
    }

    /// Writes what must be written.
    #[track_caller]
    pub(super) fn write(&self, put: Put) -> Version {
        match self.put(put) {
            PutVerdict::Done(version) => version,
            other => panic!("should be written: {other:?}"),
        }
    }

    #[track_caller]
    #[allow(clippy::needless_pass_by_value, reason = "a put is made where it is used")]
    fn refused(&self, put: Put) -> Error {
        self.batch(Batch::from(&put)).unwrap_err()
    }

    #[track_caller]
    pub(super) fn remove(&self, name: &str, expect: Expect) -> PutVerdict {
        self.batch(Batch::new().remove(super::name(name), expect)).unwrap().into_single()
    }

    #[track_caller]
    fn list(&self, pattern: &str, after: Option<&str>, limit: usize) -> Vec<(Name, Cell)> {
        let (engine, pattern) = (self.engine(), Pattern::new(pattern));
        let after = after.map(super::name);
        let listing = async move {
            let query = CellQuery { pattern: &pattern, after: after.as_ref(), limit };
            cells_of(&*engine).list(query).await
        };
        self.world.now(listing).unwrap()
    }

    #[track_caller]
    pub(super) fn names(&self, pattern: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let cells = self.list(pattern, after, limit);
        cells.into_iter().map(|(name, _)| name.to_string()).collect()
    }
}

fn put(text: &str) -> Put {
    Put::new(name("k"), text)
}

fn a_cell_keeps_what_was_written(world: &World) {
    let (shelf, other) = (CellClient::new(world), CellClient::new(world));
    assert_eq!(shelf.get("k"), None);
    let first = shelf.write(put("one"));
    let second = shelf.write(put("two"));
    assert!(second > first);
    let cell = Cell { value: b"two".to_vec(), version: second, fence: None, expires_in: None };
    assert_eq!(other.get("k"), Some(cell));
    assert_eq!(other.get("j"), None);
}

fn any_bytes_and_sizes_survive(world: &World) {
    let shelf = CellClient::new(world);
    let all: Vec<u8> = (0..=255).collect();
    let largest = vec![0xff; limits::CELL_BYTES];
    for value in [vec![], vec![0], all, largest] {
        shelf.write(Put::new(name("k"), value.clone()));
        assert!(shelf.get("k").unwrap().value == value, "{} bytes", value.len());
    }
    let error = shelf.refused(Put::new(name("j"), vec![0; limits::CELL_BYTES + 1]));
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::InvalidOption, "j"));
    assert_eq!(shelf.get("j"), None);
    shelf.refused(put("x").time_to_live(Duration::ZERO));
}

fn compare_and_set_writes_only_over_what_was_read(world: &World) {
    let shelf = CellClient::new(world);
    let first = shelf.write(put("one"));
    let second = shelf.write(put("two").expect(Expect::Version(first)));
    let seen = shelf.get("k");
    assert_eq!(
        shelf.put(put("three").expect(Expect::Version(first))),
        PutVerdict::Refused(seen.clone()),
        "what is there is told"
    );
    assert_eq!(shelf.remove("k", Expect::Version(first)), PutVerdict::Refused(seen.clone()));
    assert_eq!(shelf.get("k"), seen);
    assert!(matches!(shelf.remove("k", Expect::Version(second)), PutVerdict::Done(_)));
    let gone = shelf.put(put("four").expect(Expect::Version(second)));
    assert_eq!(gone, PutVerdict::Refused(None));
    assert_eq!(shelf.get("k"), None);
}

fn absent_means_absent(world: &World) {
    let shelf = CellClient::new(world);
    shelf.write(put("one").expect(Expect::Absent));
    let refused = shelf.put(put("two").expect(Expect::Absent));
    assert!(matches!(refused, PutVerdict::Refused(Some(cell)) if cell.value == b"one"));
    shelf.remove("k", Expect::Anything);
    shelf.write(put("three").expect(Expect::Absent).time_to_live(world.lease()));
    world.pass(world.lease() * 2);
    shelf.write(put("four").expect(Expect::Absent));
}

fn versions_grow_across_removal_and_expiry(world: &World) {
    let shelf = CellClient::new(world);
    let mut last = Version(0);
    for _ in 0..3 {
        let first = shelf.write(put("one"));
        let second = shelf.write(put("two").time_to_live(world.lease()));
        assert!(last < first && first < second);
        assert_eq!(shelf.get("k").unwrap().version, second);
        world.pass(world.lease() * 2);
        let third = shelf.write(put("three"));
        assert!(second < third);
        shelf.remove("k", Expect::Anything);
        // An old version never fits a new life of the cell.
        let late = shelf.put(put("late").expect(Expect::Version(third)));
        assert_eq!(late, PutVerdict::Refused(None));
        last = third;
    }
}

fn a_time_to_live_ends_the_value(world: &World) {
    let shelf = CellClient::new(world);
    shelf.write(put("short").time_to_live(world.lease()));
    shelf.write(Put::new(name("j"), "kept").time_to_live(world.lease()));
    shelf.write(Put::new(name("j"), "kept"));
    let left = shelf.get("k").unwrap().expires_in.expect("it has an end");
    assert!(left > world.lease() / 2 && left < world.lease() * 5 / 4, "{left:?}");
    assert_eq!(shelf.get("j").unwrap().expires_in, None, "the last write decides");
    world.pass(world.lease() / 2);
    assert!(shelf.get("k").is_some());
    world.pass(world.lease() * 3 / 2);
    assert_eq!(shelf.get("k"), None);
    assert_eq!(shelf.names("*", None, 10), ["j"]);
}

fn a_smaller_fence_is_stale_and_stays_so(world: &World) {
    let shelf = CellClient::new(world);
    let fenced = |number, text: &str| put(text).fenced(Fence::new(number));
    shelf.write(fenced(7, "seven"));
    assert_eq!(shelf.put(fenced(6, "six")), PutVerdict::Stale(Fence::new(7)));
    shelf.write(fenced(7, "seven again"));
    shelf.write(put("unfenced"));
    assert_eq!(shelf.get("k").unwrap().fence, Some(Fence::new(7)), "not forgotten by others");
    assert_eq!(shelf.put(fenced(6, "six")), PutVerdict::Stale(Fence::new(7)));
    shelf.remove("k", Expect::Anything);
    assert_eq!(shelf.put(fenced(6, "six")), PutVerdict::Stale(Fence::new(7)), "nor by removal");
    shelf.write(fenced(8, "eight").time_to_live(world.lease()));
    world.pass(world.lease() * 2);
    assert_eq!(shelf.put(fenced(7, "seven")), PutVerdict::Stale(Fence::new(8)), "nor by expiry");
    let largest = limits::FENCE - 1;
    shelf.write(fenced(largest, "the largest"));
    let stale = shelf.put(fenced(largest - 1, "one less"));
    assert_eq!(stale, PutVerdict::Stale(Fence::new(largest)), "exact to the last digit");
}

fn a_fenced_removal_keeps_the_fence(world: &World) {
    let shelf = CellClient::new(world);
    shelf.write(put("five").fenced(Fence::new(5)));
    let stale = shelf.remove("k", Expect::Fence(Fence::new(4)));
    assert_eq!(stale, PutVerdict::Stale(Fence::new(5)));
    assert!(matches!(shelf.remove("k", Expect::Fence(Fence::new(6))), PutVerdict::Done(_)));
    assert_eq!(shelf.get("k"), None);
    assert_eq!(shelf.put(put("x").fenced(Fence::new(5))), PutVerdict::Stale(Fence::new(6)));
}

fn of_many_at_once_only_one_wins(world: &World) {
    let shelf = CellClient::new(world);
    let mut version = shelf.write(put("start"));
    for round in 0..5 {
        let writers: Vec<_> = (0..6).map(|_| world.raw()).collect();
        let race = |(n, writer): (usize, &Raw)| {
            let (engine, put) = (Arc::clone(writer.engine()), put(&format!("{round}-{n}")));
            let batch = Batch::from(&put.expect(Expect::Version(version)));
            Waiting::start(async move { cells_of(&*engine).write(&batch).await })
        };
        let race: Vec<_> = writers.iter().enumerate().map(race).collect();
        let verdicts: Vec<_> =
            race.into_iter().map(|one| one.done(world.stage()).unwrap()).collect();
        let won = verdicts.iter().enumerate().filter_map(|(n, verdict)| match verdict {
            BatchVerdict::Done(version) => Some((n, *version)),
            BatchVerdict::Refused(_) => None,
        });
        let won: Vec<_> = won.collect();
        let [(winner, written)] = won[..] else { panic!("one wins, not {won:?}") };
        let cell = shelf.get("k").unwrap();
        assert_eq!(cell.value, format!("{round}-{winner}").into_bytes());
        version = written;
    }
}

fn a_list_goes_page_by_page_in_the_order_of_names(world: &World) {
    let shelf = CellClient::new(world);
    for text in ["k3", "k1", "K2", "k2", "ké", "other", "k[1]"] {
        shelf.write(Put::new(name(text), text));
    }
    assert_eq!(shelf.names("k*", None, 3), ["k1", "k2", "k3"]);
    assert_eq!(shelf.names("k*", Some("k3"), 3), ["k[1]", "ké"]);
    assert_eq!(shelf.names("k?", None, 10), ["k1", "k2", "k3", "ké"]);
    assert_eq!(shelf.names("k[1]", None, 10), ["k[1]"]);
    assert!(shelf.names("k*", Some("ké"), 3).is_empty());
    let own = |(name, cell): &(Name, Cell)| cell.value == name.as_str().as_bytes();
    assert!(shelf.list("*", None, 10).iter().all(own));
    shelf.remove("k2", Expect::Anything);
    assert_eq!(shelf.names("k?", Some("k1"), 1), ["k3"]);
}

fn a_cell_and_a_lock_of_one_name_never_meet(world: &World) {
    let (shelf, raw) = (CellClient::new(world), world.raw());
    let (held, grant) = raw.granted(world, Ask::mutex(world, "k"));
    shelf.write(put("value"));
    assert_eq!(shelf.names("*", None, 10), ["k"]);
    let slots = world.inspect(Query::Page(Page::default())).slots;
    assert_eq!((slots.len(), slots[0].holders[0].claim), (1, held.id));
    shelf.remove("k", Expect::Anything);
    assert_eq!(raw.held(world, &held), grant);
    let version = shelf.write(put("again").expect(Expect::Absent));
    raw.release(world, &held);
    assert_eq!(shelf.get("k").unwrap().version, version);
}

fn odd_names_are_distinct_cells(world: &World) {
    let shelf = CellClient::new(world);
    let odd = ["a", "A", "a ", "{a}", "a:b", "a/b", "a*", "a%2A", "é", "e\u{301}", "'", "\"", "\\"];
    for text in odd {
        shelf.write(Put::new(name(text), text).expect(Expect::Absent));
    }
    for text in odd {
        assert_eq!(shelf.get(text).unwrap().value, text.as_bytes());
    }
    assert_eq!(shelf.list("*", None, 100).len(), odd.len());
}

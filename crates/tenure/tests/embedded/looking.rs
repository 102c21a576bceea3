//! Looking at a store: pages by name, and the index of slots that have a queue.

use std::sync::Arc;
use std::time::Duration;

use tenure::contract::{Claim, Engine, Namespace, Part, samples};
use tenure::engine::Terms;
use tenure::engine::embedded::{EmbeddedEngine, Location};
use tenure::time::ManualClock;
use tenure::{Mutex, Name, Page, Pattern, Query, Tenure, block_on};

use crate::host::Host;

struct Store {
    engine: Arc<EmbeddedEngine>,
    tenure: Tenure,
    _host: Host,
}

fn store() -> Store {
    let host = Host::new();
    let engine = Arc::new(crate::host::open(&Location::at(host.path())).unwrap());
    let tenure = Tenure::builder().open(Arc::clone(&engine) as _).unwrap();
    Store { engine, tenure, _host: host }
}

impl Store {
    fn mutex(&self, name: &str) -> Mutex {
        self.tenure.mutex(name).unwrap()
    }

    /// The index, as it is, compared with what all slots show.
    #[track_caller]
    fn assert_index(&self, expected: &[&str]) {
        let texts = |names: Vec<Name>| names.iter().map(Name::to_string).collect::<Vec<_>>();
        assert_eq!(texts(self.engine.queued_names().unwrap()), expected);
        for contended in [true, false] {
            let page = Page { contended, ..Page::default() };
            let seen = block_on(self.engine.inspect(&Query::Page(page))).unwrap();
            let queued = seen.slots.into_iter().filter(|slot| !slot.queue.is_empty());
            assert_eq!(texts(queued.map(|slot| slot.name).collect()), expected);
        }
    }

    fn page(&self, page: &Page) -> (Vec<String>, Option<Name>) {
        let seen = block_on(self.engine.inspect(&Query::Page(page.clone()))).unwrap();
        (seen.slots.iter().map(|slot| slot.name.to_string()).collect(), seen.more_after)
    }
}

/// Polls a future once, so that its claim is sent.
fn begin<F: Future>(future: std::pin::Pin<&mut F>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.poll(&mut context).is_pending());
}

#[test]
fn the_index_of_queues_follows_claims_releases_withdrawals_and_evictions() {
    let store = store();
    let held: Vec<_> =
        ["a", "b", "c", "d"].map(|name| block_on(store.mutex(name).lock()).unwrap()).into();
    store.assert_index(&[]);
    let mut first = Box::pin(store.mutex("a").lock());
    begin(first.as_mut());
    let mut second = Box::pin(store.mutex("a").lock());
    begin(second.as_mut());
    let mut other = Box::pin(store.mutex("b").lock());
    begin(other.as_mut());
    let mut evicts = Box::pin(store.mutex("c").lock());
    begin(evicts.as_mut());
    store.assert_index(&["a", "b", "c"]);
    // The queue of `b` ends by a withdrawal.
    drop(other);
    while store.engine.queued_names().unwrap().len() == 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    store.assert_index(&["a", "c"]);
    // The queue of `c` ends by a forced release, that of `a` by the second release.
    let mut held = held.into_iter();
    let (a, _b, c, _d) =
        (held.next().unwrap(), held.next().unwrap(), held.next().unwrap(), held.next().unwrap());
    let fence = c.fence().unwrap();
    block_on(store.tenure.force_release("c", fence, "test")).unwrap();
    let _evicted = block_on(evicts).unwrap();
    store.assert_index(&["a"]);
    block_on(a.release()).unwrap();
    let first = block_on(first).unwrap();
    store.assert_index(&["a"]);
    block_on(first.release()).unwrap();
    let _second = block_on(second).unwrap();
    store.assert_index(&[]);
}

#[test]
fn the_index_of_queues_follows_sets() {
    let store = store();
    let held = block_on(store.mutex("b").lock()).unwrap();
    let set = store
        .tenure
        .lock_set(["a", "b", "c"].map(|name| Part::write(name.parse().unwrap())))
        .unwrap();
    let mut waits = Box::pin(set.lock());
    begin(waits.as_mut());
    store.assert_index(&["b"]);
    // Its parts are reserved, so that another one waits for them.
    let mut behind = Box::pin(store.mutex("c").lock());
    begin(behind.as_mut());
    store.assert_index(&["b", "c"]);
    block_on(held.release()).unwrap();
    let guard = block_on(waits).unwrap();
    store.assert_index(&["c"]);
    block_on(guard.release()).unwrap();
    let _behind = block_on(behind).unwrap();
    store.assert_index(&[]);
}

/// A claim that lives by its lease alone.
fn detached_claim(name: &str) -> Arc<Claim> {
    let part = Part::write(name.parse().unwrap());
    Arc::new(Claim { lease: Duration::from_secs(60), ..samples::claim(part) })
}

#[test]
fn the_index_of_queues_follows_expiry() {
    let host = Host::new();
    let clock = Arc::new(ManualClock::new());
    let terms = Terms {
        namespace: Namespace::default(),
        max_lease: Duration::from_secs(60),
        clock: Arc::clone(&clock) as _,
    };
    let engine = EmbeddedEngine::open_small(&Location::at(host.path()), terms).unwrap();
    // More than a short queue has space for, too.
    for waiters in [2, 9] {
        let claims: Vec<_> = (0..waiters).map(|_| detached_claim("a")).collect();
        for claim in &claims {
            block_on(engine.claim(claim)).unwrap();
        }
        assert_eq!(engine.queued_names().unwrap().len(), 1);
        clock.advance(Duration::from_secs(61));
        block_on(engine.inspect(&Query::Slot("a".parse().unwrap()))).unwrap();
        assert_eq!(engine.queued_names().unwrap(), []);
    }
}

#[test]
fn pages_are_whole_and_in_order_whatever_their_size() {
    let store = store();
    let names: Vec<String> = (0..300).map(|at| format!("n:{at:03}")).collect();
    let _guards: Vec<_> =
        names.iter().map(|name| block_on(store.mutex(name).lock()).unwrap()).collect();
    let _others: Vec<_> =
        ["m", "n", "n;"].map(|name| block_on(store.mutex(name).lock()).unwrap()).into();
    for limit in [1, 7, 128, 129, 299, 300, 1_000] {
        let mut page = Page { pattern: Pattern::new("n:*"), limit, ..Page::default() };
        let mut seen = Vec::new();
        let mut pages = 0;
        loop {
            let (some, more) = store.page(&page);
            assert!(some.len() == limit || more.is_none());
            seen.extend(some);
            pages += 1;
            page.after = more;
            if page.after.is_none() {
                break;
            }
        }
        assert_eq!(seen, names);
        assert_eq!(pages, names.len().div_ceil(limit), "no page is empty");
        if limit == 1 {
            continue;
        }
        // A pattern that nothing begins with, and one that matches in the middle.
        page.pattern = Pattern::new("x*");
        assert_eq!(store.page(&page), (vec![], None));
        page.pattern = Pattern::new("*:2?7");
        assert_eq!(store.page(&page).0[0], "n:207");
    }
}

#[test]
fn a_page_of_contended_slots_goes_page_by_page() {
    let store = store();
    let names: Vec<String> = (0..140).map(|at| format!("n:{at:03}")).collect();
    let _guards: Vec<_> =
        names.iter().map(|name| block_on(store.mutex(name).lock()).unwrap()).collect();
    let waited: Vec<_> = names.iter().filter(|name| !name.ends_with('5')).cloned().collect();
    let mut waits: Vec<_> = waited.iter().map(|name| Box::pin(store.mutex(name).lock())).collect();
    for wait in &mut waits {
        begin(wait.as_mut());
    }
    let mut page = Page { contended: true, limit: 50, ..Page::default() };
    let mut seen = Vec::new();
    loop {
        let (some, more) = store.page(&page);
        seen.extend(some);
        page.after = more;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, waited);
}

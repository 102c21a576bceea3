//! Two services that take two classes of locks in opposite orders, and never at the same time: the
//! second is told the first time it takes its pair. On every engine that services can share.

use std::sync::Arc;
use std::time::Duration;

use tenure::engine::memory::MemoryEngine;
use tenure::time::ManualClock;
use tenure::{ErrorKind, LockOrder, OrderEdge, OrderGraph, OrderMode, ReportKind, Tenure};

use crate::{cycles, places};

fn service(url: &str, name: &str, mode: OrderMode) -> Tenure {
    let order = LockOrder::new(mode).service(name);
    Tenure::builder().order(order).namespace("services").blocking_connect(url).unwrap()
}

fn billing(tenure: &Tenure) -> Result<(), tenure::Error> {
    let account = tenure.mutex("account:1")?.blocking_lock()?;
    let ledger = tenure.mutex("ledger")?.blocking_lock()?;
    ledger.blocking_release()?;
    account.blocking_release()
}

fn reports(tenure: &Tenure) -> Result<(), tenure::Error> {
    let ledger = tenure.mutex("ledger")?.blocking_lock()?;
    let account = tenure.mutex("account:2")?.blocking_lock()?;
    account.blocking_release()?;
    ledger.blocking_release()
}

/// What every engine with cells must show.
fn the_second_service_is_told(url: &str) {
    let first = service(url, "billing", OrderMode::Warn);
    billing(&first).unwrap();
    billing(&first).unwrap();
    assert!(cycles(&first).is_empty());
    first.blocking_close();

    let second = service(url, "reports", OrderMode::Warn);
    reports(&second).unwrap();
    let told = cycles(&second);
    assert_eq!(told.len(), 1, "{told:?}");
    let text = told[0].to_string();
    assert!(text.contains("billing holds account:*"), "{text}");
    assert!(text.contains("reports holds ledger"), "{text}");
    assert_eq!(places(&text), 4, "{text}");
    assert!(text.contains("first seen 20") && text.contains(" in build "), "{text}");

    // A third, which denies, is refused before it waits, and its edge is not shared.
    let third = service(url, "audit", OrderMode::Deny);
    let error = reports(&third).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Order, "{error}");
    let stored = second.blocking_stored_order().unwrap();
    let services: Vec<&str> = stored.edges().iter().map(|edge| &*edge.service).collect();
    assert_eq!(services.len(), 2, "{services:?}");
    assert_eq!(stored.cycles().len(), 1);

    // A service that starts again finds its edge: nothing changes but what it hears.
    let again = service(url, "billing", OrderMode::Warn);
    billing(&again).unwrap();
    assert_eq!(cycles(&again).len(), 1, "by now the other service takes the opposite order");
    assert_eq!(second.blocking_stored_order().unwrap().edges(), stored.edges());
}

#[test]
fn the_second_service_is_told_in_memory() {
    the_second_service_is_told("memory:ordering-services");
}

#[cfg(all(feature = "embedded", target_os = "linux"))]
#[test]
fn the_second_service_is_told_on_embedded() {
    let place = tempfile::tempdir().unwrap();
    the_second_service_is_told(&format!("embedded://{}", place.path().join("store").display()));
}

#[cfg(feature = "redis")]
#[test]
fn the_second_service_is_told_on_redis() {
    let redis = servers::Redis::start();
    the_second_service_is_told(&redis.url());
}

#[cfg(feature = "postgres")]
#[test]
fn the_second_service_is_told_on_postgres() {
    let postgres = servers::Postgres::start();
    the_second_service_is_told(&postgres.url());
}

#[cfg(feature = "etcd")]
#[test]
fn the_second_service_is_told_on_etcd() {
    let etcd = servers::Etcd::start();
    the_second_service_is_told(&etcd.url());
}

#[test]
fn graphs_that_two_services_exported_show_the_cycle_with_all_places() {
    // Two stores that never met.
    let (first, second) = (
        service("memory:ordering-one", "billing", OrderMode::Warn),
        service("memory:ordering-two", "reports", OrderMode::Warn),
    );
    billing(&first).unwrap();
    reports(&second).unwrap();
    assert!(cycles(&first).is_empty() && cycles(&second).is_empty());
    let mut merged = OrderGraph::default();
    for tenure in [&first, &second] {
        let text = tenure.order().unwrap().graph().to_text();
        merged.merge(OrderGraph::from_text(&text).unwrap());
    }
    let found = merged.cycles();
    assert_eq!(found.len(), 1);
    assert_eq!(places(&found[0].to_string()), 4, "{}", found[0]);
}

#[test]
fn a_known_edge_makes_no_call_to_the_store_and_a_store_that_fails_stops_no_lock() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure::contract::Claim;
    use tenure::time::Tick;
    use tenure::{Event, StoreCall, Verb, Witness};

    #[derive(Debug, Default)]
    struct CellCalls(AtomicUsize);
    impl Witness for CellCalls {
        fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, _event: &Event) {}

        fn on_call(&self, call: &StoreCall) {
            if call.verb == Verb::Cell {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    let calls = Arc::new(CellCalls::default());
    let order = LockOrder::new(OrderMode::Warn).service("billing");
    let builder = Tenure::builder().order(order).witness(Arc::clone(&calls) as _);
    let tenure = builder.blocking_connect("memory:").unwrap();
    tenure.mutex("alone").unwrap().blocking_lock().unwrap().blocking_release().unwrap();
    assert_eq!(calls.0.load(Ordering::SeqCst), 0, "a lone lock asks no one");
    billing(&tenure).unwrap();
    let made = calls.0.load(Ordering::SeqCst);
    assert_eq!(made, 3, "read, write, read again");
    for _ in 0..10 {
        billing(&tenure).unwrap();
    }
    assert_eq!(calls.0.load(Ordering::SeqCst), made);
    // Quorums have no cells: the checker goes on alone.
    let alone = LockOrder::new(OrderMode::Warn).not_shared();
    let tenure = Tenure::builder().order(alone).blocking_connect("memory:").unwrap();
    billing(&tenure).unwrap();
    assert!(tenure.blocking_stored_order().unwrap().edges().is_empty());
}

/// One process of a build: its own session over a store that all share.
fn build(store: &MemoryEngine, clock: &ManualClock, service: &str, build: &str) -> Tenure {
    let order = LockOrder::new(OrderMode::Warn).service(service).build(build);
    let builder = Tenure::builder().order(order).clock(Arc::new(clock.clone()));
    builder.open(Arc::new(store.clone())).unwrap()
}

fn nested(tenure: &Tenure, first: &str, second: &str) {
    let _first = tenure.mutex(first).unwrap().blocking_lock().unwrap();
    drop(tenure.mutex(second).unwrap().blocking_lock().unwrap());
}

fn stored_builds(tenure: &Tenure) -> Vec<String> {
    let stored = tenure.blocking_stored_order().unwrap();
    let name = |edge: &OrderEdge| format!("{} {} {}", edge.service, edge.build, edge.held);
    let mut builds: Vec<String> = stored.edges().iter().map(name).collect();
    builds.sort();
    builds
}

const DAY: Duration = Duration::from_secs(86_400);

/// The inversion was repaired in build 2: a process of it must not be told of what build 1 did.
#[test]
fn an_edge_of_a_build_that_is_no_longer_seen_is_forgotten() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    reports(&build(&store, &clock, "reports", "1")).unwrap();
    // Both builds run: what build 1 does still counts.
    clock.advance(DAY);
    billing(&build(&store, &clock, "reports", "2")).unwrap();
    let watcher = build(&store, &clock, "billing", "1");
    assert_eq!(stored_builds(&watcher), ["reports 1 ledger", "reports 2 account:*"]);
    billing(&watcher).unwrap();
    assert_eq!(cycles(&watcher).len(), 1);
    // Two days after its last sign of life it is gone, but only because build 2 is still there.
    clock.advance(DAY + DAY / 2);
    let second = build(&store, &clock, "reports", "2");
    assert_eq!(stored_builds(&second).len(), 3, "no newer build was seen since");
    billing(&second).unwrap();
    assert_eq!(stored_builds(&second), ["billing 1 account:*", "reports 2 account:*"]);
    let fresh = build(&store, &clock, "billing", "2");
    billing(&fresh).unwrap();
    assert!(cycles(&fresh).is_empty(), "{:?}", cycles(&fresh));
}

/// A process that runs for months learns nothing new, and yet its build stays seen, its edges stay
/// in the store, and it forgets what other services do no more.
#[test]
fn a_process_that_goes_on_keeps_its_edges_and_forgets_those_of_dead_builds() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let old = build(&store, &clock, "audit", "1");
    nested(&old, "b", "a");
    let long = build(&store, &clock, "billing", "1");
    billing(&long).unwrap();
    for _ in 0..80 {
        clock.advance(DAY / 2);
        // More checks than lie between two looks at the clock.
        for _ in 0..40 {
            billing(&long).unwrap();
        }
        let audit = build(&store, &clock, "audit", "2");
        nested(&audit, "c", "d");
    }
    assert_eq!(stored_builds(&long), ["audit 2 c", "billing 1 account:*"]);
    // What build 1 of the other service did is no part of a cycle any more.
    nested(&long, "a", "b");
    assert!(cycles(&long).is_empty(), "{:?}", cycles(&long));
}

/// A service that waits with a limit cannot hang; another one that takes the same pair without can,
/// together with a third, and is seen later than both.
#[test]
fn a_service_is_told_of_a_cycle_that_a_later_edge_of_another_service_makes_worse() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let limited = build(&store, &clock, "limited", "1");
    {
        let _account = limited.mutex("account:1").unwrap().blocking_lock().unwrap();
        let ledger = limited.mutex("ledger").unwrap().timeout(Duration::from_secs(5));
        drop(ledger.blocking_lock().unwrap());
    }
    let second = build(&store, &clock, "reports", "1");
    reports(&second).unwrap();
    let kinds = || -> Vec<ReportKind> { cycles(&second).iter().map(|one| one.kind).collect() };
    assert_eq!(kinds(), [ReportKind::SelfHealingCycle]);
    clock.advance(Duration::from_secs(10));
    billing(&build(&store, &clock, "billing", "1")).unwrap();
    // The next edge that it learns makes it read what the others have.
    nested(&second, "x", "y");
    assert_eq!(kinds(), [ReportKind::SelfHealingCycle, ReportKind::Cycle]);
    let text = cycles(&second)[1].to_string();
    assert!(text.contains("billing holds account:*"), "{text}");
}

/// Of two cycles through one edge of other services, only one leads through an edge of this one.
#[test]
fn a_service_is_told_of_its_own_cycle_though_others_close_a_shorter_one_by_the_same_edge() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let own = build(&store, &clock, "own", "1");
    nested(&own, "b", "c");
    let other = build(&store, &clock, "other", "1");
    for (first, second) in [("c", "a"), ("b", "a"), ("a", "b")] {
        clock.advance(Duration::from_secs(1));
        nested(&other, first, second);
    }
    nested(&own, "x", "y");
    let told = cycles(&own);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].edges.len(), 3, "{}", told[0]);
    assert!(told[0].to_string().contains("own holds b"), "{}", told[0]);
}

/// The store has an edge of another service from before: what this process exports is its own.
#[test]
fn a_process_exports_and_shares_its_own_sighting_of_an_edge_that_others_have_too() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    for service in ["audit", "billing"] {
        billing(&build(&store, &clock, service, "1")).unwrap();
        clock.advance(Duration::from_secs(10));
    }
    let second = build(&store, &clock, "billing", "1");
    // The first edge that it learns makes it read those of all services.
    let first = second.mutex("x").unwrap().blocking_lock().unwrap();
    drop(second.mutex("y").unwrap().blocking_lock().unwrap());
    drop(first);
    billing(&second).unwrap();
    let exported = second.order().unwrap().graph();
    let services: Vec<&str> = exported.edges().iter().map(|edge| &*edge.service).collect();
    assert_eq!(services, ["billing", "billing"]);
}

//! Two services that take two classes of locks in opposite orders, and never at the same time: the
//! second is told the first time it takes its pair. On every engine that services can share.

use tenure::{ErrorKind, LockOrder, OrderGraph, OrderMode, Tenure};

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
    assert!(text.contains("first seen 20"), "{text}");

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
    use std::sync::Arc;
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

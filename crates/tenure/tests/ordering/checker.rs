//! The learned order in one process: cycles that did not happen, modes, silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::engine::memory::MemoryEngine;
use tenure::{ErrorKind, LockOrder, OrderMode, ReportKind, SilencedEdges, Tenure};

use crate::{cycles, ordered, places};

fn pair(tenure: &Tenure, first: &str, second: &str) -> Result<(), tenure::Error> {
    let first = tenure.mutex(first)?.blocking_lock()?;
    let second = tenure.mutex(second)?.blocking_lock()?;
    second.blocking_release()?;
    first.blocking_release()
}

#[test]
fn an_inverted_pair_is_reported_once_with_both_places_though_nothing_hung() {
    let tenure = ordered(LockOrder::new(OrderMode::Warn).service("billing"));
    for _ in 0..3 {
        pair(&tenure, "account:1", "ledger").unwrap();
        pair(&tenure, "ledger", "account:2").unwrap();
    }
    let reports = cycles(&tenure);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, ReportKind::Cycle);
    let text = reports[0].to_string();
    assert_eq!(places(&text), 4, "{text}");
    assert!(text.contains("billing holds ledger"), "{text}");
    assert!(text.contains("acquires account:*"), "{text}");
    assert_eq!(tenure.order().unwrap().graph().edges().len(), 2);
}

#[test]
fn longer_cycles_over_several_flows_are_found() {
    let tenure = ordered(OrderMode::Warn);
    pair(&tenure, "a", "b").unwrap();
    pair(&tenure, "b", "c").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| pair(&tenure, "c", "d").unwrap());
    });
    assert!(cycles(&tenure).is_empty());
    tenure::blocking_scope(|| pair(&tenure, "d", "a").unwrap());
    assert_eq!(cycles(&tenure)[0].edges.len(), 4);
}

#[test]
fn deny_refuses_what_closes_a_cycle_each_time_and_nothing_else() {
    let tenure = ordered(OrderMode::Deny);
    pair(&tenure, "a", "b").unwrap();
    for _ in 0..2 {
        let error = pair(&tenure, "b", "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Order, "{error}");
        assert_eq!(places(&error.to_string()), 4, "{error}");
        pair(&tenure, "a", "b").unwrap();
    }
    assert_eq!(cycles(&tenure).len(), 1);
    assert_eq!(tenure.claim_count(), 0, "what was refused waits for nothing");
}

#[test]
fn off_learns_nothing() {
    let tenure = ordered(OrderMode::Off);
    assert!(tenure.order().is_none());
    pair(&tenure, "a", "b").unwrap();
    pair(&tenure, "b", "a").unwrap();
}

#[test]
fn a_wait_with_a_limit_heals_itself_and_is_told_but_not_denied() {
    let tenure = ordered(OrderMode::Deny);
    pair(&tenure, "a", "b").unwrap();
    let limited = |tenure: &Tenure| {
        let _first = tenure.mutex("b").unwrap().blocking_lock().unwrap();
        let second = tenure.mutex("a").unwrap().timeout(Duration::from_secs(5));
        second.blocking_lock().map(drop)
    };
    limited(&tenure).unwrap();
    limited(&tenure).unwrap();
    assert_eq!(cycles(&tenure).len(), 1);
    assert_eq!(cycles(&tenure)[0].kind, ReportKind::SelfHealingCycle);
    // The same pair without a limit is worse than what was reported.
    let error = pair(&tenure, "b", "a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Order);
    assert_eq!(cycles(&tenure)[1].kind, ReportKind::Cycle);
}

/// Two ways lead from `a` to `b`, and the one that waits with a limit is found first.
#[test]
fn a_way_with_a_limit_hides_no_other_way_without_one() {
    let tenure = ordered(OrderMode::Deny);
    {
        let _first = tenure.mutex("a").unwrap().blocking_lock().unwrap();
        let second = tenure.mutex("b").unwrap().timeout(Duration::from_secs(5));
        drop(second.blocking_lock().unwrap());
    }
    pair(&tenure, "a", "c").unwrap();
    pair(&tenure, "c", "b").unwrap();
    let error = pair(&tenure, "b", "a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Order);
    assert_eq!(cycles(&tenure)[0].edges.len(), 3);
}

#[test]
fn a_try_lock_adds_no_edge_but_what_it_holds_counts() {
    let tenure = ordered(OrderMode::Warn);
    pair(&tenure, "a", "b").unwrap();
    let b = tenure.mutex("b").unwrap().blocking_lock().unwrap();
    let a = tenure.mutex("a").unwrap().blocking_try_lock().unwrap().unwrap();
    // Confirmed: a try would find a lock that is only being released.
    a.blocking_release().unwrap();
    b.blocking_release().unwrap();
    assert!(cycles(&tenure).is_empty());
    let _b = tenure.mutex("b").unwrap().blocking_try_lock().unwrap().unwrap();
    drop(tenure.mutex("a").unwrap().blocking_lock().unwrap());
    assert_eq!(cycles(&tenure).len(), 1);
}

#[test]
fn names_of_one_class_are_reported_when_they_contradict_each_other() {
    let tenure = ordered(OrderMode::Deny);
    pair(&tenure, "account:1", "account:2").unwrap();
    pair(&tenure, "account:9", "account:10").unwrap();
    let error = pair(&tenure, "account:10", "account:9").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Order);
    assert!(error.to_string().contains("different orders of their names"), "{error}");
    assert_eq!(cycles(&tenure)[0].kind, ReportKind::NamesOutOfOrder);
    assert!(pair(&tenure, "account:8", "account:3").is_err());
    pair(&tenure, "account:3", "account:8").unwrap();
    assert_eq!(cycles(&tenure).len(), 1);
}

#[test]
fn silenced_edges_and_templates_of_classes_are_heeded() {
    let silenced = SilencedEdges::parse("b -> a : only while no request is served").unwrap();
    let order = LockOrder::new(OrderMode::Deny)
        .silenced(silenced)
        .classes(["tenant:*:export", "tenant:*:import"]);
    let tenure = ordered(order);
    pair(&tenure, "a", "b").unwrap();
    pair(&tenure, "b", "a").unwrap();
    pair(&tenure, "b", "a").unwrap();
    pair(&tenure, "tenant:x:import", "tenant:x:export").unwrap();
    assert!(pair(&tenure, "tenant:y:export", "tenant:z:import").is_err());
}

#[test]
fn reports_reach_the_listener_and_a_checker_is_shared_by_sessions() {
    let count = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&count);
    let order = LockOrder::new(OrderMode::Warn).on_report(move |report| {
        assert!(!report.to_string().is_empty());
        told.fetch_add(1, Ordering::SeqCst);
    });
    let one = ordered(order);
    let checker = one.order().unwrap();
    let builder = Tenure::builder().order_checker(checker);
    let two = builder.open(Arc::new(MemoryEngine::new())).unwrap();
    let a = one.mutex("a").unwrap().timeout(Duration::from_secs(1)).blocking_lock().unwrap();
    let b = two.mutex("b").unwrap().timeout(Duration::from_secs(1)).blocking_lock().unwrap();
    drop((a, b));
    assert_eq!(checker.graph().edges().len(), 1);
    pair(&two, "b", "a2").unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1, "a wait without a limit");
}

#[test]
fn readers_in_both_orders_are_no_cycle_until_writers_come() {
    let tenure = ordered(OrderMode::Warn);
    let read = |first: &str, second: &str| {
        let _first = tenure.rwlock(first).unwrap().blocking_read().unwrap();
        drop(tenure.rwlock(second).unwrap().blocking_read().unwrap());
    };
    read("a", "b");
    read("b", "a");
    assert!(cycles(&tenure).is_empty());
    pair(&tenure, "a", "b").unwrap();
    assert_eq!(cycles(&tenure).len(), 1);
}

#[test]
fn readers_of_one_class_are_judged_by_their_order_once_the_class_has_writers() {
    let tenure = ordered(OrderMode::Deny);
    let read = |first: &str, second: &str| {
        let _first = tenure.rwlock(first).unwrap().blocking_read().unwrap();
        tenure.rwlock(second).unwrap().blocking_read().map(drop)
    };
    for _ in 0..2 {
        read("a:1", "a:2").unwrap();
        read("b:1", "b:2").unwrap();
    }
    pair(&tenure, "x", "b:3").unwrap();
    pair(&tenure, "b:5", "b:6").unwrap();
    assert!(cycles(&tenure).is_empty());
    // A writer may stand between them: the second reader waits behind it.
    assert_eq!(read("b:2", "b:1").unwrap_err().kind(), ErrorKind::Order);
    assert_eq!(cycles(&tenure)[0].kind, ReportKind::NamesOutOfOrder);
    // Without a writer any order is right, but what was seen counts when the first one comes.
    read("a:2", "a:1").unwrap();
    assert_eq!(cycles(&tenure).len(), 1);
    assert_eq!(pair(&tenure, "x", "a:3").unwrap_err().kind(), ErrorKind::Order);
    assert_eq!(cycles(&tenure).len(), 2);
}

#[test]
fn elections_are_no_part_of_the_order() {
    let tenure = ordered(OrderMode::Deny);
    let term = tenure.election("scheduler").unwrap().blocking_campaign("me").unwrap();
    pair(&tenure, "a", "b").unwrap();
    assert_eq!(tenure.order().unwrap().graph().edges().len(), 1);
    drop(term);
}

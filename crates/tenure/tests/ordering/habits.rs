//! Habits that end in deadlock are told once for each place in the code.

use std::sync::Arc;
use std::time::Duration;

use tenure::engine::memory::MemoryEngine;
use tenure::time::ManualClock;
use tenure::{LockOrder, OrderMode, OrderReport, Owner, ReportKind, Tenure};

use crate::ordered;

fn told(tenure: &Tenure, kind: ReportKind) -> Vec<OrderReport> {
    let mut reports = tenure.order().unwrap().reports();
    reports.retain(|report| report.kind == kind);
    reports
}

#[test]
fn a_wait_without_a_limit_while_something_is_held_is_told_once_for_each_place() {
    let tenure = ordered(OrderMode::Warn);
    let kind = ReportKind::UnlimitedWaitWhileHolding;
    for name in ["b", "c", "d"] {
        let _a = tenure.mutex("a").unwrap().blocking_lock().unwrap();
        drop(tenure.mutex(name).unwrap().blocking_lock().unwrap());
        let limited = tenure.mutex("x").unwrap().timeout(Duration::from_secs(1));
        drop(limited.blocking_lock().unwrap());
    }
    let reports = told(&tenure, kind);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].to_string().matches("ordering/habits.rs:").count(), 2, "{}", reports[0]);
    let _a = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    drop(tenure.mutex("b").unwrap().blocking_lock().unwrap());
    assert_eq!(told(&tenure, kind).len(), 2, "another place");
}

#[test]
fn a_long_hold_is_told_when_it_ends() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let order = LockOrder::new(OrderMode::Warn).long_hold(Duration::from_secs(5));
    let builder = Tenure::builder().order(order).clock(Arc::new(clock.clone()));
    let tenure = builder.open(Arc::new(store)).unwrap();
    for seconds in [4, 6, 7] {
        let guard = tenure.mutex("export").unwrap().blocking_lock().unwrap();
        clock.advance(Duration::from_secs(seconds));
        drop(guard);
    }
    let reports = told(&tenure, ReportKind::LongHold);
    assert_eq!(reports.len(), 1);
    let text = reports[0].to_string();
    assert!(
        text.contains("\"export\"") && text.contains("6s") && text.contains("habits.rs"),
        "{text}"
    );
}

/// A flow that hangs releases nothing, so the end of its hold is never seen.
#[test]
fn a_hold_that_does_not_end_is_told_while_it_lasts() {
    let clock = ManualClock::new();
    let store = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let (sender, told_now) = std::sync::mpsc::channel();
    let order = LockOrder::new(OrderMode::Off)
        .long_hold(Duration::from_secs(5))
        .on_report(move |report| sender.send(report.clone()).unwrap());
    let builder = Tenure::builder().order(order).clock(Arc::new(clock.clone()));
    let tenure = builder.open(Arc::new(store)).unwrap();
    let guard = tenure.mutex("export").unwrap().blocking_lock().unwrap();
    let patience = Duration::from_secs(60);
    for _ in 0..6 {
        clock.advance(Duration::from_secs(2));
    }
    let report = told_now.recv_timeout(patience).expect("the hold goes on and is told");
    assert_eq!(report.kind, ReportKind::LongHold);
    let text = report.to_string();
    assert!(text.contains("\"export\"") && text.contains("is held for"), "{text}");
    drop(guard);
    tenure.blocking_close();
    assert_eq!(told(&tenure, ReportKind::LongHold).len(), 1, "it is told once");
}

#[test]
fn names_out_of_order_are_told_once_for_each_place() {
    let tenure = ordered(OrderMode::Warn);
    let lock = |name: &str| tenure.mutex(name).unwrap().blocking_lock().unwrap();
    let kind = ReportKind::NamesOutOfOrder;
    {
        let _one = lock("a:1");
        drop(lock("a:2"));
    }
    for _ in 0..3 {
        let _two = lock("a:2");
        drop(lock("a:1"));
    }
    assert_eq!(told(&tenure, kind).len(), 1);
    for _ in 0..3 {
        let _nine = tenure.mutex("a:9").unwrap().blocking_lock().unwrap();
        drop(tenure.mutex("a:8").unwrap().blocking_lock().unwrap());
    }
    assert_eq!(told(&tenure, kind).len(), 2, "another place, another report");
}

#[test]
fn a_lock_that_is_held_while_its_owner_is_sent_along_is_told() {
    let tenure = ordered(OrderMode::Warn);
    let owner = Owner::new();
    let kind = ReportKind::HeldAcrossCall;
    let _text = owner.to_header();
    assert!(told(&tenure, kind).is_empty(), "nothing is held");
    let guard = tenure.mutex("a").unwrap().owner(&owner).blocking_lock().unwrap();
    for _ in 0..2 {
        let _text = owner.to_header();
    }
    let reports = told(&tenure, kind);
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].to_string().contains("\"a\""), "{}", reports[0]);
    drop(guard);
}

//! Guards that change: an upgrade waits for the other readers, and a guard may leave its flow.

use std::time::Duration;

use tenure::{ErrorKind, Levels, OrderMode, ReportKind, Tenure};

use crate::{cycles, opened, ordered, places};

const LIMIT: Duration = Duration::from_secs(5);

/// Reads `a`, locks `b`, and writes `a`: two flows that do this wait for each other.
fn read_lock_upgrade(tenure: &Tenure) -> Result<(), tenure::Error> {
    let reader = tenure.rwlock("a")?.blocking_read()?;
    let _b = tenure.mutex("b")?.blocking_lock()?;
    let writer = reader.blocking_upgrade()?;
    writer.blocking_release()
}

#[test]
fn an_upgrade_while_another_lock_is_held_is_part_of_the_order() {
    let tenure = ordered(OrderMode::Warn);
    read_lock_upgrade(&tenure).unwrap();
    let told = cycles(&tenure);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].kind, ReportKind::Cycle);
    assert_eq!(places(&told[0].to_string()), 4, "{}", told[0]);
    // The order b before a is right, however often a is upgraded.
    let tenure = ordered(OrderMode::Deny);
    for _ in 0..2 {
        let _b = tenure.mutex("b").unwrap().blocking_lock().unwrap();
        let reader = tenure.rwlock("a").unwrap().blocking_read().unwrap();
        let writer = reader.blocking_upgrade().unwrap();
        drop(writer.blocking_downgrade().unwrap());
    }
    assert!(cycles(&tenure).is_empty());
    assert_eq!(tenure.order().unwrap().graph().edges().len(), 2, "to read and to write");
}

#[test]
fn an_upgrade_that_is_denied_leaves_the_reader_as_it_was() {
    let tenure = ordered(OrderMode::Deny);
    tenure::blocking_scope(|| {
        let reader = tenure.rwlock("a").unwrap().blocking_read().unwrap();
        let b = tenure.mutex("b").unwrap().blocking_lock().unwrap();
        let failed = reader.blocking_upgrade().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::Order, "{failed}");
        failed.guard.check().unwrap();
        b.blocking_release().unwrap();
        // Nothing else is held: two upgrades of one lock are refused by the store.
        failed.guard.blocking_upgrade().unwrap().blocking_release().unwrap();
    });
}

#[test]
fn an_upgrade_without_a_limit_while_holding_is_a_habit_and_against_levels_an_error() {
    let tenure = ordered(OrderMode::Warn);
    let habits = |tenure: &Tenure| {
        let reports = tenure.order().unwrap().reports();
        let kind = ReportKind::UnlimitedWaitWhileHolding;
        reports.iter().filter(|report| report.kind == kind).count()
    };
    for limit in [Some(LIMIT), None] {
        let lock = tenure.rwlock("a").unwrap();
        let lock = if let Some(limit) = limit { lock.timeout(limit) } else { lock };
        let alone = lock.blocking_read().unwrap();
        drop(alone.blocking_upgrade().unwrap());
        assert_eq!(habits(&tenure), 0, "nothing else is held");
        let reader = lock.blocking_read().unwrap();
        let b = tenure.mutex("b").unwrap().timeout(LIMIT).blocking_lock().unwrap();
        reader.blocking_upgrade().unwrap().blocking_release().unwrap();
        b.blocking_release().unwrap();
    }
    assert_eq!(habits(&tenure), 1);
    let levels = Levels::new(["region", "account"]).unwrap();
    let tenure = opened(Tenure::builder().levels(levels));
    let region = tenure.rwlock("europe").unwrap().level("region").blocking_read().unwrap();
    let account = tenure.mutex("7").unwrap().level("account").blocking_lock().unwrap();
    let failed = region.blocking_upgrade().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Order, "{failed}");
    drop(account);
    drop(failed.guard.blocking_upgrade().unwrap());
}

#[test]
fn a_writer_that_an_owner_has_around_a_reader_makes_its_upgrade_wait_for_nothing() {
    let tenure = ordered(OrderMode::Deny);
    tenure::blocking_scope(|| {
        let _writer = tenure.rwlock("a").unwrap().blocking_write().unwrap();
        let reader = tenure.rwlock("a").unwrap().blocking_read().unwrap();
        let _b = tenure.mutex("b").unwrap().blocking_lock().unwrap();
        drop(reader.blocking_upgrade().unwrap());
    });
    assert!(cycles(&tenure).is_empty());
}

#[test]
fn a_guard_that_left_its_flow_does_not_count_there() {
    let tenure = ordered(OrderMode::Deny);
    let b_then_a = || {
        let _b = tenure.mutex("b").unwrap().blocking_lock().unwrap();
        tenure.mutex("a").unwrap().blocking_lock().map(drop)
    };
    b_then_a().unwrap();
    let a_then_b = |detached: bool| {
        let mut a = tenure.mutex("a").unwrap().blocking_lock().unwrap();
        if detached {
            a.blocking_detach().unwrap();
        }
        let b = tenure.mutex("b").unwrap().blocking_lock().map(drop);
        a.blocking_release().unwrap();
        b
    };
    // Inside a scope and outside: the guard could be anywhere by now.
    a_then_b(true).unwrap();
    tenure::blocking_scope(|| a_then_b(true).unwrap());
    assert!(cycles(&tenure).is_empty());
    assert_eq!(a_then_b(false).unwrap_err().kind(), ErrorKind::Order);
    b_then_a().unwrap();
}

//! Declared levels: the higher one first, several of one level as a set.

use tenure::{Error, ErrorKind, Levels, Name, Owner, Tenure};

use crate::opened;

fn levels() -> Levels {
    Levels::new(["system", "region", "account", "transaction"]).unwrap()
}

fn tenure() -> Tenure {
    opened(Tenure::builder().levels(levels()))
}

/// The error of a lock that was acquired against the levels.
fn refused<T>(answer: Result<T, Error>) -> Error {
    let error = answer.err().expect("it is against the levels");
    assert_eq!(error.kind(), ErrorKind::Order, "{error}");
    error
}

#[test]
fn a_higher_or_equal_level_is_refused_with_both_locks_levels_and_places() {
    let tenure = tenure();
    let account = tenure.mutex("account:1").unwrap().level("account").blocking_lock().unwrap();
    for (level, help) in [("region", "higher level first"), ("account", "lock_set")] {
        let error = refused(tenure.mutex("other").unwrap().level(level).blocking_lock());
        let text = error.to_string();
        assert!(text.contains("\"account:1\" of level \"account\""), "{text}");
        assert!(text.contains(&format!("\"other\" of level \"{level}\"")), "{text}");
        assert_eq!(text.matches("tests/ordering/levels.rs:").count(), 2, "{text}");
        assert!(text.contains(help), "{text}");
    }
    let below = tenure.mutex("entry").unwrap().level("transaction").blocking_lock().unwrap();
    drop(below);
    // Once it is released, it is not held.
    account.blocking_release().unwrap();
    let _region = tenure.mutex("europe").unwrap().level("region").blocking_lock().unwrap();
}

#[test]
fn try_locks_and_every_kind_of_lock_are_checked() {
    let tenure = tenure();
    let _held =
        tenure.semaphore("encoders", 2).unwrap().level("account").blocking_acquire().unwrap();
    let rwlock = tenure.rwlock("r").unwrap().level("region");
    refused(rwlock.blocking_try_read());
    refused(rwlock.blocking_write());
    refused(tenure.mutex("m").unwrap().level("system").blocking_try_lock());
    refused(tenure.semaphore("s", 2).unwrap().level("account").blocking_acquire());
    refused(tenure.family("f:*").unwrap().level("account").blocking_lock("f:1"));
    let parts = [tenure.mutex("a").unwrap().part(), tenure.mutex("b").unwrap().part()];
    let set = tenure.lock_set(parts).unwrap();
    refused(set.clone().level("region").blocking_lock());
    refused(set.clone().level("region").blocking_try_lock_for(std::time::Duration::ZERO));
    drop(set.level("transaction").blocking_lock().unwrap());
}

#[test]
fn several_locks_of_one_level_are_acquired_as_a_set_and_levels_follow_names() {
    let levels = levels().names("account:*", "account").unwrap().names("region:*", "region");
    let tenure = opened(Tenure::builder().levels(levels.unwrap()));
    let parts = ["account:1", "account:2", "free"].map(|name| tenure.mutex(name).unwrap().part());
    let set = tenure.lock_set(parts).unwrap().blocking_lock().unwrap();
    refused(tenure.mutex("account:3").unwrap().blocking_lock());
    let text = refused(tenure.mutex("region:1").unwrap().blocking_lock()).to_string();
    assert!(text.contains("\"account:1\""), "{text}");
    // No level, no check; what the lock says comes before its name.
    drop(tenure.mutex("anything").unwrap().blocking_lock().unwrap());
    drop(tenure.mutex("region:1").unwrap().level("transaction").blocking_lock().unwrap());
    drop(set);
}

#[test]
fn a_lock_that_is_held_is_entered_again_whatever_its_level() {
    let tenure = tenure();
    let lock = |name: &str, level: &str| tenure.mutex(name).unwrap().level(level);
    tenure::blocking_scope(|| {
        let _account = lock("account:1", "account").blocking_lock().unwrap();
        let _entry = lock("entry", "transaction").blocking_lock().unwrap();
        drop(lock("account:1", "account").blocking_lock().unwrap());
        refused(lock("account:2", "account").blocking_lock());
        // A nested owner holds what the outer one holds.
        tenure::blocking_scope(|| {
            drop(lock("account:1", "account").blocking_lock().unwrap());
            refused(lock("europe", "region").blocking_lock());
        });
    });
}

#[test]
fn another_flow_of_control_has_its_own_order() {
    let tenure = tenure();
    let _account = tenure.mutex("account:1").unwrap().level("account").blocking_lock().unwrap();
    std::thread::scope(|scope| {
        let tenure = &tenure;
        let region = move || tenure.mutex("europe").unwrap().level("region").blocking_lock();
        scope.spawn(move || drop(region().unwrap()));
    });
    let (one, two) = (Owner::new(), Owner::new());
    let other = opened(Tenure::builder().levels(levels()));
    let lock = |owner: &Owner, name: &str, level: &str| {
        other.mutex(name).unwrap().level(level).owner(owner).blocking_lock()
    };
    let _held = lock(&one, "a", "account").unwrap();
    drop(lock(&two, "b", "region").unwrap());
    refused(lock(&one, "b", "region"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_of_scopes_tasks_are_told_apart() {
    let tenure = tenure();
    let account = tenure.mutex("account:1").unwrap().level("account");
    let region = tenure.mutex("europe").unwrap().level("region");
    let held = account.lock().await.unwrap();
    refused(region.lock().await);
    let other = region.clone();
    tokio::spawn(async move { drop(other.lock().await.unwrap()) }).await.unwrap();
    held.release().await.unwrap();
    drop(region.lock().await.unwrap());
}

#[test]
fn what_an_upgrade_made_of_a_lock_is_still_held_and_then_released() {
    let tenure = tenure();
    let lock = tenure.rwlock("config").unwrap().level("account");
    let writer = lock.blocking_read().unwrap().blocking_upgrade().unwrap();
    refused(tenure.mutex("europe").unwrap().level("region").blocking_lock());
    let reader = writer.blocking_downgrade().unwrap();
    refused(tenure.mutex("europe").unwrap().level("region").blocking_lock());
    drop(reader);
    drop(tenure.mutex("europe").unwrap().level("region").blocking_lock().unwrap());
}

#[test]
fn mistakes_in_levels_are_named() {
    for names in [&[][..], &["a", "a"], &["a", " "]] {
        assert!(Levels::new(names).is_err(), "{names:?}");
    }
    assert!(Levels::new((0..65).map(|n| n.to_string())).is_err());
    let error = levels().names("x:*", "county").unwrap_err().to_string();
    assert!(error.contains("system, region, account, transaction"), "{error}");
    let error = tenure().mutex("x").unwrap().level("county").blocking_lock().unwrap_err();
    assert_eq!(error.name(), Some(&Name::try_from("x").unwrap()));
    let without = opened(Tenure::builder());
    let error = without.mutex("x").unwrap().level("county").blocking_lock().unwrap_err();
    assert!(error.to_string().contains("no levels of locks"), "{error}");
}

#[test]
fn what_a_caller_holds_counts_for_the_owner_that_was_read_from_its_text() {
    let tenure = tenure();
    let owner = Owner::new();
    let lock = |owner: &Owner, name: &str, level: &str| {
        tenure.mutex(name).unwrap().level(level).owner(owner).blocking_lock()
    };
    let ids = owner.to_header();
    let held = lock(&owner, "account:1", "account").unwrap();
    let text = owner.to_header();
    assert_eq!(text.split_once('+').map(|(ids, _)| ids), Some(&*ids));
    drop(held);
    assert_eq!(owner.to_header(), ids);
    // The owner of the work there is nested in the one that holds, and keeps the locks counted.
    let child = Owner::from_env_value(&text).unwrap().child().unwrap();
    let error = refused(lock(&child, "europe", "region")).to_string();
    assert!(error.contains("\"account:1\"") && error.contains("levels.rs"), "{error}");
    drop(lock(&child, "account:1", "account").unwrap()); // enters again
    drop(lock(&child, "entry", "transaction").unwrap());
    // It travels on, to the next service.
    let further = Owner::from_env_value(&child.to_header()).unwrap().child().unwrap();
    drop(child);
    refused(lock(&further, "europe", "region"));
    drop(further);
    drop(lock(&owner.child().unwrap(), "europe", "region").unwrap());
}

/// The service that is called knows neither the names nor the patterns of its caller.
#[test]
fn the_levels_of_a_caller_are_those_that_its_own_patterns_gave() {
    let patterns = levels().names("account:*", "account").unwrap();
    let caller = opened(Tenure::builder().levels(patterns.names("tx:*", "transaction").unwrap()));
    let called = opened(Tenure::builder().levels(levels()));
    let owner = Owner::new();
    let lock = |name: &str| caller.mutex(name).unwrap().owner(&owner).blocking_lock().unwrap();
    let _held = (lock("account:1"), lock("tx:9"));
    let text = owner.to_header();
    let (_, locks) = text.split_once('+').unwrap();
    assert!(locks.starts_with("tx:9,exclusive,transaction,"), "the lowest level first: {text}");
    let here = Owner::from_env_value(&text).unwrap().child().unwrap();
    let account = called.mutex("x").unwrap().level("account").owner(&here);
    let error = refused(account.blocking_lock()).to_string();
    assert!(error.contains("\"tx:9\" of level \"transaction\""), "{error}");
}

#[test]
fn a_text_of_an_owner_with_broken_locks_is_refused() {
    let ids = Owner::new().to_env_value();
    for bad in ["+", "+a", "+a,exclusive,account", "+a,read,account,", "+a,shared,,%zz"] {
        let error = Owner::from_env_value(&format!("{ids}{bad}")).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{bad:?}: {error}");
    }
    let many = "+a,shared,,".repeat(129);
    let error = Owner::from_env_value(&format!("{ids}{many}")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

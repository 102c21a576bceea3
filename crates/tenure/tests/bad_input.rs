//! Bad input: each a clear error that says what, why and what to do, before anything is sent.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{World, millis, now, secs};
use tenure::block_on;
use tenure::contract::Promises;
use tenure::engine::memory::PROMISES;
use tenure::{
    Effect, Error, ErrorKind, Fence, Label, Mutex, Owner, Page, Part, Preset, Query, Tenure,
};

/// Checks one refusal: its kind, a part of its text, and that it says what to do.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, text: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{error}");
    assert!(error.to_string().contains(text), "{text:?} is not in: {error}");
}

#[test]
fn names_that_cannot_be_names() {
    let tenure = World::new().tenure();
    let long = "x".repeat(256);
    for (name, text) in [
        ("", "must not be empty"),
        (long.as_str(), "at most 255 bytes"),
        ("a\tb", "U+0009"),
        ("a\u{202e}b", "U+202E"),
    ] {
        refused(tenure.mutex(name), ErrorKind::InvalidName, text);
        refused(tenure.rwlock(name), ErrorKind::InvalidName, text);
        refused(tenure.semaphore(name, 1), ErrorKind::InvalidName, text);
        refused(tenure.family(name), ErrorKind::InvalidName, text);
        refused(now(tenure.force_release(name, Fence::new(1), "x")), ErrorKind::InvalidName, text);
        let builder = Tenure::builder().namespace(name);
        refused(block_on(builder.connect("memory:")), ErrorKind::InvalidName, text);
    }
}

#[test]
fn durations_outside_their_limits() {
    let world = World::new();
    let tenure = world.tenure();
    let mutex = || tenure.mutex("a").unwrap();
    let year = secs(366 * 24 * 3600);
    let cases = [
        (mutex().lease(Duration::ZERO), "a lease is 100ms to 1m, not 0ns"),
        (mutex().lease(millis(99)), "a lease is 100ms to 1m, not 99ms"),
        (mutex().lease(secs(61)), "set max_lease on every client"),
        (mutex().lease(Duration::MAX), "a lease is"),
        (mutex().timeout(Duration::ZERO), "use the try_ form for no wait"),
        (mutex().timeout(year), "a timeout is 1ms to 7d"),
        (mutex().max_hold(Duration::ZERO), "a max_hold is"),
        (mutex().max_hold(year), "a max_hold is 1ms to 30d"),
        (mutex().lock_delay(year), "a lock_delay is 0ms to 1h"),
        (mutex().label("a\nb"), "a label must not contain control"),
        (mutex().label(&"x".repeat(129)), "a label has at most 128 bytes"),
        (mutex().preset("nope"), "use one of: batch, cache, financial"),
    ];
    for (lock, text) in cases {
        refused(now(lock.lock()), ErrorKind::InvalidOption, text);
        let error = now(lock.lock()).unwrap_err();
        assert_eq!(error.name().unwrap().as_str(), "a", "{error}");
    }
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 0, "nothing was sent");
    // A try never waits, so a timeout does not concern it.
    assert!(now(mutex().timeout(Duration::ZERO).try_lock()).unwrap().is_some());
}

#[test]
fn a_longer_max_lease_allows_longer_leases() {
    let builder = Tenure::builder().max_lease(secs(120)).lease(secs(90));
    let tenure = block_on(builder.connect("memory:")).unwrap();
    assert!(now(tenure.mutex("a").unwrap().lock()).unwrap().remaining() > secs(89));
    assert!(now(tenure.mutex("b").unwrap().lease(secs(121)).lock()).is_err());
}

#[test]
fn settings_outside_their_limits() {
    let connect = |builder: tenure::Builder| block_on(builder.connect("memory:"));
    let kind = ErrorKind::InvalidOption;
    refused(connect(Tenure::builder().max_lease(Duration::ZERO)), kind, "a max_lease is");
    refused(connect(Tenure::builder().max_lease(Duration::MAX)), kind, "100ms to 1d");
    refused(connect(Tenure::builder().lease(Duration::ZERO)), kind, "a lease is");
    refused(connect(Tenure::builder().call_limit(Duration::ZERO)), kind, "a call limit is");
    refused(connect(Tenure::builder().close_limit(Duration::MAX)), kind, "a close limit is");
    refused(connect(Tenure::builder().label("\u{7}")), kind, "a label must not contain");
    let preset = Preset::new("p").lease(Duration::ZERO);
    refused(connect(Tenure::builder().preset(preset)), kind, "preset \"p\"");
}

#[test]
fn permits_that_do_not_fit() {
    let tenure = World::new().tenure();
    let kind = ErrorKind::InvalidOption;
    refused(tenure.semaphore("a", 0), kind, "not 0");
    refused(tenure.semaphore("a", u32::MAX), kind, "not 4294967295");
    let three = tenure.semaphore("a", 3).unwrap();
    refused(now(three.acquire_many(0)), kind, "cannot take 0 of 3 permits");
    refused(now(three.acquire_many(4)), kind, "cannot take 4 of 3 permits");
    refused(now(three.try_acquire_many(4)), kind, "cannot take 4 of 3 permits");
    refused(three.part(0), kind, "at least 1");
}

#[test]
fn sets_that_make_no_sense() {
    let tenure = World::new().tenure();
    let none: [Part; 0] = [];
    refused(tenure.lock_set(none), ErrorKind::InvalidOption, "name at least one lock");
    let many = (0..65).map(|n| tenure.mutex(n.to_string()).unwrap().part());
    refused(tenure.lock_set(many), ErrorKind::Limit, "at most 64 names, this one has 65");
    let (mutex, semaphore) = (tenure.mutex("a").unwrap(), tenure.semaphore("a", 2).unwrap());
    let mixed = tenure.lock_set([mutex.part(), semaphore.part(1).unwrap()]);
    refused(mixed, ErrorKind::Shape, "as a lock and as a semaphore of 2");
}

/// A set has options of its own; a lease on one of its locks was ignored in silence.
#[test]
fn options_on_one_lock_of_a_set() {
    type Set = fn(Mutex) -> Mutex;
    let tenure = World::new().tenure();
    let options: [(&str, Set); 8] = [
        ("lease", |lock| lock.lease(secs(1))),
        ("timeout", |lock| lock.timeout(secs(1))),
        ("no_timeout", Mutex::no_timeout),
        ("max_hold", |lock| lock.max_hold(secs(1))),
        ("lock_delay", |lock| lock.lock_delay(secs(1))),
        ("label", |lock| lock.label("nightly")),
        ("preset", |lock| lock.preset("batch")),
        ("owner", |lock| lock.owner(&Owner::new())),
    ];
    for (option, set) in options {
        let part = set(tenure.mutex("a").unwrap()).part();
        let text = format!("`{option}` was set on one lock of a set, where it has no effect");
        refused(tenure.lock_set([part.clone()]), ErrorKind::InvalidOption, &text);
        let help = format!("set it on the whole: lock_set(..)?.{option}(..)");
        refused(tenure.lock_set([part]), ErrorKind::InvalidOption, &help);
    }
    let (rwlock, semaphore) = (tenure.rwlock("b").unwrap(), tenure.semaphore("c", 2).unwrap());
    let (rwlock, semaphore) = (rwlock.lease(secs(1)), semaphore.label("nightly"));
    for part in [rwlock.read_part(), rwlock.write_part(), semaphore.part(1).unwrap()] {
        refused(tenure.lock_set([part]), ErrorKind::InvalidOption, "on one lock of a set");
    }
}

#[test]
fn options_of_a_session_and_of_a_set_count_for_the_whole_set() {
    let world = World::new();
    let builder = Tenure::builder().clock(Arc::new(world.clock.clone()));
    let tenure = builder.lease(secs(3)).label("nightly").open(world.engine.clone()).unwrap();
    let set = tenure.lock_set([tenure.mutex("a").unwrap().part()]).unwrap().lease(secs(1));
    let guard = now(set.lock()).unwrap();
    assert!(guard.remaining() <= secs(1));
    let holders = now(tenure.holders("a")).unwrap();
    assert_eq!(holders[0].about.label, Some(Label::try_from("nightly").unwrap()));
}

#[test]
fn one_name_with_two_shapes() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.semaphore("a", 3).unwrap().acquire()).unwrap();
    let text = "in use as a semaphore of 3, not as";
    refused(now(tenure.mutex("a").unwrap().lock()), ErrorKind::Shape, text);
    refused(now(tenure.mutex("a").unwrap().try_lock()), ErrorKind::Shape, text);
    refused(now(tenure.rwlock("a").unwrap().read()), ErrorKind::Shape, text);
    refused(now(tenure.semaphore("a", 4).unwrap().acquire()), ErrorKind::Shape, text);
    let advice = "state the same number of permits everywhere";
    refused(now(tenure.semaphore("a", 4).unwrap().acquire()), ErrorKind::Shape, advice);
    let set =
        tenure.lock_set([tenure.mutex("a").unwrap().part(), tenure.mutex("b").unwrap().part()]);
    refused(now(set.unwrap().lock()), ErrorKind::Shape, text);
    now(guard.release()).unwrap();
    assert!(now(tenure.mutex("a").unwrap().lock()).is_ok(), "free again: any shape may come");
}

#[test]
fn use_after_close() {
    let world = World::new();
    let tenure = world.tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    block_on(tenure.close());
    let text = "connect again";
    refused(now(tenure.mutex("a").unwrap().lock()), ErrorKind::Closed, text);
    refused(now(tenure.mutex("a").unwrap().try_lock()), ErrorKind::Closed, text);
    refused(now(tenure::scope(tenure.mutex("a").unwrap().lock())), ErrorKind::Closed, text);
    refused(now(tenure.inspect(&Query::Page(Page::default()))), ErrorKind::Closed, text);
    refused(now(tenure.doctor()), ErrorKind::Closed, text);
    refused(now(tenure.force_release("a", Fence::new(1), "x")), ErrorKind::Closed, text);
    refused(now(tenure.highest_fence()), ErrorKind::Closed, text);
    refused(now(tenure.raise_fences(1)), ErrorKind::Closed, text);
    refused(now(tenure.cells().get(&"a".parse().unwrap())), ErrorKind::Closed, text);
    refused(guard.fence(), ErrorKind::Lost, "the session was closed");
    refused(now(guard.release()), ErrorKind::Lost, "the session was closed");
    block_on(tenure.close());
    world.assert_empty("closed");
}

#[test]
fn a_guard_used_after_loss() {
    let world = World::new();
    let tenure = world.tenure();
    let lock = tenure.rwlock("a").unwrap();
    let reader = now(lock.read()).unwrap();
    world.clock.jump(secs(31));
    refused(reader.fence(), ErrorKind::Lost, "could not be renewed");
    refused(reader.fence_of("a"), ErrorKind::Lost, "could not be renewed");
    refused(reader.check(), ErrorKind::Lost, "stop what you do");
    let unchanged = now(reader.upgrade()).unwrap_err();
    assert_eq!(unchanged.error.kind(), ErrorKind::Lost);
    refused(now(unchanged.guard.release()), ErrorKind::Lost, "could not be renewed");
}

#[test]
fn names_that_are_not_part_of_a_lock() {
    let tenure = World::new().tenure();
    let guard = now(tenure.mutex("a").unwrap().lock()).unwrap();
    refused(guard.fence_of("b"), ErrorKind::InvalidOption, "not part of this lock");
    let family = tenure.family("account:*").unwrap();
    refused(now(family.lock("user:1")), ErrorKind::InvalidName, "does not belong to this family");
    refused(now(family.lock("account:\n")), ErrorKind::InvalidName, "U+000A");
}

#[test]
fn a_forced_release_without_a_reason() {
    let tenure = World::new().tenure();
    let evict = |reason: &str| now(tenure.force_release("a", Fence::new(1), reason));
    refused(evict(""), ErrorKind::InvalidOption, "needs a reason");
    refused(evict("two\nlines"), ErrorKind::InvalidOption, "control");
    refused(evict(&"x".repeat(513)), ErrorKind::InvalidOption, "at most 512 bytes");
}

#[test]
fn urls_that_lead_nowhere_never_show_their_password() {
    for (url, kind, text) in [
        ("", ErrorKind::InvalidOption, "named by a URL"),
        ("reports", ErrorKind::InvalidOption, "named by a URL"),
        ("://x", ErrorKind::InvalidOption, "named by a URL"),
        ("gopher://u:hunter2@h", ErrorKind::InvalidOption, "\"gopher\""),
        ("redis://u:hunter2@h", ErrorKind::InvalidOption, "rediss://"),
        ("REDIS://u:hunter2@h", ErrorKind::InvalidOption, "rediss://"),
        ("redis+sentinel://u:hunter2@h/m", ErrorKind::InvalidOption, "rediss+sentinel://"),
        ("redis+sentinel://h", ErrorKind::InvalidOption, "what the sentinels call the primary"),
        ("redis+cluster://u:hunter2@a,b", ErrorKind::InvalidOption, "rediss+cluster://"),
        #[cfg(feature = "postgres")]
        ("postgres://u:hunter2@h/?durability=maybe", ErrorKind::InvalidOption, "durability"),
        #[cfg(not(feature = "postgres"))]
        ("postgres://u:hunter2@h", ErrorKind::Unsupported, "feature `postgres`"),
        #[cfg(feature = "etcd")]
        ("etcd://u:hunter2@h", ErrorKind::InvalidOption, "etcds://"),
        #[cfg(not(feature = "etcd"))]
        ("etcd://u:hunter2@h", ErrorKind::Unsupported, "feature `etcd`"),
        ("redlock://u:hunter2@h", ErrorKind::InvalidOption, "plain text"),
        ("redlock://a,b", ErrorKind::InvalidOption, "at least 3 nodes"),
        ("embedded://host/path", ErrorKind::InvalidOption, "on this host"),
        ("embedded:path", ErrorKind::InvalidOption, "begins with a slash"),
        ("embedded:///dev/null", ErrorKind::Unavailable, "cannot make /dev/null"),
        ("memory:\n", ErrorKind::InvalidName, "U+000A"),
    ] {
        let error = block_on(Tenure::connect(url)).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        refused(Err::<(), _>(error), kind, text);
    }
}

#[test]
fn clients_of_one_namespace_must_agree_on_the_longest_lease() {
    let first = block_on(Tenure::connect("memory:agree")).unwrap();
    let second = Tenure::builder().max_lease(secs(120));
    refused(
        block_on(second.clone().connect("memory:agree")),
        ErrorKind::InvalidOption,
        "opened with max_lease 60s, not 120s",
    );
    assert!(block_on(second.namespace("other").connect("memory:agree")).is_ok());
    let guard = block_on(first.mutex("a").unwrap().lock()).unwrap();
    let third = block_on(Tenure::connect("memory:agree")).unwrap();
    assert!(block_on(third.mutex("a").unwrap().try_lock()).unwrap().is_none(), "one shared store");
    drop(guard);
}

#[test]
fn what_an_engine_does_not_promise_is_refused_before_it_is_asked() {
    static PLAIN: Promises = Promises { sharing: false, counting: false, ..PROMISES };
    let world = World::new();
    *world.engine.promises.lock().unwrap() = Some(&PLAIN);
    let tenure = world.tenure();
    let kind = ErrorKind::Unsupported;
    refused(now(tenure.rwlock("a").unwrap().read()), kind, "read-write locks");
    refused(now(tenure.semaphore("a", 2).unwrap().acquire()), kind, "semaphores");
    let parts = [tenure.mutex("a").unwrap().part(), tenure.rwlock("b").unwrap().read_part()];
    refused(now(tenure.lock_set(parts).unwrap().lock()), kind, "read-write locks");
    assert_eq!(world.engine.claims.load(Ordering::SeqCst), 0);
    assert!(now(tenure.mutex("a").unwrap().lock()).is_ok());
}

#[test]
fn advice_fits_the_mistake() {
    let tenure = World::new().tenure();
    let says = |error: Error, yes: &str, no: &str| {
        let text = error.to_string();
        assert!(text.contains(yes) && !text.contains(no), "{text}");
    };
    says(tenure.mutex("").unwrap_err(), "choose a printable text", "shorter");
    let short = now(tenure.mutex("a").unwrap().lease(Duration::ZERO).lock()).unwrap_err();
    says(short, "choose a longer one", "max_lease");
    let long = now(tenure.mutex("a").unwrap().lease(secs(61)).lock()).unwrap_err();
    says(long, "set max_lease on every client", "choose a longer one");
    let built = [
        ("embedded:", true),
        ("etcd:", cfg!(feature = "etcd")),
        ("memory:", true),
        ("postgres:", cfg!(feature = "postgres")),
        ("redis:", true),
    ];
    let engines: Vec<&str> = built.iter().filter(|one| one.1).map(|one| one.0).collect();
    let mistake = block_on(Tenure::connect("memory")).unwrap_err();
    says(mistake, &format!("use {}", engines.join(" or ")), "choose");
    let preset = Preset::new("long").lease(secs(120));
    let error = block_on(Tenure::builder().preset(preset).connect("memory:")).unwrap_err();
    says(error, "above the max_lease of 60s", "choose");
}

#[test]
fn a_built_in_preset_is_shortened_to_the_longest_lease_of_its_namespace() {
    let tenure = block_on(Tenure::builder().max_lease(secs(20)).connect("memory:")).unwrap();
    let batch = tenure.presets().find(|preset| preset.name() == "batch").unwrap();
    assert_eq!((batch.get_lease(), batch.shortened_from()), (secs(20), Some(secs(60))));
    let guard = block_on(tenure.mutex("a").unwrap().preset("batch").lock()).unwrap();
    guard.check().unwrap();
}

#[test]
fn what_is_set_explicitly_wins_over_a_preset_in_any_order() {
    let world = World::new();
    let tenure = world.tenure();
    let lease = |mutex: tenure::Mutex| {
        let guard = now(mutex.lock()).unwrap();
        let remaining = guard.remaining();
        now(guard.release()).unwrap();
        remaining
    };
    let mutex = || tenure.mutex("a").unwrap();
    for lock in [mutex().lease(secs(7)).preset("batch"), mutex().preset("batch").lease(secs(7))] {
        let remaining = lease(lock);
        assert!(remaining <= secs(7) && remaining > secs(6), "{remaining:?}");
    }
    assert!(lease(mutex().preset("batch")) > secs(59));
    let _held = now(mutex().lock()).unwrap();
    let mut waiting = Box::pin(mutex().timeout(secs(1)).preset("batch").lock());
    assert!(common::poll_once(waiting.as_mut()).is_none());
    world.advance(secs(2));
    let error = common::poll_once(waiting.as_mut()).expect("one second is enough").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn presets_from_a_file_with_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("presets.toml");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Tenure::builder().presets_from(&path)
    };
    let kind = ErrorKind::InvalidOption;
    refused(load("[presets.a]\nleese = \"1s\""), kind, "leese");
    refused(load("[presets.a]\nlease = \"30\""), kind, "write it as 500ms, 30s, 5m or 2h");
    refused(load("[presets.a]\nlease = \"1ms\""), kind, "a lease is 100ms");
    refused(
        Tenure::builder().presets_from(dir.path().join("absent")),
        kind,
        "cannot read presets from",
    );
    let builder = load("[presets.nightly]\nlease = \"20s\"\nmax_hold = \"2h\"").unwrap();
    let tenure = block_on(builder.connect("memory:")).unwrap();
    let guard = now(tenure.mutex("a").unwrap().preset("nightly").lock()).unwrap();
    assert!(guard.remaining() <= secs(20) && guard.remaining() > secs(10));
}

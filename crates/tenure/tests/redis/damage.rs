//! Keys of a lock that hold something else. Each is a clear error that names the key; nothing is
//! changed, and other names in the same call are served.

use std::time::Duration;

use servers::{Redis, Reply};
use tenure::block_on;
use tenure::{Effect, Error, ErrorKind, Loss, Name, Query, Tenure};
use tokio::task::JoinSet;

use crate::host::{Book, LONG, done, key};

/// Puts a list where none of ours is.
fn put_list(redis: &Redis, key: &str) {
    done(redis, &["DEL", key]);
    done(redis, &["RPUSH", key, "not", "ours"]);
}

fn dump(redis: &Redis, key: &str) -> Reply {
    done(redis, &["DUMP", key])
}

#[track_caller]
fn names(error: &Error, key: &str) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&format!("{key} ")), "it should name {key}: {error}");
    assert!(!error.help().is_empty(), "{error}");
}

#[test]
fn what_stands_at_a_locks_key_is_left_alone_and_named() {
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    let (name, key) = ("a".parse::<Name>().unwrap(), key("a"));
    for make in [
        &["RPUSH", &key, "x"][..],
        &["HSET", &key, "x", "y"],
        &["ZADD", &key, "1", "x"],
        &["SADD", &key, "x"],
        &["SET", &key, "garbage"],
        &["SET", &key, ""],
        &["SET", &key, "1 2 3 4 - 0 w1 5 zz"],
        &["SET", &key, "\u{0}\u{ff}"],
    ] {
        done(&redis, &["DEL", &key]);
        done(&redis, make);
        let before = dump(&redis, &key);
        let mutex = tenure.mutex("a").unwrap();
        let error = block_on(mutex.lock()).map(drop).unwrap_err();
        names(&error, &key);
        assert_eq!(error.effect(), Effect::None, "{error}");
        names(&block_on(mutex.try_lock()).map(drop).unwrap_err(), &key);
        names(&block_on(tenure.inspect(&Query::Slot(name.clone()))).unwrap_err(), &key);
        let parts = ["a", "b"].map(|name| tenure.mutex(name).unwrap().part());
        names(&block_on(tenure.lock_set(parts).unwrap().lock()).map(drop).unwrap_err(), &key);
        assert_eq!(dump(&redis, &key), before, "{make:?} is as it was");
        let free = block_on(tenure.mutex("b").unwrap().try_lock()).unwrap();
        block_on(free.expect("of a set nothing is taken").release()).unwrap();
    }
    done(&redis, &["DEL", &key]);
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_some());
}

#[test]
fn what_stands_beside_a_lock_is_left_alone_and_named() {
    for side in [":s", ":x", ":y", ":l", ":k"] {
        let (redis, book) = (Redis::start(), Book::new());
        let (holder, other) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
        let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
        let beside = format!("{}{side}", key("a"));
        put_list(&redis, &beside);
        let before = (dump(&redis, &beside), dump(&redis, &key("a")));
        names(&block_on(other.mutex("a").unwrap().lock()).map(drop).unwrap_err(), &beside);
        assert_eq!((dump(&redis, &beside), dump(&redis, &key("a"))), before, "{side}");
        // The holder needs none of these, and is not disturbed.
        guard.check().unwrap();
        block_on(guard.release()).unwrap();
    }
}

#[test]
fn a_line_whose_keys_were_overwritten_is_named() {
    for side in [":s", ":x", ":y", ":l", ":k"] {
        let (redis, book) = (Redis::start(), Book::new());
        let (holder, other) = (book.session(&redis.url(), LONG), book.session(&redis.url(), LONG));
        let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
        let waiter = book.waiter(&other, "a");
        let beside = format!("{}{side}", key("a"));
        put_list(&redis, &beside);
        let before = dump(&redis, &beside);
        names(&block_on(other.mutex("a").unwrap().lock()).map(drop).unwrap_err(), &beside);
        names(&block_on(guard.release()).unwrap_err(), &beside);
        assert_eq!(dump(&redis, &beside), before, "{side}");
        // An operator who removes every key lets the others go on.
        let all = ["", ":s", ":x", ":y", ":l", ":k"].map(|side| format!("{}{side}", key("a")));
        for key in &all {
            done(&redis, &["DEL", key]);
        }
        let third = block_on(holder.mutex("a").unwrap().try_lock()).unwrap();
        assert!(third.is_some(), "{side}");
        drop((third, waiter));
    }
}

#[test]
fn what_stands_at_the_namespaces_own_keys_is_named() {
    let (top, terms) = ("tenure:{default}:top", "tenure:{default}:terms");
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    let guard = block_on(tenure.mutex("held").unwrap().lock()).unwrap();
    let spoils = [&["RPUSH", top, "x"][..], &["SET", top, "garbage"], &["SET", top, "1 2"]];
    for spoil in spoils {
        done(&redis, &["DEL", top]);
        done(&redis, spoil);
        let before = dump(&redis, top);
        names(&block_on(tenure.mutex("a").unwrap().lock()).map(drop).unwrap_err(), top);
        names(&block_on(Tenure::connect(&redis.url())).map(drop).unwrap_err(), top);
        assert_eq!(dump(&redis, top), before, "{spoil:?}");
        assert_eq!(done(&redis, &["EXISTS", &key("a")]).int(), Some(0));
    }
    done(&redis, &["DEL", top]);
    put_list(&redis, terms);
    names(&block_on(Tenure::connect(&redis.url())).map(drop).unwrap_err(), terms);
    // Who is there needs the terms no more.
    block_on(guard.release()).unwrap();
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_names_in_the_same_call_are_served() {
    let redis = Redis::start();
    let tenure = Tenure::connect(&redis.url()).await.unwrap();
    done(&redis, &["SET", &key("bad-0"), "garbage"]);
    put_list(&redis, &key("bad-1"));
    let before = redis.commands("evalsha");
    let mut all = JoinSet::new();
    for nth in 0..200 {
        let bad = nth % 4 == 0;
        let name = if bad { format!("bad-{}", nth % 8 / 4) } else { format!("good-{nth}") };
        let mutex = tenure.mutex(&name).unwrap();
        all.spawn(async move {
            let taken = mutex.lock().await;
            match taken {
                Ok(guard) => guard.release().await.map(|()| assert!(!bad)).unwrap(),
                Err(error) => {
                    assert!(bad, "{error}");
                    names(&error, &key(&name));
                }
            }
        });
    }
    while let Some(one) = all.join_next().await {
        one.unwrap();
    }
    let calls = redis.commands("evalsha") - before;
    assert!(calls < 350, "they went together: {calls} calls");
}

/// A key that another program had overwritten made the whole renewal fail in which it was asked
/// for, and a session lost all its locks with the one.
#[test]
fn a_spoilt_lock_takes_no_other_with_it() {
    let spoil: [fn(&Redis); 2] = [
        |redis| put_list(redis, &key("bad")),
        |redis| _ = done(redis, &["SET", &key("bad"), "garbage"]),
    ];
    for spoil in spoil {
        let (redis, book) = (Redis::start(), Book::new());
        let tenure = book.session(&redis.url(), Duration::from_secs(2));
        let lock = |name: &str| block_on(tenure.mutex(name).unwrap().lock()).unwrap();
        let (bad, good) = (lock("bad"), [lock("good"), lock("better")]);
        spoil(&redis);
        assert_eq!(block_on(bad.lost()), Loss::Forgotten);
        book.renewals(6);
        // Given back in one call, in the background.
        for guard in &good {
            guard.check().unwrap();
        }
        drop((bad, good));
        for name in ["good", "better"] {
            block_on(lock(name).release()).unwrap();
        }
        assert_eq!(book.losses(), 1);
    }
}

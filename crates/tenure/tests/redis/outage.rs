//! A server that is killed and started again: waits and connects with a limit go on through it, a
//! try and a connect without one answer at once.

use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use servers::{Proxy, Redis, eventually};
use tenure::block_on;
use tenure::{Effect, Error, ErrorKind, MutexGuard, Query, Tenure};

use crate::host::PATIENCE;

/// Long enough for any restart on any machine.
const LIMIT: Duration = Duration::from_secs(120);

fn locks(tenure: &Tenure, name: &str) -> JoinHandle<Result<MutexGuard, Error>> {
    let mutex = tenure.mutex(name).unwrap().timeout(LIMIT);
    spawn(move || block_on(mutex.lock()))
}

#[test]
fn a_lock_with_a_limit_waits_until_the_server_is_back() {
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    redis.kill();
    let locking = locks(&tenure, "a");
    let error = block_on(tenure.mutex("b").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!locking.is_finished(), "it waits");
    redis.restart();
    let guard = locking.join().unwrap().unwrap();
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
}

#[test]
fn a_waiter_in_line_is_served_by_the_server_that_was_started_again() {
    let redis = Redis::start();
    let builder = Tenure::builder().lease(Duration::from_secs(2));
    let (one, two) = (
        block_on(builder.clone().connect(&redis.url())).unwrap(),
        block_on(builder.connect(&redis.url())).unwrap(),
    );
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiting = locks(&two, "a");
    let line = || {
        let seen = block_on(one.inspect(&Query::Slot("a".parse().unwrap())));
        seen.map_or(0, |seen| seen.slots.first().map_or(0, |slot| slot.queue.len()))
    };
    eventually("it stands in line", || line() == 1);
    redis.kill();
    // Holder and waiter are cut off for longer than their lease.
    block_on(guard.lost());
    assert!(!waiting.is_finished(), "its place is gone, its wait is not over");
    redis.restart();
    let guard = waiting.join().unwrap().unwrap();
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
}

#[test]
fn a_limit_that_passes_first_tells_the_cause_and_how_often_it_was_tried() {
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    redis.kill();
    // The first call may meet a connection whose end was not noticed yet.
    eventually("the end was noticed", || {
        block_on(tenure.mutex("a").unwrap().try_lock()).is_err_and(|e| e.effect() == Effect::None)
    });
    let mutex = tenure.mutex("a").unwrap().timeout(Duration::from_secs(2));
    let error = block_on(mutex.lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    assert!(said.contains("tried ") && said.contains(" times in "), "{said}");
}

#[test]
fn a_connect_with_a_limit_waits_until_the_server_is_there() {
    let redis = Redis::start();
    let url = redis.url();
    redis.kill();
    let error = block_on(Tenure::connect(&url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "without a limit at once: {error}");
    let short = Tenure::builder().connect_timeout(Duration::from_millis(500));
    let error = block_on(short.connect(&url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("tried "), "{error}");
    let connecting =
        spawn(move || block_on(Tenure::builder().connect_timeout(LIMIT).connect(&url)));
    redis.restart();
    let tenure = connecting.join().unwrap().unwrap();
    block_on(block_on(tenure.mutex("a").unwrap().timeout(PATIENCE).lock()).unwrap().release())
        .unwrap();
}

#[test]
fn a_connect_whose_last_attempt_is_cut_short_tells_the_cause_of_those_before() {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    proxy.refuse(true);
    // Shorter than an attempt may take by itself.
    let builder = Tenure::builder().connect_timeout(Duration::from_millis(1_500));
    let url = proxy.redis_url();
    let connecting = spawn(move || block_on(builder.connect(&url)));
    eventually("one attempt was refused", || proxy.counts().refused > 0);
    // The next one connects and gets no answer until the limit has passed.
    proxy.black_hole(true);
    proxy.refuse(false);
    let error = connecting.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    assert!(said.contains("tried ") && !said.contains("no answer within"), "{said}");
    let counts = proxy.counts();
    assert!(counts.connections > counts.refused, "no attempt was cut short");
}

#[test]
fn what_is_no_outage_is_told_at_once_whatever_the_limit() {
    let redis = Redis::builder().password("secret").start();
    let wrong = [redis.url_as("default", "wrong"), "redis://127.0.0.1:port".to_owned()];
    for url in wrong {
        let error = block_on(Tenure::builder().connect_timeout(LIMIT).connect(&url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(!error.to_string().contains("tried"), "{error}");
    }
}

/// A client whose server is away and that calls without a pause had connected fifteen times a
/// second, for each of its connections.
#[test]
fn a_server_that_is_away_is_tried_at_most_eight_times_a_second() {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let tenure = block_on(Tenure::connect(&proxy.redis_url())).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    assert!(block_on(mutex.try_lock()).unwrap().is_some());
    let connections = proxy.counts().open;
    proxy.refuse(true);
    let begin = Instant::now();
    proxy.cut();
    eventually("it is tried thirty times by each connection", || {
        assert!(block_on(mutex.try_lock()).is_err());
        proxy.counts().refused >= 30 * connections
    });
    // The first attempts follow each other faster, and a machine that is busy makes fewer.
    let refused = proxy.counts().refused;
    let elapsed = begin.elapsed();
    let most = u128::from(connections) * (9_000 + 8 * elapsed.as_millis()) / 1_000;
    assert!(u128::from(refused) <= most, "{refused} attempts in {elapsed:?}");
    proxy.refuse(false);
    let guard = locks(&tenure, "a").join().unwrap().unwrap();
    block_on(guard.release()).unwrap();
}

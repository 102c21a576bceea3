//! Servers that say nothing for a while: shorter than a lease it has no effect; longer, a holder
//! knows that it has lost before another claim can hold.

use std::thread::JoinHandle;
use std::time::Duration;

use servers::Redis;
use tenure::block_on;
use tenure::conformance::audit::What;
use tenure::{Loss, MutexGuard, Tenure};

use crate::host::{Book, PATIENCE, done};

const SHORT: Duration = Duration::from_secs(1);
/// Lives through every silence of these tests.
const PATIENT: Duration = Duration::from_secs(20);

/// Makes a server silent, and lets it speak again.
type Silence = fn(&Redis, Option<Duration>);

/// `CLIENT PAUSE` ends by itself, and can be ended.
fn pause(redis: &Redis, length: Option<Duration>) {
    match length {
        Some(length) => {
            done(redis, &["CLIENT", "PAUSE", &length.as_millis().to_string(), "ALL"]);
        }
        // Answered when the pause is over.
        None => _ = done(redis, &["PING"]),
    }
}

/// SIGSTOP and SIGCONT.
fn stop(redis: &Redis, length: Option<Duration>) {
    match length {
        Some(length) => {
            redis.stop();
            // How long it is stopped is what this is about.
            std::thread::sleep(length);
        }
        None => redis.cont(),
    }
}

/// A holder that does its work, and notes each piece of it, until it may not any more.
fn works(book: &Book, guard: MutexGuard) -> JoinHandle<(Loss, MutexGuard)> {
    let book = book.clone();
    std::thread::spawn(move || {
        while book.recorder.used(&guard) {
            std::thread::sleep(Duration::from_millis(1));
        }
        (block_on(guard.lost()), guard)
    })
}

fn shorter_than_the_lease(silence: Silence, what: &str) {
    let (redis, book) = (Redis::start(), Book::new());
    let lease = Duration::from_secs(4);
    let sessions: Vec<_> = (0..3).map(|_| book.session(&redis.url(), lease)).collect();
    let guard = block_on(sessions[0].mutex("a").unwrap().lock()).unwrap();
    let line: Vec<_> = sessions.iter().map(|tenure| book.waiter(tenure, "a")).collect();
    for _ in 0..2 {
        silence(&redis, Some(Duration::from_millis(700)));
        silence(&redis, None);
        guard.check().unwrap();
    }
    let mut last = guard.fence().unwrap();
    block_on(guard.release()).unwrap();
    for waiter in line {
        let next = waiter.served();
        assert!(next.fence().unwrap() > last, "in order");
        last = next.fence().unwrap();
        block_on(next.release()).unwrap();
    }
    assert_eq!(book.losses(), 0);
    for tenure in &sessions {
        block_on(tenure.close());
    }
    book.assert_sound(what);
}

fn longer_than_the_lease(silence: Silence, what: &str) {
    let (redis, book) = (Redis::start(), Book::new());
    let (holder, hasty) = (book.session(&redis.url(), SHORT), book.session(&redis.url(), SHORT));
    let patient = book.session(&redis.url(), PATIENT);
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let (first, second) = (book.waiter(&patient, "a"), book.waiter(&hasty, "a"));
    let working = works(&book, guard);
    silence(&redis, Some(SHORT * 5 / 2));
    // No reply has reached the holder: it knows by its own clock. A place in line is gone
    // with its lease as well, but the wait goes on: it stands in line anew once the store answers.
    let (loss, guard) = working.join().unwrap();
    assert_eq!(loss, Loss::Expired);
    assert!(guard.fence().is_err(), "no fence to write with");
    silence(&redis, None);
    let next = first.served();
    assert!(next.fence().unwrap() > fence);
    let ended = book.position(|what| *what == What::Lost);
    let granted = vec![next.fence().unwrap()];
    let held = book.position(|what| matches!(what, What::Granted(fences, _) if *fences == granted));
    assert!(ended < held, "the loss is known before anybody else holds: {ended:?}, {held:?}");
    book.recorder.used(&next);
    assert!(second.still_waits(), "through the whole silence");
    block_on(next.release()).unwrap();
    let last = second.served();
    book.recorder.used(&last);
    block_on(last.release()).unwrap();
    drop(guard);
    for tenure in [holder, hasty, patient] {
        block_on(tenure.close());
    }
    book.assert_sound(what);
}

#[test]
fn a_pause_shorter_than_the_lease_goes_by_unnoticed() {
    shorter_than_the_lease(pause, "a short pause");
}

#[test]
fn a_pause_longer_than_the_lease_is_known_before_anybody_else_holds() {
    longer_than_the_lease(pause, "a long pause");
}

#[test]
fn a_server_stopped_for_less_than_the_lease_goes_by_unnoticed() {
    shorter_than_the_lease(stop, "a short stop");
}

#[test]
fn a_server_stopped_for_longer_than_the_lease_is_known_before_anybody_else_holds() {
    longer_than_the_lease(stop, "a long stop");
}

#[test]
fn a_claim_that_arrives_after_its_caller_gave_up_takes_nothing() {
    let (redis, book) = (Redis::start(), Book::new());
    let builder = book.builder(PATIENT).call_limit(Duration::from_millis(200));
    let (hasty, other) =
        (block_on(builder.connect(&redis.url())).unwrap(), book.session(&redis.url(), PATIENT));
    redis.stop();
    let error = block_on(hasty.mutex("a").unwrap().try_lock()).map(drop).unwrap_err();
    assert_eq!(error.effect(), tenure::Effect::Unknown, "it may still arrive: {error}");
    redis.cont();
    // Long before the lease of that claim would have ended.
    let guard = book_in_time(&other);
    block_on(guard.release()).unwrap();
    for tenure in [hasty, other] {
        block_on(tenure.close());
    }
    book.assert_sound("a late claim");
}

/// Takes the lock well within its lease.
fn book_in_time(tenure: &Tenure) -> MutexGuard {
    block_on(tenure.mutex("a").unwrap().timeout(PATIENCE).lock()).unwrap()
}

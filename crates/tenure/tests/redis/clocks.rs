//! The server's clock steps. Leases may end early or stand longer; fences of a name never go back.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use servers::{Direction, Proxy, Redis, SetWhenDropped};
use tenure::block_on;
use tenure::{Loss, Tenure};

use crate::clock_steps::{
    HOUR, STEPS, assert_served_in_turn, assert_windows_outlast_a_step_back, fence,
    fence_of_set_above,
};
use crate::host::{Book, PATIENCE, done};

const LEASE: Duration = Duration::from_secs(3);

#[test]
fn fences_never_go_back_whatever_the_clock_does() {
    let redis = Redis::builder().clock().start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    let mut last = fence(&tenure, "a");
    for (by, direction) in STEPS {
        // Names that were released and that the store has forgotten, and a set of both.
        let before = [fence(&tenure, "a"), fence(&tenure, "b")];
        assert!(before.iter().all(|fence| *fence > last), "{before:?} after {last}");
        assert_eq!(done(&redis, &["EXISTS", &crate::host::key("a")]).int(), Some(0));
        redis.step_clock(by, direction);
        last = fence_of_set_above(&tenure, before[1]);
    }
}

/// The time of a rate never goes back: after a step the window ends when it would have ended, and
/// not when the clock is there again.
#[test]
fn a_rate_does_not_go_back_with_the_clock() {
    let server = Redis::builder().clock().start();
    let tenure = block_on(Tenure::connect(&server.url())).unwrap();
    assert_windows_outlast_a_step_back(&tenure, || server.step_clock(HOUR * 2, Direction::Back));
}

#[test]
fn a_step_past_the_lease_ends_it_and_the_next_fence_is_larger() {
    let (redis, book) = (Redis::builder().clock().start(), Book::new());
    let (holder, other) = (book.session(&redis.url(), LEASE), book.session(&redis.url(), LEASE));
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let (old, waiter) = (guard.fence().unwrap(), book.waiter(&other, "a"));
    redis.step_clock(HOUR, Direction::Forward);
    // The store let it in while the first still believed: no lease can help it, only fences do.
    let next = waiter.served();
    assert!(next.fence().unwrap() > old);
    assert_eq!(block_on(guard.lost()), Loss::Forgotten, "told by the renewal");
    // The clock goes back to where it was. A waiter that queues now still gets a larger fence.
    redis.step_clock(HOUR, Direction::Back);
    let last = next.fence().unwrap();
    let again = book.waiter(&holder, "a");
    block_on(next.release()).unwrap();
    let third = again.served();
    assert!(third.fence().unwrap() > last);
    block_on(third.release()).unwrap();
}

#[test]
fn a_step_back_costs_holders_and_waiters_nothing() {
    let (redis, book) = (Redis::builder().clock().start(), Book::new());
    let (holder, other) = (book.session(&redis.url(), LEASE), book.session(&redis.url(), LEASE));
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&other, "a");
    redis.step_clock(HOUR, Direction::Back);
    // Renewals bring the expiry back to where the clock is.
    book.renewals(3);
    let late = book.waiter(&other, "a");
    guard.check().unwrap();
    assert_served_in_turn(guard, [waiter, late].map(|waiter| move || waiter.served()));
    assert_eq!(book.losses(), 0);
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    book.assert_sound("a step back");
}

#[test]
fn after_a_step_back_the_lock_of_a_dead_holder_stands_until_somebody_evicts_it() {
    let (redis, book) = (Redis::builder().clock().start(), Book::new());
    let other = book.session(&redis.url(), LEASE);
    // A holder that dies without a word: a copy of what it left, after it was given back.
    let dead = block_on(Tenure::builder().lease(LEASE).connect(&redis.url())).unwrap();
    let guard = block_on(dead.mutex("a").unwrap().lock()).unwrap();
    let (key, fence) = (crate::host::key("a"), guard.fence().unwrap());
    let left = done(&redis, &["GET", &key]);
    block_on(guard.release()).unwrap();
    block_on(dead.close());
    done(&redis, &["SET", &key, left.text().unwrap(), "PX", "3000"]);
    redis.step_clock(HOUR, Direction::Back);
    let waiter = book.waiter(&other, "a");
    assert!(waiter.still_waits());
    // The way out that the docs tell.
    block_on(other.force_release("a", fence, "its holder is dead")).unwrap();
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    block_on(next.release()).unwrap();
}

/// The clock of the server runs faster than that of its clients, by less than the drift that is
/// promised: a holder that the server no longer hears of must know of its loss before the server
/// grants to another claim. Slower clocks only keep others waiting.
#[test]
fn a_clock_that_runs_fast_lets_nobody_in_before_the_holder_knows_of_its_loss() {
    let (redis, book, over) =
        (Redis::builder().clock().start(), Book::new(), AtomicBool::new(false));
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    std::thread::scope(|scope| {
        scope.spawn(|| redis.slew_clock(8, Direction::Forward, &over));
        let _over = SetWhenDropped(&over);
        let (holder, other) = (book.session(&url, LEASE), book.session(&redis.url(), LEASE));
        for round in 0..2 {
            let guard = block_on(holder.mutex("a").unwrap().timeout(PATIENCE).lock()).unwrap();
            let (fence, waiter) = (guard.fence().unwrap(), book.waiter(&other, "a"));
            proxy.black_hole(true);
            while book.recorder.used(&guard) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let next = waiter.served();
            assert!(next.fence().unwrap() > fence, "round {round}");
            assert!(book.recorder.used(&next));
            proxy.heal_dropping();
            block_on(next.release()).unwrap();
        }
        for tenure in [holder, other] {
            block_on(tenure.close());
        }
    });
    book.assert_sound("a fast clock");
}

#[test]
fn raised_fences_hold_up_to_the_end_of_their_range() {
    let redis = Redis::start();
    let tenure = block_on(Tenure::connect(&redis.url())).unwrap();
    let most = tenure::limits::FENCE_FLOOR;
    block_on(tenure.raise_fences(most)).unwrap();
    let fences = [fence(&tenure, "a"), fence(&tenure, "b"), fence(&tenure, "a")];
    assert_eq!(fences, [most + 1, most + 2, most + 3], "each is exact");
    assert_eq!(block_on(tenure.highest_fence()).unwrap().get(), fences[2]);
}

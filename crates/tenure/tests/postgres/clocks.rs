//! The server's clock steps and runs fast. Leases may end early or stand longer; fences of a name
//! never go back, and what a clock does within the drift that is promised costs nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use servers::{Direction, Postgres, Proxy, SetWhenDropped};
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{Builder, Loss, Tenure, Witness, block_on};

use crate::clock_steps::{
    HOUR, STEPS, assert_served_in_turn, assert_windows_outlast_a_step_back, fence,
    fence_of_set_above,
};
use crate::host::{PATIENCE, Waiter, session};

const LEASE: Duration = Duration::from_secs(3);

/// A session whose history is written down.
fn builder(recorder: &Arc<Recorder>) -> Builder {
    let witness = Arc::clone(recorder) as Arc<dyn Witness>;
    Tenure::builder().lease(LEASE).witness(witness)
}

#[track_caller]
fn assert_sound(recorder: &Recorder, context: &str) {
    let wake_within = Duration::from_secs(10);
    let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
    let verdicts = judge(&recorder.history(), &rules);
    println!("{context}: {verdicts}");
    assert!(verdicts.violations.is_empty(), "{context}: {verdicts}");
    assert!(verdicts.grants > 0, "{context}: {verdicts}");
}

#[test]
fn fences_never_go_back_whatever_the_clock_does() {
    let server = Postgres::builder().clock().start();
    let tenure = session(&server.url());
    let mut last = fence(&tenure, "a");
    for (by, direction) in STEPS {
        let before = [fence(&tenure, "a"), fence(&tenure, "b")];
        assert!(before.iter().all(|fence| *fence > last), "{before:?} after {last}");
        server.step_clock(by, direction);
        // A set, and a client that comes new.
        last = fence_of_set_above(&tenure, before[1]);
        let other = session(&server.url());
        let now = fence(&other, "a");
        assert!(now > last, "{now} after {last}, {direction:?}");
        last = now;
        block_on(other.close());
    }
}

/// The time of a rate never goes back: after a step the window ends when it would have ended, and
/// not when the clock is there again.
#[test]
fn a_rate_does_not_go_back_with_the_clock() {
    let server = Postgres::builder().clock().start();
    let tenure = session(&server.url());
    assert_windows_outlast_a_step_back(&tenure, || server.step_clock(HOUR * 2, Direction::Back));
}

#[test]
fn a_step_past_the_lease_ends_it_and_the_next_fence_is_larger() {
    let server = Postgres::builder().clock().start();
    let connect = || block_on(Tenure::builder().lease(LEASE).connect(&server.url())).unwrap();
    let (holder, other) = (connect(), connect());
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let (old, waiter) = (guard.fence().unwrap(), Waiter::behind(&other, "a", 0));
    server.step_clock(HOUR, Direction::Forward);
    // The store lets the next one in while the first still believes: only fences help.
    let next = waiter.served();
    assert!(next.fence().unwrap() > old);
    assert_eq!(block_on(guard.lost()), Loss::Forgotten, "told by the renewal");
    server.step_clock(HOUR, Direction::Back);
    let (last, again) = (next.fence().unwrap(), Waiter::behind(&holder, "a", 0));
    block_on(next.release()).unwrap();
    assert!(again.served().fence().unwrap() > last);
}

#[test]
fn a_step_back_costs_holders_and_waiters_nothing() {
    let (server, recorder) =
        (Postgres::builder().clock().start(), Recorder::new(Arc::new(SystemClock)));
    let connect = || block_on(builder(&recorder).connect(&server.url())).unwrap();
    let (holder, other) = (connect(), connect());
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let waiter = Waiter::behind(&other, "a", 0);
    server.step_clock(HOUR, Direction::Back);
    let late = Waiter::behind(&other, "a", 1);
    // Longer than the lease: renewals go on by the clock as it is now.
    std::thread::sleep(LEASE + LEASE / 3);
    guard.check().unwrap();
    assert_served_in_turn(guard, [waiter, late].map(|waiter| move || waiter.served()));
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    assert_sound(&recorder, "a step back");
}

/// The clock of the server runs faster than that of its clients, by less than the drift that is
/// promised: a holder that the server no longer hears of must know of its loss before the server
/// grants to another claim.
#[test]
fn a_clock_that_runs_fast_lets_nobody_in_before_the_holder_knows_of_its_loss() {
    let (server, over) = (Postgres::builder().clock().start(), AtomicBool::new(false));
    let recorder = Recorder::new(Arc::new(SystemClock));
    let proxy = Proxy::to(("127.0.0.1", server.port()));
    let url = server.url().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    std::thread::scope(|scope| {
        scope.spawn(|| server.slew_clock(8, Direction::Forward, &over));
        let _over = SetWhenDropped(&over);
        let connect = |url: &str| block_on(builder(&recorder).connect(url)).unwrap();
        let (holder, other) = (connect(&url), connect(&server.url()));
        for round in 0..2 {
            let guard = block_on(holder.mutex("a").unwrap().timeout(PATIENCE).lock()).unwrap();
            let (fence, waiter) = (guard.fence().unwrap(), Waiter::behind(&other, "a", 0));
            proxy.black_hole(true);
            while recorder.used(&guard) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let next = waiter.served();
            assert!(next.fence().unwrap() > fence, "round {round}");
            assert!(recorder.used(&next));
            proxy.heal_dropping();
            block_on(next.release()).unwrap();
        }
        for tenure in [holder, other] {
            block_on(tenure.close());
        }
    });
    assert_sound(&recorder, "a fast clock");
}

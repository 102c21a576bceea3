//! Connections that break, servers that restart or crash, and what their locks come to.

use std::sync::Arc;
use std::time::Duration;

use servers::Postgres;
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{ErrorKind, Tenure, Witness};

use crate::host::{AHEAD, Waiter, assert_empty, give_back, micros, session};

#[test]
fn ended_connections_cost_nobody_a_lock_or_a_place_in_line() {
    let server = Postgres::start();
    let (one, two) = (session(&server.url()), session(&server.url()));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = Waiter::behind(&two, "a", 0);
    assert!(server.terminate_all() >= 4, "all connections were ended");
    assert!(guard.check().is_ok());
    give_back(guard);
    give_back(waiter.served());
    assert_empty(&one);
}

#[test]
fn a_held_lock_survives_a_crash_of_the_server() {
    let server = Postgres::start();
    let (one, two) = (session(&server.url()), session(&server.url()));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    server.kill();
    server.restart();
    let taken = block_on(two.mutex("a").unwrap().try_lock()).unwrap();
    assert!(taken.is_none(), "it was held when the server crashed");
    assert_eq!(guard.fence().unwrap(), fence);
    block_on(guard.release()).unwrap();
    let next = block_on(two.mutex("a").unwrap().lock()).unwrap();
    assert!(next.fence().unwrap() > fence);
}

#[test]
fn with_grace_nobody_comes_in_after_a_crash_until_old_leases_have_ended() {
    let server = Postgres::start();
    let url = format!("{}?durability=grace", server.url());
    let most = Duration::from_secs(5);
    let connect = || {
        let builder = Tenure::builder().lease(most).max_lease(most);
        block_on(builder.call_limit(Duration::from_secs(10)).connect(&url)).unwrap()
    };
    let tenure = connect();
    assert!(!tenure.promises().survives.contains(&tenure::contract::Survives::PowerLoss));
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    server.shutdown();
    server.restart();
    let guard = block_on(connect().mutex("b").unwrap().try_lock()).unwrap();
    assert!(guard.is_some(), "an orderly restart loses nothing");
    drop(guard);
    // Before the crash: the first client comes back by itself as soon as the server does, and it is
    // that connection which notices.
    let before = micros(&server);
    server.kill();
    server.restart();
    let again = connect();
    // Commits that were lost may have given out numbers up to two seconds ahead of the clock.
    let last: u64 = server.done("SELECT last_value FROM tenure.numbers").trim().parse().unwrap();
    assert!(last > before + AHEAD, "fences leap: {last}, not above {before}");
    // By the server's clock: a busy machine may take longer than the grace for a few calls.
    let ends: u64 = server.done("SELECT grace FROM tenure.alive").trim().parse().unwrap();
    assert!(u128::from(ends) >= u128::from(before) + most.as_micros(), "a whole max_lease");
    let taken = block_on(again.mutex("never-held").unwrap().try_lock()).unwrap();
    let early = taken.is_some() && micros(&server) < ends;
    assert!(!early, "somebody may hold it whom the server has forgotten");
    drop(taken);
    let guard = block_on(again.mutex("never-held").unwrap().lock()).unwrap();
    assert!(micros(&server) >= ends, "it waits for the end of the grace, and comes in");
    assert!(guard.check().is_ok());
}

#[test]
fn a_server_that_is_away_is_an_error_that_says_so() {
    let server = Postgres::start();
    let tenure = block_on(Tenure::connect(&server.url())).unwrap();
    server.kill();
    let error = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = block_on(Tenure::connect(&server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart();
    servers::eventually("it is found again", || {
        block_on(tenure.mutex("a").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

#[test]
fn raised_fences_survive_a_crash_even_where_commits_are_not_waited_for() {
    // What no commit waits for stays in memory for so long, and a crash loses it.
    let server = Postgres::builder().set("wal_writer_delay", "10s").start();
    let most = Duration::from_secs(1);
    let connect = |durability: &str| {
        let builder = Tenure::builder().namespace(durability).lease(most).max_lease(most);
        let url = format!("{}?durability={durability}", server.url());
        block_on(builder.call_limit(Duration::from_secs(10)).connect(&url)).unwrap()
    };
    for durability in ["grace", "commit"] {
        let tenure = connect(durability);
        // Far above what the clock, or a leap after the crash, would give out.
        let highest = block_on(tenure.highest_fence()).unwrap().get();
        let to = highest.max(micros(&server)) + 3_600_000_000;
        block_on(tenure.raise_fences(to)).unwrap();
        server.kill();
        server.restart();
        let guard = block_on(connect(durability).mutex("a").unwrap().lock()).unwrap();
        assert!(guard.fence().unwrap().get() > to, "{durability}");
    }
}

#[test]
fn a_lock_and_a_connect_with_a_limit_wait_through_a_restart() {
    let server = Postgres::start();
    let patience = Duration::from_secs(60);
    let tenure = block_on(Tenure::connect(&server.url())).unwrap();
    server.kill();
    let mutex = tenure.mutex("a").unwrap().timeout(patience);
    let locking = std::thread::spawn(move || block_on(mutex.lock()));
    let (builder, url) = (Tenure::builder().connect_timeout(patience), server.url());
    let connecting = std::thread::spawn(move || block_on(builder.connect(&url)));
    // Both have met a server that is not there.
    let error = block_on(tenure.mutex("b").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!locking.is_finished() && !connecting.is_finished(), "they wait");
    server.restart();
    block_on(locking.join().unwrap().unwrap().release()).unwrap();
    let other = connecting.join().unwrap().unwrap();
    block_on(block_on(other.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
}

/// Commits that no client waits for are lost by a crash: here the grant of a holder that goes on,
/// and the place of a waiter. The grace that follows is as long as any lease, so that the waiter
/// comes in when the holder knows of its loss, and fences leap ahead.
#[test]
fn a_crash_that_loses_a_grant_makes_no_second_holder_where_a_grace_follows() {
    let server = Postgres::start();
    let (lease, url) = (Duration::from_secs(5), format!("{}?durability=grace", server.url()));
    let recorder = Recorder::new(Arc::new(SystemClock));
    let connect = || {
        let builder = Tenure::builder().lease(lease).max_lease(lease);
        let builder = builder.witness(Arc::clone(&recorder) as Arc<dyn Witness>);
        block_on(builder.call_limit(Duration::from_secs(10)).connect(&url)).unwrap()
    };
    let (holder, other) = (connect(), connect());
    server.done("CHECKPOINT");
    server.stop_wal_writer();
    let guard = block_on(holder.mutex("a").unwrap().lock()).unwrap();
    let (fence, waiter) = (guard.fence().unwrap(), Waiter::behind(&other, "a", 0));
    server.lose_power();
    server.restart();
    let kept = format!("SELECT count(*) FROM tenure.claims WHERE held AND fence = {fence}");
    assert_eq!(server.done(&kept).trim(), "0", "the grant is lost");
    while recorder.used(&guard) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    assert!(recorder.used(&next));
    block_on(next.release()).unwrap();
    for tenure in [holder, other] {
        block_on(tenure.close());
    }
    let wake_within = Duration::from_secs(30);
    let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
    let verdicts = judge(&recorder.history(), &rules);
    assert!(verdicts.violations.is_empty(), "{verdicts}");
}

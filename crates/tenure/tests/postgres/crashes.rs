//! Connections that break, servers that restart or crash, and what their locks come to.

use std::time::Duration;

use servers::Postgres;
use tenure::blocking::wait;
use tenure::{ErrorKind, Tenure};

use crate::host::{Waiter, assert_empty, give_back, session};

#[test]
fn ended_connections_cost_nobody_a_lock_or_a_place_in_line() {
    let server = Postgres::start();
    let (one, two) = (session(&server.url()), session(&server.url()));
    let guard = wait(one.mutex("a").unwrap().lock()).unwrap();
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
    let guard = wait(one.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    server.kill();
    server.restart();
    let taken = wait(two.mutex("a").unwrap().try_lock()).unwrap();
    assert!(taken.is_none(), "it was held when the server crashed");
    assert_eq!(guard.fence().unwrap(), fence);
    wait(guard.release()).unwrap();
    let next = wait(two.mutex("a").unwrap().lock()).unwrap();
    assert!(next.fence().unwrap() > fence);
}

#[test]
fn with_grace_nobody_comes_in_after_a_crash_until_old_leases_have_ended() {
    let server = Postgres::start();
    let url = format!("{}?durability=grace", server.url());
    let most = Duration::from_secs(5);
    let connect = || {
        let builder = Tenure::builder().lease(most).max_lease(most);
        wait(builder.call_limit(Duration::from_secs(10)).connect(&url)).unwrap()
    };
    let tenure = connect();
    assert!(!tenure.promises().survives.contains(&tenure::contract::Survives::PowerLoss));
    wait(wait(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    server.shutdown();
    server.restart();
    let guard = wait(connect().mutex("b").unwrap().try_lock()).unwrap();
    assert!(guard.is_some(), "an orderly restart loses nothing");
    drop(guard);
    server.kill();
    server.restart();
    let again = connect();
    let refused = wait(again.mutex("never-held").unwrap().try_lock()).unwrap();
    assert!(refused.is_none(), "somebody may hold it whom the server has forgotten");
    let guard = wait(again.mutex("never-held").unwrap().lock()).unwrap();
    assert!(guard.check().is_ok(), "it waits for the end of the grace, and comes in");
}

#[test]
fn a_server_that_is_away_is_an_error_that_says_so() {
    let server = Postgres::start();
    let tenure = wait(Tenure::connect(&server.url())).unwrap();
    server.kill();
    let error = wait(tenure.mutex("a").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart();
    servers::eventually("it is found again", || {
        wait(tenure.mutex("a").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

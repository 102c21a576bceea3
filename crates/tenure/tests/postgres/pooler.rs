//! Behind a pooler that lends connections for one transaction at a time.

use std::time::Duration;

use servers::{PgBouncer, Postgres};
use tenure::ErrorKind;
use tenure::block_on;
use tenure::conformance::{Applicability, Case, Harness, PostgresHarness, cases};
use tenure::contract::{Health, Wake};

use crate::host::{Waiter, assert_empty, session};

#[test]
fn it_is_noticed_and_whoever_waits_asks_again() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 3);
    let direct = session(&server.url());
    assert_eq!(direct.promises().wake, Wake::Push);
    let (one, two) = (session(&bouncer.url()), session(&bouncer.url()));
    assert_eq!((one.promises().wake, two.promises().wake), (Wake::Poll, Wake::Poll));
    let seen = block_on(one.doctor()).unwrap();
    let pooler = seen.iter().find(|finding| finding.check == "pooler").unwrap();
    assert!(pooler.state == Health::Note && pooler.what.contains("waiters poll"));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = Waiter::behind(&two, "a", 0);
    let other = Waiter::behind(&direct, "a", 1);
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    block_on(other.served().release()).unwrap();
    assert_empty(&direct);
}

/// A client without claims is not seen there, so it is refused if the longest lease was changed.
#[test]
fn an_idle_client_is_refused_after_the_longest_lease_was_changed() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 3);
    let connect = |seconds: u64| {
        let builder = tenure::Tenure::builder().max_lease(Duration::from_secs(seconds));
        block_on(builder.connect(&bouncer.url()))
    };
    let idle = connect(60).unwrap();
    let guard = block_on(idle.mutex("a").unwrap().lock()).unwrap();
    let error = connect(40).unwrap_err();
    assert!(error.to_string().contains("holds \"a\""), "{error}");
    block_on(guard.release()).unwrap();
    let other = connect(40).unwrap();
    let error = block_on(idle.mutex("a").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("max_lease"), "{error}");
    assert!(block_on(other.mutex("a").unwrap().try_lock()).unwrap().is_some());
}

/// One scenario of so many is played, across all groups; by night all are, which takes ten minutes.
const SHARE: usize = 8;

#[test]
fn the_suite_finds_nothing_wrong() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 20);
    let harness = PostgresHarness::behind_pooler(&bouncer.url());
    assert_eq!(harness.promises().wake, Wake::Poll);
    let nightly = std::env::var("TENURE_TEST_SCALE").as_deref() == Ok("nightly");
    let promised = |case: &Case| !matches!(case.standing, Applicability::NotPromised(_));
    let all: Vec<Case> = cases(&harness).into_iter().filter(promised).collect();
    let chosen: Vec<&Case> = all.iter().step_by(if nightly { 1 } else { SHARE }).collect();
    assert!(chosen.len() >= 20, "{}", chosen.len());
    for case in chosen {
        case.play(&harness).unwrap_or_else(|why| panic!("{}: {why}", case.name));
    }
}

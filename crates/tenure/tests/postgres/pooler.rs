//! Behind a pooler that lends connections for one transaction at a time.

use servers::{PgBouncer, Postgres};
use tenure::blocking::wait;
use tenure::conformance::{Case, Harness, PostgresHarness, Standing, cases};
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
    let seen = wait(one.examine()).unwrap();
    let pooler = seen.iter().find(|finding| finding.check == "pooler").unwrap();
    assert!(pooler.state == Health::Note && pooler.what.contains("whoever waits asks"));
    let guard = wait(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = Waiter::behind(&two, "a", 0);
    let other = Waiter::behind(&direct, "a", 1);
    wait(guard.release()).unwrap();
    wait(waiter.served().release()).unwrap();
    wait(other.served().release()).unwrap();
    assert_empty(&direct);
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
    let promised = |case: &Case| !matches!(case.standing, Standing::NotPromised(_));
    let all: Vec<Case> = cases(&harness).into_iter().filter(promised).collect();
    let chosen: Vec<&Case> = all.iter().step_by(if nightly { 1 } else { SHARE }).collect();
    assert!(chosen.len() >= 20, "{}", chosen.len());
    for case in chosen {
        case.play(&harness).unwrap_or_else(|why| panic!("{}: {why}", case.name));
    }
}

//! Standbys, and the next host of a URL.

use servers::{Postgres, eventually};
use tenure::blocking::wait;
use tenure::{ErrorKind, Tenure};

use crate::host::session;

#[test]
fn a_standby_is_refused_and_found_once_it_is_promoted() {
    let first = Postgres::start();
    let warm = session(&first.url());
    let held = wait(warm.mutex("a").unwrap().lock()).unwrap();
    let before = held.fence().unwrap();
    let second = first.standby();
    second.wait_until_caught_up(&first);
    let error = wait(Tenure::connect(&second.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres",
        second.port(),
        first.port()
    );
    let tenure = session(&url);
    assert!(
        wait(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none(),
        "the first one answers"
    );
    first.kill();
    second.promote();
    eventually("the other host is found", || {
        wait(tenure.mutex("b").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
    assert!(wait(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none(), "the lock came along");
    let fence = wait(tenure.mutex("c").unwrap().lock()).unwrap().fence().unwrap();
    assert!(fence > before, "fences go on");
}

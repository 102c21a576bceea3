//! A backup that is restored brings old revisions back. Fences must not fall: those who were there
//! lose everything, and those who come must say that they know.

use servers::{Etcd, eventually};
use tenure::blocking::wait;
use tenure::{ErrorKind, Loss, Tenure};

use crate::host::{Book, LONG};

#[test]
fn a_restored_backup_is_refused_until_somebody_accepts_it_and_fences_go_on_growing() {
    let etcd = Etcd::start();
    let book = Book::new(&etcd.url());
    let tenure = book.session("restored", LONG);
    wait(wait(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    let backup = etcd.snapshot();
    let mut fence = None;
    for _ in 0..20 {
        let guard = wait(tenure.mutex("a").unwrap().lock()).unwrap();
        fence = Some(guard.fence().unwrap());
        wait(guard.release()).unwrap();
    }
    let held = wait(tenure.mutex("b").unwrap().lock()).unwrap();
    etcd.restore(&backup);

    eventually("who was there is told", || {
        // Whatever is asked next finds that the store is another one.
        let _ = wait(tenure.mutex("c").unwrap().try_lock());
        held.check().is_err()
    });
    assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::Forgotten));
    let error = wait(tenure.mutex("a").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let builder = || Tenure::builder().namespace("restored");
    let error = wait(builder().connect(&etcd.url())).map(|_| panic!("it is older")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.next_step().contains("restored=accept"), "{error}");

    let accepting = format!("{}?restored=accept", etcd.url());
    let again = wait(builder().connect(&accepting)).unwrap();
    let guard = wait(again.mutex("a").unwrap().lock()).unwrap();
    assert!(Some(guard.fence().unwrap()) > fence, "{fence:?}");
    wait(guard.release()).unwrap();
    // From then on everybody may come.
    assert!(wait(builder().connect(&etcd.url())).is_ok());
}

#[test]
fn a_restart_and_a_compaction_are_no_restore() {
    let etcd = Etcd::start();
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session("restart", LONG), book.session("restart", LONG));
    let guard = wait(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "a");
    let status = etcd.ctl(&["endpoint", "status", "--write-out=json"]).unwrap();
    let (_, rest) = status.split_once("\"revision\":").unwrap();
    let revision: String = rest.chars().take_while(char::is_ascii_digit).collect();
    etcd.ctl(&["compact", &revision]).unwrap();
    etcd.restart(0);
    etcd.wait_until_healthy();
    eventually("the holder is heard again", || {
        wait(two.mutex("a").unwrap().try_lock()).is_ok_and(|none| none.is_none())
    });
    guard.check().unwrap();
    wait(guard.release()).unwrap();
    wait(waiter.served().release()).unwrap();
    book.assert_sound(2);
}

//! A backup that is restored brings old revisions back. Fences must not fall: sessions from before
//! lose everything, and new ones must declare that they know.

use std::time::Duration;

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::{ErrorKind, Fence, Loss, Tenure};

use crate::host::{Book, LONG};

#[test]
fn a_restored_backup_is_refused_until_somebody_accepts_it_and_fences_go_on_growing() {
    let etcd = Etcd::start();
    let book = Book::new(&etcd.url());
    let tenure = book.session("restored", LONG);
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    let backup = etcd.snapshot();
    let mut fence = None;
    for _ in 0..20 {
        let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
        fence = Some(guard.fence().unwrap());
        block_on(guard.release()).unwrap();
    }
    let held = block_on(tenure.mutex("b").unwrap().lock()).unwrap();
    etcd.restore(&backup);

    eventually("who was there is told", || {
        // Whatever is asked next finds that the store is another one.
        let _ = block_on(tenure.mutex("c").unwrap().try_lock());
        held.check().is_err()
    });
    assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::Forgotten));
    let error = block_on(tenure.mutex("a").unwrap().lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let builder = || Tenure::builder().namespace("restored");
    let error =
        block_on(builder().connect(&etcd.url())).map(|_| panic!("it is older")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.help().contains("restored=accept"), "{error}");

    let accepting = format!("{}?restored=accept", etcd.url());
    let again = block_on(builder().connect(&accepting)).unwrap();
    let guard = block_on(again.mutex("a").unwrap().lock()).unwrap();
    assert!(Some(guard.fence().unwrap()) > fence, "{fence:?}");
    block_on(guard.release()).unwrap();
    // From then on every client may connect.
    assert!(block_on(builder().connect(&etcd.url())).is_ok());
}

#[test]
fn a_restored_backup_is_noticed_though_the_cluster_keeps_its_id() {
    let etcd = Etcd::start();
    let builder = || Tenure::builder().namespace("same");
    let locked = |tenure: &Tenure| {
        let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
        let fence = guard.fence().unwrap();
        block_on(guard.release()).unwrap();
        fence
    };
    let id = || {
        let status = etcd.ctl(&["endpoint", "status", "--write-out=json"]).unwrap();
        let (_, rest) = status.split_once("\"cluster_id\":").unwrap();
        rest.chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    let (before, tenure) = (id(), block_on(builder().connect(&etcd.url())).unwrap());
    for _ in 0..20 {
        locked(&tenure);
    }
    let backup = etcd.snapshot();
    for _ in 0..20 {
        locked(&tenure);
    }
    let fence = locked(&tenure);
    // No client is there that could remember.
    block_on(tenure.close());
    drop(tenure);
    etcd.restore_with_same_id(&backup);
    assert_eq!(id(), before, "it is the same cluster by its id");

    let error =
        block_on(builder().connect(&etcd.url())).map(|_| panic!("it is older")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let accepting = format!("{}?restored=accept", etcd.url());
    let again = block_on(builder().connect(&accepting)).unwrap();
    assert!(locked(&again) > fence, "fences go on above everything that was given out");
    // From then on all may come, also after a restart.
    etcd.restart(0);
    etcd.wait_until_healthy();
    let last = block_on(builder().connect(&etcd.url())).unwrap();
    assert!(locked(&last) > fence);
}

/// Locks a name once. Returns the fence.
fn locked(tenure: &Tenure) -> Fence {
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    block_on(guard.release()).unwrap();
    fence
}

/// Calls until the store answers that it was restored. No lock may be granted before: its fence
/// would be below those that were given out since the backup.
fn is_refused_as_restored(tenure: &Tenure) {
    eventually("the store answers", || match block_on(tenure.mutex("a").unwrap().try_lock()) {
        Ok(granted) => panic!("granted by a restored cluster: {:?}", granted.unwrap().fence()),
        Err(error) if error.kind() == ErrorKind::Corrupt => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    });
}

/// Takes a backup in the middle of a client's traffic, and restores it when that client has left.
fn restore_while_busy(etcd: &Etcd, busy: &Tenure) {
    for _ in 0..30 {
        locked(busy);
    }
    let backup = etcd.snapshot();
    for _ in 0..30 {
        locked(busy);
    }
    block_on(busy.close());
    etcd.restore_with_same_id(&backup);
}

#[test]
fn a_client_that_was_idle_since_before_the_backup_notices_that_it_was_restored() {
    let etcd = Etcd::start();
    // Renewals, which would show the client newer revisions, come every twenty minutes.
    let hour = Duration::from_secs(3_600);
    let builder = || Tenure::builder().max_lease(hour).lease(hour).namespace("idle");
    let [idle, holder, busy] = [(); 3].map(|()| block_on(builder().connect(&etcd.url())).unwrap());
    locked(&idle);
    let held = block_on(holder.mutex("held").unwrap().lock()).unwrap();
    restore_while_busy(&etcd, &busy);
    is_refused_as_restored(&idle);
    // The holder calls nothing: its watches are opened again.
    eventually("the holder is told", || held.check().is_err());
    assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::Forgotten));
}

#[test]
fn an_idle_client_on_a_runtime_of_its_own_notices_a_restore_too() {
    let etcd = Etcd::start();
    let builder = || Tenure::builder().namespace("runtime");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let idle = runtime.block_on(builder().connect(&etcd.url())).unwrap();
    let once = async |tenure: &Tenure| {
        let guard = tenure.mutex("a").unwrap().lock().await.unwrap();
        guard.release().await.unwrap();
    };
    runtime.block_on(once(&idle));
    let busy = block_on(builder().connect(&etcd.url())).unwrap();
    restore_while_busy(&etcd, &busy);
    let _entered = runtime.enter();
    eventually("the store answers", || {
        match runtime.block_on(async { idle.mutex("a").unwrap().try_lock().await }) {
            Ok(granted) => panic!("granted by a restored cluster: {:?}", granted.unwrap().fence()),
            Err(error) => error.kind() == ErrorKind::Corrupt,
        }
    });
}

#[test]
fn a_connected_client_whose_revision_falls_notices_it_though_the_id_is_the_same() {
    let etcd = Etcd::start();
    let tenure = block_on(Tenure::builder().namespace("falls").connect(&etcd.url())).unwrap();
    locked(&tenure);
    let backup = etcd.snapshot();
    let held = block_on(tenure.mutex("held").unwrap().lock()).unwrap();
    for _ in 0..30 {
        locked(&tenure);
    }
    etcd.restore_with_same_id(&backup);
    is_refused_as_restored(&tenure);
    eventually("the holder is told", || held.check().is_err());
    assert_eq!(held.check().unwrap_err().loss(), Some(&Loss::Forgotten));
}

#[test]
fn a_restart_and_a_compaction_are_no_restore() {
    let etcd = Etcd::start();
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session("restart", LONG), book.session("restart", LONG));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let waiter = book.waiter(&two, "a");
    let status = etcd.ctl(&["endpoint", "status", "--write-out=json"]).unwrap();
    let (_, rest) = status.split_once("\"revision\":").unwrap();
    let revision: String = rest.chars().take_while(char::is_ascii_digit).collect();
    etcd.ctl(&["compact", &revision]).unwrap();
    etcd.restart(0);
    etcd.wait_until_healthy();
    eventually("the holder is heard again", || {
        block_on(two.mutex("a").unwrap().try_lock()).is_ok_and(|none| none.is_none())
    });
    guard.check().unwrap();
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    book.assert_sound(2);
}

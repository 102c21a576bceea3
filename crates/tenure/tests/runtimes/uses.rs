//! What programs do with a session: everything once. Knows locks, not where it is called from.

use std::time::Duration;

use tenure::{Put, Query, Tenure, block_on};

use crate::stores::Store;

/// How long to wait for a lock that stays taken.
const SHORT: Duration = Duration::from_millis(200);

pub(crate) async fn all_async(store: &Store) {
    let tenure = store.builder().connect(&store.url).await.unwrap();
    let mutex = tenure.mutex("async").unwrap();
    let guard = mutex.lock().await.unwrap();
    guard.fence().unwrap();
    store.steps.count();
    assert!(mutex.try_lock().await.unwrap().is_none());
    mutex.clone().timeout(SHORT).lock().await.unwrap_err();
    let seen = tenure.inspect(&Query::Slot("async".parse().unwrap())).await.unwrap();
    assert_eq!(seen.slots[0].holders.len(), 1);
    if tenure.promises().cells {
        let name: tenure::Name = "cell".parse().unwrap();
        tenure.cells().put(&Put::new(name.clone(), *b"value")).await.unwrap();
        assert_eq!(tenure.cells().get(&name).await.unwrap().unwrap().value, b"value");
    }
    guard.release().await.unwrap();
    store.steps.count();
    // Given back in the background, and served to the one that waits.
    drop(mutex.lock().await.unwrap());
    drop(mutex.lock().await.unwrap());
    let scope = tenure::scope(async {
        let outer = mutex.lock().await.unwrap();
        let inner = mutex.lock().await.unwrap();
        assert_eq!(inner.fence().unwrap(), outer.fence().unwrap());
        outer.release().await.unwrap();
        inner.release().await.unwrap();
    });
    scope.await;
    store.steps.count();
    mutex.run(|held| async move { held.fence() }).await.unwrap().unwrap();
    let left = mutex.lock().await.unwrap();
    tenure.close().await;
    assert!(left.fence().is_err());
}

pub(crate) fn all_blocking(store: &Store) {
    let tenure = store.builder().blocking_connect(&store.url).unwrap();
    let mutex = tenure.mutex("blocking").unwrap();
    let guard = mutex.blocking_lock().unwrap();
    guard.fence().unwrap();
    store.steps.count();
    assert!(mutex.blocking_try_lock().unwrap().is_none());
    mutex.clone().timeout(SHORT).blocking_lock().unwrap_err();
    guard.blocking_release().unwrap();
    store.steps.count();
    drop(mutex.blocking_lock().unwrap());
    mutex.blocking_lock().unwrap().blocking_release().unwrap();
    tenure::blocking_scope(|| {
        let outer = mutex.blocking_lock().unwrap();
        mutex.blocking_lock().unwrap().blocking_release().unwrap();
        outer.blocking_release().unwrap();
    });
    store.steps.count();
    mutex.blocking_run(|status| status.fence()).unwrap().unwrap();
    let set = tenure.lock_set([mutex.part()]).unwrap();
    set.blocking_try_lock_for(SHORT).unwrap().expect("free").blocking_release().unwrap();
    assert!(!tenure.blocking_is_locked("blocking").unwrap());
    if tenure.promises().cells {
        let name: tenure::Name = "blocking".parse().unwrap();
        tenure.cells().blocking_put(&Put::new(name.clone(), *b"value")).unwrap();
        assert_eq!(tenure.cells().blocking_get(&name).unwrap().unwrap().value, b"value");
    }
    let seen = tenure.blocking_inspect(&Query::Slot("blocking".parse().unwrap())).unwrap();
    assert!(seen.slots.iter().all(|slot| slot.holders.is_empty()));
    calls_by_blocking(store, &tenure);
    let left = mutex.blocking_lock().unwrap();
    tenure.blocking_close();
    assert!(left.fence().is_err());
}

/// The async methods of a session, each call waited for by blocking the thread.
pub(crate) fn calls_by_blocking(store: &Store, tenure: &Tenure) {
    let mutex = tenure.mutex("mixed").unwrap();
    let guard = block_on(mutex.lock()).unwrap();
    assert!(block_on(mutex.try_lock()).unwrap().is_none());
    block_on(tenure.inspect(&Query::Slot("mixed".parse().unwrap()))).unwrap();
    if tenure.promises().cells {
        let name: tenure::Name = "mixed".parse().unwrap();
        block_on(tenure.cells().put(&Put::new(name.clone(), *b"value"))).unwrap();
        assert!(block_on(tenure.cells().get(&name)).unwrap().is_some());
    }
    block_on(guard.release()).unwrap();
    block_on(mutex.run(|held| async move { held.fence() })).unwrap().unwrap();
    // More calls than a task has budget for, 128 between two yields.
    for _ in 0..75 {
        block_on(block_on(tenure.mutex("other").unwrap().lock()).unwrap().release()).unwrap();
        store.steps.count();
    }
    // Given back in the background while this thread is blocked.
    drop(block_on(mutex.lock()).unwrap());
    drop(block_on(mutex.lock()).unwrap());
}

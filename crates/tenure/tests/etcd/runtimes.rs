//! Where calls are made: on the callers' runtime if it will do, and never so that another caller
//! depends on it.

use std::time::Duration;

use servers::Etcd;
use tenure::Tenure;
use tenure::block_on;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_lock_outlives_the_runtime_that_it_was_taken_on() {
    let first = runtime();
    let url = Etcd::shared().url();
    let (tenure, guard) = first.block_on(async {
        let tenure = Tenure::builder().namespace("moved").connect(&url).await.unwrap();
        let task = {
            let mutex = tenure.mutex("a").unwrap();
            tokio::spawn(async move {
                mutex.lock().await.unwrap().release().await.unwrap();
                mutex.lock().await.unwrap()
            })
        };
        (tenure, task.await.unwrap())
    });
    first.shutdown_background();
    assert!(guard.check().is_ok());
    block_on(guard.release()).unwrap();
    let guard = runtime().block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    assert!(block_on(tenure.mutex("a").unwrap().try_lock()).unwrap().is_none());
    block_on(guard.release()).unwrap();
}

#[test]
fn a_runtime_without_timers_and_sockets_is_one_to_call_from() {
    let bare = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let url = Etcd::shared().url();
    bare.block_on(async {
        let tenure = Tenure::builder().namespace("bare").connect(&url).await.unwrap();
        let guard = tenure.mutex("a").unwrap().lock().await.unwrap();
        assert!(tenure.mutex("a").unwrap().try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
    });
}

#[test]
fn a_runtime_that_stands_still_costs_nobody_a_lock() {
    let lease = Duration::from_secs(6);
    let url = Etcd::shared().url();
    let still = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    still.block_on(async {
        let connect = Tenure::builder().namespace("still").lease(lease);
        let tenure = connect.connect(&url).await.unwrap();
        let task = tokio::spawn(async move {
            let guard = tenure.mutex("a").unwrap().lock().await.unwrap();
            // The only worker does nothing else for longer than the lease.
            std::thread::sleep(lease * 3 / 2);
            assert!(guard.check().is_ok());
            guard.release().await.unwrap();
        });
        task.await.unwrap();
    });
}

//! Updates of one cell by many writers: the sum is exact, a slow writer gets its turn, and no
//! update is applied twice, whatever happens to replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use servers::{Cluster, Etcd, Postgres, Redis};
use tenure::conformance::{Fault, Link};
use tenure::engine::memory::MemoryEngine;
use tenure::{Effect, ErrorKind, Name, Put, Tenure, UpdatableCell};
use tokio::runtime::Runtime;

use crate::{embedded, nightly};

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(4).enable_all().build().unwrap()
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap())
}

fn plus_one(old: Option<&[u8]>) -> String {
    (number(old) + 1).to_string()
}

async fn connect(url: &str, namespace: &str) -> Tenure {
    Tenure::builder().namespace(namespace).connect(url).await.unwrap()
}

async fn value(tenure: &Tenure, name: &str) -> u64 {
    let cell = tenure.cells().get(&name.parse().unwrap()).await.unwrap();
    number(cell.map(|cell| cell.value).as_deref())
}

/// Many writers, in several sessions, increment one cell.
fn the_sum_is_exact(url: &str, namespace: &str, sessions: usize, tasks: usize, each: u64) {
    let each = if nightly() { 100 } else { each };
    runtime().block_on(async {
        let mut writers = Vec::new();
        let mut last = None;
        for _ in 0..sessions {
            let tenure = connect(url, namespace).await;
            last = Some(tenure.clone());
            for _ in 0..tasks {
                let cell = tenure.cell("sum").unwrap().timeout(Duration::from_secs(300));
                writers.push(tokio::spawn(async move {
                    for _ in 0..each {
                        cell.update(plus_one).await.unwrap();
                    }
                }));
            }
        }
        let count = writers.len() as u64;
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(value(&last.unwrap(), "sum").await, count * each);
    });
}

#[test]
fn the_sum_of_many_writers_is_exact_in_memory() {
    the_sum_is_exact("memory:updates", "sum", 8, 8, 25);
}

#[test]
fn the_sum_of_many_writers_is_exact_in_an_embedded_store() {
    let (_directory, url) = embedded();
    the_sum_is_exact(&url, "sum", 4, 16, 4);
}

#[test]
fn the_sum_of_many_writers_is_exact_in_redis() {
    the_sum_is_exact(&Redis::shared().url(), "updates-sum", 8, 8, 20);
}

#[test]
fn the_sum_of_many_writers_is_exact_in_a_cluster() {
    the_sum_is_exact(&Cluster::shared().url(), "updates-sum", 4, 8, 5);
}

#[test]
fn the_sum_of_many_writers_is_exact_in_postgres() {
    the_sum_is_exact(&Postgres::shared().url(), "updates-sum", 8, 8, 5);
}

#[test]
fn the_sum_of_many_writers_is_exact_in_etcd() {
    the_sum_is_exact(&Etcd::shared().url(), "updates-sum", 8, 8, 3);
}

/// One writer whose function takes long, among others in other sessions that never pause.
fn a_slow_writer_ends_within_four_tries(url: &str) {
    runtime().block_on(async {
        let (stop, applied) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut fast = Vec::new();
        for _ in 0..16 {
            let (tenure, stop) = (connect(url, "updates-slow").await, Arc::clone(&stop));
            fast.push(tokio::spawn(async move {
                let cell = tenure.cell("sum").unwrap().timeout(Duration::from_secs(300));
                let mut done = 0;
                while !stop.load(Ordering::SeqCst) {
                    cell.update(plus_one).await.unwrap();
                    done += 1;
                }
                done
            }));
        }
        let tenure = connect(url, "updates-slow").await;
        let slow = tenure.cell("sum").unwrap().timeout(Duration::from_secs(300));
        let count = Arc::clone(&applied);
        let updated = slow.update_async(move |old| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok(Some(plus_one(old.as_deref()).into_bytes()))
            }
        });
        updated.await.unwrap();
        stop.store(true, Ordering::SeqCst);
        let mut sum = 1;
        for one in fast {
            sum += one.await.unwrap();
        }
        assert_eq!(value(&tenure, "sum").await, sum);
        assert!(applied.load(Ordering::SeqCst) <= 4, "{applied:?} tries");
    });
}

#[test]
fn a_slow_writer_ends_within_four_tries_in_redis() {
    a_slow_writer_ends_within_four_tries(&Redis::shared().url());
}

#[test]
fn a_slow_writer_ends_within_four_tries_in_a_cluster() {
    a_slow_writer_ends_within_four_tries(&Cluster::shared().url());
}

/// Calls and replies are lost at random; what succeeded is in the cell once, and what is said to be
/// unknown at most once.
#[test]
fn lost_replies_never_apply_an_update_twice() {
    let updates = if nightly() { 100_000 } else { 1_000 };
    let engine = MemoryEngine::new();
    let link = Link::new(Arc::new(engine.clone()));
    let tenure = Tenure::builder().open(Arc::clone(&link) as _).unwrap();
    let other = Tenure::builder().open(Arc::new(engine)).unwrap();
    let (cell, rival): (UpdatableCell, UpdatableCell) =
        (tenure.cell("sum").unwrap(), other.cell("sum").unwrap());
    let (mut done, mut unknown, mut rivals) = (0, 0, 0);
    let mut mixed = 7_u64;
    runtime().block_on(async {
        for round in 0..updates {
            mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let faults = [Fault::LoseReply, Fault::LoseCall, Fault::LoseReply];
            if mixed >> 62 == 0 {
                let fault = faults[usize::try_from(mixed >> 40).unwrap() % 3];
                link.trouble_call(link.calls(), fault);
            }
            if round % 3 == 0 {
                rival.update(plus_one).await.unwrap();
                rivals += 1;
            }
            match cell.update(plus_one).await {
                Ok(_) => done += 1,
                Err(error) if error.effect() == Effect::Unknown => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        let sum = value(&other, "sum").await;
        assert!((done + rivals..=done + rivals + unknown).contains(&sum), "{sum}");
    });
    assert!(unknown * 1_000 < updates, "effect unknown in {unknown} of {updates}");
}

/// While an update has reserved a cell, reads show its value and plain writes are refused.
fn a_reserved_cell_refuses_plain_writes(url: &str) {
    runtime().block_on(async {
        let tenure = connect(url, "reserved").await;
        let other = connect(url, "reserved").await;
        let name: Name = "k".parse().unwrap();
        other.cells().put(&Put::new(name.clone(), "0")).await.unwrap();
        let (entered, mut entries) = tokio::sync::mpsc::unbounded_channel();
        let (go, gone) = tokio::sync::watch::channel(0);
        let cell = tenure.cell("k").unwrap();
        let slow = tokio::spawn(async move {
            let mut tries = 0;
            cell.update_async(|old| {
                tries += 1;
                let (entered, mut gone, nth) = (entered.clone(), gone.clone(), tries);
                async move {
                    entered.send(nth).unwrap();
                    // The first three times another client writes meanwhile.
                    gone.wait_for(|go| *go >= nth).await.unwrap();
                    Ok(Some([old.unwrap_or_default(), b"+".to_vec()].concat()))
                }
            })
            .await
        });
        for nth in 1..=3 {
            assert_eq!(entries.recv().await, Some(nth));
            other.cells().put(&Put::new(name.clone(), nth.to_string())).await.unwrap();
            go.send_replace(nth);
        }
        assert_eq!(entries.recv().await, Some(4));
        // Reserved now: neither a read nor a list shows it, a plain write is told who writes.
        assert_eq!(value(&other, "k").await, 3);
        let listed = other.cells().list(&tenure::Pattern::all(), None, 9).await.unwrap();
        assert_eq!(listed.len(), 1);
        let error = other.cells().put(&Put::new(name.clone(), "plain")).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Conflict, Effect::None));
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        // Another update waits for its turn.
        let queued = other.cell("k").unwrap();
        let next = tokio::spawn(async move {
            queued.update(|old| [old.unwrap_or_default(), b"!"].concat()).await
        });
        go.send_replace(4);
        let updated = slow.await.unwrap().unwrap();
        assert_eq!((updated.value.as_deref(), updated.conflicts), (Some(&b"3+"[..]), 3));
        assert_eq!(next.await.unwrap().unwrap().value.as_deref(), Some(&b"3+!"[..]));
        other.cells().put(&Put::new(name, "plain")).await.unwrap();
    });
}

#[test]
fn a_reserved_cell_refuses_plain_writes_in_memory() {
    a_reserved_cell_refuses_plain_writes("memory:reserved");
}

#[test]
fn a_reserved_cell_refuses_plain_writes_in_an_embedded_store() {
    let (_directory, url) = embedded();
    a_reserved_cell_refuses_plain_writes(&url);
}

#[test]
fn a_reserved_cell_refuses_plain_writes_in_redis() {
    a_reserved_cell_refuses_plain_writes(&Redis::shared().url());
}

/// Its mark is in the hash slot of the cell.
#[test]
fn a_reserved_cell_refuses_plain_writes_in_a_cluster() {
    a_reserved_cell_refuses_plain_writes(&Cluster::shared().url());
}

#[test]
fn a_reserved_cell_refuses_plain_writes_in_postgres() {
    a_reserved_cell_refuses_plain_writes(&Postgres::shared().url());
}

#[test]
fn a_reserved_cell_refuses_plain_writes_in_etcd() {
    a_reserved_cell_refuses_plain_writes(&Etcd::shared().url());
}

#[test]
fn several_cells_are_updated_together_and_bounds_are_kept() {
    runtime().block_on(async {
        let tenure = connect("memory:", "many").await;
        let names: Vec<Name> = ["a", "b"].map(|name| name.parse().unwrap()).to_vec();
        let both = |olds: &[Option<Vec<u8>>]| {
            let next = number(olds[0].as_deref()) + 1;
            vec![Some(next.to_string().into_bytes()), Some((2 * next).to_string().into_bytes())]
        };
        for _ in 0..3 {
            tenure.update_many(&names, both).await.unwrap();
        }
        assert_eq!((value(&tenure, "a").await, value(&tenure, "b").await), (3, 6));
        let removed = tenure.update_many(&names, |olds| vec![None, olds[1].clone()]).await.unwrap();
        assert_eq!(removed[0].value, None);
        assert_eq!((value(&tenure, "a").await, value(&tenure, "b").await), (0, 6));

        let error = tenure.update_many(&names, |_| vec![]).await.unwrap_err();
        assert!(error.to_string().contains("0 values for 2 cells"), "{error}");
        let error = tenure.cell("a").unwrap().tries(0).update(plus_one).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        // The function is applied as often as it may be, and no more.
        let (rival, mut applied) = (tenure.clone(), 0);
        let name: Name = "c".parse().unwrap();
        let cell = tenure.cell("c").unwrap().tries(2);
        let disturbed = cell.update_async(|_| {
            applied += 1;
            let (rival, put) = (rival.clone(), Put::new(name.clone(), applied.to_string()));
            async move {
                rival.cells().put(&put).await?;
                Ok(Some(b"mine".to_vec()))
            }
        });
        let error = disturbed.await.unwrap_err();
        assert!(error.to_string().contains("in between 2 times"), "{error}");
        assert_eq!((applied, value(&tenure, "c").await), (2, 2));
    });
}

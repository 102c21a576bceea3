//! What a free lock costs, in counts that are the same on every machine: allocations and calls to
//! the store for a pair of `lock` and `release`, and the heap that a held lock keeps. Limits are
//! what was counted when they were set: a change that needs more has to say so here.
//!
//! One test, because the allocator counts for all threads of the process. A thread of the library
//! that does something of its own adds to a block, so the least of several blocks counts.
#![cfg(all(feature = "embedded", feature = "redis"))]

mod heap;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use servers::Redis;
use tenure::contract::Claim;
use tenure::engine::memory::MemoryEngine;
use tenure::time::{ManualClock, Tick};
use tenure::{Builder, Event, Mutex, StoreCall, Tenure, Verb, Witness};

const PAIRS: usize = 50;
const BLOCKS: usize = 8;

/// What pairs of one store may cost.
struct Limits {
    store: &'static str,
    url: String,
    /// For `lock` and `release`.
    released: usize,
    /// For `lock` and the drop of its guard, where the drop is all there is.
    dropped: Option<usize>,
}

/// Counts calls to the store about claims.
#[derive(Debug, Default)]
struct Calls {
    claims: AtomicUsize,
    releases: AtomicUsize,
}

impl Witness for Calls {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, _event: &Event) {}

    fn on_call(&self, call: &StoreCall) {
        match call.verb {
            Verb::Claim => _ = self.claims.fetch_add(call.items, Ordering::SeqCst),
            Verb::Release => _ = self.releases.fetch_add(call.items, Ordering::SeqCst),
            _ => {}
        }
    }
}

/// Runs a future on a runtime of one thread, in a task, as most programs do.
fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(work).await.unwrap() })
}

async fn release(lock: &Mutex) {
    lock.lock().await.unwrap().release().await.unwrap();
}

/// The allocations of one pair: the least of several blocks.
async fn least(lock: &Mutex, is_dropped: bool) -> usize {
    let mut least = usize::MAX;
    for block in 0..=BLOCKS {
        let before = heap::allocations();
        for _ in 0..PAIRS {
            if is_dropped {
                drop(lock.lock().await.unwrap());
            } else {
                release(lock).await;
            }
        }
        let made = heap::allocations() - before;
        // The first block fills buffers.
        if block > 0 {
            least = least.min(made.div_ceil(PAIRS));
        }
    }
    least
}

fn builder(namespace: &str) -> Builder {
    Tenure::builder().namespace(namespace)
}

/// Counts the pairs of one store. Returns what is above its limits.
fn excess(limits: &Limits) -> Vec<String> {
    let (store, url) = (limits.store, limits.url.clone());
    let (released, dropped) = run(async move {
        let tenure = builder("allocations").connect(&url).await.unwrap();
        let lock = tenure.mutex("free").unwrap();
        let (released, dropped) = (least(&lock, false).await, least(&lock, true).await);
        tenure.close().await;
        (released, dropped)
    });
    let url = limits.url.clone();
    let calls = Arc::new(Calls::default());
    let witness = Arc::clone(&calls);
    run(async move {
        let tenure = builder("calls").witness(witness).connect(&url).await.unwrap();
        let lock = tenure.mutex("free").unwrap();
        for _ in 0..PAIRS {
            release(&lock).await;
        }
        tenure.close().await;
    });
    let (claims, releases) =
        (calls.claims.load(Ordering::SeqCst), calls.releases.load(Ordering::SeqCst));
    println!("{store}: {released} allocations released, {dropped} dropped, {claims}+{releases}");
    let mut excess = Vec::new();
    if released > limits.released {
        excess.push(format!("{store}: {released} allocations for lock and release"));
    }
    if limits.dropped.is_some_and(|most| dropped > most) {
        excess.push(format!("{store}: {dropped} allocations for lock and drop"));
    }
    if (claims, releases) != (PAIRS, PAIRS) {
        excess.push(format!("{store}: {claims} claims and {releases} releases for {PAIRS} pairs"));
    }
    excess
}

/// The heap bytes of one of 10,000 held locks: store, session, guard and name.
fn bytes_per_held_lock() -> usize {
    const LOCKS: usize = 10_000;
    let before = heap::live_bytes();
    let clock = ManualClock::new();
    let engine = MemoryEngine::with_clock(Arc::new(clock.clone()));
    let builder = Tenure::builder().clock(Arc::new(clock.clone()));
    let tenure = builder.open(Arc::new(engine)).unwrap();
    let mut guards = Vec::with_capacity(LOCKS);
    for number in 0..LOCKS {
        guards.push(tenure.mutex(format!("account:{number}")).unwrap().blocking_lock().unwrap());
    }
    clock.settle();
    (heap::live_bytes() - before) / LOCKS
}

#[test]
fn a_free_lock_costs_no_more_than_it_did() {
    let bytes = bytes_per_held_lock();
    let directory = tempfile::tempdir().unwrap();
    let redis = Redis::shared();
    let embedded = format!("embedded://{}", directory.path().join("locks").display());
    let all = [
        // The claim and its grant.
        Limits { store: "memory", url: "memory:".to_owned(), released: 2, dropped: Some(2) },
        Limits { store: "embedded", url: embedded, released: 21, dropped: None },
        Limits { store: "redis", url: redis.url(), released: 16, dropped: None },
    ];
    let mut excess: Vec<String> = all.iter().flat_map(excess).collect();
    println!("{bytes} bytes per held lock");
    if bytes > 1_024 {
        excess.push(format!("{bytes} bytes for a held lock"));
    }
    assert!(excess.is_empty(), "{}", excess.join("\n"));
}

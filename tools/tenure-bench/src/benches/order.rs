//! What the order checker costs: a lock alone, a lock under another one, and an edge that was never
//! seen. The reference of each pair is the same pair without a checker, in alternating blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tenure::contract::Claim;
use tenure::engine::memory::MemoryEngine;
use tenure::time::Tick;
use tenure::{Error, Event, LockOrder, Mutex, OrderMode, StoreCall, Tenure, Verb, Witness};

use crate::figure::{Aim, Figure};
use crate::heap;
use crate::run::{Bench, Run};
use crate::stats::{median, micros, nanos_each};

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        // First, while nothing else in this process allocates.
        Bench::new(&["known_edge_allocations"], allocations),
        Bench::new(&["known_edge_store_calls"], store_calls),
        Bench::new(&["pair_with_checker"], |run| pair(run, false)),
        Bench::new(&["nested_pair_with_checker"], |run| pair(run, true)),
        Bench::new(&["new_edge_100k"], new_edge),
    ]
}

fn session(mode: OrderMode) -> Result<Tenure, Error> {
    Tenure::builder().order(mode).open(Arc::new(MemoryEngine::new()))
}

async fn block(lock: &Mutex, pairs: u32) -> Result<f64, Error> {
    let start = Instant::now();
    for _ in 0..pairs {
        lock.lock().await?.release().await?;
    }
    Ok(nanos_each(start, pairs))
}

/// An uncontended lock and its release, with nothing held or under another lock.
fn pair(run: &Run, nested: bool) -> Result<Vec<Figure>, Error> {
    let (blocks, pairs) = (run.count(20, 600), run.count(50, 500));
    let progress = run.progress.clone();
    let (with, without) = (session(OrderMode::Warn)?, session(OrderMode::Off)?);
    run.in_task(async move {
        let outer = if nested {
            let lock = async |tenure: &Tenure| tenure.mutex("account:1")?.lock().await;
            Some((lock(&with).await?, lock(&without).await?))
        } else {
            None
        };
        let (ours, theirs) = (with.mutex("ledger")?, without.mutex("ledger")?);
        let (mut checked, mut plain) = (Vec::new(), Vec::new());
        for at in 0..blocks {
            // In turns, so that neither always comes first.
            if at % 2 == 0 {
                checked.push(block(&ours, pairs).await?);
                plain.push(block(&theirs, pairs).await?);
            } else {
                plain.push(block(&theirs, pairs).await?);
                checked.push(block(&ours, pairs).await?);
            }
            progress.step(at + 1, blocks);
        }
        drop(outer);
        let (name, aim) =
            if nested { ("nested_pair_with_checker", 1.10) } else { ("pair_with_checker", 1.02) };
        let figure = Figure::new(name, median(&checked), "ns", "x without a checker");
        Ok(vec![figure.relative_to(median(&plain)).judged_by(Aim::AtMost(aim))])
    })
}

/// How many allocations more a nested pair of a known edge makes than one without a checker.
fn allocations(run: &Run) -> Result<Vec<Figure>, Error> {
    let pairs = run.count(200, 2_000);
    let count = |mode: OrderMode| -> Result<u64, Error> {
        let tenure = session(mode)?;
        run.here(async {
            let outer = tenure.mutex("account:1")?.lock().await?;
            let inner = tenure.mutex("ledger")?;
            // Learns the edge and lets buffers reach their size before allocations are counted.
            block(&inner, pairs).await?;
            let before = heap::start_counting();
            let done = block(&inner, pairs).await;
            let made = heap::stop_counting(before);
            done?;
            outer.release().await?;
            Ok(made)
        })
    };
    let (with, without) = (count(OrderMode::Warn)?, count(OrderMode::Off)?);
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    let more = with.saturating_sub(without) as f64 / f64::from(pairs);
    let figure = Figure::new("known_edge_allocations", more, "", "more than without a checker");
    Ok(vec![figure.judged_by(Aim::AtMost(0.0))])
}

/// Counts calls to the store's cells.
#[derive(Debug, Default)]
struct CellCalls(AtomicU64);

impl Witness for CellCalls {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, _event: &Event) {}

    fn on_call(&self, call: &StoreCall) {
        if call.verb == Verb::Cell {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn store_calls(run: &Run) -> Result<Vec<Figure>, Error> {
    let pairs = run.count(200, 2_000);
    let calls = Arc::new(CellCalls::default());
    let builder = Tenure::builder().order(OrderMode::Warn).witness(Arc::clone(&calls) as _);
    let tenure = builder.open(Arc::new(MemoryEngine::new()))?;
    run.here(async {
        let outer = tenure.mutex("account:1")?.lock().await?;
        let inner = tenure.mutex("ledger")?;
        block(&inner, 1).await?;
        let before = calls.0.load(Ordering::Relaxed);
        block(&inner, pairs).await?;
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        let made = (calls.0.load(Ordering::Relaxed) - before) as f64;
        outer.release().await?;
        let figure = Figure::new("known_edge_store_calls", made, "", "for all known edges");
        Ok(vec![figure.judged_by(Aim::AtMost(0.0))])
    })
}

/// The class of a number: letters alone, so that it is a class of its own.
fn class(mut number: u32) -> String {
    let mut name = "class-".to_owned();
    for _ in 0..4 {
        name.push(char::from(b'a' + u8::try_from(number % 20).unwrap_or(0)));
        number /= 20;
    }
    name
}

/// One more edge among 10,000 classes and 100,000 edges: the whole nested lock, which learns it.
fn new_edge(run: &Run) -> Result<Vec<Figure>, Error> {
    let (classes, edges) = (run.count(100, 10_000), run.count(1_000, 100_000));
    let measured = edges / 100;
    let order = LockOrder::new(OrderMode::Warn).not_shared();
    let tenure = Tenure::builder().order(order).open(Arc::new(MemoryEngine::new()))?;
    let locks: Result<Vec<Mutex>, Error> = (0..classes)
        .map(|number| Ok(tenure.mutex(class(number))?.timeout(std::time::Duration::from_secs(5))))
        .collect();
    let locks = locks?;
    let progress = run.progress.clone();
    run.in_task(async move {
        // A hidden order that has nothing to do with the order of arrival.
        let mut dice: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut below = |end: u32| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            u32::try_from((dice >> 11) % u64::from(end)).unwrap_or(0)
        };
        let mut rank: Vec<usize> = (0..locks.len()).collect();
        for at in (1..classes).rev() {
            rank.swap(at as usize, below(at + 1) as usize);
        }
        let mut samples = Vec::new();
        for at in 0..edges + measured {
            let (a, b) = (below(classes) as usize, below(classes) as usize);
            let (first, second) = if rank[a] < rank[b] { (a, b) } else { (b, a) };
            if first == second {
                continue;
            }
            let outer = locks[first].lock().await?;
            let start = Instant::now();
            let inner = locks[second].lock().await?;
            if at >= edges {
                samples.push(micros(start.elapsed()));
            }
            drop((inner, outer));
            if at % 1_000 == 0 {
                progress.step(at + 1, edges + measured);
            }
        }
        let figure = Figure::new("new_edge_100k", median(&samples), "us", "10,000 classes");
        Ok(vec![figure.judged_by(Aim::Below(50.0))])
    })
}

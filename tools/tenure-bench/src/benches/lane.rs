//! One of several that take a lock and give it back, side by side in alternating blocks: what a
//! pair takes, and what it costs the process.
//!
//! Times and processor time are medians over the blocks, in which nothing is counted. Counts come
//! from pairs of their own after all blocks, because counting costs time: allocations by the
//! process's allocator, system calls and bytes by `strace` (see `system_calls.rs`). Processor time
//! is that of the whole process, its threads in the kernel included; a server is another process.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tenure::Error;

use super::taker::Taker;
use crate::figure::{Figure, PairCost};
use crate::heap;
use crate::run::Run;
use crate::stats::{median, nanos_each};
use crate::system_calls;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LanePlan {
    /// Blocks at the start that are not counted: scripts are loaded, caches settle.
    pub(crate) warm_up: u32,
    pub(crate) blocks: u32,
    /// Pairs in a block: short enough that all lanes meet the same moments of the machine.
    pub(crate) pairs: u32,
}

/// One that takes and gives, with its samples.
pub(crate) struct Lane<T> {
    taker: T,
    /// Nanoseconds a pair, one sample for each block.
    nanos: Vec<f64>,
    /// Nanoseconds of processor time a pair.
    cpu: Vec<f64>,
}

/// What a pair took and cost.
pub(crate) struct Measured {
    pub(crate) nanos: f64,
    pub(crate) cost: PairCost,
}

impl<T: Taker> Lane<T> {
    pub(crate) fn new(taker: T) -> Self {
        Self { taker, nanos: Vec::new(), cpu: Vec::new() }
    }

    /// Runs one block. Its samples count if `kept`.
    pub(crate) async fn block(&mut self, pairs: u32, kept: bool) -> Result<(), Error> {
        let (start, cpu) = (Instant::now(), cpu_nanos());
        self.taker.pairs(pairs).await?;
        let (nanos, cpu) = (nanos_each(start, pairs), (cpu_nanos() - cpu) / f64::from(pairs));
        if kept {
            self.nanos.push(nanos);
            self.cpu.push(cpu);
        }
        Ok(())
    }

    /// Ends the lane: counts what the clock does not tell.
    pub(crate) fn measured(self, run: &Run) -> Result<Measured, Error> {
        let (counted, traced) = (run.count(50, 1_000), run.count(20, 200));
        let mut taker = self.taker;
        let before = heap::start_counting();
        let done = run.in_task(async move { taker.pairs(counted).await.map(|()| taker) });
        let allocations = heap::stop_counting(before);
        let mut taker = done?;
        let (done, calls) =
            system_calls::counted(|| run.in_task(async move { taker.pairs(traced).await }));
        done?;
        let cost = PairCost::new(median(&self.cpu) / 1e3, each(allocations, counted))
            .with_system_calls(calls.map(|calls| each(calls.made, traced)))
            .with_bytes(calls.map(|calls| each(calls.bytes, traced)));
        Ok(Measured { nanos: median(&self.nanos), cost })
    }
}

/// Runs two lanes in alternating blocks: ours and its reference.
pub(crate) fn beside<A: Taker, B: Taker>(
    run: &Run,
    plan: LanePlan,
    ours: A,
    reference: B,
) -> Result<[Measured; 2], Error> {
    let LanePlan { warm_up, blocks, pairs } = plan;
    let progress = run.progress.clone();
    let (mut ours, mut reference) = (Lane::new(ours), Lane::new(reference));
    let (ours, reference) = run.in_task(async move {
        for number in 0..warm_up + blocks {
            let kept = number >= warm_up;
            ours.block(pairs, kept).await?;
            reference.block(pairs, kept).await?;
            progress.step((number + 1).saturating_sub(warm_up), blocks);
        }
        Ok::<_, Error>((ours, reference))
    })?;
    Ok([ours.measured(run)?, reference.measured(run)?])
}

/// The figure of a lane beside its reference, both in microseconds.
pub(crate) fn figure(
    bench: &'static str,
    note: &'static str,
    ours: &Measured,
    reference: &Measured,
) -> Figure {
    Figure::new(bench, ours.nanos / 1e3, "us", note)
        .relative_to(reference.nanos / 1e3)
        .with_costs(ours.cost, reference.cost)
}

/// Processor time of this process so far, in nanoseconds.
fn cpu_nanos() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[allow(clippy::cast_precision_loss, reason = "exact for 100 days of processor time")]
    let nanos = time.tv_sec as f64 * 1e9 + time.tv_nsec as f64;
    nanos
}

fn each(count: u64, pairs: u32) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    let count = count as f64;
    count / f64::from(pairs)
}

//! The memory engine: nothing to start. Knows which benchmarks make sense for it.

use std::sync::Arc;

use tenure::Builder;
use tenure::engine::memory::MemoryEngine;
use tenure::time::ManualClock;

use crate::benches::{crowd, handoff, held, pair, reentry};
use crate::run::Bench;

pub(crate) fn benches() -> Vec<Bench> {
    vec![
        // First, while nothing else in this process allocates or frees.
        Bench::new(&["held_10k_bytes"], |run| {
            held::bytes(run, |clock| Arc::new(MemoryEngine::with_clock(Arc::new(clock.clone()))))
        }),
        Bench::new(&["pair"], |run| pair::measure(run, Arc::new(MemoryEngine::new()))),
        Bench::new(&handoff::NAMES, |run| handoff::measure(run, || Arc::new(MemoryEngine::new()))),
        Bench::new(&["reentry"], |run| reentry::measure(run, Arc::new(MemoryEngine::new()))),
        Bench::new(&["held_10k_renew_calls"], |run| {
            let clock = ManualClock::new();
            let engine = MemoryEngine::with_clock(Arc::new(clock.clone()));
            held::renew_calls(run, &clock, Arc::new(engine))
        }),
        Bench::new(&[crowd::NAME], |run| {
            let open = async |builder: Builder| builder.open(Arc::new(MemoryEngine::new()));
            crowd::beside_postgres(run, open)
        }),
    ]
}

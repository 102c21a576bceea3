//! Random traffic over connections that are delayed, cut, silent, or half open, with answers held
//! back and pushes lost: the auditor judges what all sessions wrote down. Every choice comes from a
//! seed; how threads interleave does not.

use std::sync::Arc;
use std::time::Duration;

use servers::{Dice, Faults, Proxy, Redis};
use tenure::{Tenure, block_on};
use tokio::runtime::Runtime;

use crate::flow::{Flow, Flows, heal};
use crate::host::{Book, assert_empty, done};

const LEASE: Duration = Duration::from_secs(1);
/// Each behind a proxy of its own; every second one on a runtime, the others on bare threads.
const SESSIONS: usize = 6;
/// Flows of control in each session.
const FLOWS: usize = 2;

/// Longer by night.
fn scaled(usual: u64) -> u64 {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => usual * 10,
        _ => usual,
    }
}

/// Makes one connection bad for a moment.
fn torment(redis: &Redis, proxy: &Proxy, dice: &mut Dice) {
    let kind = dice.throw(10);
    match kind {
        0 => proxy.delay(dice.millis(60), dice.millis(60)),
        1 => proxy.cut(),
        2 => proxy.black_hole(true),
        3 => proxy.hold_replies(true),
        4 => proxy.drop_pushes(1 + dice.throw(20)),
        5 => proxy.cut_after(dice.throw(3_000)),
        6 => {
            proxy.refuse(true);
            proxy.cut();
        }
        7 => {
            // Half open: what stands is dead, and what is new works.
            proxy.black_hole(true);
            (0..4).for_each(|_| proxy.next(Faults::default()));
        }
        8 => _ = done(redis, &["SCRIPT", "FLUSH"]),
        _ => _ = done(redis, &["CLIENT", "KILL", "TYPE", "pubsub"]),
    }
    // How long it lasts is part of the fault: up to one and a half leases.
    let longest = if matches!(kind, 2 | 3 | 6 | 7) { 1_500 } else { 150 };
    std::thread::sleep(dice.millis(longest));
    heal(proxy, dice.throw(2) == 0);
}

fn connect(book: &Book, proxy: &Proxy, runtime: Option<&Runtime>) -> Tenure {
    let builder = book.builder(LEASE).call_limit(Duration::from_millis(400));
    let url = proxy.redis_url();
    match runtime {
        Some(runtime) => runtime.block_on(builder.connect(&url)).unwrap(),
        None => block_on(builder.connect(&url)).unwrap(),
    }
}

fn run(seed: u64, rounds: u64) {
    let (redis, book, mut dice) = (Redis::start(), Book::new(), Dice(seed));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let proxies: Vec<_> = (0..SESSIONS).map(|_| Proxy::to(("127.0.0.1", redis.port()))).collect();
    let home = |nth: usize| nth.is_multiple_of(2).then_some(&runtime);
    let behind = proxies.iter().enumerate();
    let sessions: Vec<_> = behind.map(|(nth, proxy)| connect(&book, proxy, home(nth))).collect();
    let flows: Vec<_> = (0..SESSIONS * FLOWS)
        .map(|nth| {
            let (tenure, recorder) = (sessions[nth % SESSIONS].clone(), Arc::clone(&book.recorder));
            let (timeout, longest_hold) = ((Duration::from_millis(300), 3_000), 200);
            let dice = Dice(dice.throw(u64::MAX));
            let flow = Flow { tenure, recorder, dice, timeout, longest_hold };
            let handle = home(nth % SESSIONS).map(|runtime| runtime.handle().clone());
            let flow = flow.play(rounds, seed);
            move || match handle {
                // As a task, on the workers of that runtime.
                Some(handle) => handle.block_on(handle.spawn(flow)).unwrap(),
                None => block_on(flow),
            }
        })
        .collect();
    Flows::start(flows).until_done(seed, || {
        let victim = usize::try_from(dice.throw(SESSIONS as u64)).unwrap();
        torment(&redis, &proxies[victim], &mut dice);
    });
    for tenure in &sessions {
        block_on(tenure.close());
    }
    book.assert_sound(&format!("seed {seed}"));
    assert_empty(&redis.url(), Tenure::builder());
}

#[test]
fn every_promise_holds_on_bad_links() {
    for seed in 0..scaled(2) {
        run(1_000 + seed, 40);
    }
}

#[test]
fn every_promise_holds_on_bad_links_once_more() {
    for seed in 0..scaled(2) {
        run(2_000 + seed, 40);
    }
}

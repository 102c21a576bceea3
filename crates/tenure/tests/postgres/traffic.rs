//! Random traffic over connections that are delayed, cut, silent, or half open, directly and
//! through a pooler: the auditor judges what all sessions wrote down. Every choice comes from a
//! seed; how threads interleave does not.

use std::sync::Arc;
use std::time::Duration;

use servers::{Dice, Faults, PgBouncer, Postgres, Proxy};
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{Tenure, block_on};

use crate::flow::{Flow, Flows, heal};
use crate::host::assert_empty;

const LEASE: Duration = Duration::from_secs(2);
/// Each behind a proxy of its own.
const SESSIONS: usize = 4;
/// Flows of control in each session.
const FLOWS: usize = 2;

/// Makes one connection bad for a moment.
fn torment(server: &Postgres, proxy: &Proxy, dice: &mut Dice) {
    let kind = dice.throw(7);
    match kind {
        0 => proxy.delay(dice.millis(60), dice.millis(60)),
        1 => proxy.cut(),
        2 => proxy.black_hole(true),
        3 => proxy.hold_replies(true),
        4 => {
            proxy.refuse(true);
            proxy.cut();
        }
        5 => {
            // Half open: what stands is dead, and what is new works.
            proxy.black_hole(true);
            (0..4).for_each(|_| proxy.next(Faults::default()));
        }
        _ => _ = server.terminate_all(),
    }
    // How long it lasts is part of the fault: up to one and a half leases.
    let longest = if matches!(kind, 2..=5) { 3_000 } else { 300 };
    std::thread::sleep(dice.millis(longest));
    heal(proxy, dice.throw(2) == 0);
}

fn run(server: &Postgres, port: u16, url: &str, seed: u64, rounds: u64) {
    let (recorder, mut dice) = (Recorder::new(Arc::new(SystemClock)), Dice(seed));
    let proxies: Vec<_> = (0..SESSIONS).map(|_| Proxy::to(("127.0.0.1", port))).collect();
    let connect = |proxy: &Proxy| {
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let witness = Arc::clone(&recorder);
        let builder = Tenure::builder().lease(LEASE).witness(witness as _);
        block_on(builder.call_limit(Duration::from_secs(1)).connect(&url)).unwrap()
    };
    let sessions: Vec<_> = proxies.iter().map(connect).collect();
    let flows: Vec<_> = (0..SESSIONS * FLOWS)
        .map(|nth| {
            let (tenure, recorder) = (sessions[nth % SESSIONS].clone(), Arc::clone(&recorder));
            let (timeout, longest_hold) = ((Duration::from_millis(500), 4_000), 400);
            let dice = Dice(dice.throw(u64::MAX));
            let flow = Flow { tenure, recorder, dice, timeout, longest_hold };
            move || block_on(flow.play(rounds, seed))
        })
        .collect();
    Flows::start(flows).until_done(seed, || {
        let victim = usize::try_from(dice.throw(SESSIONS as u64)).unwrap();
        torment(server, &proxies[victim], &mut dice);
    });
    for tenure in &sessions {
        block_on(tenure.close());
    }
    let wake_within = Duration::from_secs(10);
    let rules = Rules { queue: true, wake_within, lossy: true, at_rest: true };
    let verdicts = judge(&recorder.history(), &rules);
    println!("seed {seed}: {verdicts}");
    assert!(verdicts.violations.is_empty(), "seed {seed}: {verdicts}");
    assert!(verdicts.grants > 0, "seed {seed}: {verdicts}");
    assert_empty(&block_on(Tenure::connect(&server.url())).unwrap());
}

#[test]
fn every_promise_holds_on_bad_links() {
    let server = Postgres::start();
    run(&server, server.port(), &server.url(), 1_000, 25);
}

#[test]
fn every_promise_holds_on_bad_links_to_a_pooler() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 6);
    run(&server, bouncer.port(), &bouncer.url(), 2_000, 15);
}

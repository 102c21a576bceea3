//! Random traffic while nodes are killed, stopped, cut off, restarted with and without their
//! memory, and their clocks are put wrong: the auditor judges what all sessions wrote down. Every
//! choice comes from a seed; how threads interleave does not.
//!
//! Leases are time: while the clocks of nodes jump, two may hold at once, if a node that was away
//! and one whose clock jumped make a majority together. What never depends on clocks is judged all
//! the same: fences are distinct and grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use servers::{Dice, Direction};
use tenure::block_on;
use tenure::{Error, ErrorKind, Tenure};

use crate::host::{Book, Nodes};

const LEASE: Duration = Duration::from_secs(2);
const SESSIONS: usize = 4;
/// Flows of control in each.
const FLOWS: usize = 3;
/// A restart of one of these loses nothing.
const KEPT: usize = 3;

/// One flow of control: takes one of three names, does things that must not overlap, lets go.
fn flow(tenure: &Tenure, book: &Book, mut dice: Dice, rounds: u64) {
    for _ in 0..rounds {
        let outcome = round(tenure, book, &mut dice);
        let Err(error) = outcome else { continue };
        let expected = [ErrorKind::TimedOut, ErrorKind::Unavailable, ErrorKind::Lost];
        assert!(expected.contains(&error.kind()), "{error}");
    }
}

fn round(tenure: &Tenure, book: &Book, dice: &mut Dice) -> Result<(), Error> {
    let name = ["a", "b", "c"][dice.pick(3)];
    let mutex = tenure.mutex(name)?.timeout(Duration::from_millis(500 + dice.throw(4_000)));
    let guard = block_on(mutex.lock())?;
    // Now and then for longer than a lease, so that a fault finds a holder in the middle of it.
    let pieces = if dice.throw(12) == 0 { dice.throw(300) } else { 2 };
    for _ in 0..=pieces {
        if !book.recorder.used(&guard) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(if pieces > 2 { 10 } else { 0 }));
    }
    if dice.throw(4) == 0 {
        drop(guard);
        return Ok(());
    }
    block_on(guard.release())
}

/// Whether the clocks of nodes jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    Sound,
    Jump,
    /// They run fast or slow, each in its way, by less than the drift that is promised.
    Slewed,
}

/// Makes one node bad for a moment.
fn torment(nodes: &Nodes, clocks: Clocks, dice: &mut Dice) {
    let at = dice.pick(nodes.servers.len());
    let (server, proxy) = (&nodes.servers[at], &nodes.proxies[at]);
    let pause = Duration::from_millis(dice.throw(1_500));
    match dice.throw(8) {
        0 => {
            server.stop();
            std::thread::sleep(pause);
            server.cont();
        }
        1 => {
            proxy.black_hole(true);
            std::thread::sleep(pause);
            proxy.heal_dropping();
        }
        2 => {
            proxy.hold_replies(true);
            std::thread::sleep(pause);
            proxy.heal_delivering();
        }
        3 => proxy.cut(),
        4 => proxy.cut_after(dice.throw(3_000)),
        5 if clocks == Clocks::Jump => {
            let by = Duration::from_millis(dice.throw(3_600_000));
            let (there, back) = if dice.throw(2) == 0 {
                (Direction::Forward, Direction::Back)
            } else {
                (Direction::Back, Direction::Forward)
            };
            server.step_clock(by, there);
            std::thread::sleep(pause);
            server.step_clock(by, back);
        }
        // With or without its memory it is closed for a while then. If that happens to three,
        // nothing is granted until the first is open again.
        6 => server.restart(),
        7 if dice.throw(3) == 0 => {
            let _ = server.cmd(&["FLUSHALL"]);
        }
        _ => {
            let _ = server.cmd(&["SCRIPT", "FLUSH"]);
        }
    }
}

fn run(seed: u64, rounds: u64, clocks: Clocks) {
    let (nodes, book, mut dice) = (Nodes::start(5, KEPT), Book::new(), Dice(seed));
    let url = nodes.new_url();
    let builder = || book.builder(LEASE).max_lease(LEASE).call_limit(Duration::from_secs(1));
    let sessions: Vec<_> =
        (0..SESSIONS).map(|_| block_on(builder().connect(&url)).unwrap()).collect();
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        if clocks == Clocks::Slewed {
            let ways = [(8, Direction::Forward), (4, Direction::Back), (2, Direction::Forward)];
            for (server, (percent, there)) in nodes.servers.iter().zip(ways.into_iter().cycle()) {
                let over = &over;
                scope.spawn(move || server.slew_clock(percent, there, over));
            }
        }
        let tormentor = scope.spawn(|| {
            let mut dice = Dice(seed + 1);
            while !over.load(Ordering::SeqCst) {
                torment(&nodes, clocks, &mut dice);
                std::thread::sleep(Duration::from_millis(dice.throw(400)));
            }
        });
        let flows: Vec<_> = sessions
            .iter()
            .flat_map(|tenure| std::iter::repeat_n(tenure, FLOWS))
            .map(|tenure| {
                let (dice, book) = (Dice(dice.throw(u64::MAX)), book.clone());
                scope.spawn(move || flow(tenure, &book, dice, rounds))
            })
            .collect();
        let failed = flows.into_iter().filter_map(|flow| flow.join().err()).count();
        over.store(true, Ordering::SeqCst);
        tormentor.join().unwrap();
        assert_eq!(failed, 0, "seed {seed}: flows failed");
    });
    for tenure in &sessions {
        block_on(tenure.close());
    }
    let context = format!("seed {seed}, clocks {clocks:?}");
    match clocks {
        Clocks::Sound | Clocks::Slewed => book.assert_sound(&context),
        Clocks::Jump => book.assert_fenced(&context),
    }
}

#[test]
fn every_promise_holds_while_nodes_fail_and_clocks_jump_or_run_apart() {
    let nightly = std::env::var("TENURE_TEST_SCALE").as_deref() == Ok("nightly");
    // They wait more than they work, so three go at once.
    for pair in 0..if nightly { 10 } else { 1 } {
        std::thread::scope(|scope| {
            scope.spawn(move || run(5_000 + 20 * pair, 50, Clocks::Sound));
            scope.spawn(move || run(5_010 + 20 * pair, 50, Clocks::Jump));
            scope.spawn(move || run(5_015 + 20 * pair, 25, Clocks::Slewed));
        });
    }
}

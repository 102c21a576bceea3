//! Random traffic over connections that are delayed, cut, silent, or half open, directly and
//! through a pooler: the auditor judges what all sessions wrote down. Every choice comes from a
//! seed; how threads interleave does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use servers::{Dice, Faults, PgBouncer, Postgres, Proxy};
use tenure::block_on;
use tenure::conformance::audit::{Recorder, Rules, judge};
use tenure::time::SystemClock;
use tenure::{Error, ErrorKind, LockStatus, Tenure};

use crate::host::assert_empty;

const LEASE: Duration = Duration::from_secs(2);
/// Each behind a proxy of its own.
const SESSIONS: usize = 4;
/// Flows of control in each session.
const FLOWS: usize = 2;

/// One flow of control.
struct Flow {
    tenure: Tenure,
    recorder: Arc<Recorder>,
    dice: Dice,
}

impl Flow {
    async fn round(&mut self) -> Result<(), Error> {
        let patience = Duration::from_millis(500 + self.dice.throw(4_000));
        match self.dice.throw(7) {
            0..3 => {
                let guard = self.tenure.mutex("m")?.timeout(patience).lock().await?;
                self.act(&guard);
                guard.release().await
            }
            3 => {
                let guard = self.tenure.rwlock("rw")?.timeout(patience).write().await?;
                self.act(&guard);
                guard.release().await
            }
            4 => {
                let permit =
                    self.tenure.semaphore("s", 3)?.timeout(patience).acquire_many(2).await?;
                self.act(&permit);
                permit.release().await
            }
            5 => {
                let parts = ["m", "x"].map(|name| self.tenure.mutex(name).unwrap().part());
                let set = self.tenure.lock_set(parts)?.timeout(patience).lock().await?;
                self.act(&set);
                set.release().await
            }
            _ => {
                // One that does not wait, and is only dropped.
                if let Some(guard) = self.tenure.mutex("x")?.try_lock().await? {
                    self.act(&guard);
                }
                Ok(())
            }
        }
    }

    /// Does things that must not overlap; now and then for about as long as a lease lasts.
    fn act(&mut self, held: &LockStatus) {
        let pieces = if self.dice.throw(25) == 0 { self.dice.throw(400) } else { 2 };
        for _ in 0..=pieces {
            if !self.recorder.used(held) {
                return;
            }
            if pieces > 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn play(mut self, rounds: u64, seed: u64) {
        for _ in 0..rounds {
            let Err(error) = block_on(self.round()) else { continue };
            let expected = matches!(
                error.kind(),
                ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Lost
            );
            assert!(expected, "seed {seed}: {error}");
        }
    }
}

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
    if dice.throw(2) == 0 {
        proxy.heal_delivering();
    } else {
        proxy.heal_dropping();
    }
    proxy.refuse(false);
    proxy.delay(Duration::ZERO, Duration::ZERO);
}

/// Counts flows that have ended, also those that panicked.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
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
    let ended = Arc::<AtomicUsize>::default();
    let flows: Vec<_> = (0..SESSIONS * FLOWS)
        .map(|nth| {
            let (tenure, recorder) = (sessions[nth % SESSIONS].clone(), Arc::clone(&recorder));
            let flow = Flow { tenure, recorder, dice: Dice(dice.throw(u64::MAX)) };
            let ended = Ended(Arc::clone(&ended));
            std::thread::spawn(move || {
                let _ended = ended;
                flow.play(rounds, seed);
            })
        })
        .collect();
    while ended.load(Ordering::SeqCst) < flows.len() {
        let victim = usize::try_from(dice.throw(SESSIONS as u64)).unwrap();
        torment(server, &proxies[victim], &mut dice);
    }
    let failed = flows.into_iter().filter_map(|flow| flow.join().err()).count();
    assert_eq!(failed, 0, "seed {seed}: flows failed");
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

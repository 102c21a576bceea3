//! Random traffic over connections that are delayed, cut, silent, or half open, with answers held
//! back and pushes lost: the auditor judges what all sessions wrote down. Every choice comes from a
//! seed; how threads interleave does not.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use servers::{Dice, Faults, Proxy, Redis};
use tenure::block_on;
use tenure::{Error, ErrorKind, LockStatus, Tenure};
use tokio::runtime::Runtime;

use crate::host::{Book, assert_empty, done};

const LEASE: Duration = Duration::from_secs(1);
const PERMITS: u32 = 3;
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

/// One flow of control.
struct Flow {
    tenure: Tenure,
    book: Book,
    dice: Dice,
}

impl Flow {
    async fn round(&mut self) -> Result<(), Error> {
        let patience = Duration::from_millis(300 + self.dice.throw(3_000));
        match self.dice.throw(8) {
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
                let guard = self.tenure.rwlock("rw")?.timeout(patience).read().await?;
                self.act(&guard);
                guard.release().await
            }
            5 => {
                let weight = 1 + u32::try_from(self.dice.throw(2)).unwrap();
                let semaphore = self.tenure.semaphore("s", PERMITS)?.timeout(patience);
                let permit = semaphore.acquire_many(weight).await?;
                self.act(&permit);
                permit.release().await
            }
            6 => {
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

    /// Does things that must not overlap; now and then for about as long as a lease lasts, so that
    /// a fault finds a holder in the middle of it.
    fn act(&mut self, held: &LockStatus) {
        let pieces = if self.dice.throw(25) == 0 { self.dice.throw(200) } else { 2 };
        for _ in 0..=pieces {
            if !self.book.recorder.used(held) {
                return;
            }
            if pieces > 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Plays so many rounds. What ends without a lock must end for a reason that a caller can
    /// expect on a bad link.
    async fn play(mut self, rounds: u64, seed: u64) {
        for _ in 0..rounds {
            let Err(error) = self.round().await else { continue };
            let expected = matches!(
                error.kind(),
                ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Lost
            );
            assert!(expected, "seed {seed}: {error}");
        }
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

fn heal(proxy: &Proxy, delivering: bool) {
    if delivering {
        proxy.heal_delivering();
    } else {
        proxy.heal_dropping();
    }
    proxy.refuse(false);
    proxy.delay(Duration::ZERO, Duration::ZERO);
    proxy.drop_pushes(0);
}

fn connect(book: &Book, proxy: &Proxy, runtime: Option<&Runtime>) -> Tenure {
    let builder = book.builder(LEASE).call_limit(Duration::from_millis(400));
    let url = proxy.redis_url();
    match runtime {
        Some(runtime) => runtime.block_on(builder.connect(&url)).unwrap(),
        None => block_on(builder.connect(&url)).unwrap(),
    }
}

/// Counts flows that have ended, also those that panicked.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn start(
    flow: impl Future<Output = ()> + Send + 'static,
    runtime: Option<&Runtime>,
    ended: Ended,
) -> std::thread::JoinHandle<()> {
    let handle = runtime.map(|runtime| runtime.handle().clone());
    std::thread::spawn(move || {
        let _ended = ended;
        match handle {
            // As a task, on the workers of that runtime.
            Some(handle) => handle.block_on(handle.spawn(flow)).unwrap(),
            None => block_on(flow),
        }
    })
}

fn run(seed: u64, rounds: u64) {
    let (redis, book, mut dice) = (Redis::start(), Book::new(), Dice(seed));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let proxies: Vec<_> = (0..SESSIONS).map(|_| Proxy::to(("127.0.0.1", redis.port()))).collect();
    let home = |nth: usize| nth.is_multiple_of(2).then_some(&runtime);
    let behind = proxies.iter().enumerate();
    let sessions: Vec<_> = behind.map(|(nth, proxy)| connect(&book, proxy, home(nth))).collect();
    let ended = Arc::<AtomicUsize>::default();
    let flows: Vec<_> = (0..SESSIONS * FLOWS)
        .map(|nth| {
            let (tenure, book) = (sessions[nth % SESSIONS].clone(), book.clone());
            let flow = Flow { tenure, book, dice: Dice(dice.throw(u64::MAX)) };
            start(flow.play(rounds, seed), home(nth % SESSIONS), Ended(Arc::clone(&ended)))
        })
        .collect();
    while ended.load(Ordering::SeqCst) < flows.len() {
        let victim = usize::try_from(dice.throw(SESSIONS as u64)).unwrap();
        torment(&redis, &proxies[victim], &mut dice);
    }
    let failed = flows.into_iter().filter_map(|flow| flow.join().err()).count();
    assert_eq!(failed, 0, "seed {seed}: flows failed");
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

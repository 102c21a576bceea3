//! One flow of control that takes locks of every kind over a link that may fail, and threads that
//! play such flows while the test breaks the links. Every choice comes from a seed; how threads
//! interleave does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use servers::{Dice, Proxy};
use tenure::conformance::audit::Recorder;
use tenure::{Error, ErrorKind, LockStatus, Tenure};

const PERMITS: u32 = 3;

/// One flow of control.
pub(crate) struct Flow {
    pub(crate) tenure: Tenure,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) dice: Dice,
    /// The shortest wait for a lock, and up to how many milliseconds more it may be.
    pub(crate) timeout: (Duration, u64),
    /// How many times 5 ms the longest holds last: about a lease, so that a fault finds a holder in
    /// the middle of it.
    pub(crate) longest_hold: u64,
}

impl Flow {
    async fn round(&mut self) -> Result<(), Error> {
        let timeout = self.timeout.0 + Duration::from_millis(self.dice.throw(self.timeout.1));
        match self.dice.throw(8) {
            0..3 => {
                let guard = self.tenure.mutex("m")?.timeout(timeout).lock().await?;
                self.act(&guard);
                guard.release().await
            }
            3 => {
                let guard = self.tenure.rwlock("rw")?.timeout(timeout).write().await?;
                self.act(&guard);
                guard.release().await
            }
            4 => {
                let guard = self.tenure.rwlock("rw")?.timeout(timeout).read().await?;
                self.act(&guard);
                guard.release().await
            }
            5 => {
                let weight = 1 + u32::try_from(self.dice.throw(2)).unwrap();
                let semaphore = self.tenure.semaphore("s", PERMITS)?.timeout(timeout);
                let permit = semaphore.acquire_many(weight).await?;
                self.act(&permit);
                permit.release().await
            }
            6 => {
                let parts = ["m", "x"].map(|name| self.tenure.mutex(name).unwrap().part());
                let set = self.tenure.lock_set(parts)?.timeout(timeout).lock().await?;
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

    /// Does things that must not overlap; now and then for long.
    fn act(&mut self, held: &LockStatus) {
        let pieces = if self.dice.throw(25) == 0 { self.dice.throw(self.longest_hold) } else { 2 };
        for _ in 0..=pieces {
            if !self.recorder.used(held) {
                return;
            }
            if pieces > 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Plays so many rounds. What ends without a lock must end for a reason that a caller can
    /// expect on a bad link.
    pub(crate) async fn play(mut self, rounds: u64, seed: u64) {
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

/// Threads that play flows.
pub(crate) struct Flows {
    running: Vec<JoinHandle<()>>,
    ended: Arc<AtomicUsize>,
}

/// Counts a flow that has ended, also one that panicked.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Flows {
    /// Starts a thread for each of these.
    pub(crate) fn start(flows: impl IntoIterator<Item = impl FnOnce() + Send + 'static>) -> Self {
        let ended = Arc::<AtomicUsize>::default();
        let start = |flow: Box<dyn FnOnce() + Send>| {
            let ended = Ended(Arc::clone(&ended));
            std::thread::spawn(move || {
                let _ended = ended;
                flow();
            })
        };
        let running = flows.into_iter().map(|flow| start(Box::new(flow))).collect();
        Self { running, ended }
    }

    /// Calls `torment` again and again until all have ended, none of them with a panic.
    #[track_caller]
    pub(crate) fn until_done(self, seed: u64, mut torment: impl FnMut()) {
        while self.ended.load(Ordering::SeqCst) < self.running.len() {
            torment();
        }
        let failed = self.running.into_iter().filter_map(|flow| flow.join().err()).count();
        assert_eq!(failed, 0, "seed {seed}: flows failed");
    }
}

/// Lets a link work again, with what was held back or without it.
pub(crate) fn heal(proxy: &Proxy, delivering: bool) {
    if delivering {
        proxy.heal_delivering();
    } else {
        proxy.heal_dropping();
    }
    proxy.refuse(false);
    proxy.delay(Duration::ZERO, Duration::ZERO);
    proxy.drop_pushes(0);
}

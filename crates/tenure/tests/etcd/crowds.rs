//! Many waiters of one process on one name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use servers::{Etcd, Proxy, eventually};
use tenure::contract::{Claim, Query};
use tenure::time::Tick;
use tenure::{Builder, Event, Fence, Tenure, Witness};
use tokio::sync::Semaphore;

use crate::host::{LONG, PATIENCE, keys};

/// How many wait. More of them take longer and show nothing else.
const CROWD: usize = 600;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// How many stand in the queue, if the store has time to say so.
async fn waiting(tenure: &Tenure) -> Option<usize> {
    let seen = tenure.inspect(&Query::Slot("a".try_into().unwrap())).await.ok()?;
    Some(seen.slots.first().map_or(0, |slot| slot.queue.len()))
}

/// A session that a busy machine may keep waiting.
async fn session(namespace: &str, url: &str) -> Tenure {
    let builder = Tenure::builder().lease(LONG).call_limit(PATIENCE).namespace(namespace);
    builder.connect(url).await.unwrap()
}

async fn until_waiting(tenure: &Tenure, count: usize) {
    while waiting(tenure).await.is_none_or(|waiting| waiting < count) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_crowd_is_served_in_order_and_no_waiter_fails() {
    served_in_order(|builder| builder.call_limit(PATIENCE));
}

/// Each call of a crowd is answered within the time that a session allows by default, so that no
/// claim fails for want of an answer: the cost of a claim does not grow with the queue.
#[test]
fn a_crowd_is_served_within_the_default_limit_of_a_call() {
    served_in_order(|builder| builder);
}

fn served_in_order(configured: impl FnOnce(Builder) -> Builder) {
    let etcd = Etcd::start();
    runtime().block_on(async {
        let builder = configured(Tenure::builder().lease(LONG).namespace("crowd"));
        let tenure = builder.connect(&etcd.url()).await.unwrap();
        let first = tenure.mutex("a").unwrap().lock().await.unwrap();
        let fences: Arc<Mutex<Vec<Fence>>> = Arc::default();
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (mutex, fences) = (tenure.mutex("a").unwrap(), Arc::clone(&fences));
                tokio::spawn(async move {
                    let guard = mutex.lock().await?;
                    fences.lock().unwrap().push(guard.fence()?);
                    guard.release().await
                })
            })
            .collect();
        // A waiter that fails ends here, and its error is shown below.
        let failed = || crowd.iter().any(tokio::task::JoinHandle::is_finished);
        while !failed() && waiting(&tenure).await.is_none_or(|waiting| waiting < CROWD) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        first.release().await.unwrap();
        for one in crowd {
            one.await.unwrap().unwrap();
        }
        let fences = fences.lock().unwrap();
        assert_eq!(fences.len(), CROWD);
        assert!(fences.is_sorted_by(|one, next| one < next), "one after the other: {fences:?}");
    });
    assert!(keys(&etcd, "crowd", "a").is_empty(), "nothing is left");
}

#[test]
fn a_crowd_that_gives_up_leaves_nothing_behind() {
    let etcd = Etcd::start();
    runtime().block_on(async {
        let tenure = session("crowd", &etcd.url()).await;
        let first = tenure.mutex("a").unwrap().lock().await.unwrap();
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let mutex = tenure.mutex("a").unwrap();
                tokio::spawn(async move { drop(mutex.lock().await) })
            })
            .collect();
        until_waiting(&tenure, CROWD / 2).await;
        crowd.iter().for_each(tokio::task::JoinHandle::abort);
        while waiting(&tenure).await != Some(0) || tenure.claim_count() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        first.release().await.unwrap();
        tenure.mutex("a").unwrap().lock().await.unwrap().release().await.unwrap();
    });
    eventually("nothing is left", || keys(&etcd, "crowd", "a").is_empty());
}

/// A queue on one name whose waiters are counted as they come, and let go as they are told.
struct Queue {
    tenure: Tenure,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    queued: AtomicUsize,
    served: AtomicUsize,
    /// One permit for each holder that may release.
    releases: Semaphore,
}

impl Default for Counts {
    fn default() -> Self {
        let (queued, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { queued, served, releases: Semaphore::new(0) }
    }
}

impl Witness for Counts {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if matches!(event, Event::Queued { .. }) {
            self.queued.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Queue {
    /// Adds a waiter, and returns when it is queued.
    async fn add(&self) {
        let (mutex, counts) = (self.tenure.mutex("a").unwrap(), Arc::clone(&self.counts));
        let before = self.counts.queued.load(Ordering::SeqCst);
        tokio::spawn(async move {
            let guard = mutex.lock().await?;
            counts.served.fetch_add(1, Ordering::SeqCst);
            counts.releases.acquire().await.expect("never closed").forget();
            guard.release().await
        });
        until(|| self.counts.queued.load(Ordering::SeqCst) > before).await;
    }

    /// Lets the holder release, and returns when the next waiter holds.
    async fn hand_over(&self) {
        let before = self.counts.served.load(Ordering::SeqCst);
        self.counts.releases.add_permits(1);
        until(|| self.counts.served.load(Ordering::SeqCst) > before).await;
    }

    fn waiting(&self) -> usize {
        self.counts.queued.load(Ordering::SeqCst) - self.counts.served.load(Ordering::SeqCst)
    }
}

async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// How many claims and hand-offs are measured at each length of the queue.
const MEASURED: usize = 20;

/// So long that no renewal is among what is counted.
const NO_RENEWAL: Duration = Duration::from_secs(60 * 60);

#[test]
fn claims_and_hand_offs_cost_the_same_in_a_queue_of_ten_and_of_two_thousand() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let bytes = || proxy.counts().to_client + proxy.counts().to_server;
    runtime().block_on(async {
        let counts = Arc::<Counts>::default();
        let builder = Tenure::builder().lease(NO_RENEWAL).max_lease(NO_RENEWAL).namespace("cost");
        let builder = builder.call_limit(PATIENCE).witness(Arc::clone(&counts) as _);
        let tenure = builder.connect(&format!("etcd://{}", proxy.addr())).await.unwrap();
        let first = tenure.mutex("a").unwrap().lock().await.unwrap();
        let queue = Queue { tenure, counts };
        queue.add().await;
        first.release().await.unwrap();
        until(|| queue.waiting() == 0).await;
        let (mut claims, mut hand_offs) = (Vec::new(), Vec::new());
        for length in [10, 2_000] {
            while queue.waiting() < length {
                queue.add().await;
            }
            let before = bytes();
            for _ in 0..MEASURED {
                queue.add().await;
            }
            let between = bytes();
            for _ in 0..MEASURED {
                queue.hand_over().await;
            }
            claims.push((between - before) / MEASURED as u64);
            hand_offs.push((bytes() - between) / MEASURED as u64);
        }
        println!("bytes for a claim {claims:?}, for a hand-off {hand_offs:?}, behind 10 and 2,000");
        // A claim that reads the queue reads some 250 bytes for each waiter. A hand-off of the
        // same length may differ by a request: a waiter looks once more if its watch stands only
        // after what it watches for has happened, which depends on who is faster. 2,000 waiters
        // would be 500 kB.
        assert!(claims[1] * 10 <= claims[0] * 11, "bytes for a claim: {claims:?}");
        assert!(hand_offs[1] <= hand_offs[0] * 2, "bytes for a hand-off: {hand_offs:?}");
    });
}

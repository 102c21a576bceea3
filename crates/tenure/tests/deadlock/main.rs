//! Deadlocks through the library, on real stores: they are found, one wait is refused, all others
//! go on. And what must not be refused is not.

mod history;
mod processes;
mod schedules;
#[path = "../../examples/transfers.rs"]
mod transfers;

use std::future::{Future, pending};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use servers::{Etcd, Postgres, Redis};
use tenure::contract::{Claim, SessionId};
use tenure::time::Tick;
use tenure::{DeadlockMode, Error, ErrorKind, Event, Owner, Tenure, Witness, scope};
use tokio::sync::{Barrier, Semaphore};
use tokio::time::timeout;

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(60);

fn nightly() -> bool {
    std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

/// The engines that break deadlocks.
const ENGINES: [&str; 5] = ["memory", "embedded", "redis", "postgres", "etcd"];

/// The URL of a store of an engine, the embedded one in this directory.
fn store(engine: &str, directory: &Path) -> String {
    let fresh = SessionId::new().to_hex();
    match engine {
        "memory" => format!("memory:{fresh}"),
        "embedded" => format!("embedded://{}", directory.display()),
        "redis" => Redis::shared().url(),
        "postgres" => Postgres::shared().url(),
        _ => Etcd::shared().url(),
    }
}

/// Runs a test on every store, each in a namespace of its own.
fn on_each<F: Future<Output = ()>>(test: impl Fn(Sessions) -> F) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for engine in ENGINES {
        eprintln!("on {engine}");
        let url = store(engine, directory.path());
        let namespace = SessionId::new().to_hex();
        let sessions = Sessions { engine, url, namespace };
        runtime.block_on(async { timeout(PATIENCE, test(sessions)).await }).unwrap_or_else(|_| {
            panic!("on {engine}: not done within {PATIENCE:?}");
        });
    }
}

struct Sessions {
    engine: &'static str,
    url: String,
    namespace: String,
}

impl Sessions {
    /// A session of its own, as another process would have one.
    async fn open(&self, mode: DeadlockMode) -> Tenure {
        self.builder(mode).connect(&self.url).await.unwrap()
    }

    fn builder(&self, mode: DeadlockMode) -> tenure::Builder {
        let builder = Tenure::builder().namespace(&self.namespace).deadlocks(mode);
        let builder = builder.deadlock_delay(Duration::from_millis(50));
        builder.call_limit(Duration::from_secs(10))
    }
}

/// Locks one name, then another, once all others have locked their first.
async fn both(tenure: &Tenure, names: [&str; 2], met: &Barrier) -> Result<(), Error> {
    scope(async {
        let first = tenure.mutex(names[0])?.lock().await?;
        met.wait().await;
        let second = tenure.mutex(names[1])?.lock().await?;
        second.release().await?;
        first.release().await
    })
    .await
}

#[test]
fn of_two_that_wait_for_each_other_exactly_one_is_refused() {
    on_each(|sessions| async move {
        let one = sessions.open(DeadlockMode::Break).await;
        let two = sessions.open(DeadlockMode::Break).await;
        let met = Barrier::new(2);
        let (left, right) =
            tokio::join!(both(&one, ["a", "b"], &met), both(&two, ["b", "a"], &met));
        let refused: Vec<Error> = [left, right].into_iter().filter_map(Result::err).collect();
        let [error] = &refused[..] else { panic!("{}: {refused:?}", sessions.engine) };
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        assert!(error.may_start_over());
        let text = error.to_string();
        let place = file!().rsplit('/').next().unwrap();
        for part in ["holds \"a\"", "holds \"b\"", "waits for \"a\"", "waits for \"b\"", place] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

#[test]
fn philosophers_without_an_order_all_eat() {
    let guests = if nightly() { 50 } else { 5 };
    on_each(|sessions| async move {
        let refused = AtomicU32::new(0);
        let mut tables = Vec::new();
        for _ in 0..guests {
            tables.push(sessions.open(DeadlockMode::Break).await);
        }
        let met = Arc::new(Barrier::new(guests));
        let dinner = tables.iter().enumerate().map(|(seat, tenure)| {
            let (refused, met) = (&refused, Arc::clone(&met));
            async move {
                let forks = [seat, (seat + 1) % guests].map(|fork| format!("fork:{fork}"));
                let mut first_try = true;
                tenure
                    .retry_on_deadlock(|| {
                        let wait = std::mem::take(&mut first_try);
                        let (forks, met) = (&forks, &met);
                        if !wait {
                            refused.fetch_add(1, Ordering::SeqCst);
                        }
                        async move {
                            let left = tenure.mutex(&forks[0])?.lock().await?;
                            if wait {
                                // All have their left fork: the deadlock is certain.
                                met.wait().await;
                            }
                            let right = tenure.mutex(&forks[1])?.lock().await?;
                            right.release().await?;
                            left.release().await
                        }
                    })
                    .await
                    .unwrap();
            }
        });
        futures(dinner).await;
        let refused = refused.into_inner();
        assert!(refused >= 1, "{}: nobody was refused", sessions.engine);
    });
}

/// Waits in a ring of so many owners, each in a scope. If `gives_up`, one of them leaves when the
/// deadlock is reported. Returns how many were refused.
async fn ring(sessions: &Sessions, owners: usize, gives_up: bool) -> u32 {
    let reports = Arc::new(Reports::default());
    let tenure = sessions.builder(DeadlockMode::Break).witness(Arc::clone(&reports) as _);
    // So many looks at once are work for a store.
    let tenure = tenure.deadlock_delay(Duration::from_millis(500));
    let tenure = tenure.connect(&sessions.url).await.unwrap();
    let (met, refused) = (Barrier::new(owners), AtomicU32::new(0));
    let flows = (0..owners).map(|seat| {
        let (tenure, reports, met, refused) = (&tenure, &reports, &met, &refused);
        scope(async move {
            let fork = |at: usize| tenure.mutex(format!("{owners}:{}", at % owners)).unwrap();
            let left = fork(seat).lock().await.unwrap();
            met.wait().await;
            let right = fork(seat + 1);
            let reported = async {
                if seat > 0 || !gives_up {
                    pending::<()>().await;
                }
                reports.0.acquire().await.unwrap().forget();
            };
            tokio::select! {
                lock = right.lock() => match lock {
                    Ok(right) => right.release().await.unwrap(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                },
                () = reported => {}
            }
            left.release().await.unwrap();
        })
    });
    futures(flows).await;
    refused.into_inner()
}

/// One permit for each deadlock that is reported.
#[derive(Debug)]
struct Reports(Semaphore);

impl Default for Reports {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Witness for Reports {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if matches!(event, Event::Deadlock { .. }) {
            self.0.add_permits(1);
        }
    }
}

#[test]
fn a_ring_at_the_limit_is_broken_and_a_larger_one_is_reported() {
    let most = tenure::limits::DEADLOCK_FACTS / 2;
    on_each(|sessions| async move {
        assert_eq!(ring(&sessions, most, false).await, 1, "{}", sessions.engine);
        // It ends because a waiter that got the report leaves.
        assert_eq!(ring(&sessions, most + 1, true).await, 0, "{}", sessions.engine);
    });
}

/// Runs futures of one kind together.
async fn futures<F: Future<Output = ()>>(all: impl Iterator<Item = F>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[test]
fn a_guard_that_left_its_flow_is_no_deadlock_and_is_released_elsewhere() {
    on_each(|sessions| async move {
        let one = sessions.open(DeadlockMode::Break).await;
        let two = sessions.open(DeadlockMode::Break).await;
        let (owner, met) = (Owner::new(), Barrier::new(2));
        let mut away = one.mutex("a").unwrap().owner(&owner).lock().await.unwrap();
        away.detach().await.unwrap();
        let mine = async {
            met.wait().await;
            let lock = one.mutex("b").unwrap().owner(&owner).lock().await;
            lock.unwrap().release().await.unwrap();
        };
        let theirs = both(&two, ["b", "a"], &met);
        let released = async {
            // Both wait, and the detectors have looked several times.
            while one.holders("a").await.unwrap().is_empty()
                || !waits(&one, "a").await
                || !waits(&one, "b").await
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
            assert_eq!(one.deadlocks().await.unwrap(), []);
            away.release().await.unwrap();
        };
        let ((), theirs, ()) = tokio::join!(mine, theirs, released);
        theirs.unwrap();
    });
}

async fn waits(tenure: &Tenure, name: &str) -> bool {
    let query = tenure::Query::Slot(name.parse().unwrap());
    let seen = tenure.inspect(&query).await.unwrap();
    seen.slots.first().is_some_and(|slot| !slot.queue.is_empty())
}

#[test]
fn sessions_that_observe_report_and_are_not_refused() {
    on_each(|sessions| async move {
        let one = sessions.open(DeadlockMode::Observe).await;
        let two = sessions.open(DeadlockMode::Observe).await;
        let met = Barrier::new(2);
        let work = async {
            drop(tokio::join!(both(&one, ["a", "b"], &met), both(&two, ["b", "a"], &met)));
        };
        let look = async {
            loop {
                let found = one.deadlocks().await.unwrap();
                if let [deadlock] = &found[..] {
                    assert_eq!((deadlock.members.len(), deadlock.victim), (2, None));
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = work => panic!("{}: a deadlock ended by itself", sessions.engine),
            () = look => {}
        }
    });
}

#[test]
fn locks_without_a_scope_are_reported_by_task_and_never_refused() {
    on_each(|sessions| async move {
        let one = sessions.open(DeadlockMode::Break).await;
        let met = Arc::new(Barrier::new(2));
        let cross = |names: [&'static str; 2]| {
            let (tenure, met) = (one.clone(), Arc::clone(&met));
            tokio::spawn(async move {
                let first = tenure.mutex(names[0])?.lock().await?;
                met.wait().await;
                let limit = Duration::from_secs(2);
                let second = tenure.mutex(names[1])?.timeout(limit).lock().await;
                first.release().await?;
                second?.release().await
            })
        };
        let (left, right) = (cross(["a", "b"]), cross(["b", "a"]));
        let ended = [left.await.unwrap(), right.await.unwrap()];
        let mut said = Vec::new();
        for error in ended.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{}: {error}", sessions.engine);
            said.push(error.to_string());
        }
        assert!(!said.is_empty(), "{}: neither timed out", sessions.engine);
        assert!(
            said.iter().any(|text| text.contains("a deadlock:") && text.contains("scope")),
            "{said:?}"
        );
    });
}

#[test]
fn a_lower_priority_gives_way() {
    on_each(|sessions| async move {
        let tenure = sessions.open(DeadlockMode::Break).await;
        let met = Barrier::new(2);
        let cross = |names: [&'static str; 2], priority: i8| {
            let (tenure, met) = (&tenure, &met);
            async move {
                scope(async {
                    let first = tenure.mutex(names[0])?.lock().await?;
                    met.wait().await;
                    let second = tenure.mutex(names[1])?.victim_priority(priority).lock().await;
                    first.release().await?;
                    second?.release().await
                })
                .await
            }
        };
        let (low, high) = tokio::join!(cross(["a", "b"], -5), cross(["b", "a"], 5));
        assert_eq!(low.unwrap_err().kind(), ErrorKind::Deadlock, "{}", sessions.engine);
        high.unwrap();
    });
}

#[test]
fn transfers_in_opposite_directions_lose_no_money() {
    let count = if nightly() { 5_000 } else { 600 };
    on_each(|sessions| async move {
        let url = if sessions.engine == "memory" { "memory:".to_owned() } else { sessions.url };
        assert_eq!(transfers::run(&url, count, 16).await.unwrap(), 8_000, "{}", sessions.engine);
    });
}

#[test]
fn a_priority_out_of_range_is_refused() {
    let tenure = Tenure::blocking_connect("memory:").unwrap();
    let error = tenure.mutex("a").unwrap().victim_priority(101).blocking_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let error = Tenure::builder().deadlock_delay(Duration::ZERO).blocking_connect("memory:");
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidOption);
}

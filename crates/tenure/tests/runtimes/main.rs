//! Every engine from every place that a program may call from: each kind of runtime, blocked
//! threads, no runtime at all, and children that were forked. One table of places and one of uses,
//! so that no engine has a gap of its own. Each step has a limit, and not all of them together: a
//! call that hangs fails by its place, and a machine that is slow with all of them does not.
#![cfg(all(
    feature = "embedded",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "redlock"
))]

mod forking;
mod places;
mod stores;
mod stories;
mod uses;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use places::PLACES;
use stores::{LONG, Steps, Store};

/// Declares the tests of all engines.
macro_rules! engines {
    ($($engine:ident)*) => {
        $(mod $engine {
            #[test]
            fn async_calls_work_everywhere() {
                super::async_calls(&super::stores::$engine());
            }

            #[test]
            fn blocking_calls_work_everywhere() {
                super::blocking_calls(&super::stores::$engine());
            }

            #[test]
            fn blocking_calls_work_on_a_runtime_that_async_code_connected_in() {
                super::mixed_calls(&super::stores::$engine());
            }

            #[test]
            fn a_session_can_be_dropped_everywhere() {
                super::drops(&super::stores::$engine());
            }

            #[test]
            fn a_forked_child_gets_errors_at_once_and_harms_nothing() {
                super::forking::a_child(&super::stores::$engine());
            }

            #[test]
            fn children_that_are_forked_amid_work_get_errors_at_once() {
                super::forking::many_children(&super::stores::$engine());
            }

            #[test]
            fn a_lock_that_is_given_up_at_any_instant_is_free_for_others() {
                super::story(&super::stores::$engine(), super::stories::abandoned);
            }

            #[test]
            fn a_guard_outlives_its_runtime_and_is_given_back_by_its_drop() {
                let story = super::stories::guards_of_an_ended_runtime;
                super::story(&super::stores::$engine(), story);
            }

            #[test]
            fn a_blocked_runtime_costs_no_lock() {
                super::story(&super::stores::$engine(), super::stories::blocked_runtimes);
            }

            #[test]
            fn waiters_end_with_their_runtime() {
                let story = super::stories::waiters_of_an_ended_runtime;
                super::story(&super::stores::$engine(), story);
            }

            #[test]
            fn a_lock_is_given_back_when_the_runtime_of_its_holder_is_dropped() {
                let story = super::stories::holders_of_an_ended_runtime;
                super::story(&super::stores::$engine(), story);
            }

            #[test]
            fn a_forgotten_guard_ends_after_its_max_hold() {
                super::story(&super::stores::$engine(), super::stories::forgotten);
            }
        })*
    };
}

engines! { memory embedded redis sentinel cluster redlock postgres etcd }

fn async_calls(store: &Store) {
    for place in PLACES {
        within_limit(store, place.name(), move |store| {
            place.run(move || Box::pin(async move { uses::all_async(&store).await }));
        });
    }
    assert_no_driver_panics();
}

/// Tests run side by side in one process, so the panic may be that of another one.
#[track_caller]
fn assert_no_driver_panics() {
    assert_eq!(places::driver_panics(), 0, "a panic about a missing driver was printed");
}

fn blocking_calls(store: &Store) {
    for place in PLACES {
        within_limit(store, place.name(), move |store| {
            place.run(move || Box::pin(async move { uses::all_blocking(&store) }));
        });
    }
    assert_no_driver_panics();
}

fn mixed_calls(store: &Store) {
    for place in PLACES {
        within_limit(store, place.name(), move |store| {
            place.run(move || {
                Box::pin(async move {
                    let tenure = store.builder().connect(&store.url).await.unwrap();
                    uses::calls_by_blocking(&store, &tenure);
                    tenure::block_on(tenure.close());
                })
            });
        });
    }
    assert_no_driver_panics();
}

/// Sessions that hold something are connected and dropped, inside each place and after its end.
/// What they held is free for another session long before its lease ends.
fn drops(store: &Store) {
    for place in PLACES {
        within_limit(store, place.name(), move |store| {
            for round in 0..rounds() {
                let left = Arc::new(Mutex::new(None));
                let (kept, of_place) = (Arc::clone(&left), store.clone());
                let name = format!("drop-{round}");
                place.run(move || {
                    Box::pin(async move {
                        let connect = of_place.builder().lease(LONG).connect(&of_place.url);
                        let tenure = connect.await.unwrap();
                        let guard = tenure.mutex(format!("drop-{round}")).unwrap().lock().await;
                        let guard = guard.unwrap();
                        match round % 3 {
                            0 => drop((tenure, guard)),
                            1 => drop((guard, tenure)),
                            _ => *kept.lock().unwrap() = Some((tenure, guard)),
                        }
                    })
                });
                drop(left);
                store.assert_free(&name);
                store.steps.count();
            }
        });
    }
    assert_no_driver_panics();
}

fn story(store: &Store, play: fn(&Store)) {
    within_limit(store, "in a story", move |store| play(&store));
}

/// More of them find more: `TENURE_ROUNDS=1000`.
fn rounds() -> usize {
    std::env::var("TENURE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

/// How long one step may take: several times the limits of its calls.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// Does work on a thread of its own, each step of which must end in time.
#[track_caller]
fn within_limit(store: &Store, place: &str, work: impl FnOnce(Store) + Send + 'static) {
    let what = format!("{} {place}", store.name);
    let (steps, mut store) = (Steps::default(), store.clone());
    store.steps = steps.clone();
    let (tell, told) = channel();
    let thread = std::thread::Builder::new().name(what.clone());
    let thread = thread.spawn(move || {
        work(store);
        let _ = tell.send(());
    });
    let ended = steps.until(STEP_LIMIT, |limit| match told.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => false,
        // The end of the thread, by a panic too.
        _ => true,
    });
    match ended {
        Ok(()) => assert!(thread.unwrap().join().is_ok(), "{what}: failed"),
        Err(steps) => panic!("{what}: hangs after {steps} steps"),
    }
}

/// A slow machine was taken for a hang while the limit was one of all steps.
#[test]
fn steps_that_go_on_are_no_hang_however_many_limits_they_take() {
    let steps = Steps::default();
    let mut waits = 0;
    let ended = steps.until(Duration::ZERO, |_| {
        waits += 1;
        steps.count();
        waits == 10
    });
    assert_eq!((ended, waits), (Ok(()), 10));
    assert_eq!(steps.until(Duration::ZERO, |_| false), Err(10));
}

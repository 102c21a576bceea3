//! What must hold on every store whose server has a wall clock, when that clock is stepped.

use std::time::Duration;

use servers::Direction;
use tenure::{MutexGuard, TakeOutcome, Tenure, block_on};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Steps in both directions, also to before the first and to after the last.
pub(crate) const STEPS: [(Duration, Direction); 5] = [
    (HOUR, Direction::Forward),
    (Duration::from_secs(2 * 3_600), Direction::Back),
    (Duration::from_secs(1_800), Direction::Forward),
    (HOUR, Direction::Back),
    (Duration::from_secs(3 * 3_600), Direction::Forward),
];

/// Acquires a lock, releases it, and returns its fence.
pub(crate) fn fence(tenure: &Tenure, name: &str) -> u64 {
    let guard = block_on(tenure.mutex(name).unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap().get();
    block_on(guard.release()).unwrap();
    fence
}

/// Acquires `a` and `b` as a set, whose fences must be above `before`, releases it, and returns the
/// larger fence.
#[track_caller]
pub(crate) fn fence_of_set_above(tenure: &Tenure, before: u64) -> u64 {
    let parts = ["a", "b"].map(|name| tenure.mutex(name).unwrap().part());
    let set = block_on(tenure.lock_set(parts).unwrap().lock()).unwrap();
    let fences = ["a", "b"].map(|name| set.fence_of(name).unwrap().get());
    assert!(fences.iter().all(|fence| *fence > before), "{fences:?} after {before}");
    block_on(set.release()).unwrap();
    fences[0].max(fences[1])
}

/// Takes the one permit of an hour from two rates, steps the clock of the server back by two hours
/// and asks again: the window must end when it would have ended, and not when the clock is there
/// again.
#[track_caller]
pub(crate) fn assert_windows_outlast_a_step_back(tenure: &Tenure, step_back: impl FnOnce()) {
    let limited = tenure.rate("limited").unwrap().limit(1, HOUR);
    let paced = tenure.rate("paced").unwrap().pace(1, HOUR, 1);
    for rate in [&limited, &paced] {
        assert!(block_on(rate.take(1)).unwrap().is_allowed());
    }
    step_back();
    for rate in [&limited, &paced] {
        let TakeOutcome::Refused(refusal) = block_on(rate.take(1)).unwrap() else {
            panic!("a permit was taken in this hour")
        };
        assert!(refusal.retry_after() <= HOUR, "{:?}", refusal.retry_after());
    }
}

/// Releases the lock, and serves those that wait for it one after the other, each with a larger
/// fence.
#[track_caller]
pub(crate) fn assert_served_in_turn<const N: usize>(
    holder: MutexGuard,
    waiters: [impl FnOnce() -> MutexGuard; N],
) {
    let mut last = holder.fence().unwrap();
    block_on(holder.release()).unwrap();
    for served in waiters {
        let next = served();
        assert!(next.fence().unwrap() > last);
        last = next.fence().unwrap();
        block_on(next.release()).unwrap();
    }
}

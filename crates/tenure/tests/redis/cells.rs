//! Writes that carry a fence, in the store itself.

use servers::Redis;
use tenure::block_on;
use tenure::{Name, Put, PutVerdict, Tenure};

use crate::host::done;

#[test]
fn a_writer_that_lost_its_lock_is_refused() {
    let redis = Redis::start();
    let (one, two) = (
        block_on(Tenure::connect(&redis.url())).unwrap(),
        block_on(Tenure::connect(&redis.url())).unwrap(),
    );
    let report: Name = "report".parse().unwrap();
    let write = |tenure: &Tenure, value: &str, fence| {
        let put = Put::new(report.clone(), value).fenced(fence);
        block_on(tenure.cells().put(&put)).unwrap()
    };
    let slow = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let old = slow.fence().unwrap();
    assert!(matches!(write(&one, "draft", old), PutVerdict::Done(_)));
    // Somebody takes the lock away, and another one has it.
    block_on(one.force_release("a", old, "too slow")).unwrap();
    let quick = block_on(two.mutex("a").unwrap().lock()).unwrap();
    let new = quick.fence().unwrap();
    assert!(new > old);
    assert!(matches!(write(&two, "final", new), PutVerdict::Done(_)));
    // The slow one had read its fence before, and comes now.
    assert_eq!(write(&one, "late", old), PutVerdict::Stale(new));
    let read = || block_on(two.cells().get(&report)).unwrap();
    assert_eq!(read().unwrap().value, b"final");
    // Also when the value is gone, and when the store has forgotten the scripts.
    let removed = block_on(two.cells().remove(&report, tenure::Expect::Fence(new))).unwrap();
    assert!(matches!(removed, PutVerdict::Done(_)));
    done(&redis, &["SCRIPT", "FLUSH"]);
    assert_eq!(write(&one, "later", old), PutVerdict::Stale(new));
    assert_eq!(read(), None);
}

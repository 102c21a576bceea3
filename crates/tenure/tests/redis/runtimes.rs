//! A runtime that is there and not polled: waiters are served. What every engine must do is in
//! `tests/runtimes`.

use servers::Redis;
use tenure::block_on;
use tokio::runtime::Builder;

use crate::host::{Book, LONG};

#[test]
fn a_thread_that_waits_is_told_at_once_though_nobody_polls_the_runtime() {
    let (redis, book) = (Redis::start(), Book::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let other = book.session(&redis.url(), LONG);
    let tenure = runtime.block_on(book.builder(LONG).connect(&redis.url())).unwrap();
    for _ in 0..3 {
        let guard = block_on(other.mutex("a").unwrap().lock()).unwrap();
        let waiter = book.waiter(&tenure, "a");
        block_on(guard.release()).unwrap();
        // A renewal of so long a lease would come later than this test waits.
        block_on(waiter.served().release()).unwrap();
    }
    // The runtime is there all the time, and can be used again.
    runtime.block_on(async { tenure.mutex("a").unwrap().lock().await?.release().await }).unwrap();
    for tenure in [tenure, other] {
        block_on(tenure.close());
    }
    book.assert_sound("a runtime that is not polled");
}

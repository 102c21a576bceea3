//! Keys that are used again. Deleted keys stay in etcd's index until it is compacted, and a look at
//! a slot walks over them: a lock with keys of its own for each use would get slower with each use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use servers::{Etcd, eventually};
use tenure::block_on;
use tenure::contract::{Claim, Part, Parts, SessionId, Verdict};
use tenure::{Error, Mutex, MutexGuard, Tenure, limits};

use crate::host::{Book, LONG, ever_used, keys, letter};
use crate::recipes::{claim, engine};

/// How often a lock is used.
const USES: usize = 300;

/// Most keys for all uses. A newcomer that waits chooses one of 64 tags, and of 4 more for each key
/// that it finds: one or two here, so there are 72 tags at most, each with a ticket and a hold, and
/// the hold of those that found the slot free. With keys of their own, the waiters alone would have
/// 300.
const KEYS: usize = 150;

/// The same for a lock with a delay: each tag has a key more, for the delay.
const KEYS_WITH_DELAY: usize = 220;

/// Uses a lock in turns: half of the acquisitions find it free, the others wait for it.
fn use_in_turns<L, G>(
    book: &Book,
    namespace: &str,
    lock: impl Fn(&Tenure) -> L,
    acquire: impl Fn(L) -> Result<G, Error> + Copy + Send + 'static,
    release: impl Fn(G) -> Result<(), Error>,
) where
    L: Send + 'static,
    G: Send + 'static,
{
    let sessions: Vec<_> = (0..3).map(|_| book.session(namespace, LONG)).collect();
    let mut guard = acquire(lock(&sessions[0])).unwrap();
    for turn in 1..USES {
        let next = lock(&sessions[turn % 3]);
        if turn % 2 == 0 {
            release(guard).unwrap();
            guard = acquire(next).unwrap();
        } else {
            let waiter = book.waiter_for(move || acquire(next));
            release(guard).unwrap();
            guard = waiter.served();
        }
    }
    release(guard).unwrap();
}

#[test]
fn a_lock_leaves_no_key_behind_for_each_use() {
    let book = Book::new(&Etcd::shared().url());
    let plain = |tenure: &Tenure| tenure.mutex("a").unwrap();
    use_in_turns(
        &book,
        "worn",
        plain,
        |lock| block_on(lock.lock()),
        |guard| block_on(guard.release()),
    );
    let used = ever_used(Etcd::shared(), "worn", "a");
    assert!((2..=KEYS).contains(&used), "{used} keys for {USES} uses");
    book.assert_sound(USES);
}

#[test]
fn a_lock_with_a_delay_leaves_no_key_behind_for_each_use() {
    let book = Book::new(&Etcd::shared().url());
    let delayed = |tenure: &Tenure| tenure.mutex("a").unwrap().lock_delay(LONG);
    let (acquire, release) =
        (|lock: Mutex| block_on(lock.lock()), |guard: MutexGuard| block_on(guard.release()));
    use_in_turns(&book, "worn-delay", delayed, acquire, release);
    let used = ever_used(Etcd::shared(), "worn-delay", "a");
    assert!((3..=KEYS_WITH_DELAY).contains(&used), "{used} keys for {USES} uses");
    book.assert_sound(USES);
}

#[test]
fn a_set_that_waits_leaves_no_key_behind_for_each_use() {
    let book = Book::new(&Etcd::shared().url());
    let both = |tenure: &Tenure| {
        let part = |name: &str| tenure.mutex(name).unwrap().part();
        tenure.lock_set([part("a"), part("b")]).unwrap()
    };
    use_in_turns(
        &book,
        "worn-set",
        both,
        |set| block_on(set.lock()),
        |guard| block_on(guard.release()),
    );
    for name in ["a", "b"] {
        let used = ever_used(Etcd::shared(), "worn-set", name);
        assert!((2..=KEYS).contains(&used), "{used} keys of {name} for {USES} uses");
    }
    book.assert_sound(USES);
}

/// A claim with a lock delay, in a session.
fn delayed(session: SessionId, delay: Duration) -> Arc<Claim> {
    let mut delayed = (*claim(session, Duration::from_secs(2))).clone();
    delayed.lock_delay = delay;
    Arc::new(delayed)
}

#[test]
fn the_end_of_a_lock_delay_does_not_end_that_of_a_later_claim_at_the_same_key() {
    let (etcd, namespace) = (Etcd::shared(), "delay-end");
    let (engine, session) = (engine(namespace), SessionId::new());
    let delay = Duration::from_secs(2);
    let forgotten = delayed(session, delay);
    assert!(matches!(block_on(engine.claim(&forgotten)), Ok(Verdict::Granted(_))));
    let kinds = || keys(etcd, namespace, "a").iter().filter_map(|key| letter(key)).collect();
    eventually("the claim has ended, and its delay stands", || {
        let kinds: Vec<char> = kinds();
        kinds == ['d']
    });
    // From here on the engine deletes the delay within its length.
    let due = Instant::now() + delay;
    etcd.ctl(&["del", &keys(etcd, namespace, "a")[0]]).unwrap();
    let later = delayed(session, delay);
    assert!(matches!(block_on(engine.claim(&later)), Ok(Verdict::Granted(_))));
    let mut turns = 0;
    while Instant::now() < due || turns == 0 {
        block_on(engine.renew(&[later.to_ref()])).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        turns += 1;
    }
    let kinds: Vec<char> = kinds();
    assert_eq!(kinds, ['d', 'h'], "the delay of the later claim stands");
}

#[test]
fn a_lock_delay_is_deleted_when_it_has_passed_although_its_lease_is_kept_alive() {
    let (etcd, namespace) = (Etcd::shared(), "delay-passed");
    let (engine, session) = (engine(namespace), SessionId::new());
    let delay = Duration::from_secs(1);
    let (forgotten, mut sister) = (delayed(session, delay), (*delayed(session, delay)).clone());
    sister.parts = Parts::one(Part::write("b".try_into().unwrap()));
    let sister = Arc::new(sister);
    for claim in [&forgotten, &sister] {
        assert!(matches!(block_on(engine.claim(claim)), Ok(Verdict::Granted(_))));
    }
    eventually("nothing is left of the forgotten claim", || {
        block_on(engine.renew(&[sister.to_ref()])).unwrap();
        keys(etcd, namespace, "a").is_empty()
    });
    assert_eq!(keys(etcd, namespace, "b").len(), 2, "a hold and its delay");
}

/// etcd takes 128 operations in a transaction. Such a set has a hold, a ticket and a lock delay for
/// each of its names.
#[test]
fn the_largest_set_with_a_lock_delay_waits_and_is_released() {
    let (etcd, namespace) = (Etcd::shared(), "large");
    let book = Book::new(&etcd.url());
    let (one, two) = (book.session(namespace, LONG), book.session(namespace, LONG));
    let names: Vec<String> = (0..limits::SET_NAMES).map(|at| format!("n{at}")).collect();
    let parts = names.iter().map(|name| two.mutex(name).unwrap().part());
    let set = two.lock_set(parts).unwrap().lock_delay(LONG);
    let guard = block_on(one.mutex("n3").unwrap().lock()).unwrap();
    let waiter = book.waiter_for(move || block_on(set.lock()));
    block_on(guard.release()).unwrap();
    block_on(waiter.served().release()).unwrap();
    for name in &names {
        assert!(keys(etcd, namespace, name).is_empty(), "{name}");
    }
}

//! Grants that replicas have, and the refusal when they do not.

use std::time::Duration;

use servers::{Redis, Reply};
use tenure::{ErrorKind, Mutex, MutexGuard, Tenure};

/// For replicas that shall confirm: as long as may be asked for, because machines are busy.
const LONG: Duration = Duration::from_millis(1_500);
/// For replicas that cannot.
const WITHIN: Duration = Duration::from_millis(500);

fn pair() -> (Redis, Redis) {
    let primary = Redis::start();
    let replica = Redis::builder().replica_of(&primary).start();
    (primary, replica)
}

async fn asking(url: &str, within: Duration) -> Tenure {
    Tenure::builder().replicas(1, within).connect(url).await.unwrap()
}

/// The first lock that a replica confirms: one that is late, as any may be, costs a try.
async fn confirmed(mutex: &Mutex) -> MutexGuard {
    for _ in 0..9 {
        if let Ok(guard) = mutex.lock().await {
            return guard;
        }
    }
    mutex.lock().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_says_how_many_replicas_had_the_grant() {
    let (primary, _replica) = pair();
    let tenure = asking(&primary.url(), LONG).await;
    let guard = confirmed(&tenure.mutex("a").unwrap()).await;
    assert_eq!(guard.replicas(), Some(1));
    guard.release().await.unwrap();
    // A set, and a store that has forgotten the scripts: then nothing was written, and what WAIT
    // says of that does not count.
    primary.cmd(&["SCRIPT", "FLUSH"]).unwrap();
    let parts = ["b", "c"].map(|name| tenure.mutex(name).unwrap().part());
    let guard = tenure.lock_set(parts).unwrap().lock().await.unwrap();
    assert_eq!(guard.replicas(), Some(1));
    let plain = Tenure::connect(&primary.url()).await.unwrap();
    let guard = plain.mutex("a").unwrap().lock().await.unwrap();
    assert_eq!(guard.replicas(), None, "nobody asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_was_pushed_is_confirmed_too() {
    let (primary, _replica) = pair();
    let plain = Tenure::connect(&primary.url()).await.unwrap();
    let tenure = asking(&primary.url(), LONG).await;
    let pushed = async || {
        let held = plain.mutex("a").unwrap().lock().await.unwrap();
        let mutex = tenure.mutex("a").unwrap();
        let waiter = tokio::spawn(async move { mutex.lock().await });
        while tenure.claim_count() == 0 {
            tokio::task::yield_now().await;
        }
        held.release().await.unwrap();
        waiter.await.unwrap()
    };
    let mut guard = pushed().await;
    for _ in 0..9 {
        if guard.is_ok() {
            break;
        }
        guard = pushed().await;
    }
    let guard = guard.unwrap();
    assert_eq!(guard.replicas(), Some(1));
    assert!(guard.fence().is_ok());
}

/// H3: with the replica stopped, `WAIT 1` says 0 on the connection that wrote and 1 on any other.
/// A lock that asked on another connection would be handed out.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_stopped_confirms_nothing_and_the_lock_is_given_back() {
    let (primary, replica) = pair();
    let tenure = asking(&primary.url(), WITHIN).await;
    let mutex = tenure.mutex("a").unwrap();
    confirmed(&mutex).await.release().await.unwrap();
    replica.stop();
    let (mut writer, mut other) = (primary.connect().unwrap(), primary.connect().unwrap());
    writer.cmd(&["SET", "x", "1"]).unwrap();
    assert_eq!(writer.cmd(&["WAIT", "1", "100"]), Ok(Reply::Int(0)));
    assert_eq!(other.cmd(&["WAIT", "1", "100"]), Ok(Reply::Int(1)), "the lie that H3 is about");
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = "only 0 of 1 replicas confirmed within 500ms";
    assert!(error.to_string().contains(said), "{error}");
    // Given back, not left to its lease of half a minute.
    let plain = Tenure::connect(&primary.url()).await.unwrap();
    let guard = plain.mutex("a").unwrap().try_lock().await.unwrap();
    guard.expect("nobody holds it").release().await.unwrap();
    replica.cont();
    assert_eq!(confirmed(&mutex).await.replicas(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_at_once_share_a_few_waits() {
    let (primary, replica) = pair();
    let tenure = asking(&primary.url(), WITHIN).await;
    confirmed(&tenure.mutex("first").unwrap()).await.release().await.unwrap();
    replica.stop();
    let before = primary.commands("wait");
    let tasks: Vec<_> = (0..40)
        .map(|n| {
            let mutex = tenure.mutex(format!("lock-{n}")).unwrap();
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let waits = primary.commands("wait") - before;
    assert!(waits <= 10, "{waits} waits for 40 locks");
    replica.cont();
}

#[tokio::test]
async fn engines_without_replicas_and_senseless_numbers_are_refused() {
    let within = |replicas, within| Tenure::builder().replicas(replicas, within).connect("memory:");
    let error = within(1, WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for (replicas, time) in [(0, WITHIN), (65, WITHIN), (1, Duration::ZERO), (1, 4 * WITHIN)] {
        let error = within(replicas, time).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
}

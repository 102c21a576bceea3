//! Values and hashes in a real Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use servers::{Redis, Reply};
use tenure::{Effect, Error, ErrorKind, Fence, Tenure};
use tenure_fence::redis::{FencedHash, FencedValue};
use tenure_fence::{Refusal, Resource};

const LARGEST: u64 = (1 << 53) - 1;

async fn connect(server: &Redis) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

/// The fences of a refusal: given and seen.
#[track_caller]
fn refused(outcome: Result<(), Error>) -> (u64, u64) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let refusal = Refusal::in_error(&error).unwrap();
    assert_eq!(refusal.resource(), Resource::Redis);
    (refusal.given().get(), refusal.seen().get())
}

fn read(server: &Redis, words: &[&str]) -> Option<String> {
    match server.read(words) {
        Reply::Text(text) => Some(text),
        Reply::Nil => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_paused_holder_wakes_late_and_is_refused() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let paused = Tenure::connect(&server.url()).await.unwrap();
    let next = Tenure::connect(&server.url()).await.unwrap();
    let (value, hash) = (FencedValue::new("balance"), FencedHash::new("account"));

    let guard = paused.mutex("account:17").unwrap().lock().await.unwrap();
    let late = guard.fence().unwrap();
    // The holder does not run from here on. An operator releases its lock, and another has it.
    next.force_release("account:17", late, "it does not answer").await.unwrap();
    let holder = next.mutex("account:17").unwrap().lock().await.unwrap();
    let current = holder.fence().unwrap();
    value.set(&mut connection, "100", current).await.unwrap();
    hash.set(&mut connection, [("balance", "100")], current).await.unwrap();

    // It goes on, and does not look at its guard again.
    let expected = (late.get(), current.get());
    assert_eq!(refused(value.set(&mut connection, "0", late).await), expected);
    let fields = [("balance", "0"), ("closed", "yes")];
    assert_eq!(refused(hash.set(&mut connection, fields, late).await), expected);
    assert_eq!(read(&server, &["GET", "balance"]).unwrap(), "100");
    assert_eq!(read(&server, &["HGET", "account", "balance"]).unwrap(), "100");
    assert_eq!(read(&server, &["HGET", "account", "closed"]), None);
}

#[tokio::test]
async fn equal_and_larger_fences_write_and_smaller_ones_do_not_up_to_the_largest() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let (value, hash) = (FencedValue::new("v"), FencedHash::new("h"));
    for (turn, number) in [0, 5, 5, 9, 10, LARGEST - 1, LARGEST, LARGEST].into_iter().enumerate() {
        let text = format!("turn {turn}");
        value.set(&mut connection, &text, fence(number)).await.unwrap();
        hash.set(&mut connection, [("f", &text)], fence(number)).await.unwrap();
        assert_eq!(read(&server, &["GET", "v"]).unwrap(), text);
        assert_eq!(read(&server, &["HGET", "h", "f"]).unwrap(), text);
    }
    for number in [0, 7, 10, LARGEST - 1] {
        let stale = fence(number);
        assert_eq!(refused(value.set(&mut connection, "x", stale).await), (number, LARGEST));
        let none: [(&str, &str); 0] = [];
        assert_eq!(refused(hash.set(&mut connection, none, stale).await), (number, LARGEST));
    }
    let error = value.set(&mut connection, "x", fence(LARGEST + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert_eq!(read(&server, &["GET", "v"]).unwrap(), "turn 7");
}

#[tokio::test]
async fn any_bytes_may_be_keys_fields_and_values() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let odd: &[u8] = b"a\r\n' .. redis.call('FLUSHALL') .. '\0\xff{";
    FencedValue::new(odd).set(&mut connection, odd, fence(2)).await.unwrap();
    FencedHash::new("h").set(&mut connection, [(odd, odd)], fence(2)).await.unwrap();
    let got: Vec<u8> = redis::cmd("GET").arg(odd).query_async(&mut connection).await.unwrap();
    assert_eq!(got, odd);
    let mut get = redis::cmd("HGET");
    let got: Vec<u8> = get.arg("h").arg(odd).query_async(&mut connection).await.unwrap();
    assert_eq!(got, odd);
    let error = FencedValue::new(odd).set(&mut connection, odd, fence(1)).await.unwrap_err();
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    // A script that the server has forgotten is loaded again.
    server.cmd(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(refused(FencedValue::new(odd).set(&mut connection, odd, fence(1)).await), (1, 2));
    // More fields than Lua can unpack.
    let many: Vec<_> = (0..9000).map(|n| (format!("f{n}"), n.to_string())).collect();
    FencedHash::new("many").set(&mut connection, many, fence(1)).await.unwrap();
    assert_eq!(server.read(&["HLEN", "many"]), Reply::Int(9001));
}

#[tokio::test]
async fn a_value_may_expire_and_its_fence_stays() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let value = FencedValue::new("v").fence_in("fence of v");
    value.set_for(&mut connection, "x", Duration::from_millis(1), fence(9)).await.unwrap();
    servers::eventually("it has expired", || read(&server, &["GET", "v"]).is_none());
    assert_eq!(read(&server, &["GET", "fence of v"]).unwrap(), "9");
    assert_eq!(server.read(&["PTTL", "fence of v"]), Reply::Int(-1));
    assert_eq!(refused(value.set(&mut connection, "x", fence(8)).await), (8, 9));
    let error = value.set_for(&mut connection, "x", Duration::ZERO, fence(9)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
}

#[tokio::test]
async fn a_time_to_live_that_the_server_refuses_leaves_value_and_fence_as_they_were() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let value = FencedValue::new("v").fence_in("f");
    value.set(&mut connection, "old", fence(1)).await.unwrap();
    let error = value.set_for(&mut connection, "new", Duration::MAX, fence(2)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert_eq!(read(&server, &["GET", "v"]).unwrap(), "old");
    assert_eq!(read(&server, &["GET", "f"]).unwrap(), "1");
}

#[tokio::test]
async fn what_is_no_fence_is_an_error_and_nothing_is_written() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    let value = FencedValue::new("v").fence_in("f");
    for text in ["", "x", "-1", "1e9", "99999999999999999"] {
        server.cmd(&["SET", "f", text]).unwrap();
        server.cmd(&["HSET", "h", "tenure-fence", text]).unwrap();
        let error = value.set(&mut connection, "x", fence(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text:?}: {error}");
        let hash = FencedHash::new("h");
        let error = hash.set(&mut connection, [("f", "x")], fence(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text:?}: {error}");
    }
    server.cmd(&["DEL", "f"]).unwrap();
    server.cmd(&["LPUSH", "f", "x"]).unwrap();
    let error = value.set(&mut connection, "x", fence(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let error = FencedHash::new("f").set(&mut connection, [("a", "x")], fence(5)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidOption);
    let own = FencedHash::new("new").fence_in("a");
    let error = own.set(&mut connection, [("a", "x")], fence(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert_eq!(read(&server, &["GET", "v"]), None);
    assert_eq!(server.read(&["EXISTS", "new"]), Reply::Int(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_at_once_the_largest_fence_remains() {
    let server = Redis::start();
    let connection = connect(&server).await;
    let writers: Vec<_> = (0..64)
        .map(|number| {
            let (mut connection, number) = (connection.clone(), number * 37 % 64);
            tokio::spawn(async move {
                let value = FencedValue::new("v");
                let outcome = value.set(&mut connection, number.to_string(), fence(number)).await;
                outcome.err().map(|error| Refusal::in_error(&error).unwrap().seen().get())
            })
        })
        .collect();
    for writer in writers {
        let seen = writer.await.unwrap();
        assert!(seen.is_none_or(|seen| seen < 64), "{seen:?}");
    }
    assert_eq!(read(&server, &["GET", "v"]).unwrap(), "63");
}

#[tokio::test]
async fn a_fence_is_in_the_slot_of_its_value() {
    let server = Redis::builder().arg("cluster-enabled", "yes").start();
    for (key, fence) in [("balance", "{balance}:tenure-fence"), ("a{17}", "a{17}:tenure-fence")] {
        let slot = |key: &str| server.read(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(slot(key), slot(fence));
    }
    // A cluster refuses keys of two slots; the error says what to do.
    let all: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let words: Vec<&str> =
        ["CLUSTER", "ADDSLOTS"].into_iter().chain(all.iter().map(|s| &**s)).collect();
    server.cmd(&words).unwrap();
    servers::eventually("the cluster serves", || {
        read(&server, &["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok")
    });
    let mut connection = connect(&server).await;
    FencedValue::new("balance").set(&mut connection, "100", fence(1)).await.unwrap();
    let apart = FencedValue::new("balance").fence_in("elsewhere");
    let error = apart.set(&mut connection, "100", fence(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("another slot"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_gone_leaves_the_effect_unknown() {
    let server = Redis::start();
    let mut connection = connect(&server).await;
    server.kill();
    let error = FencedValue::new("v").set(&mut connection, "x", fence(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::Unknown);
}

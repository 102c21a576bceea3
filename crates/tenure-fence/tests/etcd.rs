//! Fenced puts in a real etcd, through two clients that know nothing of Tenure: the JSON gateway
//! that every etcd has, and `etcdctl`.

use std::io::{Read, Write};
use std::net::TcpStream;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use servers::Etcd;
use tenure::{Error, ErrorKind, Fence, Ownership, Tenure};
use tenure_fence::etcd::FencedPut;
use tenure_fence::{Refusal, Resource};

fn fence(number: u64) -> Fence {
    Fence::new(number)
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Sends a transaction to the JSON gateway.
fn txn(etcd: &Etcd, body: &Value) -> Value {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port(0))).unwrap();
    let body = body.to_string();
    let length = body.len();
    // HTTP 1.0: the response is what comes until the connection ends.
    write!(stream, "POST /v3/kv/txn HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.lines().next().unwrap().contains(" 200 "), "{response}");
    serde_json::from_str(body).unwrap()
}

/// A put, in the gateway's JSON.
fn put(key: &[u8], value: &[u8]) -> Value {
    json!({"request_put": {"key": encoded(key), "value": encoded(value)}})
}

/// Maps the parts of a write onto the gateway's JSON, and its response back.
fn send(etcd: &Etcd, write: &FencedPut) -> Result<(), Error> {
    let parts = write.transaction();
    let key = encoded(&parts.fence_key);
    let value = encoded(&parts.if_greater_than);
    let puts: Vec<Value> = parts.else_put.iter().map(|(key, value)| put(key, value)).collect();
    let response = txn(
        etcd,
        &json!({
            "compare": [{"key": key, "target": "VALUE", "result": "GREATER", "value": value}],
            "success": [{"request_range": {"key": key}}],
            "failure": puts,
        }),
    );
    let read = response["responses"][0]["response_range"]["kvs"][0]["value"].as_str();
    let read = read.map(|text| BASE64_STANDARD.decode(text).unwrap());
    write.outcome(response["succeeded"] == true, read.as_deref())
}

fn get(etcd: &Etcd, key: &str) -> String {
    etcd.ctl(&["get", "--print-value-only", key]).unwrap().trim_end().to_owned()
}

#[track_caller]
fn refused(outcome: Result<(), Error>) -> (u64, u64) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let refusal = Refusal::in_error(&error).unwrap();
    assert_eq!(refusal.resource(), Resource::Etcd);
    (refusal.given().get(), refusal.seen().get())
}

#[tokio::test]
async fn a_paused_holder_wakes_late_and_is_refused_by_fence_and_by_ownership() {
    let etcd = Etcd::shared();
    let paused = Tenure::connect(&etcd.url()).await.unwrap();
    let next = Tenure::connect(&etcd.url()).await.unwrap();
    let guard = paused.mutex("paused:account").unwrap().lock().await.unwrap();
    let late = guard.fence().unwrap();
    let Ownership { key, revision } = guard.ownership().await.unwrap();
    let under_the_lock = |value: &str| {
        json!({
            "compare": [{
                "key": encoded(&key), "target": "CREATE", "result": "EQUAL",
                "create_revision": revision.to_string(),
            }],
            "success": [put(b"paused:owned", value.as_bytes())],
        })
    };
    assert_eq!(txn(etcd, &under_the_lock("100"))["succeeded"], true);

    // The holder does not run from here on. An operator releases its lock, and another has it.
    next.force_release("paused:account", late, "it does not answer").await.unwrap();
    let holder = next.mutex("paused:account").unwrap().lock().await.unwrap();
    let current = holder.fence().unwrap();
    send(etcd, &FencedPut::new("paused:balance", "100", current).unwrap()).unwrap();

    // It goes on, and does not look at its guard again.
    let write = FencedPut::new("paused:balance", "0", late).unwrap();
    assert_eq!(refused(send(etcd, &write)), (late.get(), current.get()));
    assert_eq!(get(etcd, "paused:balance"), "100");
    assert_ne!(txn(etcd, &under_the_lock("0"))["succeeded"], true);
    assert_eq!(get(etcd, "paused:owned"), "100");
    holder.release().await.unwrap();
}

#[test]
fn equal_and_larger_fences_write_and_smaller_ones_do_not_up_to_the_largest() {
    let etcd = Etcd::shared();
    let largest = (1 << 53) - 1;
    // Of texts of unequal length 9 would come after 10.
    let growing = [0, 9, 10, 10, 100, largest - 1, largest, largest];
    for (turn, number) in growing.into_iter().enumerate() {
        let value = format!("turn {turn}");
        let write = FencedPut::new("grow", &*value, fence(number)).unwrap().and("grow:2", "also");
        send(etcd, &write).unwrap();
        assert_eq!(get(etcd, "grow"), value);
    }
    assert_eq!(get(etcd, "grow:2"), "also");
    for number in [0, 9, 10, largest - 1] {
        let write = FencedPut::new("grow", "stale", fence(number)).unwrap();
        assert_eq!(refused(send(etcd, &write)), (number, largest));
    }
    assert_eq!(get(etcd, "grow"), "turn 7");
    let error = FencedPut::new("grow", "x", fence(largest + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
}

#[test]
fn several_keys_may_share_one_fence() {
    let etcd = Etcd::shared();
    let write = |key: &str, number: u64| {
        let put = FencedPut::new(key, number.to_string(), fence(number)).unwrap();
        send(etcd, &put.fence_in("shared-fence"))
    };
    write("shared:a", 5).unwrap();
    write("shared:b", 6).unwrap();
    assert_eq!(refused(write("shared:a", 5)), (5, 6));
    assert_eq!(get(etcd, "shared-fence"), "0000000000000006");
}

#[test]
fn the_parts_fit_etcdctl_as_the_table_says() {
    let etcd = Etcd::shared();
    let send = |value: &str, number| {
        let write = FencedPut::new("ctl", value, fence(number)).unwrap();
        let parts = write.transaction();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (key, than) = (text(&parts.fence_key), text(&parts.if_greater_than));
        let puts: Vec<String> = (parts.else_put.iter())
            .map(|(key, value)| format!("put {} {}\n", text(key), text(value)))
            .collect();
        let input = format!("value(\"{key}\") > \"{than}\"\n\nget {key}\n\n{}\n", puts.concat());
        let said = etcd.ctl_with(&["txn"], &input).unwrap();
        // SUCCESS, an empty line, the key, its value.
        let lines: Vec<&str> = said.lines().collect();
        write.outcome(lines[0] == "SUCCESS", lines.get(3).map(|line| line.as_bytes()))
    };
    send("100", 8).unwrap();
    send("101", 9).unwrap();
    assert_eq!(refused(send("0", 8)), (8, 9));
    assert_eq!(get(etcd, "ctl"), "101");
}

#[test]
fn what_is_no_fence_is_an_error_and_nothing_is_written() {
    let etcd = Etcd::shared();
    for text in ["x", "12"] {
        etcd.ctl(&["put", "odd/tenure-fence", text]).unwrap();
        let error = send(etcd, &FencedPut::new("odd", "x", fence(50)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}: {error}");
        assert_eq!(get(etcd, "odd"), "");
    }
}

//! `tenure cells` as its users meet it: values beside the locks, on every store that keeps them.

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{Place, stderr};
use serde_json::json;

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        a_value_is_written_read_listed_and_removed,
        a_condition_that_does_not_hold_is_exit_code_1,
        a_watch_prints_what_is_there_and_every_change,
        an_update_is_what_a_command_makes_of_the_value,
    ]
);

fn put(place: &Place, arguments: &[&str]) -> u64 {
    let said = place.says(&[&["cells", "put"], arguments].concat());
    said.trim().parse().expect("a version alone")
}

fn a_value_is_written_read_listed_and_removed(place: &Place) {
    assert_eq!(place.code(&["cells", "get", "config:mail"]), 1);
    let first = put(place, &["config:mail", "on"]);
    assert_eq!(place.says(&["cells", "get", "config:mail"]), "on", "as it is, for pipes");
    put(place, &["other", "-5", "--ttl", "1h"]);
    let json = place.says_json(&["cells", "get", "config:mail", "--json"]);
    let expected = json!({
        "schema_version": 1,
        "name": "config:mail",
        "version": first,
        "fence": null,
        "expires_in_ms": null,
        "value": "on",
    });
    assert_eq!(json, expected);
    let listed = place.says_json(&["cells", "ls", "--json"]);
    let names: Vec<_> =
        listed["cells"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["config:mail", "other"]);
    let table = place.says(&["cells", "ls", "config:*"]);
    assert!(table.starts_with("NAME") && table.contains("config:mail"), "{table}");
    assert!(!table.contains("other"), "{table}");
    place.says(&["cells", "rm", "config:mail"]);
    assert_eq!(place.code(&["cells", "get", "config:mail"]), 1);
}

fn a_condition_that_does_not_hold_is_exit_code_1(place: &Place) {
    let first = put(place, &["k", "one", "--if-absent"]);
    let refused = |arguments: &[&str], says: &str| {
        let output = place.run(&[&["cells"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = stderr(&output);
        assert!(said.contains("k: not written: ") && said.contains(says), "{said}");
    };
    refused(&["put", "k", "two", "--if-absent"], "it has a value");
    let second = put(place, &["k", "two", "--if-version", &first.to_string()]);
    let old = first.to_string();
    refused(&["put", "k", "three", "--if-version", &old], &format!("version {second} now"));
    refused(&["rm", "k", "--if-version", &old], &format!("version {second} now"));
    put(place, &["k", "fenced", "--fence", "9"]);
    refused(&["put", "k", "late", "--fence", "8"], "fence 8 is stale: fence 9 has written");
    assert_eq!(place.says(&["cells", "get", "k"]), "fenced");
    place.says(&["cells", "rm", "k", "--fence", "9"]);
    refused(&["put", "k", "x", "--if-version", &old], "it has no value now");
}

fn a_watch_prints_what_is_there_and_every_change(place: &Place) {
    put(place, &["w:1", "before"]);
    let mut watch = place.start(&["cells", "watch", "--prefix", "w:", "--json"]);
    let mut next = || {
        let line = watch.line();
        let event: serde_json::Value = serde_json::from_str(&line).expect(&line);
        (event["event"].clone(), event["name"].clone(), event["value"].clone())
    };
    assert_eq!(next(), (json!("put"), json!("w:1"), json!("before")));
    put(place, &["x", "not watched"]);
    put(place, &["w:2", "new"]);
    assert_eq!(next(), (json!("put"), json!("w:2"), json!("new")));
    place.says(&["cells", "rm", "w:1"]);
    assert_eq!(next(), (json!("removed"), json!("w:1"), json!(null)));
    let ended = place.says(&["cells", "watch", "w:2", "--for", "10ms", "-o", "plain"]);
    assert!(ended.contains("put     w:2  new"), "{ended}");
}

#[test]
fn a_value_comes_from_standard_input_or_a_file_and_any_bytes_survive() {
    let place = Place::embedded();
    let bytes = [0, 0xff, b'\n', 7];
    let mut command = place.tenure(&["cells", "put", "k"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(place.run(&["cells", "get", "k"]).stdout, bytes);
    let json = place.says_json(&["cells", "get", "k", "--json"]);
    assert_eq!(json["value_hex"], "00ff0a07");
    place.write("value", "from a file");
    put(&place, &["k", "--file", "value"]);
    assert_eq!(place.says(&["cells", "get", "k"]), "from a file");
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    let place = Place::embedded();
    let refused = |arguments: &[&str], says: &str| {
        let output = place.run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    };
    place.write("large", &"x".repeat(256 * 1024 + 1));
    refused(&["cells", "put", "k", "--file", "large"], "at most 262144 bytes");
    refused(&["cells", "put", "k", "--file", "absent"], "absent: No such file");
    refused(&["cells", "put", "", "x"], "must not be empty");
    refused(&["cells", "put", "k", "x", "--ttl", "0s"], "would forget the value at once");
    refused(&["cells", "put", "k", "x", "--fence", "9007199254740992"], "no fence or version");
    refused(&["cells", "put", "k", "x", "--if-absent", "--fence", "1"], "cannot be used with");
    refused(&["cells", "watch"], "required");
    refused(&["cells", "watch", "--prefix", &"x".repeat(256)], "at most 255 bytes");
    assert_eq!(place.code(&["cells", "get", "k"]), 1, "nothing was written");
}

#[test]
fn an_engine_without_cells_says_so() {
    let nodes: Vec<_> = (0..3).map(|_| servers::Redis::start()).collect();
    let hosts: Vec<String> =
        nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let place = Place::memory().reached_by(format!("redlock://{}?new=yes", hosts.join(",")));
    let output = place.run(&["cells", "get", "k"]);
    let said = stderr(&output);
    assert!(said.contains("does not promise cells"), "{said}");
    assert_ne!(output.status.code(), Some(0));
}

fn an_update_is_what_a_command_makes_of_the_value(place: &Place) {
    let update = ["cells", "update", "visits", "--", "sh", "-c"];
    let add = [&update[..], &["read old; echo $((old + 1))"]].concat();
    let first: u64 = place.says(&add).trim().parse().expect("a version alone");
    let second: u64 = place.says(&add).trim().parse().expect("a version alone");
    assert!(second > first);
    assert_eq!(place.says(&["cells", "get", "visits"]), "2\n");
    let failed = place.run(&[&update[..], &["echo no; exit 9"]].concat());
    assert_eq!(failed.status.code(), Some(9));
    assert!(stderr(&failed).contains("not written: sh failed"), "{}", stderr(&failed));
    assert_eq!(place.code(&["cells", "update", "visits", "--", "./no-such-command"]), 127);
    assert_eq!(place.says(&["cells", "get", "visits"]), "2\n");
    // Four at once: none is lost.
    let running: Vec<_> = (0..4).map(|_| place.tenure(&add).spawn().unwrap()).collect();
    for mut one in running {
        assert!(one.wait().unwrap().success());
    }
    assert_eq!(place.says(&["cells", "get", "visits"]), "6\n");
}

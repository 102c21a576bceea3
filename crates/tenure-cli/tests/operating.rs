//! What an operator changes of a namespace: how far its fences have got, and its longest lease.

mod common;

use common::{Place, eventually, stderr};
use rustix::process::Signal;

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [
        grants_go_on_above_a_number,
        a_number_that_raises_nothing_is_refused,
        a_number_out_of_range_makes_no_sense,
        the_longest_lease_changes_when_no_client_is_connected,
    ]
);

fn highest(place: &Place) -> u64 {
    place.says(&["raise-fences"]).trim().parse().expect("a number alone")
}

fn fence(place: &Place, name: &str) -> u64 {
    let said = place.says(&["run", name, "--", "printenv", "TENURE_FENCE"]);
    said.trim().parse().expect("a number")
}

fn grants_go_on_above_a_number(place: &Place) {
    let before = fence(place, "x");
    let to = highest(place).max(before) + 5_000_000_000;
    let said = place.says(&["raise-fences", "--to", &to.to_string()]);
    assert_eq!(said, format!("every later grant has a fence above {to}\n"));
    let after = fence(place, "x");
    assert!(after > to && fence(place, "y") > to, "{after} is not above {to}");
    let json = place.says_json(&["raise-fences", "--json"]);
    assert!(json["highest"].as_u64().unwrap() >= after, "{json}");
    assert_eq!(json["raised"], false);
    let to = highest(place) + 1;
    let json = place.says_json(&["raise-fences", "--to", &to.to_string(), "--json"]);
    assert!(json["highest"].as_u64().unwrap() >= to && json["raised"] == true, "{json}");
    let doctor = place.says(&["doctor"]);
    assert!(doctor.contains("; none is above 1"), "{doctor}");
}

fn a_number_that_raises_nothing_is_refused(place: &Place) {
    let given = fence(place, "x");
    let output = place.run(&["raise-fences", "--to", &given.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("raise fences: fences here may have reached"), "{said}");
    assert!(said.contains(&format!("{given} raises nothing; if they must be larger")), "{said}");
}

fn a_number_out_of_range_makes_no_sense(place: &Place) {
    for to in [(1_u64 << 53).to_string(), u64::MAX.to_string(), "-1".to_owned(), "x".to_owned()] {
        let to = format!("--to={to}");
        assert_eq!(place.code(&["raise-fences", &to]), 2, "{to}");
    }
}

fn the_longest_lease_changes_when_no_client_is_connected(place: &Place) {
    let mut holder = place.start(&["hold", "x", "--max-lease", "60s", "--json"]);
    holder.line();
    let other = ["ls", "--max-lease", "40s"];
    let output = place.run(&other);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("max_lease 60s, not 40s, and "), "{said}");
    // Where the store does not know who is connected, the claim that holds is named.
    let named = said.contains("connected") || said.contains("holds \"x\"");
    assert!(named && said.contains("to change it, stop all of them"), "{said}");
    holder.signal(Signal::TERM);
    assert_eq!(holder.ends(), 0);
    eventually("the store has noticed that it is gone", || place.code(&other) == 0);
    // No client is left again, so the next one changes it back.
    eventually("that one is gone, too", || place.code(&["ls", "--max-lease", "60s"]) == 0);
}

//! The benchmarks of the etcd engine run and give every figure. Checks that they are there and how
//! they look, and what no machine changes: how many events a hand-off takes. Never times.
use std::process::Command;

use serde_json::Value;

fn figures() -> Vec<Value> {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    let output = Command::new(bench).args(["etcd", "--quick", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress line without a terminal");
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn every_benchmark_gives_its_figure_and_a_handoff_wakes_one() {
    let figures = figures();
    let seen: Vec<_> = figures
        .iter()
        .map(|figure| {
            for key in ["value", "ratio"] {
                let number = figure.get(key).map(|number| number.as_f64().expect(key));
                assert!(number.is_none_or(|number| number.is_finite() && number > 0.0), "{figure}");
            }
            let text = |key: &str| figure[key].as_str().expect(key);
            let aim = figure.get("aim").map_or("", |aim| aim.as_str().expect("text"));
            assert_eq!(figure.get("met").is_some_and(Value::is_boolean), !aim.is_empty());
            (text("bench"), text("unit"), aim, figure.get("ratio").is_some())
        })
        .collect();
    let expected = [
        ("pair", "us", "<= 1.12", true),
        ("handoff_2", "us", "", false),
        ("handoff_64", "us", "", false),
        ("wakes_per_handoff_64", "events", "<= 1.1", false),
        ("handoff_64_vs_2", "x", "<= 1.5", false),
        ("crowd_2000", "ms", "", true),
    ];
    assert_eq!(seen, expected);
    let wakes = figures.iter().find(|figure| figure["bench"] == "wakes_per_handoff_64").unwrap();
    assert_eq!(wakes["met"], true, "{wakes}");
}

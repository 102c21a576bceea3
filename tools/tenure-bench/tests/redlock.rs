//! The benchmarks of the quorum engine run and give every figure. Checks that they are there and
//! how they look, never times.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_benchmark_gives_its_figure_and_says_what_is_aimed_at() {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    let output = Command::new(bench).args(["redlock", "--quick", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    let figures: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let seen: Vec<_> = figures
        .iter()
        .map(|figure| {
            let text = |key: &str| figure[key].as_str().expect(key);
            let value = figure["value"].as_f64().expect("a number");
            assert!(value.is_finite() && value > 0.0, "{figure}");
            let aim = figure.get("aim").map_or("", |aim| aim.as_str().expect("text"));
            assert_eq!(figure.get("met").is_some_and(Value::is_boolean), !aim.is_empty());
            (text("bench"), text("unit"), aim, figure.get("ratio").is_some())
        })
        .collect();
    let expected = [
        ("pair_3", "us", "<= 1.2", true),
        ("pair_3_rslock", "us", "<= 1", true),
        ("pair_5", "us", "<= 1.2", true),
        ("pair_5_rslock", "us", "<= 1", true),
        ("one_round_trip_share", "%", ">= 90", false),
        ("crowd_2000", "ms", "", true),
    ];
    assert_eq!(seen, expected);
}

//! The benchmarks of the Redis engine run and give every figure. Checks that they are there and how
//! they look, never times.

use std::process::Command;

use serde_json::Value;

fn figures() -> Vec<Value> {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    let output = Command::new(bench).args(["redis", "--quick", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress line without a terminal");
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn every_benchmark_gives_its_figure_and_says_what_is_aimed_at() {
    let figures = figures();
    let seen: Vec<_> = figures
        .iter()
        .map(|figure| {
            let text = |key: &str| figure[key].as_str().expect(key);
            for key in ["value", "ratio", "commands"] {
                let number = figure.get(key).map(|number| number.as_f64().expect(key));
                assert!(number.is_none_or(|number| number.is_finite() && number > 0.0), "{figure}");
            }
            let aim = figure.get("aim").map_or("", |aim| aim.as_str().expect("text"));
            assert_eq!(figure.get("met").is_some_and(Value::is_boolean), !aim.is_empty());
            let has = |key: &str| figure.get(key).is_some();
            (text("bench"), text("unit"), aim, has("ratio"), has("commands"))
        })
        .collect();
    let expected = [
        ("pair_1", "us", "<= 1.15", true, false),
        ("throughput_256", "per_s", ">= 1", true, false),
        ("throughput_256_vs_rslock", "x", ">= 1.5", false, false),
        ("handoff_2", "us", "<= 2", false, true),
        ("handoff_16", "us", "<= 2", false, true),
        ("handoff_64", "us", "<= 2", false, true),
        ("handoff_256", "us", "<= 2", false, true),
        ("handoff_256_vs_2", "x", "<= 1.5", false, false),
        ("jain_256", "jain", ">= 0.99", false, false),
        ("handoff_2_vs_rslock", "x", ">= 100", false, false),
        ("held_10k_commands", "cmds", "< 100", false, false),
        ("server_time_10k", "us", "<= 1.5", true, false),
        ("crowd_2000", "ms", "", true, false),
    ];
    assert_eq!(seen, expected);
}

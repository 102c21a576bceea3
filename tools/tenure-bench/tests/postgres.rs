//! The benchmarks of the PostgreSQL engine run and give every figure. Checks that they are there
//! and how they look, never times.

use std::process::Command;

use serde_json::Value;

fn figures() -> Vec<Value> {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    let output = Command::new(bench).args(["postgres", "--quick", "--json"]).output().unwrap();
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
            let has = |key: &str| figure.get(key).is_some();
            assert_eq!(has("aim"), has("met"), "{figure}");
            let aim = figure.get("aim").and_then(Value::as_str);
            (text("bench"), text("unit"), aim, has("ratio"))
        })
        .collect();
    let expected = [
        ("advisory_pair", "us", Some("<= 1.15"), true),
        ("pair_async", "us", Some("<= 1.6"), true),
        ("handoff_2", "us", None, false),
        ("handoff_64", "us", None, false),
        ("handoff_64_vs_2", "x", Some("<= 1.3"), false),
        ("handoff_vs_notify", "us", Some("<= 2.5"), true),
        ("neighbours_10k", "us", Some("<= 1.2"), true),
        ("crowd_2000", "ms", None, false),
    ];
    assert_eq!(seen, expected);
}

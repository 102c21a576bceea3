//! The benchmarks of elections run and give every figure. Checks that they are there and how they
//! look, never times.
use std::process::Command;

use serde_json::Value;

#[test]
fn every_benchmark_gives_its_figure() {
    let bench = env!("CARGO_BIN_EXE_tenure-bench");
    let output = Command::new(bench).args(["election", "--quick", "--json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress line without a terminal");
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    let figures: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let seen: Vec<_> = figures
        .iter()
        .map(|figure| {
            for key in ["value", "ratio"] {
                let number = figure.get(key).map(|number| number.as_f64().expect(key));
                assert!(number.is_none_or(|number| number.is_finite() && number > 0.0), "{figure}");
            }
            let text = |key: &str| figure[key].as_str().expect(key);
            (text("bench"), text("unit"), figure.get("ratio").is_some())
        })
        .collect();
    let expected = [
        ("failover_embedded_ms", "ms", false),
        ("failover_redis_ratio", "x", false),
        ("failover_postgres_ratio", "x", false),
        ("failover_etcd_ratio", "x", false),
        ("observe_latency", "us", true),
        ("observe_latency_embedded", "us", true),
        ("observe_latency_redis", "us", true),
        ("observe_latency_postgres", "us", true),
        ("observe_latency_etcd", "us", true),
    ];
    assert_eq!(seen, expected);
}

//! Runs the benchmarks and parses their figures.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::process::{Command, Output};

use serde_json::Value;

/// Runs `tenure-bench` with these arguments.
pub(crate) fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-bench"));
    command.args(arguments).output().expect("the benchmark starts")
}

/// Parses the figures of a run that succeeded, one JSON object per line.
pub(crate) fn figures(output: &Output) -> Vec<Value> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress line without a terminal");
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Runs a group of benchmarks, as short as it goes, and returns its figures.
pub(crate) fn quick(group: &str) -> Vec<Value> {
    figures(&bench(&[group, "--quick", "--json"]))
}

/// What a figure looks like: its name, its unit, its aim (empty where it has none), and whether it
/// has a ratio. Asserts that its numbers are positive, and that it says whether an aim is met.
pub(crate) fn shape(figure: &Value) -> (&str, &str, &str, bool) {
    assert!(figure["value"].is_number(), "{figure}");
    for key in ["value", "ratio", "commands"] {
        let number = figure.get(key).map(|number| number.as_f64().expect(key));
        assert!(number.is_none_or(|number| number.is_finite() && number > 0.0), "{figure}");
    }
    let text = |key: &str| figure[key].as_str().expect(key);
    let aim = figure.get("aim").map_or("", |aim| aim.as_str().expect("text"));
    assert_eq!(figure.get("met").is_some_and(Value::is_boolean), !aim.is_empty(), "{figure}");
    (text("bench"), text("unit"), aim, figure.get("ratio").is_some())
}

/// As [`shape`], without the aim.
pub(crate) fn name_unit_ratio(figure: &Value) -> (&str, &str, bool) {
    let (name, unit, _, ratio) = shape(figure);
    (name, unit, ratio)
}

/// Asserts that a group of benchmarks gives these figures, and returns them.
pub(crate) fn check(group: &str, expected: &[(&str, &str, &str, bool)]) -> Vec<Value> {
    let figures = quick(group);
    assert_eq!(figures.iter().map(shape).collect::<Vec<_>>(), expected);
    figures
}

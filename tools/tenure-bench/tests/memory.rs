//! The benchmarks of the memory engine run and give every figure. Checks counts, never times.

mod common;

use common::{bench, figures};

#[test]
fn every_benchmark_gives_its_figure() {
    let expected = [
        ("held_10k_bytes", "bytes", false),
        ("pair", "ns", true),
        ("handoff_2", "us", false),
        ("handoff_64", "us", true),
        ("handoff_1024", "us", true),
        ("reentry", "ns", false),
        ("held_10k_renew_calls", "calls", false),
        ("crowd_2000", "ms", true),
    ];
    let figures = common::quick("memory");
    let seen: Vec<_> = figures.iter().map(common::name_unit_ratio).collect();
    assert_eq!(seen, expected);
    let value = |name: &str| {
        let figure = figures.iter().find(|figure| figure["bench"] == name);
        figure.and_then(|figure| figure["value"].as_f64()).expect(name)
    };
    let pair = figures.iter().find(|figure| figure["bench"] == "pair").expect("pair");
    assert!(pair["cpu_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{pair}");
    for side in ["per_pair", "reference_per_pair"] {
        let cpu = pair[side]["cpu_us"].as_f64();
        assert!(cpu.is_some_and(|cpu| cpu > 0.0), "{pair}");
        assert!(pair[side]["allocations"].is_number(), "{pair}");
        // Where calls are counted, nothing of this pair goes through a socket.
        assert!(pair[side].get("bytes").is_none_or(|bytes| *bytes == 0.0), "{pair}");
    }
    assert!(value("held_10k_renew_calls") < 100.0, "renewals go in batches: {figures:?}");
    assert!(value("held_10k_bytes") < 1024.0, "a held lock is small: {figures:?}");
}

#[test]
fn one_benchmark_alone_gives_one_figure() {
    let figures = figures(&bench(&["memory", "--quick", "--json", "--only", "reentry"]));
    assert_eq!(figures.len(), 1);
    assert_eq!(figures[0]["bench"], "reentry");
}

#[test]
fn people_get_a_table() {
    let output = bench(&["memory", "--quick", "--only", "held_10k_bytes"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[0].starts_with("bench") && lines[1].starts_with("held_10k_bytes"), "{stdout}");
}

#[test]
fn a_name_that_is_no_benchmark_gets_the_list_of_those_that_are() {
    let output = bench(&["memory", "--only", "speed"]);
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("\"speed\"") && stderr.contains("handoff_1024"), "{stderr}");
}

#[test]
fn the_order_checker_adds_no_allocation_and_no_call_for_what_is_known() {
    let figures = figures(&bench(&["order", "--quick", "--json"]));
    let names: Vec<_> = figures.iter().map(|figure| figure["bench"].as_str().unwrap()).collect();
    let expected = [
        "known_edge_allocations",
        "known_edge_store_calls",
        "pair_with_checker",
        "nested_pair_with_checker",
        "new_edge_100k",
    ];
    assert_eq!(names, expected);
    for figure in &figures[..2] {
        assert_eq!(figure["value"], 0.0, "{figure}");
    }
}

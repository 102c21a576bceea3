//! The benchmarks of the etcd engine run and give every figure. Checks that they are there and how
//! they look, and what no machine changes: how many events a hand-off takes. Never times.

mod common;

#[test]
fn every_benchmark_gives_its_figure_and_a_handoff_wakes_one() {
    let expected = [
        ("pair", "us", "<= 1.12", true),
        ("handoff_2", "us", "", false),
        ("handoff_64", "us", "", false),
        ("wakes_per_handoff_64", "events", "<= 1.1", false),
        ("handoff_64_vs_2", "x", "<= 1.5", false),
        ("crowd_2000", "ms", "<= 10", true),
    ];
    let figures = common::check("etcd", &expected);
    let wakes = figures.iter().find(|figure| figure["bench"] == "wakes_per_handoff_64").unwrap();
    assert_eq!(wakes["met"], true, "{wakes}");
}

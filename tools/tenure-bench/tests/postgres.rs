//! The benchmarks of the PostgreSQL engine run and give every figure. Checks that they are there
//! and how they look, never times.

mod common;

#[test]
fn every_benchmark_gives_its_figure_and_says_what_is_aimed_at() {
    let expected = [
        ("advisory_pair", "us", "<= 1.15", true),
        ("pair_async", "us", "<= 1.6", true),
        ("pair_async_pinned", "us", "<= 1.35", true),
        ("handoff_2", "us", "", false),
        ("handoff_64", "us", "", false),
        ("handoff_64_vs_2", "x", "<= 1.3", false),
        ("handoff_vs_notify", "us", "<= 2.5", true),
        ("neighbours_10k", "us", "<= 1.2", true),
        ("crowd_2000", "ms", "", false),
    ];
    common::check("postgres", &expected);
}

//! The benchmarks of the Redis engine run and give every figure. Checks that they are there and how
//! they look, never times.

mod common;

#[test]
fn every_benchmark_gives_its_figure_and_says_what_is_aimed_at() {
    let figures = common::quick("redis");
    let seen: Vec<_> = figures
        .iter()
        .map(|figure| {
            let (bench, unit, aim, ratio) = common::shape(figure);
            (bench, unit, aim, ratio, figure.get("commands").is_some())
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

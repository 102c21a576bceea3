//! The benchmarks of the quorum engine run and give every figure. Checks that they are there and
//! how they look, never times.

mod common;

#[test]
fn every_benchmark_gives_its_figure_and_says_what_is_aimed_at() {
    let expected = [
        ("pair_3", "us", "<= 1.2", true),
        ("pair_3_rslock", "us", "<= 1", true),
        ("pair_5", "us", "<= 1.2", true),
        ("pair_5_rslock", "us", "<= 1", true),
        ("one_round_trip_share", "%", ">= 90", false),
        ("crowd_2000", "ms", "", true),
    ];
    common::check("redlock", &expected);
}

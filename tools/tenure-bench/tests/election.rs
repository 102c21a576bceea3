//! The benchmarks of elections run and give every figure. Checks that they are there and how they
//! look, never times.

mod common;

#[test]
fn every_benchmark_gives_its_figure() {
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
    let figures = common::quick("election");
    let seen: Vec<_> = figures.iter().map(common::name_unit_ratio).collect();
    assert_eq!(seen, expected);
}

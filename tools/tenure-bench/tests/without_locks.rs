//! The benchmarks of rates and updates run and give every figure. Checks counts, never times.

mod common;

#[test]
fn rates_give_their_figures_each_beside_its_reference() {
    let figures = common::quick("rates");
    let names: Vec<_> = figures.iter().map(|figure| figure["bench"].as_str().unwrap()).collect();
    let expected = [
        "take",
        "take_embedded",
        "take_redis",
        "take_redis_sliding",
        "take_redis_server",
        "bytes_per_permit_redis",
        "take_postgres",
        "take_postgres_sliding",
    ];
    assert_eq!(names, expected);
    for figure in figures.iter().filter(|figure| figure["unit"] == "us") {
        assert!(figure["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{figure}");
    }
}

#[test]
fn updates_give_their_figures_and_the_sum_is_exact() {
    let figures = common::quick("updates");
    let value = |name: &str| {
        let figure = figures.iter().find(|figure| figure["bench"] == name).expect(name);
        figure["value"].as_f64().expect("a number")
    };
    assert!(value("uncontended") > 0.0 && value("contended_64_slowest_vs_median") > 0.0);
    assert!(value("contended_64_calls") <= 3.0, "{figures:?}");
    assert!(value("naive_64_calls") >= 2.0 && value("slow_writer_tries") <= 4.0, "{figures:?}");
}

//! The benchmarks of cells and of looking run and give every figure. Checks that they are there and
//! how they look, never times.

mod common;

use serde_json::json;

#[test]
fn cells_give_every_figure_on_every_engine() {
    let mut expected = Vec::new();
    for engine in ["", "_embedded", "_redis", "_postgres", "_etcd"] {
        let figure = |name: &str, unit, ratio| (format!("{name}{engine}"), unit, ratio);
        expected.extend([
            figure("get", "us", true),
            figure("put", "us", false),
            figure("put_refused", "us", true),
            figure("put_64_tasks", "1/s", true),
        ]);
        // No process can share the memory of another.
        if !engine.is_empty() {
            expected.push(figure("put_8_procs", "1/s", true));
        }
        expected.push(figure("watch_latency", "us", true));
    }
    let figures = common::quick("cells");
    let named = |figure| {
        let (name, unit, ratio) = common::name_unit_ratio(figure);
        (name.to_owned(), unit, ratio)
    };
    assert_eq!(figures.iter().map(named).collect::<Vec<_>>(), expected);
}

#[test]
fn looking_gives_every_figure_and_says_what_is_aimed_at() {
    let figures = common::quick("looking");
    // In a short run the share of a server may be nothing that the kernel counts.
    let (shares, rest) = figures.split_at(3);
    for (figure, name) in shares.iter().zip(["redis_share", "share_postgres", "share_etcd"]) {
        assert_eq!((&figure["bench"], &figure["unit"]), (&json!(name), &json!("%")));
        assert_eq!(figure["aim"], "< 2");
        assert!(figure["value"].as_f64().is_some_and(|share| share >= 0.0), "{figure}");
    }
    let mut expected = vec![("longest_call_us".to_owned(), "us", "< 2000", false)];
    for engine in ["_redis", "_embedded", "_postgres", "_etcd"] {
        expected.extend([
            (format!("pair_while_looking{engine}"), "us", "<= 1.02", true),
            (format!("pair_p99_while_looking{engine}"), "us", "", true),
            (format!("look_2000{engine}"), "us", "", false),
        ]);
    }
    let shape = |figure| {
        let (name, unit, aim, ratio) = common::shape(figure);
        (name.to_owned(), unit, aim, ratio)
    };
    assert_eq!(rest.iter().map(shape).collect::<Vec<_>>(), expected);
}

//! The benchmarks of jobs run and give every figure, and say which peers are left out. Checks names
//! and counts, never times.

mod common;

use common::{bench, figures, name_unit_ratio};

#[test]
fn jobs_give_their_figures_and_peers_that_are_left_out_are_named() {
    let lines = figures(&bench(&["jobs", "--quick", "--json"]));
    let (peers, figures): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.get("peer").is_some());
    let names: Vec<_> = peers.iter().map(|peer| peer["peer"].as_str().unwrap()).collect();
    assert_eq!(names, ["graphile", "river", "effectum", "bullmq"]);
    assert!(peers.iter().all(|peer| peer["version"].is_null()), "{peers:?}");
    let shapes: Vec<_> = figures.iter().map(name_unit_ratio).collect();
    let expected = [
        ("claim_complete_1_100b_postgres", "1/s", true),
        ("claim_complete_1_1kb_postgres", "1/s", true),
        ("claim_complete_4_100b_postgres", "1/s", true),
        ("claim_complete_4_1kb_postgres", "1/s", true),
        ("enqueue_single_postgres", "1/s", true),
        ("enqueue_1000_postgres", "1/s", true),
        ("start_p50_postgres", "us", false),
        ("start_p99_postgres", "us", false),
        ("held_snapshot_postgres", "us", true),
        ("wal_100b_postgres", "bytes", false),
        ("wal_100b_postgres_vs_by_hand", "bytes", true),
        ("wal_1kb_postgres", "bytes", false),
        ("wal_1kb_postgres_vs_by_hand", "bytes", true),
        ("claim_complete_embedded", "1/s", false),
        ("enqueue_64_embedded", "1/s", false),
        ("claim_complete_redis", "1/s", false),
        ("rescue_embedded", "ms", false),
        ("rescue_redis", "s", true),
        ("rescue_postgres", "s", true),
    ];
    assert_eq!(shapes, expected);
}

/// A program that takes part says its version, and is called with the verbs of `peers/README.md`.
#[test]
fn a_peer_is_measured_beside_ours() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("effectum");
    let script = "#!/bin/sh\ncase $1 in version) echo effectum 0 ;; process) echo 2.5 ;; esac\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    let directory = directory.path().to_str().unwrap();
    let only = "claim_complete_embedded";
    let lines =
        figures(&bench(&["jobs", "--quick", "--json", "--only", only, "--peers", directory]));
    assert!(lines.iter().any(|line| line["version"] == "effectum 0"), "{lines:?}");
    let shown: Vec<_> = lines.iter().filter(|line| line.get("bench").is_some()).collect();
    let shapes: Vec<_> = shown.iter().map(|line| name_unit_ratio(line)).collect();
    let names = [
        ("claim_complete_embedded", "1/s", false),
        ("claim_complete_embedded_vs_effectum", "1/s", true),
        ("claim_complete_embedded_vs_effectum_default", "1/s", true),
    ];
    assert_eq!(shapes, names);
    let value = shown[1]["value"].as_f64().unwrap();
    let ratio = shown[1]["ratio"].as_f64().unwrap();
    assert!((value / 2.5 - ratio).abs() < 0.01, "{shown:?}");
}

//! Random programs against every engine of this build and the ledger; and kept ones: those that
//! once found a bug, for ever, and those that take every path of every engine
//! (`conformance/paths.rs`), which fail by the name of a path that is not taken. Paths of cells,
//! rates and verdicts on deadlocks are driven by programs and scenarios of their own.

use std::path::Path;

use tenure::conformance::paths::{self, PathGroup};
use tenure::conformance::{
    Applicability, EmbeddedHarness, EtcdHarness, Harness, MemoryHarness, PostgresHarness,
    RedisHarness, ScenarioGroup, cases, differential,
};

/// How many programs a run plays.
fn programs() -> u64 {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => 50_000,
        _ => 1_500,
    }
}

/// The tests of one engine. Each starts the servers of its engine alone.
macro_rules! engine {
    ($engine:ident, $harness:expr) => {
        mod $engine {
            use super::*;

            #[test]
            fn engine_and_ledger_agree_on_random_programs() {
                random_programs(&$harness);
            }

            #[test]
            fn a_few_random_programs_agree() {
                few_programs(&$harness);
            }

            #[test]
            fn engine_and_rules_agree_on_programs_of_cells() {
                cell_programs(&$harness);
            }

            #[test]
            fn engine_and_rules_agree_on_programs_of_jobs() {
                job_programs(&$harness);
            }

            #[test]
            fn programs_of_rates_take_every_path() {
                scenarios_take_paths(&$harness, ScenarioGroup::Rates, PathGroup::Rates);
            }

            #[test]
            fn verdicts_on_deadlocks_take_every_path() {
                scenarios_take_paths(&$harness, ScenarioGroup::Deadlocks, PathGroup::Deadlocks);
            }

            #[test]
            fn kept_programs_agree_and_take_every_path() {
                kept_programs(&$harness);
            }
        }
    };
}

engine!(memory, MemoryHarness);
engine!(embedded, EmbeddedHarness);
engine!(etcd, EtcdHarness::new(&servers::Etcd::shared().url()));
engine!(postgres, PostgresHarness::new(&servers::Postgres::shared().unix_url()));
engine!(redis, RedisHarness::new(&servers::Redis::shared().unix_url()));

/// Programs without sets. The scripts are those of one server, and so are their paths.
#[test]
fn a_redis_cluster_and_the_rules_agree_on_programs_of_cells() {
    let harness = RedisHarness::new(&servers::Cluster::shared().url());
    assert!(!harness.promises().atomic_sets);
    match differential::run_cells(&harness, 0..programs() / 100, 40) {
        Ok(ran) => println!("{}: {ran} steps agree", harness.promises().engine),
        Err(difference) => panic!("{}: {difference}", harness.promises().engine),
    }
}

fn random_programs(harness: &dyn Harness) {
    // Every step there is a few round trips, and at etcd several writes to a disk.
    let fewer = match harness.promises().engine {
        "postgres" => 30,
        "redis" => 6,
        "etcd" => 60,
        _ => 1,
    };
    for (steps, share) in [(12, 2), (40, 3), (120, 20)] {
        let seeds = 0..programs() / share / fewer;
        match differential::run(harness, seeds, steps) {
            Ok(ran) => println!("{}: {ran} steps agree", harness.promises().engine),
            Err(failure) => panic!("{}: {failure}", harness.promises().engine),
        }
    }
}

fn cell_programs(harness: &dyn Harness) {
    let fewer = match harness.promises().engine {
        "memory" => 1,
        "embedded" => 10,
        _ => 60,
    };
    let seeds = 0..programs() / fewer;
    match differential::run_cells(harness, seeds, 40) {
        Ok(ran) => println!("{}: {ran} steps agree", harness.promises().engine),
        Err(difference) => panic!("{}: {difference}", harness.promises().engine),
    }
    takes_every_path(harness, PathGroup::Cells);
}

/// Plays the scenarios of a group, with their random programs.
fn scenarios_take_paths(harness: &dyn Harness, group: ScenarioGroup, paths: PathGroup) {
    let due = cases(harness).into_iter().filter(|case| case.standing == Applicability::Due);
    for case in due.filter(|case| case.scenario.group == group) {
        case.play(harness).unwrap_or_else(|why| panic!("{}: {why}", case.name));
    }
    takes_every_path(harness, paths);
}

/// Fails by the names of the paths that were not taken.
fn takes_every_path(harness: &dyn Harness, group: PathGroup) {
    // The memory engine is the ledger, and counts nothing.
    if harness.promises().engine == "memory" {
        return;
    }
    match paths::check(harness, group) {
        Ok(taken) => taken.iter().for_each(|(path, count)| println!("{count} times: {path}")),
        Err(missed) => panic!("{missed}"),
    }
}

fn job_programs(harness: &dyn Harness) {
    let promises = harness.promises();
    if !promises.jobs {
        assert!(!promises.lacks_jobs_because.is_empty(), "says why it has no jobs");
        return;
    }
    let fewer = match promises.engine {
        "memory" => 10,
        "embedded" => 30,
        _ => 100,
    };
    match differential::run_jobs(harness, 0..programs() / fewer, 60) {
        Ok(ran) => println!("{}: {ran} steps agree", promises.engine),
        Err(difference) => panic!("{}: {difference}", promises.engine),
    }
}

/// A few of those that a long run plays by night: what is wrong everywhere shows at once.
fn few_programs(harness: &dyn Harness) {
    if let Err(failure) = differential::run(harness, 10_000..10_008, 60) {
        panic!("{}: {failure}", harness.promises().engine);
    }
}

fn kept_programs(harness: &dyn Harness) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut count = 0;
    for file in std::fs::read_dir(&kept).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let played = differential::replay(harness, &text);
        played.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        count += 1;
    }
    assert!(count > 0, "kept programs live in {}", kept.display());
    takes_every_path(harness, PathGroup::Claims);
}

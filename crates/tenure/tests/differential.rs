//! Random programs against every engine of this build and the ledger; and those that once found a
//! bug, for ever.

use std::path::Path;

use tenure::conformance::{
    EmbeddedHarness, EtcdHarness, Harness, MemoryHarness, PostgresHarness, RedisHarness,
    differential,
};

fn harnesses() -> Vec<Box<dyn Harness>> {
    let redis = RedisHarness::new(&servers::Redis::shared().unix_url());
    let etcd = EtcdHarness::new(&servers::Etcd::shared().url());
    let postgres = PostgresHarness::new(&servers::Postgres::shared().unix_url());
    let (memory, embedded) = (Box::new(MemoryHarness), Box::new(EmbeddedHarness));
    vec![memory, embedded, Box::new(etcd), Box::new(postgres), Box::new(redis)]
}

/// How many programs a run plays.
fn programs() -> u64 {
    match std::env::var("TENURE_TEST_SCALE").as_deref() {
        Ok("nightly") => 50_000,
        _ => 1_500,
    }
}

#[test]
fn engines_and_ledger_agree_on_random_programs() {
    for harness in harnesses() {
        // Every step there is a few round trips, and at etcd several writes to a disk.
        let fewer = match harness.promises().engine {
            "postgres" => 30,
            "redis" => 6,
            "etcd" => 60,
            _ => 1,
        };
        for (steps, share) in [(12, 2), (40, 3), (120, 20)] {
            let seeds = 0..programs() / share / fewer;
            match differential::run(&*harness, seeds, steps) {
                Ok(ran) => println!("{}: {ran} steps agree", harness.promises().engine),
                Err(failure) => panic!("{}: {failure}", harness.promises().engine),
            }
        }
    }
}

#[test]
fn programs_that_once_found_a_bug_agree() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut count = 0;
    for file in std::fs::read_dir(&kept).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for harness in harnesses() {
            let played = differential::replay(&*harness, &text);
            played.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
        count += 1;
    }
    assert!(count > 0, "kept programs live in {}", kept.display());
}

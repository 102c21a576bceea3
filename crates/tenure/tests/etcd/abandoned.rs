//! Claims that are given up while their requests are under way, with a real server and real time.

use std::process::Command;
use std::time::{Duration, Instant};

use servers::{Etcd, eventually};
use tenure::Tenure;
use tenure::block_on;

use crate::host::{LONG, PATIENCE, keys};

/// How often a crowd gives up.
const ROUNDS: u32 = 60;

/// How many give up each time, all at other instants.
const CROWD: u32 = 8;

#[test]
fn a_lock_that_is_given_up_at_any_instant_leaves_nothing_behind() {
    let etcd = Etcd::shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tenure = runtime.block_on(async {
        Tenure::builder().namespace("abandoned").lease(LONG).connect(&etcd.url()).await.unwrap()
    });
    // A lock of the same lease length keeps the lease of the session alive, and with it whatever
    // hangs there.
    let kept = block_on(tenure.mutex("kept").unwrap().lock()).unwrap();
    for round in 0..ROUNDS {
        let name = format!("a{round}");
        runtime.block_on(async {
            let began = Instant::now();
            let guard = tenure.mutex(&name).unwrap().lock().await.unwrap();
            // Spread over the time that a few requests take here and now.
            let span = began.elapsed() * 3;
            let crowd: Vec<_> = (0..CROWD)
                .map(|place| {
                    let mutex = tenure.mutex(&name).unwrap();
                    let step = (round * CROWD + place) % (ROUNDS * CROWD / 4);
                    let limit = span * step / (ROUNDS * CROWD / 4);
                    tokio::spawn(
                        async move { drop(tokio::time::timeout(limit, mutex.lock()).await) },
                    )
                })
                .collect();
            for one in crowd {
                one.await.unwrap();
            }
            guard.release().await.unwrap();
            let mutex = tenure.mutex(&name).unwrap().timeout(PATIENCE);
            let guard = mutex.lock().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            guard.release().await.unwrap();
        });
    }
    block_on(kept.release()).unwrap();
    eventually("no hold and no ticket is left", || {
        (0..ROUNDS).all(|round| keys(etcd, "abandoned", &format!("a{round}")).is_empty())
    });
}

/// How many claims are abandoned in each round, and by how many tasks.
const ABANDONED: (u64, u64) = (1_000, 50);

/// How much the process may grow between the first round and the last, in KiB. Claims that stayed
/// would take about 100 KiB each: 190 MiB for the claims of two rounds.
const GROWTH: u64 = 32 << 10;

/// Set in the process that abandons claims.
const ALONE: &str = "TENURE_TEST_ALONE";

#[test]
fn abandoned_claims_leave_neither_keys_nor_memory() {
    const SELF: &str = "abandoned::abandoned_claims_leave_neither_keys_nor_memory";
    if std::env::var_os(ALONE).is_none() {
        // In a process of its own: what other tests allocate is not counted.
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ended = alone.args([SELF, "--exact", "--nocapture"]).env(ALONE, "yes").output();
        let ended = ended.unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (said(&ended.stdout), said(&ended.stderr));
        assert!(ended.status.success() && out.contains("1 passed"), "{out}\n{err}");
        return;
    }
    let etcd = Etcd::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let builder = Tenure::builder().namespace("abandoned").lease(Duration::from_secs(2));
    let tenure = runtime.block_on(builder.connect(&etcd.url())).unwrap();
    let mut sizes = Vec::new();
    for _ in 0..3 {
        runtime.block_on(abandon(&tenure));
        eventually("nothing is left", || {
            let listed = etcd.ctl(&["get", "--prefix", "--keys-only", "tenure\tabandoned\t"]);
            let listed = listed.unwrap();
            let keys: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
            tenure.claim_count() == 0 && keys == ["tenure\tabandoned\tterms"]
        });
        sizes.push(resident_kib());
    }
    println!("resident after each round, in KiB: {sizes:?}");
    assert!(sizes[2] < sizes[0] + GROWTH, "resident after each round, in KiB: {sizes:?}");
}

/// Many tasks ask for one lock and give up at other instants each.
async fn abandon(tenure: &Tenure) {
    let (claims, tasks) = ABANDONED;
    let abandoning: Vec<_> = (0..tasks)
        .map(|task| {
            let tenure = tenure.clone();
            tokio::spawn(async move {
                for claim in 0..claims / tasks {
                    let limit = Duration::from_micros(300 * (1 + (claim * 7 + task) % 10));
                    let mutex = tenure.mutex("a").unwrap();
                    drop(tokio::time::timeout(limit, mutex.lock()).await);
                }
            })
        })
        .collect();
    for task in abandoning {
        task.await.unwrap();
    }
}

/// How much memory this process has.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

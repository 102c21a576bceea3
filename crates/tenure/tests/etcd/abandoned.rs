//! Claims that are given up while their requests are under way, with a real server and real time.

use std::process::Command;
use std::time::{Duration, Instant};

use servers::{Etcd, Proxy, eventually};
use tenure::Tenure;
use tenure::block_on;
use tenure::contract::{Release, SessionId};

use crate::heap::live_bytes;
use crate::host::{LONG, PATIENCE, ever_written, keys};
use crate::recipes::{claim, engine_at};

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

/// The request of a claim gets no answer, and neither does the first attempt to end the claim when
/// its time is up. The request may still arrive after the second attempt has looked: without a
/// tombstone it would leave a hold that its own process does not know of.
#[test]
fn a_claim_without_an_answer_has_a_tombstone_though_its_first_end_failed() {
    let (etcd, namespace) = (Etcd::shared(), "no-answer");
    let proxy = Proxy::to(("127.0.0.1", etcd.port(0)));
    let engine = engine_at(&format!("etcd://{}", proxy.addr()), namespace);
    let (session, lease) = (SessionId::new(), Duration::from_secs(1));
    // With this the session has its lease in etcd, and the next claim is sent at once.
    let first = claim(session, lease);
    block_on(engine.claim(&first)).unwrap();
    block_on(engine.release(&[Release { claim: first.to_ref(), uncertain: false }])).unwrap();
    let lost = claim(session, lease);
    proxy.black_hole(true);
    // The call lasts longer than the lease: the first end is under way by then.
    block_on(engine.claim(&lost)).unwrap_err();
    proxy.heal_dropping();
    let tomb = format!("tenure\t{namespace}\tt\t{}", lost.id.to_hex());
    eventually("the tombstone was written", || ever_written(etcd, tomb.clone()) == 1);
    eventually("nothing is left", || {
        etcd.ctl(&["get", "--keys-only", &tomb]).unwrap().is_empty()
            && keys(etcd, namespace, "a").is_empty()
    });
}

/// How many claims are abandoned in each round, and by how many tasks.
const ABANDONED: (u64, u64) = (2_500, 50);

/// How many rounds there are, unless [`total`] says how many claims are to be abandoned in all.
const ROUNDS_ALONE: u64 = 3;

/// How many claims are abandoned in all by night.
const BY_NIGHT: u64 = 100_000;

/// How many claims are to be abandoned in all, if that is stated: by `TENURE_TEST_ABANDONED`, or by
/// `TENURE_TEST_SCALE=nightly`.
fn total() -> Option<u64> {
    let stated = std::env::var("TENURE_TEST_ABANDONED").ok();
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    let stated = stated.map(|total| total.parse().expect("a number"));
    stated.or(nightly.then_some(BY_NIGHT))
}

/// How many more bytes may be in use after a round than before the first. What stays of a claim is
/// at least a KiB: 7 MiB for the claims of three rounds. Bytes in use, not resident memory: the
/// allocator keeps what the round with the most claims at once has needed, and which round that is
/// depends on what else the machine does. On a busy machine the process had 34, 47 and 57 MiB after
/// three rounds, with about 1 MiB in use after each.
const GROWTH: usize = 2 << 20;

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
    let rounds = total().map_or(ROUNDS_ALONE, |total| total / ABANDONED.0);
    let before = live_bytes();
    let (mut used, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        runtime.block_on(abandon(&tenure));
        eventually("nothing is left", || {
            let listed = etcd.ctl(&["get", "--prefix", "--keys-only", "tenure\tabandoned\t"]);
            let listed = listed.unwrap();
            let keys: Vec<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
            tenure.claim_count() == 0 && keys == ["tenure\tabandoned\tterms"]
        });
        // Claims that were never sent leave no key, but wait for their turn to be dropped.
        eventually("memory is given back", || live_bytes() < before + GROWTH);
        used.push(live_bytes());
        resident.push(resident_kib());
    }
    println!("bytes in use before {before}, after each round {used:?}; resident KiB {resident:?}");
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

//! Every engine of this build against every scenario, one named test each.

#[path = "common/singles.rs"]
mod singles;

use std::process::Command;
use std::sync::{Arc, LazyLock};

use libtest_mimic::{Arguments, Failed, Trial};
use servers::Redis;
use tenure::conformance::{
    Absent, Applicability, EmbeddedHarness, EtcdHarness, Harness, MemoryHarness, PROMISES,
    PostgresHarness, RedisHarness, RedlockHarness, ScenarioGroup, Stage, all, cases, check,
    differential,
};
use tenure::contract::Promises;
use tenure::engine;
use tenure::seeded::Bug;

/// How a harness is made: its engine, and the harness with the servers that it needs.
type Maker = (&'static str, fn() -> Arc<dyn Harness>);

/// A harness for each engine of this build, and one for an engine that takes one name at a time.
const MAKERS: &[Maker] = &[
    ("memory", || Arc::new(MemoryHarness)),
    ("embedded", || Arc::new(EmbeddedHarness)),
    ("etcd", || Arc::new(EtcdHarness::new(&servers::Etcd::shared().url()))),
    ("postgres", || Arc::new(PostgresHarness::new(&servers::Postgres::shared().unix_url()))),
    ("redis", || Arc::new(RedisHarness::new(&Redis::shared().unix_url()))),
    ("redis+sentinel", || Arc::new(RedisHarness::new(&servers::Sentinels::shared().url()))),
    ("redis+cluster", || Arc::new(RedisHarness::new(&servers::Cluster::shared().url()))),
    ("redlock", || Arc::new(RedlockHarness::new(&quorum()))),
    ("singles", || Arc::new(singles::SinglesHarness)),
];

/// The harnesses of the tests that filters leave. Filters `redis::...` name one engine, and then
/// the servers of the others are not started.
fn harnesses(filters: &[String]) -> Vec<Arc<dyn Harness>> {
    let engine_of = |filter: &String| {
        let (named, _) = filter.split_once("::")?;
        MAKERS.iter().map(|(engine, _)| *engine).find(|engine| *engine == named)
    };
    let named: Option<Vec<&str>> = filters.iter().map(engine_of).collect();
    let named = named.filter(|named| !named.is_empty());
    let is_wanted = |engine: &str| named.as_ref().is_none_or(|named| named.contains(&engine));
    MAKERS.iter().filter(|(engine, _)| is_wanted(engine)).map(|(_, make)| make()).collect()
}

/// The filters of the command line. As one argument takes one filter only, commas are between them.
fn filters(arguments: &mut Arguments) -> Vec<String> {
    let filters: Vec<String> =
        arguments.filter.iter().flat_map(|filter| filter.split(',').map(str::to_owned)).collect();
    if filters.len() > 1 {
        arguments.filter = None;
    }
    filters
}

/// Three servers for the whole process.
fn quorum() -> String {
    static NODES: LazyLock<[Redis; 3]> = LazyLock::new(|| [(); 3].map(|()| Redis::start()));
    let hosts = NODES.each_ref().map(|node| format!("127.0.0.1:{}", node.port()));
    format!("redlock://{}", hosts.join(","))
}

fn main() {
    // Panics are outcomes here; their stories belong into the report alone.
    std::panic::set_hook(Box::new(|_| {}));
    let mut arguments = Arguments::from_args();
    let filters = filters(&mut arguments);
    let harnesses = harnesses(&filters);
    let mut trials = vec![
        Trial::test("suite::every_engine_of_this_build_is_judged", every_engine_is_judged),
        Trial::test("suite::every_promise_is_cited", every_promise_is_cited),
        Trial::test("suite::every_group_has_scenarios_with_names_of_their_own", every_group),
    ];
    trials.push(Trial::test("suite::an_absent_store_is_a_failure_and_said", an_absent_store));
    trials.push(Trial::test("suite::what_is_not_promised_is_not_asked_but_listed", not_promised));
    // Programs are about lines; an engine without one is compared in its own way.
    for harness in harnesses.iter().filter(|harness| harness.promises().queue) {
        let harness = Arc::clone(harness);
        let name = format!("{}::differential::random_programs_agree", harness.promises().engine);
        trials.push(Trial::test(name, move || programs_agree(&*harness)));
    }
    trials.push(Trial::test("suite::every_seeded_bug_has_a_judge", every_bug_has_a_judge));
    for (bug, judge) in JUDGES {
        let name = format!("judges::{bug:?}_makes_{judge}_fail");
        trials.push(Trial::test(name, move || bites(*bug, judge)));
    }
    let fixed = trials.len();
    let mut left_out = 0;
    for harness in &harnesses {
        for case in cases(&**harness) {
            if let Applicability::NotPromised(needs) = &case.standing {
                println!("not promised: {} ({needs:?})", case.name);
                left_out += 1;
                continue;
            }
            let harness = Arc::clone(harness);
            let name = case.name.clone();
            trials.push(Trial::test(name, move || Ok(case.play(&*harness)?)));
        }
    }
    println!("{} scenarios, {} cases, {left_out} not promised", all().len(), trials.len() - fixed);
    if filters.len() > 1 {
        let is_meant = |name: &str, filter: &String| {
            if arguments.exact { name == filter } else { name.contains(filter.as_str()) }
        };
        trials.retain(|trial| filters.iter().any(|filter| is_meant(trial.name(), filter)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// An engine whose store is not there.
struct Nowhere;

impl Harness for Nowhere {
    fn promises(&self) -> Promises {
        MemoryHarness.promises()
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        Err(Absent("nobody listens at port 6379".to_owned()))
    }
}

fn an_absent_store() -> Result<(), Failed> {
    let report = check(&Nowhere);
    let said = report.to_string() == "store absent: nobody listens at port 6379";
    let fails = cases(&Nowhere)[0].play(&Nowhere).is_err();
    if said && fails { Ok(()) } else { Err(format!("{report}").into()) }
}

/// An engine that promises the least.
struct Plain;

impl Harness for Plain {
    fn promises(&self) -> Promises {
        let all = MemoryHarness.promises();
        Promises { sharing: false, counting: false, atomic_sets: false, ..all }
    }

    fn open(&self) -> Result<Box<dyn Stage>, Absent> {
        MemoryHarness.open()
    }
}

fn not_promised() -> Result<(), Failed> {
    let report = check(&Plain);
    let (ran, left_out) = (report.passed.len(), report.not_promised.len());
    let listed = report.to_string().contains("not promised: memory::sharing::");
    if ran > 50 && left_out > 20 && ran + left_out == all().len() && listed {
        return Ok(());
    }
    Err(format!("{report}").into())
}

/// Which test fails with which bug.
const JUDGES: &[(Bug, &str)] = &[
    (Bug::Barging, "memory::sharing::a_try_to_read_behind_a_waiting_writer_is_refused"),
    (Bug::Barging, "memory::differential::random_programs_agree"),
    (Bug::FenceReuse, "memory::exclusion::a_mutex_serves_as_a_mutex"),
    (Bug::FenceReuse, "memory::differential::random_programs_agree"),
    (Bug::ReleaseByName, "memory::exclusion::nobody_else_can_release_or_renew_a_claim"),
    (Bug::DeadlineFromReply, "memory::loss::a_late_answer_counts_from_when_it_was_asked_for"),
    (Bug::DeadlineFromReply, "memory::loss::a_late_renewal_counts_from_when_it_was_asked_for"),
    (Bug::NoTombstone, "memory::idempotence::a_copy_that_arrives_after_the_withdrawal_is_refused"),
    (Bug::PromotionRenews, "memory::expiry::being_granted_does_not_put_off_the_expiry"),
    (Bug::RenewAfterReleaseIsLoss, "memory::loss::a_release_that_gets_no_answer_is_no_loss"),
    (Bug::DeadHeadServed, "memory::expiry::a_waiter_that_expired_is_skipped"),
    (Bug::LostPushNeverRead, "memory::waiting::a_lost_push_costs_a_renewal_and_no_more"),
    (Bug::SetTakenPiecemeal, "memory::sets::a_try_takes_all_or_nothing"),
    (Bug::UpgradeKeepsFence, "memory::upgrade::a_lone_reader_becomes_the_writer_at_once"),
    (Bug::VictimUnchecked, "memory::deadlocks::a_verdict_falls_if_a_wait_was_withdrawn"),
];

/// Plays a test again in a process of its own with a bug put in, and expects it to fail there.
fn bites(bug: Bug, judge: &str) -> Result<(), Failed> {
    let play = |bug: &str| {
        let mut play = Command::new(std::env::current_exe()?);
        play.args(["--exact", judge]).env("TENURE_SEEDED_BUG", bug).output()
    };
    let (sound, buggy) = (play("")?, play(&format!("{bug:?}"))?);
    let text = String::from_utf8_lossy(&buggy.stdout);
    let served = String::from_utf8_lossy(&sound.stdout).contains("1 passed");
    if !sound.status.success() || !served {
        return Err(format!("{judge} fails without any bug").into());
    }
    if buggy.status.success() || !text.contains("1 failed") {
        return Err(format!("{judge} does not notice {bug:?}: {text}").into());
    }
    Ok(())
}

fn every_bug_has_a_judge() -> Result<(), Failed> {
    match Bug::ALL.iter().find(|bug| !JUDGES.iter().any(|(judged, _)| judged == *bug)) {
        Some(bug) => Err(format!("nobody judges {bug:?}").into()),
        None => Ok(()),
    }
}

fn programs_agree(harness: &dyn Harness) -> Result<(), Failed> {
    let nightly = std::env::var("TENURE_TEST_SCALE").is_ok_and(|scale| scale == "nightly");
    let seeds = match harness.promises().engine {
        _ if nightly => 150,
        // A step is several writes to a disk.
        "etcd" => 12,
        // The scripts are those of one server, and a step costs round trips to every node. In a
        // PostgreSQL a step is many statements; `differential.rs` plays more of them.
        "redis+cluster" | "redis+sentinel" | "postgres" => 20,
        _ => 150,
    };
    match differential::run(harness, 0..seeds, 60) {
        Ok(_) => Ok(()),
        Err(failure) => Err(failure.to_string().into()),
    }
}

/// The matrix of scenarios and engines is complete: every engine has a harness that speaks for it,
/// and every scenario has a standing with it.
fn every_engine_is_judged() -> Result<(), Failed> {
    let harnesses = harnesses(&[]);
    if let Some((at, _)) =
        MAKERS.iter().zip(&harnesses).find(|((engine, _), made)| made.promises().engine != *engine)
    {
        return Err(format!("the harness of {} speaks for another engine", at.0).into());
    }
    for promises in engine::built_in() {
        let harness = harnesses.iter().find(|harness| harness.promises() == *promises);
        let harness = harness.ok_or_else(|| format!("{} has no harness", promises.engine))?;
        let named: Vec<_> = cases(&**harness).into_iter().map(|case| case.name).collect();
        for scenario in all() {
            let name = format!("{}::{scenario:?}", promises.engine);
            if named.iter().filter(|other| **other == name).count() != 1 {
                return Err(format!("{name} stands not exactly once").into());
            }
        }
    }
    Ok(())
}

fn every_promise_is_cited() -> Result<(), Failed> {
    let cited: Vec<u8> = all().iter().flat_map(|scenario| scenario.cites).copied().collect();
    match (1..).take(PROMISES.len()).find(|promise| !cited.contains(promise)) {
        Some(promise) => Err(format!("no scenario cites promise {promise}").into()),
        None => Ok(()),
    }
}

fn every_group() -> Result<(), Failed> {
    for group in ScenarioGroup::ALL {
        let names: Vec<_> = all().into_iter().filter(|s| s.group == group).collect();
        if names.is_empty() {
            return Err(format!("group {group} is empty").into());
        }
        for scenario in &names {
            if names.iter().filter(|other| other.name == scenario.name).count() > 1 {
                return Err(format!("{scenario:?} stands twice").into());
            }
        }
    }
    Ok(())
}

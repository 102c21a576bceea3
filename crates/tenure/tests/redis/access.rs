//! The access list that the docs give: enough for everything, and for nothing else.

use std::sync::Arc;
use std::time::Duration;

use servers::{Client, Redis, eventually};
use tenure::block_on;
use tenure::conformance::{Applicability, Case, RedisHarness, ScenarioGroup, cases};
use tenure::engine::{self, Terms};
use tenure::time::SystemClock;
use tenure::{CellRange, Name, Namespace, Put, Query, Rate, TakeOutcome, Tenure, WriteId};

const PAGE: &str = include_str!("../../../../docs/redis.md");

/// How many scenarios of each group are played.
const EACH: usize = 4;

/// The one line of the docs, with its password filled in: `ACL SETUSER tenure on >... ..`.
fn rule() -> Vec<&'static str> {
    let mut lines = PAGE.lines().filter(|line| line.starts_with("ACL SETUSER "));
    let line = lines.next().expect("docs/redis.md has a line that begins with ACL SETUSER");
    assert_eq!(lines.next(), None, "it is written once");
    line.split_whitespace()
        .map(|word| if word.starts_with('>') { ">secret" } else { word })
        .collect()
}

/// A server with the user of the docs.
fn guarded() -> (Redis, &'static str) {
    let (redis, rule) = (Redis::start(), rule());
    let made = redis.cmd(&rule).unwrap();
    assert_eq!(made.text(), Some("OK"), "{made:?}");
    (redis, rule[2])
}

#[test]
fn the_suite_passes_as_the_user_of_the_docs_and_needs_every_command_of_it() {
    let (redis, user) = guarded();
    let harness = RedisHarness::new(&redis.url_as(user, "secret"));
    let cases: Vec<Case> =
        cases(&harness).into_iter().filter(|case| case.standing == Applicability::Due).collect();
    for group in ScenarioGroup::ALL {
        let few = cases.iter().filter(|case| case.scenario.group == group).take(EACH);
        for case in few {
            case.play(&harness).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        }
    }
    let log = redis.cmd(&["ACL", "LOG"]).unwrap();
    assert!(log.list().is_empty(), "something was forbidden: {log:?}");
    // Not one command more than is needed.
    rare_ways(&redis, user);
    for command in rule().iter().filter_map(|word| word.strip_prefix('+')) {
        assert!(redis.commands(command) > 0, "+{command} is allowed and never used");
    }
}

/// Takes of which one is settled, one has left its window, and one is of an even flow.
fn settled_and_even_rates(redis: &Redis, tenure: &Tenure) {
    let take = |rate: &Rate| match rate.blocking_take(1).unwrap() {
        TakeOutcome::Allowed(permit) => permit,
        TakeOutcome::Refused(refusal) => panic!("should be allowed: {refusal:?}"),
    };
    let hour = tenure.rate("hour").unwrap().limit(9, Duration::from_secs(3_600));
    let first = take(&hour);
    take(&hour);
    first.blocking_settle(2).unwrap();
    let short = tenure.rate("short").unwrap().limit(9, Duration::from_millis(1));
    take(&short);
    std::thread::sleep(Duration::from_millis(5));
    take(&short);
    let sliding = tenure.rate("sliding").unwrap().limit(1_000, Duration::from_millis(100));
    eventually("an entry leaves a window that has others", || {
        take(&sliding);
        redis.commands("ltrim") > 0
    });
    take(&tenure.rate("even").unwrap().pace(9, Duration::from_secs(1), 9));
}

/// What hardly ever happens: a server that has forgotten the scripts, a look at which owner waits
/// for which.
fn rare_ways(redis: &Redis, user: &str) {
    let tenure = Tenure::blocking_connect(&redis.url_as(user, "secret")).unwrap();
    redis.cmd(&["SCRIPT", "FLUSH"]).unwrap();
    let guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    // The picture that a deadlock is looked for in.
    let holder =
        tenure.blocking_inspect(&Query::Slot("a".parse().unwrap())).unwrap().slots.remove(0);
    let owner = holder.holders[0].lineage.owner();
    assert!(
        tenure.blocking_inspect(&Query::Reach(owner)).unwrap().slots.is_empty(),
        "it waits for nothing"
    );
    redis.cmd(&["SCRIPT", "FLUSH"]).unwrap();
    guard.blocking_release().unwrap();
    // A write that is known by its id, and a watch of it.
    let name: Name = "a".parse().unwrap();
    let mut watch = tenure.cells().blocking_watch(CellRange::One(name.clone())).unwrap();
    tenure.cells().blocking_put(&Put::new(name, "1").id(WriteId::new())).unwrap();
    watch.blocking_next().unwrap();
    settled_and_even_rates(redis, &tenure);
    tenure.blocking_close();
    // Sessions that come and go on one engine.
    let terms = Terms {
        namespace: Namespace::default(),
        max_lease: Duration::from_secs(60),
        clock: Arc::new(SystemClock),
    };
    let engine = block_on(engine::connect(&redis.url_as(user, "secret"), terms)).unwrap();
    eventually("a session that is gone is heard for no more", || {
        let session = tenure::Tenure::builder().open(Arc::clone(&engine)).unwrap();
        drop(session);
        redis.commands("unsubscribe") > 0
    });
}

/// Most never ask replicas, so the user of the docs may not: the page says what to add.
#[test]
fn who_asks_replicas_needs_one_more_command() {
    let (redis, user) = guarded();
    let _replica = Redis::builder().replica_of(&redis).start();
    let asking = tenure::Tenure::builder().replicas(1, Duration::from_millis(1_500));
    let tenure = block_on(asking.connect(&redis.url_as(user, "secret"))).unwrap();
    let mutex = tenure.mutex("a").unwrap();
    let error = block_on(mutex.lock()).unwrap_err();
    assert_eq!(error.kind(), tenure::ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("'wait'"), "{error}");
    assert!(PAGE.contains("`+wait` where replicas are asked for"));
    redis.cmd(&["ACL", "SETUSER", user, "+wait"]).unwrap();
    let guard = block_on(mutex.lock()).unwrap();
    assert_eq!(guard.replicas(), Some(1));
    block_on(guard.release()).unwrap();
}

#[test]
fn the_user_of_the_docs_can_do_nothing_else() {
    let (redis, user) = guarded();
    let mut client = redis.connect().unwrap();
    let mut say = |words: &[&str]| said(&mut client, words);
    assert_eq!(say(&["AUTH", user, "secret"]), "OK");
    for words in [
        &["GET", "other"][..],
        &["SET", "other", "1"],
        &["DEL", "tenured"],
        &["PUBLISH", "other", "1"],
        &["SUBSCRIBE", "other"],
        &["PSUBSCRIBE", "*"],
        &["EVAL", "return redis.call('GET', 'other')", "0"],
        &["EVAL", "return redis.call('PUBLISH', 'other', '1')", "0"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["KEYS", "*"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["CONFIG", "GET", "*"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["SCRIPT", "FLUSH"],
        &["ACL", "LIST"],
        &["CLIENT", "LIST"],
        &["MONITOR"],
        &["SHUTDOWN"],
        &["REPLICAOF", "NO", "ONE"],
        &["MODULE", "LIST"],
    ] {
        let answer = say(words);
        let words_of_refusal = ["NOPERM", "permission", "ACL failure", "can't "];
        let refused = words_of_refusal.iter().any(|word| answer.contains(word));
        assert!(refused, "{words:?}: {answer}");
    }
    assert_eq!(say(&["PING"]), "PONG");
}

fn said(client: &mut Client, words: &[&str]) -> String {
    let reply = client.cmd(words).unwrap();
    reply.error().or(reply.text()).unwrap_or_else(|| panic!("{words:?}: {reply:?}")).to_owned()
}

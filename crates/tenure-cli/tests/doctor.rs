//! `tenure doctor` on servers of all conditions: what it finds, and with which exit code it ends.

mod common;

use common::Place;
use common::report::Report;
use servers::{Cluster, Etcd, Fsync, Redis, RedisBuilder, Sentinels};

/// A user with as little as locks need.
const LEAST: &str = "user worker on >pw ~tenure:* &tenure:* -@all +eval +evalsha +script|load \
                     +scan +subscribe +unsubscribe +ping +info +time +type +get +mget +set +del \
                     +exists +persist +pexpire +pttl +hget +hset +hdel +hincrby +hmget +hgetall \
                     +sadd +srem +smembers +zadd +zrem +zcard +zscore +zrank +zrange \
                     +zrangebyscore +zrangebylex +zlexcount +zrandmember +getrange +setrange \
                     +lindex +linsert +lpush +lrange +lset +ltrim +rpush";

fn on(builder: RedisBuilder) -> Report {
    Report::of(&Place::on(builder.start()))
}

#[test]
fn a_server_as_it_comes_is_fine_and_forgets() {
    let report = on(Redis::builder());
    report.has("server", "ok", "Redis ");
    report.has("connection", "ok", "RESP3");
    report.has("access", "ok", "the user default may do all");
    report.has("store clock", "ok", "of this host's");
    report.has("persistence", "note", "none: a restart forgets all locks");
    report.has("memory", "ok", "nothing is evicted");
    report.has("replicas", "ok", "primary");
    report.has("lock", "ok", "acquired and released");
    report.has("crashes", "ok", "when its lease ends");
    assert_eq!(report.code, 0);
}

#[test]
fn what_is_kept_on_disk_is_told() {
    on(Redis::builder().append_only(Fsync::Always)).has("persistence", "ok", "each answer");
    let report = on(Redis::builder().append_only(Fsync::EverySecond));
    report.has("persistence", "note", "set appendfsync to always");
    on(Redis::builder().arg("save", "3600 1")).has("persistence", "note", "snapshots alone");
    let redis = Redis::start();
    let url = format!("{}?grace=yes&new=yes", redis.url());
    let report = Report::of(&Place::on(redis).reached_by(url));
    report.has("persistence", "ok", "no grants for 60.0s");
}

#[test]
fn a_server_that_evicts_is_refused_and_bad_for_those_who_insist() {
    let full = Redis::builder().arg("maxmemory", "100mb").arg("maxmemory-policy", "allkeys-lru");
    let place = Place::on(full.start());
    let report = Report::of(&place);
    report.has("store", "bad", "evicts keys when memory is short (allkeys-lru)");
    assert_eq!(report.code, 1);
    let url = format!("{}?eviction=allow", place.url());
    let report = Report::of(&place.reached_by(url));
    report.has("memory", "bad", "set maxmemory-policy to noeviction");
    report.has("lock", "ok", "acquired");
    assert_eq!(report.code, 1);
}

#[test]
fn a_user_with_the_least_rights_can_lock_and_hides_the_rest() {
    let redis = Redis::builder().acl_line(&format!("{LEAST} +publish")).start();
    let url = redis.url_as("worker", "pw");
    let report = Report::of(&Place::on(redis).reached_by(url));
    report.has("access", "note", "ACL WHOAMI is refused");
    report.has("persistence", "note", "CONFIG is refused");
    report.has("lock", "ok", "acquired");
    assert_eq!(report.code, 0);
}

#[test]
fn a_user_who_lacks_a_right_is_told_which() {
    let redis = Redis::builder().acl_line(&format!("{LEAST} +acl|whoami")).start();
    let url = redis.url_as("worker", "pw");
    let report = Report::of(&Place::on(redis).reached_by(url));
    report.has("access", "bad", "the user worker may not run publish");
    report.has("access", "bad", "ACL SETUSER worker ~tenure:* &tenure:* +publish");
    assert_eq!(report.code, 1);

    let redis = Redis::builder().acl_line("user worker on >pw ~tenure:* &tenure:* +ping").start();
    let url = redis.url_as("worker", "pw");
    let report = Report::of(&Place::on(redis).reached_by(url));
    report.has("store", "bad", "'eval'");
    assert_eq!(report.code, 1);
}

#[test]
fn a_replica_is_no_place_for_locks_and_a_primary_tells_of_its_replicas() {
    let place = Place::redis();
    let replica = Redis::builder().replica_of(place.server()).start();
    place.server().wait_until_followed(1);
    let report = Report::of(&place);
    let port = replica.port();
    report.has("replicas", "note", &format!("1: 127.0.0.1:{port} online, "));
    report.has("replicas", "note", "a lock is granted before they know of it");
    report.has("isolation", "note", "min-replicas-to-write is 0; set it to 1 on all servers");
    assert_eq!(report.code, 0);
    place.server().cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    Report::of(&place).has("isolation", "ok", "takes no more locks after min-replicas-max-lag");
    // It knows the namespace from its primary, or not: either way it is said what it is.
    replica.wait_until_synced();
    let report = Report::of(&Place::memory().reached_by(replica.url()));
    report.has("store", "bad", "the server is a replica");
    assert_eq!(report.code, 69);
    let starved = on(Redis::builder().arg("min-replicas-to-write", "1"));
    starved.has("store", "bad", "too few replicas are in touch");
    assert_eq!(starved.code, 69);
}

#[test]
fn a_clock_that_is_far_off_is_told_and_harms_no_lock() {
    let redis = Redis::builder().clock().start();
    redis.step_clock(std::time::Duration::from_secs(3_600), servers::Direction::Forward);
    let report = Report::of(&Place::on(redis));
    report.has("store clock", "note", "ahead of this host's");
    report.has("lock", "ok", "acquired");
    assert_eq!(report.code, 0);
}

#[test]
fn sentinels_are_asked_one_by_one_and_judged_together() {
    let set = Sentinels::builder().replicas(1).sentinel("down-after-milliseconds", "5000").start();
    let place = Place::memory().reached_by(set.url());
    let report = Report::of(&place);
    let (primary, replica) = (set.primary().port(), set.replicas()[0].port());
    for sentinel in set.sentinels() {
        let port = sentinel.port();
        let words = format!(
            "127.0.0.1:{port}: mymaster is 127.0.0.1:{primary} with 1 replicas; it knows 3 \
             sentinels, of which 2 must agree"
        );
        report.has("sentinel", "ok", &words);
    }
    report.has("fail-over", "ok", "silent for 5s");
    report.has("isolation", "note", "min-replicas-to-write is 0");
    report.has("replicas", "note", &format!("127.0.0.1:{replica} online, "));
    report.has("lock", "ok", "acquired and released");
    assert_eq!(report.code, 0);

    set.sentinels()[0].kill();
    let report = Report::of(&place);
    report.has("sentinel", "note", &format!("127.0.0.1:{} does not", set.sentinels()[0].port()));
    report.has("fail-over", "ok", "silent for 5s");
    set.sentinels()[1].kill();
    let report = Report::of(&place);
    report.has("fail-over", "note", "no majority");
    report.has("lock", "ok", "acquired and released");
    assert_eq!(report.code, 0);
}

/// One sentinel is cut off from the servers and from the others, and is asked first.
#[test]
fn a_sentinel_that_is_out_of_date_is_named_with_what_it_says() {
    let set = Sentinels::builder().replicas(1).node(Redis::builder().password("pw")).start();
    let stale = set.cut_off_sentinel();
    let old = set.kill_primary().port();
    let others = set.sentinels().iter().map(servers::Sentinel::port);
    let url = set.url_by([stale.port()].into_iter().chain(others)).replace("://", "://:pw@");
    let report = Report::of(&Place::memory().reached_by(url));
    let (new, stale) = (set.primary().port(), stale.port());
    let words = format!(
        "127.0.0.1:{stale} is out of date: it says that mymaster is 127.0.0.1:{old}, which is \
         127.0.0.1:{new} by now"
    );
    report.has("sentinel", "bad", &words);
    report.has("fail-over", "bad", &format!("127.0.0.1:{stale} names 127.0.0.1:{old} (epoch 0); "));
    report.has("fail-over", "bad", &format!("Tenure goes by 127.0.0.1:{new}; "));
    report.has("lock", "ok", "acquired and released");
    assert_eq!(report.code, 1);
}

#[test]
fn a_cluster_is_looked_at_node_by_node() {
    let cluster = Cluster::start();
    let place = Place::memory().reached_by(cluster.url());
    let report = Report::of(&place);
    report.has("server", "ok", "on 3 masters");
    report.has("slots", "ok", "all 16384 are kept");
    report.has("replicas", "ok", "every master has one that keeps up");
    report.has("store clock", "ok", "clocks of masters within");
    report.has("fail-over", "note", "begins after 1s of silence (cluster-node-timeout)");
    report.has("lock", "ok", "acquired and released");
    assert_eq!(report.code, 0);

    for node in cluster.nodes() {
        node.cmd(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    }
    let one = cluster.masters()[0];
    one.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    one.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    let report = Report::of(&Place::memory().reached_by(cluster.url() + "?eviction=allow"));
    report.has("memory", "bad", &format!("127.0.0.1:{} (allkeys-lru) may evict locks", one.port()));
    report.has("fail-over", "ok", "begins after 1s");
    assert_eq!(report.code, 1);
}

#[test]
fn settings_of_sentinels_that_do_harm_are_told() {
    let set = Sentinels::start(0);
    let report = |set: &Sentinels| Report::of(&Place::memory().reached_by(set.url()));
    report(&set).has("fail-over", "note", "no replica can take the primary's place");
    drop(set);
    let set = Sentinels::start(1);
    report(&set).has("fail-over", "note", "busy for 400ms is replaced");
    for sentinel in set.sentinels() {
        sentinel.cmd(&["SENTINEL", "SET", "mymaster", "quorum", "1"]).unwrap();
    }
    report(&set).has("fail-over", "note", "a quorum of 1");
    let one = &set.sentinels()[0];
    one.cmd(&["SENTINEL", "SET", "mymaster", "quorum", "3"]).unwrap();
    report(&set).has("fail-over", "note", "different settings");
}

/// One sentinel is told to watch another server under the same name, as after a restore of an old
/// configuration.
#[test]
fn sentinels_that_name_different_primaries_are_bad() {
    let (set, other) = (Sentinels::start(1), Redis::start());
    let stray = &set.sentinels()[2];
    stray.cmd(&["SENTINEL", "REMOVE", "mymaster"]).unwrap();
    let port = other.port().to_string();
    stray.cmd(&["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "2"]).unwrap();
    let report = Report::of(&Place::memory().reached_by(set.url()));
    report.has("fail-over", "bad", "name different primaries");
    report.has("fail-over", "bad", &port);
    assert_eq!(report.code, 1);
}

#[test]
fn an_etcd_is_looked_at_member_by_member() {
    let place = Place::in_cluster(Etcd::start_three());
    let report = Report::of(&place);
    report.has("members", "ok", "3, and all of them answer");
    report.has("leader", "ok", "member ");
    report.has("server", "ok", "no bug is known");
    report.has("alarms", "ok", "none");
    report.has("latency", "", "a call");
    report.has("store clock", "ok", "monotonic");
    report.has("space", "ok", "MiB");
    report.has("lock", "ok", "acquired and released");
    report.has("fences", "ok", "always grow");
    assert_eq!(report.code, 0);

    let etcd = place.cluster();
    let first = etcd.url().split(',').next().unwrap().to_owned();
    let some = Report::of(&Place::memory().reached_by(first));
    some.has("members", "note", "1 of 3 are in the URL");
    let follower = (etcd.leader() + 1) % 3;
    etcd.kill(follower);
    let report = Report::of(&place);
    let address = format!("127.0.0.1:{}", etcd.port(follower));
    report.has("members", "note", &format!("1 of 3 do not answer: http://{address}"));
    report.has("lock", "ok", "acquired and released");
    assert_eq!(report.code, 0);
}

#[test]
fn an_etcd_that_is_full_is_bad_and_one_member_is_a_note() {
    // So small that it is full before the first lock.
    let place = Place::in_cluster(Etcd::builder().arg("--quota-backend-bytes=65536").start());
    let long = "x".repeat(60_000);
    for _ in 0..20 {
        if place.cluster().ctl(&["put", "filler", &long]).is_err() {
            break;
        }
    }
    let report = Report::of(&place);
    report.has("store", "bad", "etcd is full");
    assert_eq!(report.code, 1, "it is there, but takes nothing");
    let report = Report::of(&Place::etcd());
    report.has("members", "note", "one: its loss stops all locks");
    assert_eq!(report.code, 0);
}

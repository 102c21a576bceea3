//! A Redis of one's own: that it starts, keeps, forgets, and dies when it should.

use std::path::Path;
use std::time::Duration;

use servers::{Client, Direction, Fsync, Redis, RedisBuilder, Reply, eventually};

fn text(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with answers as they come")]
fn ok() -> Result<Reply, String> {
    Ok(text("OK"))
}

/// The letter of the kernel for what a process does, e.g. `T` if it is stopped; none if it is
/// gone.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

#[test]
fn a_server_answers_on_its_port_and_on_its_socket() {
    let redis = Redis::start();
    assert_eq!(redis.cmd(&["SET", "a", "b"]), ok());
    let mut over_tcp = redis.connect().unwrap();
    assert_eq!(over_tcp.cmd(&["GET", "a"]), Ok(text("b")));
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    let url = redis.unix_url();
    let mut over_unix =
        Client::connect_unix(Path::new(url.strip_prefix("redis+unix://").unwrap())).unwrap();
    assert_eq!(over_unix.cmd(&["GET", "a"]), Ok(text("b")));
    assert_eq!(redis.info("server", "process_id"), Some(redis.pid().to_string()));
    assert_eq!(redis.info("server", "tcp_port"), Some(redis.port().to_string()));
    assert_eq!(redis.info("persistence", "aof_enabled").as_deref(), Some("0"));
    assert_eq!(redis.cmd(&["CONFIG", "GET", "save"]), {
        Ok(Reply::List(vec![text("save"), text("")]))
    });
    assert_eq!(redis.info("server", "no_such_field"), None);
}

#[test]
fn a_dropped_server_is_gone_with_its_files() {
    let redis = Redis::start();
    let (pid, port, dir) = (redis.pid(), redis.port(), redis.dir().to_owned());
    assert!(lives(pid) && dir.exists());
    drop(redis);
    assert!(!lives(pid) && !dir.exists());
    assert!(Client::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn the_shared_server_is_the_same_for_all_and_outlives_who_asked_first() {
    let asked = std::thread::spawn(|| Redis::shared().pid());
    let pid = asked.join().unwrap();
    assert_eq!(Redis::shared().pid(), pid);
    assert_eq!(Redis::shared().cmd(&["PING"]), Ok(text("PONG")));
}

#[test]
fn arguments_reach_the_server() {
    let redis = Redis::builder()
        .arg("--maxmemory", "2mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .arg("--client-output-buffer-limit", "pubsub 1mb 1mb 1")
        .start();
    assert_eq!(redis.info("memory", "maxmemory").as_deref(), Some("2097152"));
    assert_eq!(redis.info("memory", "maxmemory_policy").as_deref(), Some("allkeys-lru"));
}

#[test]
fn a_server_that_cannot_start_says_why_and_tells_no_password() {
    let bad = Redis::builder().arg("--no-such-thing", "7").arg("requirepass", "a b").try_start();
    let error = bad.unwrap_err();
    assert!(error.contains("died at its start") && error.contains("no-such-thing"), "{error}");
    let bad = Redis::builder().acl_line("user a on >hunter2 +no-such-command").try_start();
    let error = bad.unwrap_err();
    assert!(error.contains("died at its start") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_port_that_is_taken_is_an_error_only_if_it_was_asked_for() {
    let first = Redis::start();
    let error = Redis::builder().port(first.port()).try_start().unwrap_err();
    assert!(error.contains("Address already in use"), "{error}");
    assert_eq!(first.cmd(&["PING"]), Ok(text("PONG")));
    let port = first.port();
    drop(first);
    let second = Redis::builder().port(port).start();
    assert_eq!((second.port(), second.cmd(&["DBSIZE"])), (port, Ok(Reply::Int(0))));
}

#[test]
fn a_restart_forgets_everything_without_persistence() {
    let redis = Redis::start();
    let (port, pid, run) = (redis.port(), redis.pid(), redis.info("server", "run_id"));
    assert_eq!(redis.cmd(&["SET", "a", "b"]), ok());
    redis.restart();
    assert_eq!(redis.port(), port);
    assert_ne!(redis.pid(), pid);
    assert_ne!(redis.info("server", "run_id"), run);
    assert_eq!(redis.cmd(&["GET", "a"]), Ok(Reply::Nil));
}

#[test]
fn a_restart_keeps_what_the_append_only_file_has() {
    for fsync in [Fsync::Always, Fsync::EverySecond, Fsync::No] {
        let redis = Redis::builder().append_only(fsync).start();
        assert_eq!(redis.cmd(&["SET", "a", "b"]), ok());
        redis.restart();
        assert_eq!(redis.cmd(&["GET", "a"]), Ok(text("b")), "{fsync:?}");
    }
}

#[test]
fn a_killed_server_is_gone_until_it_is_restarted() {
    let redis = Redis::start();
    let mut client = redis.connect().unwrap();
    let pid = redis.pid();
    redis.kill();
    assert!(!lives(pid));
    assert!(redis.cmd(&["PING"]).is_err() && client.cmd(&["PING"]).is_err());
    // Neither harms a process that is gone.
    redis.kill();
    redis.stop();
    redis.restart();
    assert_eq!(redis.cmd(&["PING"]), Ok(text("PONG")));
}

#[test]
fn a_server_that_is_asked_to_end_ends() {
    let redis = Redis::start();
    let pid = redis.pid();
    redis.shutdown_nosave();
    assert!(!lives(pid));
    redis.restart();
    assert_eq!(redis.cmd(&["PING"]), Ok(text("PONG")));
}

#[test]
fn a_stopped_server_answers_when_it_goes_on() {
    let redis = Redis::start();
    let mut client = redis.connect().unwrap();
    assert_eq!(client.cmd(&["PING"]), Ok(text("PONG")));
    redis.stop();
    eventually("the server is stopped", || state(redis.pid()) == Some('T'));
    client.send(&["PING"]).unwrap();
    assert_eq!(client.has_news(), Ok(false));
    redis.cont();
    assert_eq!(client.reply(), Ok(text("PONG")));
    redis.stop();
    let pid = redis.pid();
    drop(redis);
    assert!(!lives(pid), "a stopped server is killed like any other");
}

#[test]
fn users_may_do_what_their_lines_say() {
    let redis = Redis::builder()
        .acl_line("user tenure on >pw ~tenure:* resetchannels &tenure:* +@all")
        .acl_line("user default off")
        .start();
    let mut client = redis.connect().unwrap();
    let refused = client.cmd(&["GET", "tenure:a"]).unwrap();
    assert!(refused.error().unwrap().starts_with("NOAUTH"), "{refused:?}");
    let wrong = client.cmd(&["AUTH", "tenure", "no"]).unwrap();
    assert!(wrong.error().unwrap().starts_with("WRONGPASS"), "{wrong:?}");
    assert_eq!(client.cmd(&["AUTH", "tenure", "pw"]), ok());
    assert_eq!(client.cmd(&["GET", "tenure:a"]), Ok(Reply::Nil));
    let other = client.cmd(&["GET", "other"]).unwrap();
    assert!(other.error().unwrap().starts_with("NOPERM"), "{other:?}");
    // We ourselves may do everything all the same.
    assert_eq!(redis.cmd(&["SET", "other", "1"]), ok());
    assert_eq!(
        redis.url_as("tenure", "pw"),
        format!("redis://tenure:pw@127.0.0.1:{}", redis.port())
    );
}

#[test]
fn a_password_is_asked_for_also_after_a_restart() {
    let redis = Redis::builder().password("secret").start();
    for _ in 0..2 {
        let mut client = redis.connect().unwrap();
        let refused = client.cmd(&["PING"]).unwrap();
        assert!(refused.error().unwrap().starts_with("NOAUTH"), "{refused:?}");
        assert_eq!(client.cmd(&["AUTH", "secret"]), ok());
        assert_eq!(client.cmd(&["PING"]), Ok(text("PONG")));
        redis.restart();
    }
    assert!(!format!("{redis:?}").contains("secret"));
}

#[test]
fn calls_and_their_cost_are_counted_by_name() {
    let redis = Redis::start();
    assert_eq!((redis.commands("eval"), redis.command_micros("eval")), (0, 0));
    let spin = "for i = 1, 100000 do end return redis.call('incr', 'n')";
    for _ in 0..3 {
        redis.cmd(&["EVAL", spin, "0"]).unwrap();
    }
    assert_eq!((redis.commands("eval"), redis.commands("incr")), (3, 3));
    assert!(redis.command_micros("eval") > redis.command_micros("incr"));
    redis.cmd(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(redis.commands("script|flush"), 1);
    assert_eq!(redis.cmd(&["CONFIG", "RESETSTAT"]), ok());
    assert_eq!(redis.commands("eval"), 0);
}

#[test]
fn a_replica_has_what_its_master_has() {
    let master = Redis::builder().password("secret").start();
    assert_eq!(master.cmd(&["SET", "a", "1"]), ok());
    let replica = Redis::builder().replica_of(&master).start();
    assert_eq!(replica.cmd(&["GET", "a"]), Ok(text("1")));
    let mut client = Client::connect(("127.0.0.1", master.port())).unwrap();
    assert_eq!(client.cmd(&["AUTH", "secret"]), ok());
    assert_eq!(client.cmd(&["SET", "a", "2"]), ok());
    assert_eq!(client.cmd(&["WAIT", "1", "20000"]), Ok(Reply::Int(1)));
    assert_eq!(replica.cmd(&["GET", "a"]), Ok(text("2")));
    let refused = replica.cmd(&["SET", "a", "3"]).unwrap();
    assert!(refused.error().unwrap().starts_with("READONLY"), "{refused:?}");
    // A fail-over by hand: the replica takes over, the old master follows it.
    assert_eq!(replica.cmd(&["REPLICAOF", "NO", "ONE"]), ok());
    assert_eq!(replica.cmd(&["SET", "a", "3"]), ok());
    assert_eq!(master.cmd(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]), ok());
    master.wait_until_synced();
    assert_eq!(master.cmd(&["GET", "a"]), Ok(text("3")));
}

/// Seconds of the server's own time.
fn server_time(redis: &Redis) -> i64 {
    redis.cmd(&["TIME"]).unwrap().list()[0].int().unwrap()
}

#[test]
fn a_step_of_the_clock_shows_and_keys_expire_by_it() {
    let redis = Redis::builder().clock().start();
    let before = server_time(&redis);
    assert_eq!(redis.cmd(&["SET", "short", "1", "PX", "60000"]), ok());
    assert_eq!(redis.cmd(&["SET", "long", "1", "PX", "600000"]), ok());
    redis.step_clock(Duration::from_secs(120), Direction::Forward);
    assert!(server_time(&redis) >= before + 120);
    assert_eq!(redis.cmd(&["EXISTS", "short", "long"]), Ok(Reply::Int(1)));
    redis.step_clock(Duration::from_secs(1_000), Direction::Back);
    assert!(server_time(&redis) < before);
    // Time is given back, and with it life: more than the ten minutes it once had.
    assert!(redis.cmd(&["PTTL", "long"]).unwrap().int().unwrap() > 600_000);
    redis.restart();
    assert!(server_time(&redis) < before, "the step outlives a restart");
}

#[test]
#[should_panic(expected = "start it with `.clock()`")]
fn a_server_without_a_clock_of_its_own_says_so() {
    Redis::shared().step_clock(Duration::ZERO, Direction::Forward);
}

#[test]
fn many_servers_start_at_the_same_time() {
    let start = || std::thread::spawn(|| RedisBuilder::default().start());
    let threads: Vec<_> = (0..8).map(|_| start()).collect();
    let servers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (number, redis) in servers.iter().enumerate() {
        assert_eq!(redis.cmd(&["SET", "me", &number.to_string()]), ok());
    }
    for (number, redis) in servers.iter().enumerate() {
        let mut client = redis.connect().unwrap();
        assert_eq!(client.cmd(&["GET", "me"]), Ok(text(&number.to_string())));
    }
}

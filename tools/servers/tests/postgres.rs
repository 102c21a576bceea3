//! A real PostgreSQL does what the tests will ask of it.

use servers::{PgBouncer, Postgres, eventually};

#[test]
fn it_answers_and_dies_and_comes_back_with_what_it_had() {
    let server = Postgres::start();
    server.done("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)");
    server.done("CREATE UNLOGGED TABLE lost (n int); INSERT INTO lost VALUES (7)");
    let before = server.pid();
    server.kill();
    assert!(server.sql("SELECT 1").is_err(), "nobody is there");
    server.restart();
    assert_ne!(server.pid(), before);
    assert_eq!(server.done("SELECT n FROM kept"), "7\n");
    assert_eq!(server.done("SELECT count(*) FROM lost"), "0\n", "a crash empties what is unlogged");
    server.done("INSERT INTO lost VALUES (8)");
    server.shutdown();
    server.restart();
    assert_eq!(server.done("SELECT n FROM lost"), "8\n", "an orderly end does not");
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let first = Postgres::start();
    first.done("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    let second = first.standby();
    first.done("INSERT INTO t VALUES (2)");
    second.wait_until_caught_up(&first);
    assert_eq!(second.done("SELECT count(*) FROM t"), "2\n");
    assert!(second.sql("INSERT INTO t VALUES (3)").is_err(), "a standby takes no writes");
    first.kill();
    second.promote();
    second.done("INSERT INTO t VALUES (3)");
}

#[test]
fn a_stopped_server_answers_nothing_until_it_goes_on() {
    let server = Postgres::start();
    server.stop_all();
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.sql("SELECT 1"));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let waits = !asked.is_finished();
        server.cont();
        (waits, asked.join().unwrap())
    });
    assert_eq!(asked, (true, Ok("1\n".to_owned())));
}

#[test]
fn a_pooler_lends_one_connection_to_many() {
    let server = Postgres::start();
    let bouncer = PgBouncer::before(&server, 1);
    assert_ne!(bouncer.port(), server.port());
    eventually("the pooler takes connections", || {
        std::net::TcpStream::connect(("127.0.0.1", bouncer.port())).is_ok()
    });
    bouncer.kill();
    assert!(std::net::TcpStream::connect(("127.0.0.1", bouncer.port())).is_err());
}

#[test]
fn a_killed_server_leaves_no_memory_behind() {
    let server = Postgres::start();
    let file = std::fs::read_to_string(server.dir().join("data/postmaster.pid")).unwrap();
    let id = file.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    // The columns are key, id, and more.
    let there = || {
        let all = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        all.lines().any(|line| line.split_whitespace().nth(1) == Some(&id))
    };
    server.kill();
    assert!(there(), "or it is another number");
    drop(server);
    assert!(!there());
}

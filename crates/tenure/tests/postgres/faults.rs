//! What a server refuses or does to calls: isolation of another's choice, statements that take too
//! long, crashes of a backend, recovery. Full disks are next door, in `space.rs`.

use std::time::Duration;

use servers::{Postgres, eventually};
use tenure::block_on;
use tenure::{Effect, ErrorKind, Tenure};

use crate::host::{Waiter, assert_empty, builder, give_back, session};

#[test]
fn a_crash_of_one_backend_restarts_the_server_and_costs_nobody_a_lock() {
    let server = Postgres::start();
    let (one, two) = (session(&server.url()), session(&server.url()));
    let guard = block_on(one.mutex("a").unwrap().lock()).unwrap();
    let fence = guard.fence().unwrap();
    let waiter = Waiter::behind(&two, "a", 0);
    let backends = server
        .done("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tenure %' LIMIT 1");
    // By -9 from outside, as the kernel does when memory is short: the server ends all others.
    let pid = rustix::process::Pid::from_raw(backends.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the server is back", || server.sql("SELECT 1").is_ok());
    assert_eq!(guard.fence().unwrap(), fence);
    eventually("the lock is given back", || {
        block_on(two.inspect(&tenure::Query::Slot("a".parse().unwrap())))
            .is_ok_and(|seen| seen.slots.iter().any(|slot| slot.queue.len() == 1))
    });
    give_back(guard);
    let next = waiter.served();
    assert!(next.fence().unwrap() > fence);
    block_on(next.release()).unwrap();
    assert_empty(&one);
}

#[test]
fn a_default_isolation_of_another_choice_does_not_matter() {
    let server = Postgres::start();
    server.done("ALTER SYSTEM SET default_transaction_isolation = 'serializable'");
    server.done("SELECT pg_reload_conf()");
    let sessions: Vec<Tenure> = (0..3).map(|_| session(&server.url())).collect();
    let threads: Vec<_> = sessions
        .iter()
        .cloned()
        .map(|tenure| {
            std::thread::spawn(move || {
                for _ in 0..30 {
                    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
                    block_on(guard.release()).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_empty(&sessions[0]);
}

#[test]
fn a_transaction_that_the_server_ends_for_another_is_an_error_without_effect() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    // As serializable transactions of others may bring about.
    server.done(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END $$; \
         CREATE TRIGGER fail BEFORE INSERT ON tenure.slots FOR EACH ROW EXECUTE FUNCTION fail()",
    );
    let error = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(error.to_string().contains("40001"), "{error}");
    server.done("DROP TRIGGER fail ON tenure.slots");
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    assert_empty(&tenure);
}

#[test]
fn a_statement_that_takes_too_long_is_ended_and_said() {
    let server = Postgres::start();
    let tenure =
        block_on(builder().call_limit(Duration::from_secs(30)).connect(&server.url())).unwrap();
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
    server.done(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           PERFORM pg_sleep(600); RETURN NEW; END $$; \
         CREATE TRIGGER slow BEFORE INSERT ON tenure.slots FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    // On a machine so busy that the server ends the statement twice as late, the connection is
    // given up before that, as one whose other end is gone: then the next attempt says it.
    eventually("the server's own word for it is said", || {
        let error = block_on(tenure.mutex("a").unwrap().try_lock()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("57014")
    });
    server.done("DROP TRIGGER slow ON tenure.slots");
    block_on(block_on(tenure.mutex("a").unwrap().lock()).unwrap().release()).unwrap();
}

#[test]
fn a_server_that_takes_no_writes_is_said_and_found_again() {
    let server = Postgres::start();
    let tenure = session(&server.url());
    server.done("ALTER SYSTEM SET default_transaction_read_only = on");
    server.done("SELECT pg_reload_conf()");
    eventually("the server takes no writes", || {
        block_on(tenure.mutex("a").unwrap().try_lock())
            .is_err_and(|error| error.kind() == ErrorKind::Unavailable)
    });
    server.done(
        "SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only",
    );
    server.done("SELECT pg_reload_conf()");
    eventually("it takes writes again", || {
        block_on(tenure.mutex("a").unwrap().try_lock()).is_ok_and(|guard| guard.is_some())
    });
}

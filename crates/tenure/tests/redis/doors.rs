//! How one gets in: schemes, certificates, users and passwords; and how one does not.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use servers::{Cluster, Redis, Sentinels};
use tenure::{Error, ErrorKind, Tenure, Verb, block_on};

use crate::host::done;
use crate::logs::logs;

/// Never to be seen in an error or a log.
const CANARY: &str = "c4n4ry-in-a-c04l-mine";

/// A lock can be taken and given back at this URL.
#[track_caller]
fn works(url: &str) {
    let tenure = Tenure::blocking_connect(url).unwrap_or_else(|error| panic!("{url}: {error}"));
    let guard = tenure.mutex("a").unwrap().blocking_lock().unwrap();
    assert!(guard.fence().unwrap().get() > 0);
    guard.blocking_release().unwrap();
    tenure.blocking_close();
}

/// No client connects with this URL, and the error tells what to do.
#[track_caller]
fn refused(url: &str, kind: ErrorKind) -> Error {
    let error =
        Tenure::blocking_connect(url).map(|_| panic!("{url} should be refused")).unwrap_err();
    assert_eq!((error.kind(), error.verb()), (kind, Some(Verb::Connect)), "{error}");
    assert!(!error.help().is_empty(), "{error}");
    error
}

fn with_ca(url: &str, ca: &Path) -> String {
    format!("{url}?ca={}", ca.display())
}

#[test]
fn every_scheme_leads_to_the_server() {
    let redis = Redis::builder().tls().start();
    works(&redis.url());
    works(&redis.url().replace("redis://", "valkey://"));
    works(&format!("{}/3", redis.url()));
    works(&redis.unix_url());
    let tls = with_ca(&redis.tls_url(), &redis.certificates().ca());
    works(&tls);
    works(&tls.replace("rediss://", "valkeys://"));
    // Another database is another store.
    let there = Tenure::blocking_connect(&format!("{}/3", redis.url())).unwrap();
    let here = Tenure::blocking_connect(&redis.url()).unwrap();
    let _guard = there.mutex("a").unwrap().blocking_lock().unwrap();
    assert!(here.mutex("a").unwrap().blocking_try_lock().unwrap().is_some());
}

#[test]
fn a_server_that_nobody_vouches_for_is_refused() {
    let (redis, other) = (Redis::builder().tls().start(), Redis::builder().tls().start());
    let stranger = with_ca(&redis.tls_url(), &other.certificates().ca());
    // Nor does the system know the authority of one test run.
    for url in [stranger, redis.tls_url()] {
        let error = refused(&url, ErrorKind::InvalidOption);
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}

#[test]
fn a_server_of_another_name_is_refused() {
    let redis = Redis::builder().tls().start();
    let passed_on = another_name_for(redis.tls_port());
    let url = with_ca(&format!("rediss://{passed_on}"), &redis.certificates().ca());
    let error = refused(&url, ErrorKind::InvalidOption);
    let said = error.to_string();
    assert!(said.contains("certificate") && said.contains("127.0.0.2"), "{said}");
}

/// An address that leads to a port of this host and is not in the certificate of who listens there.
fn another_name_for(port: u16) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        // Ends with the connection, whichever side closes it.
        let _ = std::io::copy(&mut server, &mut client);
    });
    address
}

#[test]
fn users_come_in_with_the_password_in_the_url_or_in_a_file() {
    let user = format!("user tenant on >{CANARY} ~tenure:* &tenure:* +@all");
    let redis = Redis::builder().password(CANARY).acl_line(&user).start();
    works(&redis.url_as("", CANARY));
    works(&redis.url_as("tenant", CANARY));
    let unix = redis.unix_url().replace("redis+unix://", "");
    works(&format!("redis+unix://tenant:{CANARY}@{unix}"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{CANARY}\n")).unwrap();
    works(&format!("{}?password_file={}", redis.url_as("tenant", ""), file.display()));
    let missing = format!("{}?password_file=/nowhere/at/all", redis.url());
    let error = refused(&missing, ErrorKind::InvalidOption);
    assert!(error.to_string().contains("password"), "{error}");
}

#[test]
fn a_wrong_password_is_a_clear_error_and_is_never_shown() {
    logs();
    let redis = Redis::builder().password("right").start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, CANARY).unwrap();
    for url in [
        redis.url_as("", CANARY),
        redis.url_as("nobody", CANARY),
        format!("{}?password_file={}", redis.url(), file.display()),
    ] {
        let error = refused(&url, ErrorKind::InvalidOption);
        let said = format!("{error} {error:?} {error:#?}");
        assert!(said.contains("the user or the password"), "{said}");
        assert!(!said.contains(CANARY), "{said}");
    }
    let error = refused(&redis.url(), ErrorKind::InvalidOption);
    assert!(error.to_string().contains("wants a password"), "{error}");
    assert!(!logs().contains(CANARY), "{}", logs());
}

#[test]
fn a_password_that_is_changed_under_a_running_program_is_never_shown_either() {
    logs();
    let redis = Redis::builder().password(CANARY).start();
    let tenure = Tenure::blocking_connect(&redis.url_as("", CANARY)).unwrap();
    let shown = format!("{tenure:?} {:?}", tenure.mutex("a").unwrap());
    assert!(!shown.contains(CANARY), "{shown}");
    done(&redis, &["ACL", "SETUSER", "default", "resetpass", ">another"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "normal"]);
    done(&redis, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    let error = loop {
        // The connection may be found broken first.
        match block_on(tenure.mutex("a").unwrap().lock()) {
            Err(error) if error.kind() == ErrorKind::InvalidOption => break error,
            Err(_) => {}
            Ok(_) => panic!("the password is wrong now"),
        }
    };
    let said = format!("{error} {error:?} {}", logs());
    assert!(said.contains("the user or the password"), "{said}");
    assert!(!said.contains(CANARY), "{said}");
}

#[test]
fn nobody_at_home_is_said_within_seconds() {
    let redis = Redis::start();
    let url = redis.url();
    redis.kill();
    let error = refused(&url, ErrorKind::Unavailable);
    assert!(error.is_transient(), "{error}");
}

/// No piece of an error is said twice: advice that an error brings along is not repeated by the one
/// that carries it.
#[track_caller]
fn says_nothing_twice(error: &Error) {
    let text = error.to_string();
    let mut pieces: Vec<&str> = text.split("; ").collect();
    let all = pieces.len();
    pieces.sort_unstable();
    pieces.dedup();
    assert_eq!(pieces.len(), all, "{text}");
}

/// Each scheme at a server of another kind: the error says what is there and which scheme it takes.
#[test]
fn a_scheme_for_another_kind_of_server_is_told_as_such() {
    let (redis, sentinels) = (Redis::shared(), Sentinels::shared());
    let cluster = Cluster::start();
    let (server, node) = (redis.port(), cluster.nodes()[0].port());
    let sentinel = sentinels.sentinels()[0].port();
    let another = sentinels.sentinels()[1].port();
    let (alone, bad_url) = (ErrorKind::Unsupported, ErrorKind::InvalidOption);
    for (url, kind, words, next) in [
        (format!("redis+sentinel://127.0.0.1:{server}/m"), bad_url, "not a sentinel", "redis://"),
        (
            format!("redis+sentinel://127.0.0.1:{server},127.0.0.1:{node}/m"),
            bad_url,
            "not a sentinel",
            "redis+cluster://",
        ),
        (format!("redis://127.0.0.1:{sentinel}"), bad_url, "is a sentinel", "redis+sentinel://"),
        (
            format!("redis+cluster://127.0.0.1:{sentinel},127.0.0.1:{another}"),
            bad_url,
            "is a sentinel",
            "redis+sentinel://",
        ),
        (
            format!("redis+cluster://127.0.0.1:{server}"),
            alone,
            "not a node of a cluster",
            "redis://",
        ),
        (format!("redis://127.0.0.1:{node}"), alone, "is a node of a cluster", "redis+cluster://"),
        (
            format!("redis+sentinel://127.0.0.1:{sentinel},127.0.0.1:{another}/unknown"),
            bad_url,
            "knows no primary named unknown",
            "sentinel monitor",
        ),
    ] {
        let error = refused(&url, kind);
        assert!(error.to_string().contains(words), "{url}: {error}");
        assert!(error.help().contains(next), "{url}: {error}");
        assert!(!error.to_string().contains("report"), "{url}: {error}");
        says_nothing_twice(&error);
    }
}

/// Errors of several servers in one.
#[test]
fn an_error_of_many_servers_gives_each_advice_once() {
    let closed = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let [one, two, three] = [closed(), closed(), closed()];
    for url in [
        format!("redis+sentinel://127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}/m"),
        format!("redis+cluster://127.0.0.1:{one},127.0.0.1:{two}"),
        format!("redlock://127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}"),
    ] {
        says_nothing_twice(&refused(&url, ErrorKind::Unavailable));
    }
}

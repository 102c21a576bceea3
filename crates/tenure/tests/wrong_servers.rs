//! URLs that lead to a server of another kind, or to one that accepts connections and says nothing.
//! `postgres://` at a Redis server took 24 seconds to say that the server does not answer; each
//! engine gives up within its own time limit, and says what is wrong where that can be told.
#![cfg(all(feature = "etcd", feature = "postgres", feature = "redis", feature = "redlock"))]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use servers::{Etcd, Postgres, Redis};
use tenure::{Effect, ErrorKind, Tenure, block_on};

use ErrorKind::{InvalidOption, Unavailable};

/// Accepts connections at a port of its own for as long as the tests run.
fn play(serve: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    port
}

/// Accepts connections and says nothing. The other end must not see them close.
fn silent() -> u16 {
    play(std::mem::forget)
}

/// Closes connections as soon as they are there.
fn closing() -> u16 {
    play(drop)
}

/// Speaks first, and of something else.
fn web() -> u16 {
    play(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        std::mem::forget(stream);
    })
}

/// The port in a URL of one host.
fn port_in(url: &str) -> u16 {
    let (_, tail) = url.split_once("127.0.0.1:").expect("a host on loopback");
    let digits: String = tail.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn postgres() -> u16 {
    port_in(&Postgres::shared().url())
}

fn etcd() -> u16 {
    port_in(&Etcd::shared().url())
}

/// Connects with each URL, in which PORT is the port beside it, and checks kind and text.
#[track_caller]
fn assert_refused(cases: &[(&str, u16, ErrorKind, &str)]) {
    std::thread::scope(|scope| {
        for (url, port, kind, text) in cases {
            scope.spawn(move || {
                let url = url.replace("PORT", &port.to_string());
                let error = block_on(Tenure::connect(&url)).expect_err(&url);
                assert_eq!(error.kind(), *kind, "{url}: {error}");
                assert!(error.to_string().contains(text), "{url}: {error}");
                assert!(!error.help().is_empty(), "{url}: {error}");
            });
        }
    });
}

#[test]
fn a_redis_url_at_another_server() {
    let (lost, late) = ("that the URL leads to a Redis server", "within 2s");
    let strange = "does not speak Redis's protocol";
    assert_refused(&[
        ("redis://127.0.0.1:PORT", postgres(), Unavailable, lost),
        ("redis://127.0.0.1:PORT", etcd(), Unavailable, lost),
        ("redis://127.0.0.1:PORT", closing(), Unavailable, lost),
        ("redis://127.0.0.1:PORT", silent(), Unavailable, late),
        ("redis://127.0.0.1:PORT", web(), InvalidOption, strange),
        (
            "redis+sentinel://127.0.0.1:PORT/mymaster",
            postgres(),
            Unavailable,
            "lost during the handshake",
        ),
        ("redis+sentinel://127.0.0.1:PORT/mymaster", silent(), Unavailable, late),
        ("redis+sentinel://127.0.0.1:PORT/mymaster", web(), InvalidOption, strange),
        ("redis+cluster://127.0.0.1:PORT", postgres(), Unavailable, "lost during the handshake"),
        ("redis+cluster://127.0.0.1:PORT", silent(), Unavailable, late),
        ("redis+cluster://127.0.0.1:PORT", web(), InvalidOption, strange),
    ]);
    let three = |port: fn() -> u16| {
        let hosts: Vec<_> = (0..3).map(|_| format!("127.0.0.1:{}", port())).collect();
        format!("redlock://{}?new=yes", hosts.join(","))
    };
    for (url, kind, text) in [
        (three(silent), Unavailable, late),
        (three(closing), Unavailable, "lost during the handshake"),
        (three(web), InvalidOption, strange),
    ] {
        assert_refused(&[(&url, 0, kind, text)]);
    }
}

#[test]
fn a_postgres_url_at_another_server() {
    let mute = "accepts connections but does not answer PostgreSQL's handshake";
    let strange = "does not speak PostgreSQL's protocol";
    let lost = "that it is a PostgreSQL";
    for url in ["postgres://u@127.0.0.1:PORT/db", "postgres://u@127.0.0.1:PORT/db?sslmode=prefer"] {
        assert_refused(&[
            (url, Redis::shared().port(), Unavailable, mute),
            (url, etcd(), Unavailable, mute),
            (url, silent(), Unavailable, mute),
            (url, closing(), Unavailable, lost),
            (url, web(), InvalidOption, strange),
        ]);
    }
    let limited = "postgres://u@127.0.0.1:PORT/db?connect_timeout=1";
    assert_refused(&[(limited, silent(), Unavailable, "tried for 1s")]);
}

#[test]
fn an_etcd_url_at_another_server() {
    let strange = "does not speak etcd's protocol";
    let away = "that the URL names their client ports";
    assert_refused(&[
        ("etcd://127.0.0.1:PORT", Redis::shared().port(), Unavailable, strange),
        ("etcd://127.0.0.1:PORT", web(), Unavailable, strange),
        ("etcd://127.0.0.1:PORT", postgres(), Unavailable, away),
        ("etcd://127.0.0.1:PORT", closing(), Unavailable, away),
        ("etcd://127.0.0.1:PORT", silent(), Unavailable, "within 2s"),
    ]);
    let url = format!("etcd://127.0.0.1:{}", Redis::shared().port());
    let error = block_on(Tenure::connect(&url)).unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
}

/// The first host of a URL had all the time there was, so that the second was never tried.
#[test]
fn a_silent_postgres_host_does_not_keep_clients_from_the_next() {
    let (url, port) = (Postgres::shared().url(), postgres());
    let both = format!("127.0.0.1:{},127.0.0.1:{port}", silent());
    let url = url.replacen(&format!("127.0.0.1:{port}"), &both, 1);
    let tenure = block_on(Tenure::builder().namespace("second-host").connect(&url)).unwrap();
    let guard = block_on(tenure.mutex("a").unwrap().lock()).unwrap();
    block_on(guard.release()).unwrap();
}

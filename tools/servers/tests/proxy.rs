//! Every fault of the proxy does what it says, with a real Redis behind it.

use std::time::{Duration, Instant};

use servers::{Client, Faults, Proxy, Redis, Reply, eventually};

/// Longer than anything takes by itself here, and short enough to wait for.
const DELAY: Duration = Duration::from_millis(150);

fn text(text: &str) -> Reply {
    Reply::Text(text.to_owned())
}

/// A server and a proxy in front of it.
fn pair() -> (Redis, Proxy) {
    let redis = Redis::start();
    let proxy = Proxy::to(("127.0.0.1", redis.port()));
    (redis, proxy)
}

/// A client through the proxy that has already been answered.
fn client(proxy: &Proxy) -> Client {
    let mut client = Client::connect(proxy.addr()).unwrap();
    assert_eq!(client.cmd(&["PING"]), Ok(text("PONG")));
    client
}

/// One that speaks RESP3 and hears the channel `c`.
fn subscriber(proxy: &Proxy) -> Client {
    let mut client = client(proxy);
    assert!(client.cmd(&["HELLO", "3"]).unwrap().error().is_none());
    client.send(&["SUBSCRIBE", "c"]).unwrap();
    assert_eq!(client.push().unwrap(), [text("subscribe"), text("c"), Reply::Int(1)]);
    client
}

fn publish(redis: &Redis, what: &str) {
    assert_eq!(redis.cmd(&["PUBLISH", "c", what]), Ok(Reply::Int(1)));
}

fn message(what: &str) -> Vec<Reply> {
    vec![text("message"), text("c"), text(what)]
}

fn get(redis: &Redis, key: &str) -> Reply {
    redis.cmd(&["GET", key]).unwrap()
}

#[test]
fn without_faults_it_is_not_noticed() {
    let (redis, proxy) = pair();
    let mut first = client(&proxy);
    assert_eq!(first.cmd(&["SET", "a", "b"]), Ok(text("OK")));
    assert_eq!(get(&redis, "a"), text("b"));
    assert_eq!(proxy.redis_url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let _second = client(&proxy);
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.open, counts.refused), (2, 2, 0));
    let ping = "*1\r\n$4\r\nPING\r\n".len() as u64;
    let set = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n".len() as u64;
    assert_eq!(counts.to_server, 2 * ping + set);
    assert_eq!(counts.to_client, 2 * "+PONG\r\n".len() as u64 + "+OK\r\n".len() as u64);
    drop(first);
    eventually("the end of a client is seen", || proxy.counts().open == 1);
}

#[test]
fn big_batches_and_big_values_pass_whole_and_in_order() {
    let (_redis, proxy) = pair();
    let mut client = client(&proxy);
    let big = "0123456789\r\n>3\r\n".repeat(200_000);
    assert_eq!(client.cmd(&["SET", "big", &big]), Ok(text("OK")));
    assert_eq!(client.cmd(&["GET", "big"]), Ok(text(&big)));
    let count: i64 = 20_000;
    let mut batch = Vec::new();
    for _ in 0..count {
        batch.extend_from_slice(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n");
    }
    client.send_raw(&batch).unwrap();
    for number in 1..=count {
        assert_eq!(client.reply(), Ok(Reply::Int(number)));
    }
}

#[test]
fn a_client_that_does_not_read_does_not_hinder_a_cut() {
    let (redis, proxy) = pair();
    let mut idle = client(&proxy);
    redis.cmd(&["SET", "big", &"x".repeat(32 << 20)]).unwrap();
    idle.send(&["GET", "big"]).unwrap();
    // Some of it has passed, then the buffers of the kernel were full.
    eventually("the answer is stuck", || proxy.counts().held_to_client > 0);
    proxy.cut();
    assert_eq!(proxy.counts().open, 0);
    assert!(idle.reply().is_err());
}

#[test]
fn a_delay_is_added_on_the_way_it_is_asked_for() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    for (to_server, to_client) in [(DELAY, Duration::ZERO), (Duration::ZERO, DELAY), (DELAY, DELAY)]
    {
        proxy.delay(to_server, to_client);
        let began = Instant::now();
        assert_eq!(client.cmd(&["INCR", "n"]).unwrap().error(), None);
        assert!(began.elapsed() >= to_server + to_client);
    }
    // Not one after the other: a batch takes as long as a single command.
    client.send_raw("*1\r\n$4\r\nPING\r\n".repeat(1_000).as_bytes()).unwrap();
    for _ in 0..1_000 {
        assert_eq!(client.reply(), Ok(text("PONG")));
    }
    // Only the answer is late: the server has acted long before.
    proxy.delay(Duration::ZERO, Duration::from_secs(3_600));
    client.send(&["SET", "a", "b"]).unwrap();
    eventually("the answer is on its way", || proxy.counts().held_to_client > 0);
    assert_eq!(get(&redis, "a"), text("b"));
    // Taking the delay away lets it pass at once.
    proxy.delay(Duration::ZERO, Duration::ZERO);
    assert_eq!(client.reply(), Ok(text("OK")));
}

#[test]
fn a_cut_resets_all_connections_and_welcomes_new_ones() {
    let (redis, proxy) = pair();
    let mut clients: Vec<_> = (0..3).map(|_| client(&proxy)).collect();
    proxy.cut();
    for client in &mut clients {
        let error = client.reply().unwrap_err();
        assert!(error.contains("reset"), "{error}");
    }
    assert_eq!(proxy.counts().open, 0);
    // The server hears of it too; the asker itself is the one client that is left.
    eventually("the server has noticed", || {
        redis.info("clients", "connected_clients").as_deref() == Some("1")
    });
    client(&proxy);
}

#[test]
fn a_refusing_proxy_refuses_only_the_new() {
    let (_redis, proxy) = pair();
    let mut old = client(&proxy);
    proxy.refuse(true);
    let refused = Client::connect(proxy.addr()).and_then(|mut client| client.cmd(&["PING"]));
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(old.cmd(&["PING"]), Ok(text("PONG")));
    proxy.refuse(false);
    client(&proxy);
    assert_eq!((proxy.counts().connections, proxy.counts().refused), (3, 1));
}

#[test]
fn a_server_that_is_gone_refuses_through_the_proxy() {
    let (redis, proxy) = pair();
    redis.kill();
    let refused = Client::connect(proxy.addr()).and_then(|mut client| client.cmd(&["PING"]));
    assert!(refused.is_err(), "{refused:?}");
    redis.restart();
    client(&proxy);
}

#[test]
fn the_end_of_the_server_reaches_the_client() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    redis.kill();
    assert!(client.reply().is_err());
    // Until now only one half of the connection had ended.
    drop(client);
    eventually("nothing is left of it", || proxy.counts().open == 0);
}

#[test]
fn through_a_black_hole_nothing_passes_until_it_is_healed() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    proxy.black_hole(true);
    client.send(&["SET", "a", "b"]).unwrap();
    eventually("the command is held", || proxy.counts().held_to_server > 0);
    assert_eq!(get(&redis, "a"), Reply::Nil);
    // New connections are accepted and get nowhere; the server does not hear of them.
    let mut late = Client::connect(proxy.addr()).unwrap();
    late.send(&["SET", "c", "d"]).unwrap();
    let command = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n".len() as u64;
    eventually("both are held", || proxy.counts().held_to_server == 2 * command);
    assert_eq!(redis.info("clients", "connected_clients").as_deref(), Some("2"));
    assert_eq!((client.has_news(), late.has_news()), (Ok(false), Ok(false)));
    proxy.heal_delivering();
    assert_eq!((client.reply(), late.reply()), (Ok(text("OK")), Ok(text("OK"))));
    assert_eq!((get(&redis, "a"), get(&redis, "c")), (text("b"), text("d")));
}

#[test]
fn a_black_hole_hides_the_end_of_the_server() {
    let (redis, proxy) = pair();
    let mut client = subscriber(&proxy);
    proxy.black_hole(true);
    publish(&redis, "lost in it");
    eventually("the push is held", || proxy.counts().held_to_client > 0);
    redis.kill();
    assert_eq!((client.has_news(), proxy.counts().open), (Ok(false), 1));
    proxy.heal_delivering();
    assert_eq!(client.push(), Ok(message("lost in it")));
    assert!(client.push().is_err());
}

#[test]
fn a_black_hole_that_swallowed_something_takes_the_connection_with_it() {
    let (redis, proxy) = pair();
    let (mut busy, mut idle) = (client(&proxy), client(&proxy));
    proxy.black_hole(true);
    busy.send(&["SET", "a", "b"]).unwrap();
    eventually("the command is held", || proxy.counts().held_to_server > 0);
    proxy.heal_dropping();
    assert!(busy.reply().is_err());
    assert_eq!(idle.cmd(&["PING"]), Ok(text("PONG")));
    assert_eq!(get(&redis, "a"), Reply::Nil);
    client(&proxy);
}

#[test]
fn held_replies_come_late_and_in_order() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    proxy.hold_replies(true);
    client.send(&["INCR", "n"]).unwrap();
    client.send(&["INCR", "n"]).unwrap();
    eventually("both answers are held", || proxy.counts().held_to_client == 8);
    assert_eq!((get(&redis, "n"), client.has_news()), (text("2"), Ok(false)));
    proxy.hold_replies(false);
    assert_eq!((client.reply(), client.reply()), (Ok(Reply::Int(1)), Ok(Reply::Int(2))));
}

#[test]
fn replies_that_are_lost_leave_their_commands_done() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    proxy.hold_replies(true);
    client.send(&["SET", "a", "b"]).unwrap();
    eventually("the answer is held", || proxy.counts().held_to_client > 0);
    proxy.heal_dropping();
    assert!(client.reply().is_err());
    assert_eq!(get(&redis, "a"), text("b"));
}

#[test]
fn pushes_are_lost_as_many_as_asked_and_answers_are_not() {
    let (redis, proxy) = pair();
    let mut client = subscriber(&proxy);
    proxy.drop_pushes(2);
    for what in ["one", "two", "three"] {
        publish(&redis, what);
    }
    assert_eq!(client.push(), Ok(message("three")));
    assert_eq!(client.cmd(&["PING"]), Ok(text("PONG")));
    assert_eq!((proxy.counts().pushes, proxy.counts().pushes_dropped), (3, 2));
    proxy.drop_pushes(u64::MAX);
    for _ in 0..10 {
        publish(&redis, "never heard");
    }
    eventually("all are lost", || proxy.counts().pushes_dropped == 12);
    // Somebody who comes now is still told that the subscription stands.
    let other = subscriber(&proxy);
    drop(other);
    assert_eq!((client.cmd(&["PING"]), client.has_news()), (Ok(text("PONG")), Ok(false)));
    proxy.drop_pushes(0);
    eventually("the other one has left", || redis.cmd(&["PUBLISH", "c", "x"]) == Ok(Reply::Int(1)));
    assert_eq!(client.push(), Ok(message("x")));
}

#[test]
fn a_connection_is_cut_in_the_middle_of_a_command() {
    let (redis, proxy) = pair();
    let command = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n";
    for passed in [0, 1, 20, command.len() - 1] {
        let mut client = client(&proxy);
        let before = proxy.counts().to_server;
        proxy.cut_after(passed as u64);
        client.send_raw(command.as_bytes()).unwrap();
        assert!(client.reply().is_err(), "after {passed} bytes");
        assert_eq!(proxy.counts().to_server - before, passed as u64);
        assert_eq!(get(&redis, "a"), Reply::Nil, "after {passed} bytes");
    }
    // The whole command and not a byte more: it is done, and nobody hears of it.
    let mut last = client(&proxy);
    proxy.cut_after(command.len() as u64);
    last.send_raw(command.as_bytes()).unwrap();
    assert!(last.reply().is_err());
    eventually("the command is done", || get(&redis, "a") == text("b"));
    client(&proxy);
}

#[test]
fn faults_can_be_for_the_next_connection_alone() {
    let (redis, proxy) = pair();
    let mut old = client(&proxy);
    proxy.next(Faults { refuse: true, ..Faults::default() });
    proxy.next(Faults { hold_replies: true, ..Faults::default() });
    proxy.next(Faults { cut_after: Some(20), ..Faults::default() });
    let refused = Client::connect(proxy.addr()).and_then(|mut client| client.cmd(&["PING"]));
    assert!(refused.is_err(), "{refused:?}");
    let mut held = Client::connect(proxy.addr()).unwrap();
    held.send(&["SET", "a", "b"]).unwrap();
    eventually("the answer is held", || proxy.counts().held_to_client > 0);
    let mut cut = Client::connect(proxy.addr()).unwrap();
    assert!(cut.cmd(&["SET", "c", "d"]).is_err());
    assert_eq!((old.cmd(&["PING"]), held.has_news()), (Ok(text("PONG")), Ok(false)));
    client(&proxy);
    proxy.heal_delivering();
    assert_eq!(held.reply(), Ok(text("OK")));
    assert_eq!((get(&redis, "a"), get(&redis, "c")), (text("b"), Reply::Nil));
}

#[test]
fn pushes_of_the_next_connection_alone_can_be_lost() {
    let (redis, proxy) = pair();
    proxy.next(Faults { drop_pushes: 1, ..Faults::default() });
    let (mut deaf, mut other) = (subscriber(&proxy), subscriber(&proxy));
    for what in ["one", "two"] {
        assert_eq!(redis.cmd(&["PUBLISH", "c", what]), Ok(Reply::Int(2)));
    }
    assert_eq!(deaf.push(), Ok(message("two")));
    assert_eq!((other.push(), other.push()), (Ok(message("one")), Ok(message("two"))));
}

#[test]
fn new_connections_can_be_sent_elsewhere() {
    let (redis, proxy) = pair();
    let mut old = client(&proxy);
    let other = Redis::start();
    proxy.point_to(("127.0.0.1", other.port()));
    assert_eq!(client(&proxy).cmd(&["SET", "at", "other"]), Ok(text("OK")));
    assert_eq!(old.cmd(&["SET", "at", "first"]), Ok(text("OK")));
    assert_eq!((get(&redis, "at"), get(&other, "at")), (text("first"), text("other")));
}

#[test]
fn a_dropped_proxy_takes_its_connections_along() {
    let (redis, proxy) = pair();
    let mut client = client(&proxy);
    let addr = proxy.addr();
    drop(proxy);
    assert!(client.reply().is_err());
    assert!(Client::connect(addr).is_err());
    assert_eq!(redis.cmd(&["PING"]), Ok(text("PONG")));
}

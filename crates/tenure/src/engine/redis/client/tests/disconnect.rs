//! Connections that break, are refused, come back, or are closed.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::{Builder, Handle};

use super::fake_server::{FakeServer, HELLO, bulk, confirm, push};
use super::{HandlerEvent, RecordingHandler, nothing, open, plain, text};
use crate::contract::{Effect, Error, ErrorKind};
use crate::engine::common::redis::url::Location;
use crate::engine::common::runtime::EngineThread;
use crate::engine::redis::client::{MultiplexedConnection, RequestError, TaskRuntimes, pack};
use crate::time::{Clock, SystemClock};

/// Never to be seen in an error.
const CANARY: &str = "c4n4ry";

fn ping() -> Vec<u8> {
    pack(&[b"PING"])
}

#[tokio::test]
async fn a_break_in_the_middle_of_a_reply_leaves_the_effect_unknown() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let (one, two, three) =
        (connection.call(&ping()), connection.call(&ping()), connection.call(&ping()));
    for _ in 0..3 {
        peer.command().await;
    }
    peer.say("+PONG\r\n$100\r\nhalf").await;
    drop(peer);
    assert_eq!(one.await.unwrap(), Value::SimpleString("PONG".into()));
    for call in [two, three] {
        let error = call.await.unwrap_err().into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
}

#[tokio::test]
async fn a_command_that_was_not_wholly_written_had_no_effect() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let whole = connection.call(&ping());
    peer.command().await;
    // More than any socket buffer accepts while the server does not read.
    let huge = connection.call(&pack(&[b"SET", b"key", &vec![b'x'; 32 << 20]]));
    let behind = connection.call(&ping());
    drop(peer);
    assert_eq!(whole.await.unwrap_err().effect(), Effect::Unknown);
    assert_eq!(huge.await.unwrap_err().effect(), Effect::None);
    assert_eq!(behind.await.unwrap_err().effect(), Effect::None);
}

#[tokio::test]
async fn a_huge_command_arrives_whole_and_in_its_place() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let huge = "x".repeat(8 << 20);
    let first = connection.call(&pack(&[b"SET", huge.as_bytes()]));
    let second = connection.call(&pack(&[b"ECHO", b"2"]));
    assert_eq!(peer.command().await[1].len(), huge.len());
    assert_eq!(peer.command().await[1], "2");
    peer.say(&("+OK\r\n".to_owned() + &bulk("2"))).await;
    assert_eq!(first.await.unwrap(), Value::Okay);
    assert_eq!(text(&second.await.unwrap()), "2");
}

#[tokio::test]
async fn a_new_connection_is_greeted_like_the_first() {
    let server = FakeServer::start().await;
    let greeting = vec![pack(&[b"SUBSCRIBE", b"a", b"b"]), pack(&[b"EVAL", b"check", b"0"])];
    let (handler, mut events) = RecordingHandler::new(greeting);
    let connection = open(&format!("{}/3", server.url()), &handler);
    for first in [true, false] {
        let mut peer = server.accept().await;
        let hello = peer.hello().await;
        assert_eq!(hello[2], "SETNAME");
        assert!(hello[3].starts_with("tenure-"), "{hello:?}");
        assert_eq!(peer.command().await, ["SELECT", "3"]);
        peer.say("+OK\r\n").await;
        assert_eq!(peer.command().await, ["SUBSCRIBE", "a", "b"]);
        assert_eq!(peer.command().await[0], "EVAL");
        let early = push(&["message", "a", "early"]);
        peer.say(&(confirm("subscribe", "a") + &confirm("subscribe", "b") + &early)).await;
        peer.say(":7\r\n").await;
        assert_eq!(events.recv().await, Some(HandlerEvent::Message("a".into(), "early".into())));
        let Some(HandlerEvent::Judged(replies)) = events.recv().await else { panic!("not judged") };
        assert!(matches!(&replies[..], [Value::Push { .. }, Value::Int(7)]), "{replies:?}");
        assert_eq!(events.recv().await, Some(HandlerEvent::Ready(first)));
        let call = connection.call(&ping());
        peer.command().await;
        peer.say("+PONG\r\n").await;
        call.await.unwrap();
        drop(peer);
        assert_eq!(events.recv().await, Some(HandlerEvent::Lost));
    }
}

#[tokio::test]
async fn a_caller_hears_soon_that_nobody_listens() {
    let server = FakeServer::start().await;
    let url = server.url();
    drop(server);
    let connection = plain(&url);
    for _ in 0..3 {
        let error = connection.call(&ping()).await.unwrap_err().into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

/// The caller calls again whenever a call fails, as a keeper does. It once made the connection
/// retry every 20 ms for as long as the server was away.
#[tokio::test]
async fn a_server_that_is_away_is_tried_less_often_with_each_failure_however_often_it_is_called() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let calls = tokio::spawn(async move {
        loop {
            assert!(connection.call(&ping()).await.is_err(), "nobody answers");
        }
    });
    let mut pauses = Vec::new();
    let clock = SystemClock;
    let mut failed = clock.now();
    for _ in 0..12 {
        let connection = server.tcp().await;
        pauses.push(clock.now().since(failed));
        // The client cannot know of the failure before this, so its pause begins later.
        failed = clock.now();
        drop(connection);
    }
    // After eight failures a pause is half a second or more, of which a quarter is always waited.
    for pause in &pauses[9..] {
        assert!(*pause >= Duration::from_millis(125), "{pauses:?}");
    }
    calls.abort();
}

#[tokio::test]
async fn a_wrong_password_stays_the_answer_until_it_is_right() {
    let server = FakeServer::start().await;
    let url = format!("redis://u:{CANARY}@127.0.0.1:{}", server.port());
    let connection = plain(&url);
    let waiting = connection.call(&ping());
    let mut peer = server.accept().await;
    let hello = peer.command().await;
    assert_eq!(hello[..5], ["HELLO", "3", "AUTH", "u", CANARY]);
    peer.say("-WRONGPASS invalid username-password pair or user is disabled.\r\n").await;
    for call in [waiting, connection.call(&ping()), connection.call(&ping())] {
        let error = call.await.unwrap_err().into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::InvalidOption, Effect::None));
        assert!(!error.is_transient());
        assert!(!format!("{error} {error:?} {connection:?}").contains(CANARY), "{error}");
    }
    let peer = server.accept_hello().await;
    tokio::spawn(peer.echo());
    while !connection.is_idle() {
        tokio::task::yield_now().await;
    }
    assert_eq!(text(&connection.call(&pack(&[b"ECHO", b"1"])).await.unwrap()), "1");
}

#[tokio::test]
async fn a_server_without_resp3_is_named_as_too_old() {
    for refusal in [
        format!("-ERR unknown command `HELLO`, with args beginning with: `3`, `{CANARY}`, \r\n"),
        "-NOPROTO unsupported protocol version\r\n".to_owned(),
        "+OK\r\n".to_owned(),
    ] {
        let server = FakeServer::start().await;
        let url = format!("redis://:{CANARY}@127.0.0.1:{}", server.port());
        let connection = plain(&url);
        let call = connection.call(&ping());
        let mut peer = server.accept().await;
        peer.command().await;
        peer.say(&refusal).await;
        let error = call.await.unwrap_err().into_error();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("Redis 6 or later is needed"), "{error}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error}");
    }
}

#[tokio::test]
async fn the_engine_is_not_greeted_in_the_wrong_database() {
    let server = FakeServer::start().await;
    let (handler, _told) = RecordingHandler::new(vec![ping()]);
    let connection = open(&format!("{}/99", server.url()), &handler);
    let call = connection.call(&ping());
    let mut peer = server.accept_hello().await;
    assert_eq!(peer.command().await, ["SELECT", "99"]);
    peer.say("-ERR DB index is out of range\r\n").await;
    assert!(peer.is_left().await, "nothing is said in another database");
    assert_eq!(call.await.unwrap_err().into_error().kind(), ErrorKind::InvalidOption);
}

#[tokio::test]
async fn a_verdict_of_the_engine_is_what_callers_hear() {
    let server = FakeServer::start().await;
    let (handler, _told) = RecordingHandler::new(Vec::new());
    let verdict = Error::new(ErrorKind::InvalidOption, "another max_lease").with_help("agree");
    *handler.verdict.lock().unwrap() = Err(verdict);
    let connection = open(&server.url(), &handler);
    let call = connection.call(&ping());
    let mut peer = server.accept_hello().await;
    let error = call.await.unwrap_err().into_error();
    assert_eq!(error.to_string(), "another max_lease; agree");
    assert!(peer.is_left().await);
}

#[tokio::test]
async fn an_answer_to_no_question_ends_the_connection() {
    let server = FakeServer::start().await;
    let (handler, mut events) = RecordingHandler::new(Vec::new());
    let _connection = open(&server.url(), &handler);
    let mut peer = server.accept_hello().await;
    peer.say("+OK\r\n").await;
    assert!(peer.is_left().await);
    let mut peer = server.accept_hello().await;
    peer.say("what?\r\n").await;
    assert!(peer.is_left().await);
    events.close();
    let mut lost = 0;
    while let Some(events) = events.recv().await {
        lost += usize::from(events == HandlerEvent::Lost);
    }
    assert!(lost >= 1);
}

#[tokio::test]
async fn dropping_the_connection_closes_it_and_fails_what_waits() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let call = connection.call(&ping());
    peer.command().await;
    drop(connection);
    assert_eq!(call.await.unwrap_err().effect(), Effect::Unknown);
    assert!(peer.is_left().await);
    // Also while the server has not replied to HELLO.
    let connection = plain(&server.url());
    let mut peer = server.accept().await;
    let call = connection.call(&ping());
    peer.command().await;
    drop(connection);
    assert_eq!(call.await.unwrap_err().effect(), Effect::None);
    assert!(peer.is_left().await);
}

#[tokio::test]
async fn a_connection_whose_runtime_ends_moves_to_another() {
    let server = FakeServer::start().await;
    let guest = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let own = EngineThread::start("test").unwrap();
    let (handler, mut events) = RecordingHandler::new(Vec::new());
    let location = Arc::new(Location::parse(&server.url()).unwrap());
    let home = TaskRuntimes { first: guest.handle().clone(), fallback: own.handle().clone() };
    let connection = MultiplexedConnection::open(location, handler, nothing(), home);
    let mut peer = server.accept_hello().await;
    let call = connection.call(&ping());
    peer.command().await;
    guest.shutdown_background();
    let error = call.await.unwrap_err().into_error();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(peer.is_left().await);
    let call = connection.call(&pack(&[b"ECHO", b"moved"]));
    tokio::spawn(server.accept_hello().await.echo());
    assert_eq!(text(&call.await.unwrap()), "moved");
    let mut heard = Vec::new();
    while heard.last() != Some(&HandlerEvent::Ready(false)) {
        heard.push(events.recv().await.unwrap());
    }
    assert!(heard.contains(&HandlerEvent::Lost), "{heard:?}");
    // When no runtime is left, calls fail at once.
    drop(own);
    loop {
        match connection.call(&ping()).await {
            Err(RequestError::NotConnected(error)) => {
                break assert_eq!(error.kind(), ErrorKind::Closed);
            }
            Ok(_) | Err(RequestError::Disconnected { .. }) => tokio::task::yield_now().await,
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_home_that_is_gone_before_the_start_is_no_home() {
    let server = FakeServer::start().await;
    let guest = Builder::new_current_thread().build().unwrap();
    let first = guest.handle().clone();
    guest.shutdown_background();
    let location = Arc::new(Location::parse(&server.url()).unwrap());
    let home = TaskRuntimes { first, fallback: Handle::current() };
    let connection =
        MultiplexedConnection::open(location, RecordingHandler::new(Vec::new()).0, nothing(), home);
    let call = connection.call(&ping());
    let mut peer = server.accept().await;
    peer.command().await;
    peer.say(&(HELLO.to_owned() + "+PONG\r\n")).await;
    // The reply came with the handshake, before the call was written: it belongs to no request.
    assert!(matches!(call.await, Err(RequestError::Disconnected { effect: Effect::None, .. })));
}

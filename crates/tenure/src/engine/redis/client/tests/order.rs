//! When requests are written, and which reply belongs to which request.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use redis::{PushKind, Value};
use tokio::sync::oneshot;

use super::fake_server::{FakeServer, bulk, confirm, push};
use super::{HandlerEvent, RecordingHandler, here, open, plain, text};
use crate::contract::Effect;
use crate::engine::common::redis::url::Location;
use crate::engine::redis::client::{MultiplexedConnection, ReplyTo, RequestSource};
use crate::engine::redis::client::{RequestError, pack};

fn echo(number: usize) -> Vec<u8> {
    pack(&[b"ECHO", number.to_string().as_bytes()])
}

#[tokio::test]
async fn an_idle_connection_is_written_to_by_the_caller_itself() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let first = connection.call(&echo(0));
    peer.command().await;
    peer.say(&bulk("0")).await;
    first.await.unwrap();
    assert!(connection.is_idle());
    // The driver cannot run while this thread blocks: whatever arrives was written by the caller.
    let mut peer = peer.into_blocking();
    let second = connection.call(&echo(1));
    assert!(!connection.is_idle());
    let third = connection.call(&echo(2));
    let mut room = [0; 1000];
    let read = peer.read(&mut room).unwrap();
    assert_eq!(room[..read], echo(1));
    peer.write_all(bulk("1").as_bytes()).unwrap();
    assert_eq!(text(&second.await.unwrap()), "1");
    let read = peer.read(&mut room).unwrap();
    assert_eq!(room[..read], echo(2), "the driver wrote the other one as soon as it ran");
    peer.write_all(bulk("2").as_bytes()).unwrap();
    assert_eq!(text(&third.await.unwrap()), "2");
}

#[tokio::test]
async fn calls_made_together_leave_in_one_write() {
    let server = FakeServer::start().await;
    let connection = Arc::new(plain(&server.url()));
    let mut peer = server.accept_hello().await;
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                for round in 0..10 {
                    connection.call(&echo(task * 10 + round)).await.unwrap();
                }
            })
        })
        .collect();
    for round in 0..10 {
        let commands = peer.burst().await;
        assert_eq!(commands.len(), 64, "in round {round}");
        let answers: String = commands.iter().map(|command| bulk(&command[1])).collect();
        peer.say(&answers).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_hears_its_own_reply_whoever_wrote_the_call() {
    let server = FakeServer::start().await;
    let connection = Arc::new(plain(&server.url()));
    let peer = server.accept_hello().await;
    let server = tokio::spawn(peer.echo());
    let tasks: Vec<_> = (0..8)
        .map(|task: usize| {
            let connection = connection.clone();
            tokio::spawn(async move {
                for round in 0..500 {
                    let number = task * 1000 + round;
                    let call = connection.call(&echo(number));
                    if round % 7 == task % 7 {
                        continue;
                    }
                    assert_eq!(text(&call.await.unwrap()), number.to_string());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(connection);
    server.await.unwrap();
}

#[tokio::test]
async fn calls_arrive_in_the_order_in_which_they_were_made() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    // Before there is a connection, on an idle one, and after others.
    let mut calls: Vec<_> = (0..5).map(|number| connection.call(&echo(number))).collect();
    let mut peer = server.accept_hello().await;
    for number in 0..5 {
        assert_eq!(peer.command().await[1], number.to_string());
        calls.push(connection.call(&echo(number + 5)));
    }
    for number in 5..10 {
        assert_eq!(peer.command().await[1], number.to_string());
    }
    let answers: String = (0..10).map(|number| bulk(&number.to_string())).collect();
    peer.say(&answers).await;
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(text(&call.await.unwrap()), number.to_string());
    }
}

#[tokio::test]
async fn a_reply_that_nobody_wants_any_more_is_thrown_away() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    drop(connection.call(&echo(1)));
    let kept = connection.call(&echo(2));
    assert_eq!(peer.command().await[1], "1", "a dropped call is sent all the same");
    assert_eq!(peer.command().await[1], "2");
    peer.say(&(bulk("1") + &bulk("2"))).await;
    assert_eq!(text(&kept.await.unwrap()), "2");
}

#[tokio::test]
async fn pushes_between_replies_are_messages_and_not_replies() {
    let server = FakeServer::start().await;
    let (handler, mut events) = RecordingHandler::new(Vec::new());
    let connection = open(&server.url(), &handler);
    let mut peer = server.accept_hello().await;
    let (one, two) = (connection.call(&echo(1)), connection.call(&echo(2)));
    peer.command().await;
    peer.command().await;
    let hint = push(&["message", "news", "a"]);
    let other = push(&["invalidate", "x"]);
    peer.say(&(hint.clone() + &bulk("1") + &other + &hint + &bulk("2"))).await;
    assert_eq!(text(&one.await.unwrap()), "1");
    assert_eq!(text(&two.await.unwrap()), "2");
    assert_eq!(events.recv().await, Some(HandlerEvent::Judged(Vec::new())));
    assert_eq!(events.recv().await, Some(HandlerEvent::Ready(true)));
    for _ in 0..2 {
        assert_eq!(events.recv().await, Some(HandlerEvent::Message("news".into(), "a".into())));
    }
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn a_subscription_is_answered_by_its_push_or_by_an_error() {
    let server = FakeServer::start().await;
    let connection = plain(&server.url());
    let mut peer = server.accept_hello().await;
    let before = connection.call(&echo(1));
    let allowed = connection.call(&pack(&[b"SUBSCRIBE", b"mine"]));
    let forbidden = connection.call(&pack(&[b"SUBSCRIBE", b"theirs"]));
    let ended = connection.unsubscribe(b"mine");
    let after = connection.call(&echo(2));
    for word in ["ECHO", "SUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE", "ECHO"] {
        assert_eq!(peer.command().await[0], word);
    }
    let stray = confirm("sunsubscribe", "moved");
    peer.say(&(stray + &bulk("1") + &confirm("subscribe", "mine"))).await;
    peer.say("-NOPERM no permissions to access a channel\r\n").await;
    peer.say(&(confirm("unsubscribe", "mine") + &bulk("2"))).await;
    assert_eq!(text(&before.await.unwrap()), "1");
    let confirmed = allowed.await.unwrap();
    assert!(matches!(confirmed, Value::Push { kind: PushKind::Subscribe, .. }), "{confirmed:?}");
    let refused = forbidden.await.unwrap_err();
    assert!(
        matches!(&refused, RequestError::Server { code, .. } if code == "NOPERM"),
        "{refused:?}"
    );
    assert_eq!(refused.into_error().effect(), Effect::None);
    assert!(matches!(ended.await.unwrap(), Value::Push { kind: PushKind::Unsubscribe, .. }));
    assert_eq!(text(&after.await.unwrap()), "2");
}

type Caller = oneshot::Sender<Result<usize, RequestError>>;

/// A request source: one command for everything that is queued.
struct Queue(Mutex<Vec<(usize, Caller)>>);

impl Queue {
    fn gather(self: &Arc<Self>) -> RequestSource {
        let queue = self.clone();
        Box::new(move |outgoing| {
            let queued = std::mem::take(&mut *queue.0.lock().unwrap());
            if queued.is_empty() {
                return;
            }
            let words: Vec<_> = queued.iter().map(|(number, _)| number.to_string()).collect();
            let mut command = vec![&b"SUM"[..]];
            command.extend(words.iter().map(String::as_bytes));
            let tell = move |outcome: Result<Value, RequestError>| {
                for (number, caller) in queued {
                    caller.send(outcome.clone().map(|_| number)).unwrap();
                }
            };
            outgoing.push(&pack(&command), ReplyTo::Many(Box::new(tell)));
        })
    }

    fn add(
        &self,
        number: usize,
        connection: &MultiplexedConnection,
    ) -> oneshot::Receiver<Result<usize, RequestError>> {
        let (caller, outcome) = oneshot::channel();
        self.0.lock().unwrap().push((number, caller));
        connection.notify();
        outcome
    }
}

#[tokio::test]
async fn what_an_engine_queued_is_gathered_right_before_the_write() {
    let server = FakeServer::start().await;
    let queue = Arc::new(Queue(Mutex::default()));
    let location = Arc::new(Location::parse(&server.url()).unwrap());
    let connection = MultiplexedConnection::open(
        location,
        RecordingHandler::new(Vec::new()).0,
        queue.gather(),
        here(),
    );
    // Also before there is a connection.
    let early = queue.add(1, &connection);
    let mut peer = server.accept_hello().await;
    assert_eq!(peer.command().await, ["SUM", "1"]);
    let late: Vec<_> = (2..5).map(|number| queue.add(number, &connection)).collect();
    assert!(!connection.is_idle());
    assert_eq!(peer.command().await, ["SUM", "2", "3", "4"]);
    peer.say(":1\r\n-OOM full\r\n").await;
    assert_eq!(early.await.unwrap().unwrap(), 1);
    for outcome in late {
        let trouble = outcome.await.unwrap().unwrap_err();
        assert!(
            matches!(&trouble, RequestError::Server { code, .. } if code == "OOM"),
            "{trouble:?}"
        );
    }
}

#[tokio::test]
async fn what_an_engine_queued_fails_with_the_attempt_to_connect() {
    let server = FakeServer::start().await;
    let url = server.url();
    drop(server);
    let queue = Arc::new(Queue(Mutex::default()));
    let location = Arc::new(Location::parse(&url).unwrap());
    let connection = MultiplexedConnection::open(
        location,
        RecordingHandler::new(Vec::new()).0,
        queue.gather(),
        here(),
    );
    for number in 0..3 {
        let trouble = queue.add(number, &connection).await.unwrap().unwrap_err();
        assert!(matches!(trouble, RequestError::NotConnected(_)), "{trouble:?}");
    }
    let waiting = queue.add(3, &connection);
    drop(connection);
    assert!(waiting.await.unwrap().is_err());
}

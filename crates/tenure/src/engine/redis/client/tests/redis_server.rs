//! The connection against a real `redis-server`, which has to be installed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{HandlerEvent, RecordingHandler, open, plain, text};
use crate::contract::{Effect, ErrorKind};
use crate::engine::redis::client::{RequestError, pack};

/// A server on a socket of its own, in a directory that goes with it.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(folder.path().join("socket"))
            .arg("--dir")
            .arg(folder.path())
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .expect("these tests need redis-server: install it");
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn url(&self, login: &str, db: u32) -> String {
        format!("redis+unix://{login}{}?db={db}", self.socket().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls until the server has come up.
async fn patient(
    connection: &super::MultiplexedConnection,
    command: &[&[u8]],
) -> Result<Value, RequestError> {
    let answered = async {
        loop {
            match connection.call(&pack(command)).await {
                Err(RequestError::NotConnected(error)) if error.is_transient() => {}
                outcome => return outcome,
            }
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(60), answered).await;
    answered.expect("redis-server does not come up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_scripts_of_many_tasks_are_each_answered() {
    let server = Server::start(&[]);
    let connection = Arc::new(plain(&server.url("", 0)));
    let script = b"return ARGV[1]";
    let hash = patient(&connection, &[b"SCRIPT", b"LOAD", script]).await.unwrap();
    let hash: Arc<str> = text(&hash).into();
    let tasks: Vec<_> = (0..100)
        .map(|task: usize| {
            let (connection, hash) = (connection.clone(), hash.clone());
            tokio::spawn(async move {
                for round in 0..100 {
                    let number = (task * 100 + round).to_string();
                    let call = pack(&[b"EVALSHA", hash.as_bytes(), b"0", number.as_bytes()]);
                    assert_eq!(text(&connection.call(&call).await.unwrap()), number);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_killed_connection_comes_back_subscribed() {
    let server = Server::start(&[]);
    let (handler, mut events) = RecordingHandler::new(vec![pack(&[b"SUBSCRIBE", b"mine"])]);
    let connection = open(&server.url("", 3), &handler);
    let other = plain(&server.url("", 0));
    patient(&connection, &[b"PING"]).await.unwrap();
    for first in [true, false] {
        while events.recv().await != Some(HandlerEvent::Ready(first)) {}
        let told_one = patient(&other, &[b"PUBLISH", b"mine", b"hello"]).await.unwrap();
        assert_eq!(told_one, Value::Int(1));
        assert_eq!(events.recv().await, Some(HandlerEvent::Message("mine".into(), "hello".into())));
        let id = connection.call(&pack(&[b"CLIENT", b"ID"])).await.unwrap();
        let Value::Int(id) = id else { panic!("{id:?}") };
        let info = connection.call(&pack(&[b"CLIENT", b"INFO"])).await.unwrap();
        let info = match &info {
            Value::VerbatimString { text, .. } => text.clone(),
            other => text(other).to_owned(),
        };
        assert!(info.contains("name=tenure-") && info.contains("db=3"), "{info}");
        let id = id.to_string();
        other.call(&pack(&[b"CLIENT", b"KILL", b"ID", id.as_bytes()])).await.unwrap();
        assert_eq!(events.recv().await, Some(HandlerEvent::Lost));
    }
}

#[tokio::test]
async fn publishing_to_oneself_keeps_replies_and_messages_apart() {
    let server = Server::start(&[]);
    let (handler, mut events) = RecordingHandler::new(Vec::new());
    let connection = open(&server.url("", 0), &handler);
    patient(&connection, &[b"PING"]).await.unwrap();
    let publish = b"redis.call('publish', 'mine', ARGV[1]) return ARGV[1]";
    let say = |number: &str| connection.call(&pack(&[b"EVAL", publish, b"0", number.as_bytes()]));
    let calls = [
        say("0"),
        connection.call(&pack(&[b"SUBSCRIBE", b"mine"])),
        say("1"),
        connection.call(&pack(&[b"SUBSCRIBE", b"mine"])),
        say("2"),
        connection.unsubscribe(b"mine"),
        say("3"),
        connection.unsubscribe(b"never"),
        say("4"),
    ];
    for (place, call) in calls.into_iter().enumerate() {
        let reply = call.await.unwrap();
        match place % 2 {
            0 => assert_eq!(text(&reply), (place / 2).to_string()),
            _ => assert!(matches!(reply, Value::Push { .. }), "{reply:?}"),
        }
    }
    assert!(matches!(events.recv().await, Some(HandlerEvent::Judged(_))));
    assert_eq!(events.recv().await, Some(HandlerEvent::Ready(true)));
    for payload in ["1", "2"] {
        assert_eq!(events.recv().await, Some(HandlerEvent::Message("mine".into(), payload.into())));
    }
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn passwords_and_access_lists_are_answered_with_what_to_do() {
    let user =
        ["--requirepass", "right", "--user", "weak", "on", ">weak", "~*", "+@all", "resetchannels"];
    let server = Server::start(&user);
    let admin = plain(&server.url(":right@", 0));
    patient(&admin, &[b"PING"]).await.unwrap();
    for login in ["", ":wrong@", "nobody:right@"] {
        let connection = plain(&server.url(login, 0));
        let error = patient(&connection, &[b"PING"]).await.unwrap_err().into_error();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::InvalidOption, Effect::None));
        assert!(error.to_string().contains("password"), "{login}: {error}");
    }
    let weak = plain(&server.url("weak:weak@", 0));
    let (before, refused, after) = (
        weak.call(&pack(&[b"ECHO", b"1"])),
        weak.call(&pack(&[b"SUBSCRIBE", b"secret"])),
        weak.call(&pack(&[b"ECHO", b"2"])),
    );
    assert_eq!(text(&before.await.unwrap()), "1");
    let refused = refused.await.unwrap_err();
    assert!(
        matches!(&refused, RequestError::Server { code, .. } if code == "NOPERM"),
        "{refused:?}"
    );
    assert_eq!(text(&after.await.unwrap()), "2");
    let connection = plain(&server.url(":right@", 99));
    let error = patient(&connection, &[b"PING"]).await.unwrap_err().into_error();
    assert!(error.to_string().contains("no database of this number"), "{error}");
}

#[tokio::test]
async fn a_script_that_fails_after_a_write_leaves_the_effect_unknown() {
    let server = Server::start(&[]);
    let connection = plain(&server.url("", 0));
    let script = b"redis.call('set', 'a', '1') return redis.call('lpush', 'a', '1')";
    let trouble = patient(&connection, &[b"EVAL", script, b"0"]).await.unwrap_err();
    assert!(
        matches!(&trouble, RequestError::Server { code, .. } if code == "WRONGTYPE"),
        "{trouble:?}"
    );
    assert_eq!(trouble.effect(), Effect::Unknown);
    let absent = connection.call(&pack(&[b"EVALSHA", &[b'0'; 40], b"0"])).await.unwrap_err();
    assert!(
        matches!(&absent, RequestError::Server { code, .. } if code == "NOSCRIPT"),
        "{absent:?}"
    );
    assert_eq!(absent.effect(), Effect::None);
}

#[tokio::test]
async fn a_full_server_had_no_effect() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let connection = plain(&server.url("", 0));
    let script = b"return redis.call('set', 'a', '1')";
    let error = patient(&connection, &[b"EVAL", script, b"0"]).await.unwrap_err().into_error();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

//! Tests of the connection: against a server server that each test scripts, against a real one, and
//! over TLS.

mod disconnect;
mod fake_server;
mod order;
mod redis_server;
mod tls;

use std::sync::{Arc, Mutex};

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{ConnectionHandler, MultiplexedConnection, RequestSource, TaskRuntimes};
use crate::contract::Error;
use crate::engine::common::redis::url::Location;

/// What a handler was called with.
#[derive(Debug, PartialEq)]
enum HandlerEvent {
    Judged(Vec<Value>),
    Ready(bool),
    Lost,
    Message(String, String),
}

/// A handler that records its calls.
struct RecordingHandler {
    greeting: Vec<Vec<u8>>,
    /// The result of `judge`.
    verdict: Mutex<Result<(), Error>>,
    events: mpsc::UnboundedSender<HandlerEvent>,
}

impl RecordingHandler {
    fn new(greeting: Vec<Vec<u8>>) -> (Arc<Self>, mpsc::UnboundedReceiver<HandlerEvent>) {
        let (events, received) = mpsc::unbounded_channel();
        (Arc::new(Self { greeting, verdict: Mutex::new(Ok(())), events }), received)
    }

    fn record(&self, event: HandlerEvent) {
        // A test may have dropped the receiver.
        let _ = self.events.send(event);
    }
}

impl ConnectionHandler for RecordingHandler {
    fn greeting(&self) -> Vec<Vec<u8>> {
        self.greeting.clone()
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        self.record(HandlerEvent::Judged(replies));
        self.verdict.lock().unwrap().clone()
    }

    fn ready(&self, first: bool) {
        self.record(HandlerEvent::Ready(first));
    }

    fn lost(&self) {
        self.record(HandlerEvent::Lost);
    }

    fn message(&self, channel: &[u8], payload: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        self.record(HandlerEvent::Message(text(channel), text(payload)));
    }
}

/// Everything on the runtime of the test.
fn here() -> TaskRuntimes {
    TaskRuntimes { first: Handle::current(), fallback: Handle::current() }
}

fn nothing() -> RequestSource {
    Box::new(|_| ())
}

/// A connection whose handler adds nothing to the handshake.
fn plain(url: &str) -> MultiplexedConnection {
    open(url, &RecordingHandler::new(Vec::new()).0)
}

fn open(url: &str, handler: &Arc<RecordingHandler>) -> MultiplexedConnection {
    let location = Arc::new(Location::parse(url).unwrap());
    MultiplexedConnection::open(location, handler.clone(), nothing(), here())
}

fn text(value: &Value) -> &str {
    let Value::BulkString(bytes) = value else { panic!("{value:?}") };
    std::str::from_utf8(bytes).unwrap()
}

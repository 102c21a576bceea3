//! The connection against a server that does what the test says. See `tests/` for the rooms.

mod break_up;
mod fake;
mod order;
mod real;
mod secure;

use std::sync::{Arc, Mutex};

use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::{Gather, Greeter, Home, Wire};
use crate::contract::Error;
use crate::engine::redis::url::Location;

/// What a greeter was told.
#[derive(Debug, PartialEq)]
enum Told {
    Judged(Vec<Value>),
    Ready(bool),
    Lost,
    Message(String, String),
}

/// A greeter that writes everything down.
struct Notes {
    greeting: Vec<Vec<u8>>,
    /// What the next judgements say; the last one stays.
    verdict: Mutex<Result<(), Error>>,
    told: mpsc::UnboundedSender<Told>,
}

impl Notes {
    fn new(greeting: Vec<Vec<u8>>) -> (Arc<Self>, mpsc::UnboundedReceiver<Told>) {
        let (told, hear) = mpsc::unbounded_channel();
        (Arc::new(Self { greeting, verdict: Mutex::new(Ok(())), told }), hear)
    }

    fn note(&self, told: Told) {
        // A test that does not listen is not interested.
        let _ = self.told.send(told);
    }
}

impl Greeter for Notes {
    fn greeting(&self) -> Vec<Vec<u8>> {
        self.greeting.clone()
    }

    fn judge(&self, replies: Vec<Value>) -> Result<(), Error> {
        self.note(Told::Judged(replies));
        self.verdict.lock().unwrap().clone()
    }

    fn ready(&self, first: bool) {
        self.note(Told::Ready(first));
    }

    fn lost(&self) {
        self.note(Told::Lost);
    }

    fn message(&self, channel: &[u8], payload: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        self.note(Told::Message(text(channel), text(payload)));
    }
}

/// Everything on the runtime of the test.
fn here() -> Home {
    Home { first: Handle::current(), fallback: Handle::current() }
}

fn nothing() -> Gather {
    Box::new(|_| ())
}

/// A connection without a greeting.
fn plain(url: &str) -> Wire {
    open(url, &Notes::new(Vec::new()).0)
}

fn open(url: &str, notes: &Arc<Notes>) -> Wire {
    let location = Arc::new(Location::parse(url).unwrap());
    Wire::open(location, notes.clone(), nothing(), here())
}

fn text(value: &Value) -> &str {
    let Value::BulkString(bytes) = value else { panic!("{value:?}") };
    std::str::from_utf8(bytes).unwrap()
}

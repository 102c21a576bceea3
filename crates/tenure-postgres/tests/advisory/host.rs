//! What the tests share: clients, futures that are dropped on the way, and the server's own view
//! of who holds what. Knows no scenario.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use servers::{Postgres, eventually};
use tokio_postgres::{Client, NoTls};

/// How long a test waits for what must happen at once, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Awaits what must happen.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it does not hang")
}

/// Polls a future until it has answered "not yet" so many times, then drops it. What it came to,
/// if it did. A future that is not woken any more is at its last await.
pub(crate) async fn dropped_after<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut seen = 0;
    let polling = poll_fn(|cx| {
        if seen == times {
            return Poll::Ready(None);
        }
        seen += 1;
        future.as_mut().poll(cx).map(Some)
    });
    let idle = Duration::from_millis(300);
    tokio::time::timeout(idle, polling).await.ok().flatten()
}

/// How many advisory locks are held, and how many waited for.
pub(crate) fn locks(server: &Postgres) -> (usize, usize) {
    let said = server.done("SELECT granted FROM pg_locks WHERE locktype = 'advisory'");
    let count = |word: &str| said.lines().filter(|line| *line == word).count();
    (count("t"), count("f"))
}

/// The server comes to have so many locks held and waited for.
#[track_caller]
pub(crate) fn assert_locks(server: &Postgres, held: usize, waited: usize) {
    let what = format!("{held} are held and {waited} waited for, not {:?}", locks(server));
    eventually(&what, || locks(server) == (held, waited));
}

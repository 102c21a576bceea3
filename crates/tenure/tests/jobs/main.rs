//! Queues of jobs as their users meet them: the same stories on every engine that has them, and a
//! history of real processes that are killed and stopped.
#![cfg(all(
    feature = "jobs",
    feature = "embedded",
    feature = "redis",
    feature = "postgres",
    target_os = "linux"
))]

mod batches;
mod dropping;
mod history;
mod postgres;
mod recurring;
mod redis;
mod stories;
mod surviving;

use std::time::{Duration, Instant};

use tenure::engine::Terms;
use tenure::{Namespace, Tenure};

/// A store of one test, gone with it.
struct Place {
    url: String,
    _directory: Option<tempfile::TempDir>,
    _server: Option<servers::Redis>,
}

impl Place {
    fn memory() -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Self { url: format!("memory:jobs-{number}"), _directory: None, _server: None }
    }

    fn embedded() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("embedded://{}", directory.path().join("store").display());
        Self { url, _directory: Some(directory), _server: None }
    }

    fn redis() -> Self {
        let server = servers::Redis::start();
        Self { url: server.url(), _directory: None, _server: Some(server) }
    }

    /// A schema of its own in the server of this process.
    fn postgres() -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let url = servers::Postgres::shared().patient_url();
        Self { url: format!("{url}&schema=jobs_{number}"), _directory: None, _server: None }
    }

    fn connect(&self) -> Tenure {
        Tenure::blocking_connect(&self.url).unwrap()
    }

    /// Connects from inside a runtime. Calls may take long on a busy machine.
    async fn open(&self) -> Tenure {
        let builder = Tenure::builder().call_limit(Duration::from_secs(30));
        builder.connect(&self.url).await.unwrap()
    }
}

fn terms() -> Terms {
    Terms {
        namespace: Namespace::default(),
        max_lease: Duration::from_secs(60),
        clock: std::sync::Arc::new(tenure::time::SystemClock),
    }
}

/// Waits until something is so, within a limit that only a failure reaches.
async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < end, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Where another process of a test begins. Does nothing in the process that runs the tests.
#[test]
fn worker() {
    if let Ok(url) = std::env::var(history::WORKER) {
        history::serve(&url);
    }
}

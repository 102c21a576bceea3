//! Deadlocks that go partly through locks of the database, with a real server.

use std::sync::Arc;
use std::time::Duration;

use servers::Postgres;
use tenure::contract::{Claim, SessionId};
use tenure::time::Tick;
use tenure::{Event, Owner, Tenure, Witness};
use tenure_postgres::name_backend;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::Client;

use crate::host::{client, soon};

/// Sends the words of each deadlock that is reported.
#[derive(Debug)]
struct Reports(UnboundedSender<Arc<str>>);

impl Witness for Reports {
    fn on_event(&self, _claim: &Arc<Claim>, _at: Tick, event: &Event) {
        if let Event::Deadlock { words, .. } = event {
            let _ = self.0.send(Arc::clone(words));
        }
    }
}

/// Two owners, each with a connection, in a namespace of their own.
struct Crossed {
    tenure: Tenure,
    reports: UnboundedReceiver<Arc<str>>,
    owners: [Owner; 2],
    clients: [Client; 2],
}

impl Crossed {
    async fn new(server: &Postgres) -> Self {
        let (sender, reports) = unbounded_channel();
        let builder = Tenure::builder().namespace(&SessionId::new().to_hex());
        let builder = builder.deadlock_delay(Duration::from_millis(50));
        let builder = builder.call_limit(Duration::from_secs(20));
        let tenure = builder.witness(Arc::new(Reports(sender))).connect(&server.url()).await;
        let clients = [client(&server.url()).await, client(&server.url()).await];
        Self { tenure: tenure.unwrap(), reports, owners: [Owner::new(), Owner::new()], clients }
    }

    /// The first owner holds a lock of Tenure and waits in the database, by `first`, for what the
    /// second one took there by `second`. That one waits for the lock. Returns what is reported.
    async fn report_of(&mut self, second: &str, first: &str) -> Arc<str> {
        let [one, two] = &self.owners;
        let lock = self.tenure.mutex("a").unwrap();
        let held = lock.clone().owner(one).lock().await.unwrap();
        self.clients[1].batch_execute(&format!("BEGIN; {second}")).await.unwrap();
        let statement = format!("BEGIN; {first}");
        let words = {
            let in_database = self.clients[0].batch_execute(&statement);
            let wanted = lock.owner(two);
            let in_tenure = wanted.lock();
            tokio::select! {
                words = self.reports.recv() => words.unwrap(),
                done = in_database => panic!("nothing was in the way: {done:?}"),
                done = in_tenure => panic!("nothing was in the way: {done:?}"),
            }
        };
        // The wait for the lock was given up; now the second one gives back what it took.
        self.clients[1].batch_execute("ROLLBACK").await.unwrap();
        held.release().await.unwrap();
        words
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_through_a_row_or_an_advisory_lock_is_reported() {
    let server = Postgres::shared();
    let mut crossed = Crossed::new(server).await;
    let setup = "CREATE TABLE IF NOT EXISTS crossed (id int PRIMARY KEY, n int); \
                 INSERT INTO crossed VALUES (1, 0) ON CONFLICT DO NOTHING";
    crossed.clients[0].batch_execute(setup).await.unwrap();
    let row = "UPDATE crossed SET n = n + 1 WHERE id = 1";
    let advisory = "SELECT pg_advisory_xact_lock(74125, 1)";
    let [one, two] = &crossed.owners;
    let named = [
        name_backend(&crossed.tenure, &crossed.clients[0], one).await.unwrap(),
        name_backend(&crossed.tenure, &crossed.clients[1], two).await.unwrap(),
    ];
    for statement in [row, advisory] {
        let words = soon(crossed.report_of(statement, statement)).await;
        for part in ["holds \"a\"", "waits for \"a\"", "waits for a lock of the database"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("(refused)"), "{words}");
        crossed.clients[0].batch_execute("ROLLBACK").await.unwrap();
    }
    for one in named {
        one.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_started_later_under_the_same_number_does_not_count() {
    let server = Postgres::shared();
    let crossed = Crossed::new(server).await;
    let [one, two] = &crossed.owners;
    let pid = "SELECT pg_backend_pid()";
    let pids = [
        crossed.clients[0].query_one(pid, &[]).await.unwrap().get::<_, i32>(0),
        crossed.clients[1].query_one(pid, &[]).await.unwrap().get::<_, i32>(0),
    ];
    // As if these numbers had been used before, a second after the epoch.
    let _old = [
        crossed.tenure.name_backend(one, pids[0], 1_000_000).await.unwrap(),
        crossed.tenure.name_backend(two, pids[1], 1_000_000).await.unwrap(),
    ];
    let held = crossed.tenure.mutex("a").unwrap().owner(one).lock().await.unwrap();
    let lock = "BEGIN; SELECT pg_advisory_xact_lock(74125, 2)";
    crossed.clients[1].batch_execute(lock).await.unwrap();
    let in_database = crossed.clients[0].batch_execute(lock);
    let limit = Duration::from_secs(1);
    let lock = crossed.tenure.mutex("a").unwrap().owner(two).timeout(limit);
    let in_tenure = lock.lock();
    tokio::select! {
        done = in_database => panic!("nothing was in the way: {done:?}"),
        waited = in_tenure => {
            let error = waited.unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::TimedOut, "{error}");
            assert!(!error.to_string().contains("a deadlock:"), "{error}");
        }
    }
    held.release().await.unwrap();
}

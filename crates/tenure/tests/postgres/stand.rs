//! A server whose functions are called as SQL, one call as one transaction, beside a connection
//! that holds locks until its transaction ends. So a test can stop a call at a lock and see what it
//! has locked by then.

use std::thread::JoinHandle;

use servers::{Postgres, eventually};
use tenure::block_on;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::host::session;

/// Longer than any test takes, in microseconds.
pub(crate) const LONG: u64 = 600_000_000;

/// A server with the schema, and a connection that locks rows.
pub(crate) struct Stand {
    pub(crate) server: Postgres,
    runtime: Runtime,
    client: Client,
}

impl Stand {
    pub(crate) fn new() -> Self {
        let server = Postgres::start();
        block_on(session(&server.url()).close());
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self { server, runtime, client }
    }

    /// Runs statements on the one connection that has transactions.
    pub(crate) fn run(&self, text: &str) {
        self.runtime.block_on(self.client.batch_execute(text)).unwrap();
    }

    /// Runs a query on that connection. Returns the texts in its first column.
    pub(crate) fn ask(&self, text: &str) -> String {
        let rows = self.runtime.block_on(self.client.query(text, &[])).unwrap();
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join(" ")
    }

    /// Locks the row of a slot until the transaction ends.
    pub(crate) fn lock_row(&self, name: &str) {
        self.run(&format!("BEGIN; SELECT FROM tenure.slots WHERE name = '{name}' FOR UPDATE"));
    }

    /// Calls a verb on a connection of its own.
    pub(crate) fn call(&self, text: &str) -> JoinHandle<String> {
        let (url, text) = (self.server.url(), text.to_owned());
        std::thread::spawn(move || {
            Runtime::new().unwrap().block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
                tokio::spawn(connection);
                let rows = client.query(&text, &[]).await.unwrap();
                rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join(" ")
            })
        })
    }

    /// The same, and returns when it waits for a lock.
    #[track_caller]
    pub(crate) fn call_that_waits(&self, text: &str) -> JoinHandle<String> {
        let before = self.waiting();
        let call = self.call(text);
        eventually("the call waits for a lock", || {
            assert!(!call.is_finished(), "it did not wait: {text}");
            self.waiting() > before
        });
        call
    }

    pub(crate) fn waiting(&self) -> usize {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        self.server.done(waiting).trim().parse().unwrap()
    }

    /// No transaction has locked this row.
    #[track_caller]
    pub(crate) fn assert_row_is_free(&self, name: &str) {
        let row = format!("SELECT name FROM tenure.slots WHERE name = '{name}' FOR UPDATE NOWAIT");
        let locked = self.server.sql(&row);
        assert_eq!(locked.as_deref().map(str::trim), Ok(name), "the row is locked by the call");
    }

    /// The time of the claim that holds is over now, and the locked row is let go.
    pub(crate) fn end_and_commit(&self, name: &str) {
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        self.run(&format!(
            "UPDATE tenure.claims SET expires = {now} WHERE name = '{name}' AND held; \
             UPDATE tenure.slots SET calm = {now} WHERE name = '{name}'; COMMIT"
        ));
    }
}

pub(crate) fn uuid(id: u32) -> String {
    format!("00000000-0000-0000-0000-{id:012}")
}

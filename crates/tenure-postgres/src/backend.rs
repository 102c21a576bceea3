//! Which owner uses which connection, for reports of deadlocks that go partly through locks of the
//! database.
//!
//! An owner holds a lock of Tenure on a name made of the server's process and the instant at which
//! that process was started. The lock ends with the guard, or with its lease; a process that was
//! started later under the same number has another name. When a waiter looks for a deadlock, the
//! engine reads `pg_blocking_pids` for the processes that were named so.

use tenure::engine::postgres::client::to_error;
use tenure::{Error, ErrorKind, LockSetGuard, Owner, Tenure};
use tokio_postgres::Client;

/// The process of the server that serves a connection, and when it was started, in microseconds.
const SELF: &str = "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint \
                    FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// An owner is named as the user of a connection until this is dropped or released.
#[derive(Debug)]
#[must_use = "the owner is named as long as this lives"]
pub struct NamedBackend(LockSetGuard);

impl NamedBackend {
    /// Ends it, and returns when the store has confirmed that.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached: then it ends with its lease.
    ///
    /// # Cancel safety
    /// Dropping the future releases in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }
}

/// Says that an owner uses your connection, so that a deadlock is reported that goes partly through
/// locks of the database: rows, tables, advisory locks. One wait of it is in Tenure, one in the
/// database; PostgreSQL sees the one, Tenure the other. With the names of both connections Tenure
/// reports the whole circle: in the log, as [`Event::Deadlock`](tenure::Event::Deadlock), and in
/// the error of a wait that times out. No wait is refused.
///
/// The session has to be one with the same server (`postgres:`). Its role sees the connections of
/// other roles only as a member of `pg_read_all_stats`. Behind a transaction pooler a connection
/// has no process of its own: do not name it there. What owner it is says the caller: a
/// [`scope`](tenure::scope) has one ([`Owner::current`]).
///
/// # Errors
/// [`ErrorKind::InvalidOption`] if the session is not one with a PostgreSQL; otherwise if the
/// server refuses, or the store cannot be reached.
///
/// # Cancel safety
/// May be dropped at any time: nothing is named then.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use tokio_postgres::Client;
/// # async fn example(tenure: tenure::Tenure, mut client: Client) -> Result<(), Box<dyn Error>> {
/// use tenure::Owner;
/// use tenure_postgres::name_backend;
///
/// let owner = Owner::new();
/// let _named = name_backend(&tenure, &client, &owner).await?;
/// let transaction = client.transaction().await?;
/// transaction.execute("UPDATE account SET balance = 0 WHERE id = 1", &[]).await?;
/// // Another flow may hold this lock and wait for the row: a report names both.
/// let lock = tenure.mutex("report")?.owner(&owner).lock().await?;
/// # Ok(()) }
/// ```
pub async fn name_backend(
    tenure: &Tenure,
    client: &Client,
    owner: &Owner,
) -> Result<NamedBackend, Error> {
    if tenure.promises().engine != "postgres" {
        let what = "connections can be named in a session with a PostgreSQL only";
        return Err(Error::new(ErrorKind::InvalidOption, what));
    }
    let row = client.query_one(SELF, &[]).await.map_err(|error| to_error(&error))?;
    let named = tenure.name_backend(owner, row.get(0), row.get(1)).await?;
    Ok(NamedBackend(named))
}

//! Writes in a transaction of the caller's own that carry their fence. Knows statements, not
//! locks.

use std::error::Error as StdError;
use std::fmt;

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::{REFUSED, SETTING};
use crate::names::{Table, quoted};
use crate::rows::RowKey;
use tenure::contract::{Error, ErrorKind, Fence};
use tenure::engine::postgres::client::to_error;

/// A table whose rows keep the largest fence that wrote them, and refuse a smaller one.
///
/// The column of the fence is a `bigint NOT NULL DEFAULT 0`.
///
/// # Examples
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client, guard: tenure::MutexGuard)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_postgres::FencedTable;
///
/// let accounts = FencedTable::new("account", "id");
/// let transaction = client.transaction().await?;
/// let (amount, fence) = (100_i64, guard.fence()?);
/// accounts.update(&transaction, "balance = balance - $1", &[&amount], &17_i64, fence).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FencedTable {
    table: Table,
    key: String,
    fence: String,
}

impl FencedTable {
    /// This table, with rows known by this column. The fence is in the column `fence`.
    #[must_use]
    pub fn new(table: impl Into<Table>, key: &str) -> Self {
        Self { table: table.into(), key: quoted(key), fence: quoted("fence") }
    }

    /// The fence is in another column.
    #[must_use]
    pub fn fence_in(mut self, column: &str) -> Self {
        self.fence = quoted(column);
        self
    }

    /// Raises the fence of a row and locks the row, in your own transaction. Whatever the
    /// transaction then does to the row, no smaller fence has written meanwhile, and none will
    /// after the commit.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with [`Stale`] as its cause if the row has a larger fence;
    /// [`ErrorKind::InvalidOption`] if there is no such row; otherwise if the server refuses.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the statement may be done all the same. Roll back to be sure.
    pub async fn raise<K: RowKey>(
        &self,
        transaction: &Transaction<'_>,
        key: &K,
        fence: Fence,
    ) -> Result<(), Error> {
        let number = number(fence)?;
        let Self { table, key: column, fence: fenced } = self;
        let text = format!(
            "UPDATE {table} SET {fenced} = $2 WHERE {column} = $1 AND {fenced} <= $2 RETURNING true"
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(key, K::ONE), (&number, Type::INT8)];
        let rows =
            transaction.query_typed(&text, &parameters).await.map_err(|error| told(&error))?;
        if rows.is_empty() { Err(self.refusal(transaction, key, fence).await) } else { Ok(()) }
    }

    /// Changes a row in your own transaction, if it has no larger fence:
    /// `UPDATE .. SET .., fence = .. WHERE key = .. AND fence <= ..`. What is set names its
    /// parameters `$1`, `$2`, ..
    ///
    /// # Errors
    /// As [`raise`](Self::raise). Nothing is changed then.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the statement may be done all the same. Roll back to be sure.
    pub async fn update<K: RowKey>(
        &self,
        transaction: &Transaction<'_>,
        set: &str,
        parameters: &[&(dyn ToSql + Sync)],
        key: &K,
        fence: Fence,
    ) -> Result<(), Error> {
        let number = number(fence)?;
        let Self { table, key: column, fence: fenced } = self;
        let (at_key, at_fence) = (parameters.len() + 1, parameters.len() + 2);
        let text = format!(
            "UPDATE {table} SET {set}, {fenced} = ${at_fence} \
             WHERE {column} = ${at_key} AND {fenced} <= ${at_fence}"
        );
        let mut all = parameters.to_vec();
        all.extend([key as &(dyn ToSql + Sync), &number]);
        let changed = transaction.execute(&text, &all).await.map_err(|error| told(&error))?;
        if changed == 0 { Err(self.refusal(transaction, key, fence).await) } else { Ok(()) }
    }

    /// Why no row was changed.
    async fn refusal<K: RowKey>(
        &self,
        transaction: &Transaction<'_>,
        key: &K,
        fence: Fence,
    ) -> Error {
        let Self { table, key: column, fence: fenced } = self;
        let text = format!("SELECT {fenced} FROM {table} WHERE {column} = $1");
        let stands = transaction.query_typed(&text, &[(key, K::ONE)]).await;
        let stands = stands.and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
        match stands {
            Err(error) => told(&error),
            Ok(None) => {
                let what = format!("{table} has no row with {column} {key:?}");
                Error::new(ErrorKind::InvalidOption, what).with_help("insert it first")
            }
            Ok(Some(stands)) => Stale { ours: fence, stands: read(stands) }.into(),
        }
    }
}

/// States the fence of a transaction, or of what it does next, for tables with the trigger of
/// [`fence_trigger_sql`](super::fence_trigger_sql). Ends with the transaction.
///
/// # Errors
/// If the server refuses.
///
/// # Cancel safety
/// May be dropped at any time; the fence may be stated all the same.
pub async fn state_fence(transaction: &Transaction<'_>, fence: Fence) -> Result<(), Error> {
    let text = format!("SELECT set_config('{SETTING}', '{}', true)", number(fence)?);
    transaction.batch_execute(&text).await.map_err(|error| told(&error))
}

/// A writer came too late: another holder has written with a larger fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The fence of the writer that is refused.
    pub ours: Fence,
    /// The fence that the row has.
    pub stands: Fence,
}

impl Stale {
    /// What an error of the server is about, if the trigger of a table refused.
    #[must_use]
    pub fn of(error: &tokio_postgres::Error) -> Option<Self> {
        let server = error.as_db_error().filter(|error| error.code().code() == REFUSED)?;
        let (ours, stands) = server.detail()?.split_once(' ')?;
        Some(Self { ours: read(ours.parse().ok()?), stands: read(stands.parse().ok()?) })
    }

    /// What an error of ours is about, if a row refused.
    #[must_use]
    pub fn in_error(error: &Error) -> Option<Self> {
        error.source()?.downcast_ref::<Self>().copied()
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the row was written with fence {}, ours is {}", self.stands, self.ours)
    }
}

impl StdError for Stale {}

impl From<Stale> for Error {
    fn from(stale: Stale) -> Self {
        Self::new(ErrorKind::Conflict, stale.to_string())
            .with_help(
                "the lock was lost, and another holder has written: roll back and take it again",
            )
            .caused_by(stale)
    }
}

/// What a refused statement means.
fn told(error: &tokio_postgres::Error) -> Error {
    Stale::of(error).map_or_else(|| to_error(error), Error::from)
}

/// As the server counts.
fn number(fence: Fence) -> Result<i64, Error> {
    i64::try_from(fence.get()).map_err(|_| {
        let what = format!("{fence} is no fence of Tenure: they stay below 2^53");
        Error::new(ErrorKind::InvalidOption, what).with_help("hand on what the guard says")
    })
}

fn read(number: i64) -> Fence {
    Fence::new(u64::try_from(number).unwrap_or_default())
}

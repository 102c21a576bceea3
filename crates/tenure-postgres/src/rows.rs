//! Rows of a table, locked in the order of their keys. Knows keys, not what is done with the
//! rows.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::types::{FromSqlOwned, ToSql, Type};

use super::advisory::{Waited, failed};
use super::names::{Table, quoted};
use super::own::Canceller;
use super::step::Step;
use tenure::Error;

/// A type that keys of rows have: `i16`, `i32`, `i64`, `String`, `uuid::Uuid`.
pub trait RowKey: ToSql + FromSqlOwned + Send + Sync + sealed::Sealed {
    /// What the server calls it.
    #[doc(hidden)]
    const ONE: Type;
    /// What the server calls several.
    #[doc(hidden)]
    const MANY: Type;
}

mod sealed {
    /// Not to be implemented elsewhere: the server must know the type.
    pub trait Sealed {}
}

macro_rules! keys {
    ($($rust:ty: $one:ident, $many:ident;)*) => {$(
        impl sealed::Sealed for $rust {}
        impl RowKey for $rust {
            const ONE: Type = Type::$one;
            const MANY: Type = Type::$many;
        }
    )*};
}

keys! {
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    String: TEXT, TEXT_ARRAY;
    uuid::Uuid: UUID, UUID_ARRAY;
}

/// Locks rows by their keys (`FOR UPDATE`) in your own transaction, in ascending order, whatever
/// the order they are given in: two transactions that lock through this never wait for each other
/// in a circle. Returns the keys that have a row, ascending.
///
/// The limit counts for each row that has to be waited for. Keys ascend as the server compares
/// them.
///
/// # Errors
/// [`ErrorKind::TimedOut`](tenure::ErrorKind::TimedOut) if a row stays locked,
/// [`ErrorKind::Deadlock`](tenure::ErrorKind::Deadlock) if others lock in another order; otherwise
/// if the server refuses. No row is locked by it then, and the transaction can go on, unless it
/// could not before.
///
/// # Cancel safety
/// May be dropped at any time: no row is locked by it then, and the transaction can go on, a
/// tenth of a second later. A cancellation that takes longer than that to reach the server may
/// end another statement of it.
///
/// # Fairness
/// The server's: waiters for a row are mostly served in their order.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use tokio_postgres::Client;
/// # async fn example(client: &mut Client) -> Result<(), Box<dyn Error>> {
/// use std::time::Duration;
///
/// use tenure_postgres::lock_rows;
///
/// let (transaction, limit) = (client.transaction().await?, Duration::from_secs(2));
/// let found = lock_rows(&transaction, "account", "id", &[17_i64, 4], limit).await?;
/// assert_eq!(found, [4, 17]);
/// # Ok(()) }
/// ```
pub async fn lock_rows<K: RowKey>(
    transaction: &Transaction<'_>,
    table: impl Into<Table>,
    column: &str,
    keys: &[K],
    within: Duration,
) -> Result<Vec<K>, Error> {
    let table = table.into();
    let column = quoted(column);
    // The rows are locked as they come out of the sort.
    let text = format!(
        "SELECT {column} FROM {table} WHERE {column} = ANY($1) ORDER BY {column} FOR UPDATE"
    );
    let canceller = Canceller::plain();
    let step = Step::begin(transaction, &canceller, Some(within));
    let answer = transaction.query_typed(&text, &[(&keys, K::MANY)]).await;
    let found = answer.and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect());
    match found {
        Ok(found) => {
            step.keep();
            Ok(found)
        }
        Err(error) => {
            step.undo();
            let what = format!("a row of {table}");
            Err(failed(&error, &Waited { what: &what, limit: Some(within) }))
        }
    }
}

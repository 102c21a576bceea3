//! Transactions that are repeated when the server ends them for the sake of others.
//!
//! A serializable transaction may be ended because it and others cannot have run one after the
//! other (`40001`), and any transaction because of a deadlock (`40P01`). Both have left nothing
//! behind, and are meant to be repeated. Everything else is not: above all not a COMMIT whose own
//! answer is missing, because it may have been done.

use std::collections::hash_map::RandomState;
use std::error::Error as StdError;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, Transaction};

/// How many times a transaction is begun at most.
const TRIES: u32 = 16;
/// The longest pause between two of them.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// An error in which the answer of the server can be found.
pub trait RetryCause {
    /// The error of the server that caused this one.
    fn postgres_error(&self) -> Option<&tokio_postgres::Error>;
}

impl RetryCause for tokio_postgres::Error {
    fn postgres_error(&self) -> Option<&tokio_postgres::Error> {
        Some(self)
    }
}

impl RetryCause for Box<dyn StdError + Send + Sync> {
    fn postgres_error(&self) -> Option<&tokio_postgres::Error> {
        find(&**self)
    }
}

fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a tokio_postgres::Error> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Runs a transaction, and runs it again if the server ended it for the sake of others: after a
/// serialization failure (`40001`) or a deadlock (`40P01`), with a pause that grows and has jitter,
/// up to 16 times. Commits if the work returns `Ok`, and rolls back if it returns an error.
///
/// The work may run several times: everything it does outside of the transaction is done as often.
///
/// # Errors
/// What the work returns; the error of the server if it goes on to end the transaction, or refuses
/// the COMMIT for another reason. If the answer to COMMIT is missing, the error is returned and
/// nothing is repeated: the transaction may have been committed.
///
/// # Cancel safety
/// Dropping the future rolls back, or, during COMMIT, leaves open which of the two was done.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use tokio_postgres::{Client, IsolationLevel};
/// # async fn example(client: &mut Client) -> Result<(), Box<dyn Error + Send + Sync>> {
/// use tenure_postgres::retrying;
///
/// let work = async |tx: &tokio_postgres::Transaction<'_>| {
///     let sum: i64 = tx.query_one("SELECT sum(balance) FROM account", &[]).await?.get(0);
///     tx.execute("INSERT INTO audit VALUES ($1)", &[&sum]).await?;
///     Ok::<_, Box<dyn Error + Send + Sync>>(sum)
/// };
/// let sum = retrying(client, IsolationLevel::Serializable, work).await?;
/// # Ok(()) }
/// ```
pub async fn retrying<T, E>(
    client: &mut Client,
    isolation: IsolationLevel,
    mut work: impl AsyncFnMut(&Transaction<'_>) -> Result<T, E>,
) -> Result<T, E>
where
    E: RetryCause + From<tokio_postgres::Error>,
{
    for tries in 1.. {
        let transaction = client.build_transaction().isolation_level(isolation).start().await?;
        let error = match work(&transaction).await {
            Ok(value) => match transaction.commit().await {
                Ok(()) => return Ok(value),
                Err(error) => E::from(error),
            },
            Err(error) => {
                // A connection that is gone has rolled back by itself.
                let _ = transaction.rollback().await;
                error
            }
        };
        if tries >= TRIES || !error.postgres_error().is_some_and(may_be_repeated) {
            return Err(error);
        }
        tracing::debug!(tries, "transaction ended by the server; trying again");
        tokio::time::sleep(pause(tries)).await;
    }
    unreachable!("the loop returns")
}

/// Whether the server says that the transaction was ended for the sake of others. An error without
/// a code is not an answer of the server.
fn may_be_repeated(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
        || code == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Full jitter: any time up to 2 ms, 4 ms, ... 100 ms.
fn pause(tries: u32) -> Duration {
    let most = Duration::from_millis(1 << tries.min(10)).min(MAX_PAUSE);
    let chance = RandomState::new().build_hasher().finish() % 1_024;
    most * u32::try_from(chance).unwrap_or(0) / 1_024
}

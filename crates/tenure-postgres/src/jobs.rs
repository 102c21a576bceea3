//! Jobs in a transaction of the caller's own: pushed with what the transaction writes, and
//! completed with the effect of the attempt. Each call is one statement over the SQL functions
//! `push_job` and `complete_job` of Tenure's schema, which `docs/jobs.md` describes for every
//! language.
//!
//! Schema, namespace and queue come from the queue or the job, so that they cannot be wrong.
//! Nothing in a client says to which database it is connected; so each statement compares the
//! database, and does nothing if it is another one than that of the queue: the jobs would be in a
//! queue that no worker of this one sees.

use std::sync::Arc;

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use tenure::contract::{SqlPlace, Verb};
use tenure::engine::postgres::client::to_error;
use tenure::{Error, ErrorKind, Job, JobDue, JobId, JobQueue, KeyMode, Name, NewJob};

/// The code by which `complete_job` refuses an attempt that is not the current one.
const STALE: &str = "TNJ01";
/// Later due times are cut to this one, in the year 2112: SQL multiplies larger numbers of
/// microseconds inexactly.
const MAX_MICROS: u64 = 1 << 52;

/// A parameter of a statement and its type.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Pushes a job in a transaction of the caller's own. The job is there when the transaction
/// commits, and wakes a sleeping worker then; if it is rolled back, there is no job. Returns its
/// number, or that of the job that has its [key](NewJob::key) and stands for it.
///
/// The transaction may be of any isolation level; one that is above READ COMMITTED may be ended
/// with `40001` for a job with a key, which [`retrying`](crate::retrying) repeats. Until it ends,
/// other pushes of the same key wait for it.
///
/// # Errors
/// [`ErrorKind::InvalidOption`] if the job is outside the limits, or if the transaction is in
/// another database than the queue; [`ErrorKind::Unsupported`] if the queue is not in a PostgreSQL,
/// or if the transaction's database has no queues of this version; otherwise if the server refuses.
/// After an error of the server the transaction can only be rolled back.
///
/// # Cancel safety
/// May be dropped at any time; the job may be pushed all the same. Roll back to be sure.
///
/// # Examples
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client, queue: tenure::JobQueue)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::NewJob;
/// use tenure_postgres::push_in;
///
/// let transaction = client.transaction().await?;
/// transaction.execute("INSERT INTO account (name) VALUES ('ann')", &[]).await?;
/// push_in(&transaction, &queue, NewJob::new("welcome ann").priority(7)).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
pub async fn push_in(
    transaction: &Transaction<'_>,
    queue: &JobQueue,
    job: impl Into<NewJob>,
) -> Result<JobId, Error> {
    let job: NewJob = job.into();
    let about = |error: Error| error.during(Verb::Job).on(queue.name());
    let place = place(queue.sql_place()).map_err(about)?;
    job.check_limits().map_err(about)?;
    let (expression, database) = &place.database;
    let schema = &place.schema;
    // An interval is exact in microseconds; `to_timestamp` is not.
    let text = format!(
        "SELECT CASE WHEN d.same THEN {schema}.push_job($2, $3, $4, $5, \
         CASE WHEN $6 IS NOT NULL THEN clock_timestamp() + $6 * interval '1 microsecond' \
         ELSE timestamptz 'epoch' + $7 * interval '1 microsecond' END, \
         $8, $9, $10, $11, $12, $13 * interval '1 microsecond', \
         $14 * interval '1 microsecond') END, d.same \
         FROM (SELECT {expression} = $1 AS same OFFSET 0) d"
    );
    let (delay, at) = match job.due {
        JobDue::In(delay) if delay.is_zero() => (None, None),
        JobDue::In(delay) => (Some(micros(delay)), None),
        JobDue::At(at) => (None, Some(bigint(at.min(MAX_MICROS)))),
    };
    let mode = match job.key.as_ref().map(|key| key.mode).unwrap_or_default() {
        KeyMode::UntilStarted => "started",
        KeyMode::UntilDone => "done",
        KeyMode::Replace => "replace",
    };
    let key = job.key.as_ref().map(|key| key.key.as_str());
    let lane = job.lane.as_ref().map(|lane| lane.name.as_str());
    let limit = job.lane.as_ref().map_or(1, |lane| int(lane.limit));
    let (namespace, name) = (place.namespace.as_str(), queue.name().as_str());
    let (priority, attempts) = (i32::from(job.priority), int(job.max_attempts));
    let (first, most) = (micros(job.back_off.first), micros(job.back_off.most));
    let parameters: [Parameter<'_>; 14] = [
        (database, Type::TEXT),
        (&namespace, Type::TEXT),
        (&name, Type::TEXT),
        (&job.payload, Type::BYTEA),
        (&priority, Type::INT4),
        (&delay, Type::INT8),
        (&at, Type::INT8),
        (&key, Type::TEXT),
        (&mode, Type::TEXT),
        (&lane, Type::TEXT),
        (&limit, Type::INT4),
        (&attempts, Type::INT4),
        (&first, Type::INT8),
        (&most, Type::INT8),
    ];
    let done = call(transaction, &place, &text, &parameters).await.map_err(about)?;
    let number: i64 = done.try_get(0).map_err(|error| about(to_error(&error)))?;
    u64::try_from(number).map(JobId).map_err(|_| {
        about(Error::new(ErrorKind::Corrupt, format!("{number} is not the number of a job")))
    })
}

/// Completes the attempt of a handler in a transaction of its own: the attempt ends with the
/// commit, together with what the transaction has written, and not at all if it is rolled back. So
/// the effect of the job in this database is made exactly once, however often it is attempted.
///
/// Commit before the handler returns, and return its error if there is one. From this call on, `Ok`
/// of the handler means that the transaction was committed; if it was not, the attempt counts as
/// failed and the job is tried again. While the transaction is open the job stays with this worker,
/// even if the worker is lost meanwhile.
///
/// # Errors
/// [`ErrorKind::Lost`] if the attempt is not the current one: then another worker has the job, or
/// it is done, and the transaction has to be rolled back. Otherwise as [`push_in`].
///
/// # Cancel safety
/// May be dropped at any time; the attempt may be completed in the transaction all the same. Roll
/// back to be sure.
///
/// # Examples
/// ```no_run
/// # async fn example(queue: tenure::JobQueue, url: &str) -> Result<(), tenure::Error> {
/// use tenure_postgres::complete_in;
///
/// queue.work(4, |job| async move {
///     let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
///     tokio::spawn(connection);
///     let transaction = client.transaction().await?;
///     let name = std::str::from_utf8(job.payload())?;
///     transaction.execute("INSERT INTO sent (name) VALUES ($1)", &[&name]).await?;
///     complete_in(&transaction, &job).await?;
///     transaction.commit().await?;
///     Ok(())
/// }).await
/// # }
/// ```
pub async fn complete_in(transaction: &Transaction<'_>, job: &Job) -> Result<(), Error> {
    let about = |error: Error| error.during(Verb::Job).on(job.queue());
    let place = place(job.sql_place()).map_err(about)?;
    let (id, fence) = (bigint(job.id().0), bigint(job.fence()?.get()));
    // Before the statement: it may be done even if this future is dropped.
    job.completes_in_transaction();
    complete(transaction, &place, job.queue(), id, fence).await.map_err(about)
}

async fn complete(
    transaction: &Transaction<'_>,
    place: &SqlPlace,
    queue: &Name,
    id: i64,
    fence: i64,
) -> Result<(), Error> {
    let SqlPlace { schema, namespace, database: (expression, database) } = place;
    // The function returns void, which has no value of its own.
    let text = format!(
        "SELECT CASE WHEN d.same THEN {schema}.complete_job($2, $3, $4, $5)::text END, d.same \
         FROM (SELECT {expression} = $1 AS same OFFSET 0) d"
    );
    let parameters: [Parameter<'_>; 5] = [
        (database, Type::TEXT),
        (&namespace.as_str(), Type::TEXT),
        (&queue.as_str(), Type::TEXT),
        (&id, Type::INT8),
        (&fence, Type::INT8),
    ];
    call(transaction, place, &text, &parameters).await.map(drop)
}

fn place(place: Option<Arc<SqlPlace>>) -> Result<Arc<SqlPlace>, Error> {
    place.ok_or_else(|| {
        let what = "the queue is not in a PostgreSQL, so that no transaction there can change it";
        Error::new(ErrorKind::Unsupported, what).with_help(
            "connect to the queue by the URL of the transaction's database; elsewhere push the job \
             after the commit, with a unique key",
        )
    })
}

/// Runs a statement, and returns its row. The second column is whether the transaction is in the
/// database of the queue.
async fn call(
    transaction: &Transaction<'_>,
    place: &SqlPlace,
    text: &str,
    parameters: &[Parameter<'_>],
) -> Result<tokio_postgres::Row, Error> {
    let rows = transaction.query_typed(text, parameters).await;
    let row = rows.map_err(|error| refused(error, place))?.pop();
    let row = row.ok_or_else(|| Error::new(ErrorKind::Corrupt, "no reply to a statement"))?;
    if row.try_get::<_, bool>(1).map_err(|error| to_error(&error))? {
        return Ok(row);
    }
    let what = "the transaction is in another database than the queue";
    let help = "begin it in the database that the queue was connected to";
    Err(Error::new(ErrorKind::InvalidOption, what).with_help(help))
}

/// Converts the error of a statement. None of them outlives the transaction.
fn refused(error: tokio_postgres::Error, place: &SqlPlace) -> Error {
    let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let converted = match error.code() {
        Some(code) if code.code() == STALE => Error::new(ErrorKind::Lost, said)
            .with_help("roll back: another worker has the job, or it is done"),
        Some(&SqlState::INVALID_PARAMETER_VALUE) => Error::new(ErrorKind::InvalidOption, said),
        Some(
            &SqlState::UNDEFINED_FUNCTION
            | &SqlState::INVALID_SCHEMA_NAME
            | &SqlState::UNDEFINED_TABLE,
        ) => {
            let schema = &place.schema;
            let what =
                format!("the transaction's database has no queues in schema {schema}: {said}");
            Error::new(ErrorKind::Unsupported, what).with_help(
                "begin the transaction in the database of the queue, and use one version of Tenure",
            )
        }
        _ => to_error(&error),
    };
    converted.caused_by(error)
}

fn micros(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
